//! Which node, which exchange, and how events are encoded.

use std::fmt;
use std::path::Path;

use secrecy::{ExposeSecret, SecretString};

use super::super::net::ServerAddress;
use super::super::{Mode, Template};
use crate::{Error, ErrorKind, Result, secret};

/// The default size limit of an event: the default of the newest servers.
const EVENT_BYTES_MAX: usize = 16 << 20;

/// Where and how a [`RabbitMqSink`](super::RabbitMqSink) sends events. `Debug` shows no password.
#[derive(Clone)]
pub struct RabbitMqConfig {
    pub(super) address: ServerAddress,
    password: Option<SecretString>,
    pub(super) exchange: String,
    pub(super) routing_key: Template,
    pub(super) mode: Mode,
    pub(super) event_bytes_max: usize,
    pub(super) source: String,
}

impl RabbitMqConfig {
    /// A node such as `amqp://user@host:5672/vhost`; `source` is the `CloudEvents` attribute, such as `/outbox/orders`. The default vhost
    /// is `/`, the default exchange `outbox`, the default routing key `{aggregatetype}.{aggregateid}`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`]: the address is invalid, contains a password, or requires TLS, which this sink does not support.
    pub fn from_url(url: &str, source: impl Into<String>) -> Result<Self> {
        let address = ServerAddress::parse(url, "RabbitMQ", [("amqp", 5672), ("amqps", 5671)])?;
        if address.tls {
            let text = "the RabbitMQ sink has no TLS yet: write amqp://, and only in a network that you trust or through a tunnel";
            return Err(Error::new(ErrorKind::Settings, text));
        }
        Ok(Self {
            address,
            password: None,
            exchange: "outbox".into(),
            routing_key: Template::parse("{aggregatetype}.{aggregateid}")?,
            mode: Mode::Binary,
            event_bytes_max: EVENT_BYTES_MAX,
            source: source.into(),
        })
    }

    /// The password of the address's user.
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
        let password = secret::in_file(path, "the file with the RabbitMQ sink's password")?;
        Ok(self.password(password))
    }

    /// The exchange that receives events; it must exist. The empty name is the default exchange, whose routing keys are names of queues.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`]: it is longer than 255 bytes.
    pub fn exchange(self, exchange: impl Into<String>) -> Result<Self> {
        let exchange = exchange.into();
        if exchange.len() > 255 {
            return Err(Error::new(ErrorKind::Settings, "the exchange of the RabbitMQ sink has a name of more than 255 bytes"));
        }
        Ok(Self { exchange, ..self })
    }

    /// The routing key of an event.
    #[must_use]
    pub fn routing_key(self, routing_key: Template) -> Self {
        Self { routing_key, ..self }
    }

    /// How an event is encoded.
    #[must_use]
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// The largest event in bytes, 16 MiB by default: the server closes the channel when a message exceeds its `max_message_size`.
    #[must_use]
    pub fn event_bytes_max(self, bytes: usize) -> Self {
        Self { event_bytes_max: bytes, ..self }
    }

    pub(super) fn secret(&self) -> &str {
        self.password.as_ref().map_or("", ExposeSecret::expose_secret)
    }
}

impl fmt::Debug for RabbitMqConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RabbitMqConfig");
        shown.field("place", &self.address.place()).field("user", &self.address.user).field("exchange", &self.exchange);
        shown.finish_non_exhaustive()
    }
}
