//! Which server, which streams, and how events are encoded.

use std::fmt;
use std::path::Path;

use secrecy::{ExposeSecret, SecretString};

use super::super::net::ServerAddress;
use super::super::{Mode, Template, TlsFiles};
use crate::{Error, ErrorKind, Result, secret};

/// The default size limit of an event.
const EVENT_BYTES_MAX: usize = 16 << 20;

/// Where and how a [`RedisSink`](super::RedisSink) sends events. `Debug` shows no password.
#[derive(Clone)]
pub struct RedisConfig {
    pub(super) address: ServerAddress,
    pub(super) database: i64,
    password: Option<SecretString>,
    pub(super) tls: TlsFiles,
    pub(super) stream: Template,
    pub(super) mode: Mode,
    pub(super) length_max: Option<u64>,
    pub(super) event_bytes_max: usize,
    pub(super) source: String,
}

impl RedisConfig {
    /// A Redis or Valkey server, such as `redis://user@host:6379/0`, or `rediss://` with TLS; `source` is the `CloudEvents` attribute,
    /// such as `/outbox/orders`. The default stream is `outbox.{aggregatetype}.{aggregateid}`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`]: the address is invalid, or contains a password.
    pub fn from_url(url: &str, source: impl Into<String>) -> Result<Self> {
        let address = ServerAddress::parse(url, "Redis", [("redis", 6379), ("rediss", 6379)])?;
        let database = if address.path.is_empty() { Ok(0) } else { address.path.parse() };
        let database = database.map_err(|_| {
            let text =
                format!("the address of the Redis sink has {:?} behind the slash, which must be the number of a database", address.path);
            Error::new(ErrorKind::Settings, text)
        })?;
        Ok(Self {
            address,
            database,
            password: None,
            tls: TlsFiles::default(),
            stream: Template::parse("outbox.{aggregatetype}.{aggregateid}")?,
            mode: Mode::Binary,
            length_max: None,
            event_bytes_max: EVENT_BYTES_MAX,
            source: source.into(),
        })
    }

    /// The password of the address's user or of the server.
    #[must_use]
    pub fn password(self, password: impl Into<String>) -> Self {
        Self { password: Some(password.into().into()), ..self }
    }

    /// The same from a file, without its last newline.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`]: it cannot be read or used.
    pub fn password_file(self, path: &Path) -> Result<Self> {
        let password = secret::in_file(path, "the file with the Redis sink's password")?;
        Ok(self.password(password))
    }

    /// The trusted CA, and this client's own certificate.
    #[must_use]
    pub fn tls(self, tls: TlsFiles) -> Self {
        Self { tls, ..self }
    }

    /// The stream of an event. The fields in its name decide what the stream refuses:
    ///
    /// | the template has | ids | a repeated event | a publisher that lost its slot |
    /// |---|---|---|---|
    /// | `{aggregatetype}` and `{aggregateid}`, separated by a sign such as a dot, neither `{type}` nor `{id}` | `sequence-0` | is
    /// recognized and not added again | cannot go back |
    /// | else `{shardslot}` | `epoch-N` | is added again | is refused |
    /// | neither | the server's | is added again | is not noticed |
    #[must_use]
    pub fn stream(self, stream: Template) -> Self {
        Self { stream, ..self }
    }

    /// How an event is encoded: attributes as fields of the entry and the payload as `data`, or the whole event as JSON in the field
    /// `event`.
    #[must_use]
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// The approximate number of newest entries that a stream keeps; all by default.
    #[must_use]
    pub fn length_max(self, entries: Option<u64>) -> Self {
        Self { length_max: entries, ..self }
    }

    /// The largest event in bytes, 16 MiB by default: the server closes the connection when an event exceeds its `proto-max-bulk-len`.
    #[must_use]
    pub fn event_bytes_max(self, bytes: usize) -> Self {
        Self { event_bytes_max: bytes, ..self }
    }

    pub(super) fn secret(&self) -> Option<&str> {
        self.password.as_ref().map(ExposeSecret::expose_secret)
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RedisConfig");
        shown.field("place", &self.address.place()).field("user", &self.address.user).field("stream", &self.stream);
        shown.finish_non_exhaustive()
    }
}
