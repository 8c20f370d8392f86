//! Which server, which streams, and how events are encoded.

use secrecy::SecretString;

use super::super::net::ServerAddress;
use super::super::{Mode, Template, TlsFiles};
use crate::{Error, ErrorKind, Result};

/// Where and how a [`RedisSink`](super::RedisSink) sends events. `Debug` shows no password.
#[derive(Debug, Clone)]
pub struct RedisConfig {
    pub(super) address: ServerAddress,
    pub(super) database: i64,
    pub(super) password: Option<SecretString>,
    pub(super) source: String,
    /// The trusted CA, and this client's own certificate.
    pub tls: TlsFiles,
    /// The stream of an event, `outbox.{aggregatetype}.{aggregateid}` by default. The fields in its name decide what the stream refuses:
    ///
    /// | the template has | ids | a repeated event | a publisher that lost its slot |
    /// |---|---|---|---|
    /// | `{aggregatetype}` and `{aggregateid}`, separated by a sign such as a dot, neither `{type}` nor `{id}` | `sequence-0` | is
    /// recognized and not added again | cannot go back |
    /// | else `{shardslot}` | `epoch-N` | is added again | is refused |
    /// | neither | the server's | is added again | is not noticed |
    pub stream: Template,
    /// How an event is encoded: attributes as fields of the entry and the payload as `data`, or the whole event as JSON in the field
    /// `event`.
    pub mode: Mode,
    /// The approximate number of newest entries that a stream keeps; all by default.
    pub length_max: Option<u64>,
}

impl RedisConfig {
    /// A Redis or Valkey server, such as `redis://user@host:6379/0`, or `rediss://` with TLS; `source` is the `CloudEvents` attribute,
    /// such as `/outbox/orders`.
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
            source: source.into(),
            tls: TlsFiles::default(),
            stream: Template::parse("outbox.{aggregatetype}.{aggregateid}")?,
            mode: Mode::Binary,
            length_max: None,
        })
    }

    /// The password of the address's user or of the server.
    #[must_use]
    pub fn password(self, password: impl Into<String>) -> Self {
        Self { password: Some(password.into().into()), ..self }
    }
}
