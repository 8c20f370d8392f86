//! RabbitMQ, by AMQP 0.9.1.
//!
//! Order: an aggregate's next event is sent when the one before is confirmed, because a queue may refuse a message and accept the next
//! one, and a confirmation may be lost with the connection.

mod config;
mod connection;
mod stream;

use std::sync::Arc;

use async_trait::async_trait;
use lapin::options::ExchangeDeclareOptions;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use lapin::{BasicProperties, Confirmation, ExchangeKind};
use secrecy::ExposeSecret;
use tokio::time::timeout;

pub use self::config::RabbitMqConfig;
use self::connection::{OpenFailure, RabbitMqConnection};
use super::connection::{ANSWER_WITHIN, Connection, words};
use super::message::BrokerMessage;
use super::net::connect_error;
use super::{Acceptance, Refusal, Sink, SinkLimits, side_by_side};
use crate::{Delivery, Error, ErrorKind, Result};

/// The server's codes for a wrong user or password, for a missing right, and for a missing exchange.
const ACCESS_REFUSED: u16 = 403;
const NOT_ALLOWED: u16 = 530;
const NOT_FOUND: u16 = 404;
/// Stored on disk, if the queue is durable.
const PERSISTENT: u8 = 2;
/// The most bytes of the protocol's short string.
const SHORT_BYTES_MAX: usize = 255;
/// The bytes of a frame of properties besides headers and texts: lengths, flags, numbers.
const FRAME_OVERHEAD: usize = 64;
/// The size limit of an event, the default of the newest servers: a server closes the channel when one exceeds its `max_message_size`.
const EVENT_BYTES_MAX: usize = 16 << 20;
/// What an operator should check when nothing is confirmed.
const SHORT_OF: &str = "the server may be short of memory or disk";

/// Publishes events to a RabbitMQ exchange, as `CloudEvents`; an event is accepted once it is confirmed and has reached a queue.
#[derive(Debug)]
pub struct RabbitMqSink {
    config: RabbitMqConfig,
    name: String,
    connection: Connection<RabbitMqConnection>,
}

impl RabbitMqSink {
    /// Creates a sink that connects when it is used.
    pub fn new(config: RabbitMqConfig) -> Self {
        let name = format!("rabbitmq {} exchange {:?}", config.address.place(), config.exchange);
        Self { config, name, connection: Connection::default() }
    }

    async fn live(&self) -> Result<Arc<RabbitMqConnection>> {
        let live = self.connection.get(RabbitMqConnection::is_broken, self.open()).await?;
        if live.is_blocked() { Err(self.unavailable("takes no events now: give it more memory or disk")) } else { Ok(live) }
    }

    async fn open(&self) -> Result<RabbitMqConnection> {
        match timeout(2 * ANSWER_WITHIN, self.connect()).await {
            Ok(opened) => opened.map_err(|failure| self.failed(failure)),
            Err(_) => Err(self.unavailable("does not answer")),
        }
    }

    fn unavailable(&self, what: &str) -> Error {
        Error::new(ErrorKind::Unavailable, format!("RabbitMQ at {} {what}", self.config.address.place()))
    }

    async fn connect(&self) -> Result<RabbitMqConnection, OpenFailure> {
        let address = &self.config.address;
        let username = address.user.clone().unwrap_or_else(|| "guest".into());
        let password = self.config.password.as_ref().map_or("", ExposeSecret::expose_secret).to_owned();
        let userinfo = AMQPUserInfo { username, password };
        let uri = AMQPUri {
            scheme: if address.tls { AMQPScheme::AMQPS } else { AMQPScheme::AMQP },
            authority: AMQPAuthority { userinfo, host: address.host.clone(), port: address.port },
            vhost: if address.path.is_empty() { "/".into() } else { address.path.replace("%2F", "/").replace("%2f", "/") },
            query: AMQPQueryString { heartbeat: Some(10), ..AMQPQueryString::default() },
        };
        let files = address.tls.then_some(&self.config.tls);
        let live = RabbitMqConnection::open(uri, files, ANSWER_WITHIN).await?;
        if !self.config.exchange.is_empty() {
            let asks = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
            // A passive declaration ignores the exchange's kind.
            live.channel().await?.exchange_declare(self.exchange(), ExchangeKind::Topic, asks, FieldTable::default()).await?;
        }
        Ok(live)
    }

    fn exchange(&self) -> ShortString {
        ShortString::try_new(self.config.exchange.clone()).unwrap_or_default()
    }

    fn failed(&self, failure: OpenFailure) -> Error {
        let (place, exchange) = (self.config.address.place(), &self.config.exchange);
        let error = match failure {
            OpenFailure::Connect(failure) => return connect_error(&format!("RabbitMQ at {place}"), failure),
            OpenFailure::Amqp(error) => error,
        };
        match code_of(&error) {
            ACCESS_REFUSED | NOT_ALLOWED => {
                let text = format!(
                    "RabbitMQ at {place} does not accept this user and password, or gives them no right to {exchange}: \
                     correct the user in sink and the password in sink_password_file, and restart the publisher"
                );
                Error::new(ErrorKind::Denied, text)
            }
            NOT_FOUND => Error::new(ErrorKind::Missing, format!("RabbitMQ at {place} has no exchange {exchange}: declare it")),
            _ => self.unavailable(&format!("cannot be used: {}", words(&error))),
        }
    }

