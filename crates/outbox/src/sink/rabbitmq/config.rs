//! Which node, which exchange, and how events are encoded.

use secrecy::SecretString;

use super::super::net::ServerAddress;
use super::super::{Mode, Template, TlsFiles};
use crate::{Error, ErrorKind, Result};

/// Where and how a [`RabbitMqSink`](super::RabbitMqSink) sends events. `Debug` shows no password.
#[derive(Debug, Clone)]
pub struct RabbitMqConfig {
    pub(super) address: ServerAddress,
    pub(super) password: Option<SecretString>,
    pub(super) source: String,
    pub(super) exchange: String,
    /// The trusted CA, and this client's own certificate, for `amqps://`.
    pub tls: TlsFiles,
    /// The routing key of an event, `{aggregatetype}.{aggregateid}` by default.
    pub routing_key: Template,
    /// How an event is encoded.
    pub mode: Mode,
}

impl RabbitMqConfig {
    /// A node such as `amqp://user@host:5672/vhost`, or `amqps://user@host:5671/vhost` with TLS; `source` is the `CloudEvents` attribute,
    /// such as `/outbox/orders`. The default vhost is `/`, the default exchange `outbox`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`]: the address is invalid, or contains a password.
    pub fn from_url(url: &str, source: impl Into<String>) -> Result<Self> {
        Ok(Self {
            address: ServerAddress::parse(url, "RabbitMQ", [("amqp", 5672), ("amqps", 5671)])?,
            password: None,
            source: source.into(),
            exchange: "outbox".into(),
            tls: TlsFiles::default(),
            routing_key: Template::parse("{aggregatetype}.{aggregateid}")?,
            mode: Mode::Binary,
        })
    }

    /// The password of the address's user.
    #[must_use]
    pub fn password(self, password: impl Into<String>) -> Self {
        Self { password: Some(password.into().into()), ..self }
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
}