    async fn publish(&self, live: &RabbitMqConnection, event: &Delivery) -> Result<(), Refusal> {
        let permanent = |what: String| Err(Refusal::permanent(format!("{}: {what}", self.name)));
        let routing_key = self.config.routing_key.render(event);
        if routing_key.len() > SHORT_BYTES_MAX {
            return permanent(format!("the event's routing key has {} bytes, and {SHORT_BYTES_MAX} are allowed", routing_key.len()));
        }
        let message = BrokerMessage::new(event, &self.config.source, self.config.mode);
        if message.body.len() > EVENT_BYTES_MAX {
            return permanent(format!("the event has {} bytes, and {EVENT_BYTES_MAX} are allowed", message.body.len()));
        }
        let key = ShortString::try_new(routing_key.clone()).unwrap_or_default();
        let (properties, header_bytes) = properties(event, &message);
        if header_bytes > live.frame_bytes_max() {
            let most = live.frame_bytes_max();
            return permanent(format!(
                "the event's headers have {header_bytes} bytes, and the server takes {most}: send fewer, or structured"
            ));
        }
        let refused = |what: String| Err(Refusal::retryable(format!("{}: {what}", self.name)));
        let turn = match timeout(ANSWER_WITHIN, live.turn()).await {
            Ok(Ok(Some(turn))) if !live.is_blocked() => turn,
            Ok(Ok(_)) => return refused(format!("it takes no events now: {SHORT_OF}")),
            Ok(Err(error)) => return refused(words(&error)),
            Err(_) => return refused(format!("no channel is free within {ANSWER_WITHIN:?}: it answers slowly")),
        };
        match timeout(ANSWER_WITHIN, turn.publish(self.exchange(), key, &message.body, properties)).await {
            Ok(Ok(Confirmation::Ack(None))) => Ok(()),
            Ok(Ok(Confirmation::Ack(Some(_)) | Confirmation::Nack(Some(_)))) => {
                refused(format!("no queue takes the routing key {routing_key}: bind one"))
            }
            Ok(Ok(Confirmation::Nack(None))) => refused("a queue refuses it: it is full, or has trouble".into()),
            Ok(Ok(Confirmation::NotRequested)) => refused("the server confirms nothing".into()),
            Ok(Err(error)) if matches!(code_of(&error), ACCESS_REFUSED | NOT_ALLOWED) => {
                refused(format!("{}: give the user in sink the right to write to the exchange", words(&error)))
            }
            Ok(Err(error)) => refused(words(&error)),
            Err(_) => refused(format!("it has not confirmed within {ANSWER_WITHIN:?}: {SHORT_OF}")),
        }
    }
}

/// The server's code for an error of the protocol, 0 for another one.
fn code_of(error: &lapin::Error) -> u16 {
    if let lapin::ErrorKind::ProtocolError(error) = error.kind() { error.get_id() } else { 0 }
}

/// The properties of a message, and the approximate size of their frame in bytes.
fn properties(event: &Delivery, message: &BrokerMessage) -> (BasicProperties, usize) {
    let short = |text: &str| ShortString::try_new(text.to_owned()).ok();
    let mut headers = FieldTable::default();
    let id = event.message_id();
    let texts = id.len() + event.event_type.len() + message.content_type.as_ref().map_or(0, String::len);
    let mut bytes = FRAME_OVERHEAD + texts;
    let mut add = |name: ShortString, value: &str| {
        // A length, a kind and another length.
        bytes += name.as_str().len() + value.len() + 6;
        headers.insert(name, AMQPValue::LongString(LongString::from(value)));
    };
    for (name, value) in &message.attributes {
        if let Some(name) = short(&format!("cloudEvents_{name}")) {
            add(name, value);
        }
    }
    for (name, value) in &message.trace {
        add(ShortString::from(*name), value);
    }
    let mut properties = BasicProperties::default().with_delivery_mode(PERSISTENT).with_headers(headers);
    // A replay's message id may be too long although the event's is not.
    if let Some(id) = short(&id).or_else(|| short(&event.id)) {
        properties = properties.with_message_id(id);
    }
    if let Some(name) = short(&event.event_type) {
        properties = properties.with_type(name);
    }
    if let Ok(seconds) = u64::try_from(event.created_at_unix_ms) {
        properties = properties.with_timestamp(seconds / 1_000);
    }
    if let Some(content_type) = message.content_type.as_deref().and_then(short) {
        properties = properties.with_content_type(content_type);
    }
    (properties, bytes)
}

#[async_trait]
impl Sink for RabbitMqSink {
    fn name(&self) -> &str {
        &self.name
    }

    /// As many concurrent sends as there are channels.
    fn limits(&self) -> SinkLimits {
        SinkLimits { batch_events: 500, concurrency: 2, ..SinkLimits::default() }
    }

    fn destination(&self, event: &Delivery) -> Option<String> {
        self.config.routing_key.destination(event)
    }

    async fn check(&self) -> Result<()> {
        self.live().await.map(drop)
    }

    async fn deliver(&self, batch: Arc<[Delivery]>) -> Acceptance {
        let live = match self.live().await {
            Ok(live) => live,
            Err(error) => return Acceptance::up_to(0, Refusal::retryable(error.to_string())),
        };
        let given_up = async {
            live.given_up().await;
            Refusal::retryable(format!("{}: the connection was given up, because an event on it was not confirmed: {SHORT_OF}", self.name))
        };
        side_by_side::deliver(&batch, |event| self.publish(&live, event), given_up).await
    }
}
