//! RabbitMQ, by AMQP 0.9.1.
//!
//! Order: an aggregate's next event is sent when the one before is confirmed. A queue may refuse a message and take the next one, and a
//! confirmation may be lost with the connection.

mod config;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use lapin::{BasicProperties, Channel, Confirmation, Connection as Amqp, ConnectionProperties, ExchangeKind};
use tokio::time::timeout;

pub use self::config::RabbitMqConfig;
use super::message::Message;
use super::side_by_side::{self, Connection, SendOne};
use super::{Accepted, Refusal, Sink, SinkLimits};
use crate::{Delivery, Error, ErrorKind, Result, one_line};

/// How long the server may take to answer before it counts as not answering.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// What the server says of a wrong user or password, of a missing right, and of an exchange that is not there.
const ACCESS_REFUSED: u16 = 403;
const NOT_ALLOWED: u16 = 530;
const NOT_FOUND: u16 = 404;
/// Kept on the disk, if the queue is.
const PERSISTENT: u8 = 2;
/// Text in the protocol's short form.
const SHORT_BYTES_MAX: usize = 255;
/// A text of the server's that is longer is cut.
const WORDS_MAX: usize = 300;

/// Publishes events to an exchange of RabbitMQ, as `CloudEvents`; accepted is what is confirmed and has reached a queue.
#[derive(Debug)]
pub struct RabbitMqSink {
    config: RabbitMqConfig,
    name: String,
    connection: Connection<Live>,
}

struct Live {
    channel: Channel,
    /// Ends with the last that has it.
    _connection: Amqp,
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Live")
    }
}

impl Live {
    fn is_broken(&self) -> bool {
        !self.channel.status().connected()
    }
}

impl RabbitMqSink {
    /// A sink that connects when it is used.
    pub fn new(config: RabbitMqConfig) -> Self {
        let name = format!("rabbitmq {} exchange {:?}", config.address.place(), config.exchange);
        Self { config, name, connection: Connection::default() }
    }

    async fn live(&self) -> Result<Arc<Live>> {
        self.connection.get(Live::is_broken, self.open()).await
    }

    async fn open(&self) -> Result<Live> {
        match timeout(2 * ANSWER_WITHIN, self.connect()).await {
            Ok(opened) => opened.map_err(|error| self.failed(&error)),
            Err(_) => Err(self.unavailable("does not answer")),
        }
    }

    fn unavailable(&self, what: &str) -> Error {
        Error::new(ErrorKind::Unavailable, format!("RabbitMQ at {} {what}", self.config.address.place()))
    }

    async fn connect(&self) -> std::result::Result<Live, lapin::Error> {
        let address = &self.config.address;
        let userinfo =
            AMQPUserInfo { username: address.user.clone().unwrap_or_else(|| "guest".into()), password: self.config.secret().to_owned() };
        let uri = AMQPUri {
            scheme: AMQPScheme::AMQP,
            authority: AMQPAuthority { userinfo, host: address.host.clone(), port: address.port },
            vhost: if address.path.is_empty() { "/".into() } else { address.path.replace("%2F", "/").replace("%2f", "/") },
            query: AMQPQueryString { heartbeat: Some(10), ..AMQPQueryString::default() },
        };
        let properties = ConnectionProperties::default().with_connection_name("shardwise outbox".into());
        let connection = Amqp::connect_uri(uri, properties).await?;
        let channel = connection.create_channel().await?;
        if !self.config.exchange.is_empty() {
            let asks = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
            // The kind is not looked at.
            channel.exchange_declare(self.exchange(), ExchangeKind::Topic, asks, FieldTable::default()).await?;
        }
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Live { channel, _connection: connection })
    }

    fn exchange(&self) -> ShortString {
        ShortString::try_new(self.config.exchange.clone()).unwrap_or_default()
    }

    fn failed(&self, error: &lapin::Error) -> Error {
        let (place, exchange) = (self.config.address.place(), &self.config.exchange);
        let code = if let lapin::ErrorKind::ProtocolError(error) = error.kind() { error.get_id() } else { 0 };
        match code {
            ACCESS_REFUSED | NOT_ALLOWED => {
                let text = format!(
                    "RabbitMQ at {place} does not accept this user and password, or gives them no right to {exchange}: \
                     correct the address and the password's file"
                );
                Error::new(ErrorKind::Denied, text)
            }
            NOT_FOUND => Error::new(ErrorKind::Missing, format!("RabbitMQ at {place} has no exchange {exchange}: declare it")),
            _ => self.unavailable(&format!("cannot be used: {}", words(error))),
        }
    }

    async fn publish(&self, live: &Live, event: &Delivery) -> std::result::Result<(), Refusal> {
        let permanent = |what: String| Err(Refusal::permanent(format!("{}: {what}", self.name)));
        let routing_key = self.config.routing_key.render(event);
        if routing_key.len() > SHORT_BYTES_MAX {
            return permanent(format!("the event's routing key has {} bytes, and {SHORT_BYTES_MAX} are allowed", routing_key.len()));
        }
        let message = Message::new(event, &self.config.source, self.config.mode);
        if message.body.len() > self.config.event_bytes_max {
            return permanent(format!("the event has {} bytes, and {} are allowed", message.body.len(), self.config.event_bytes_max));
        }
        let key = ShortString::try_new(routing_key.clone()).unwrap_or_default();
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let properties = properties(event, &message);
        let confirmed = async {
            let confirm = live.channel.basic_publish(self.exchange(), key, options, &message.body, properties).await?;
            confirm.await
        };
        let told = |what: String| Err(Refusal::retryable(format!("{}: {what}", self.name)));
        match timeout(ANSWER_WITHIN, confirmed).await {
            Ok(Ok(Confirmation::Ack(None))) => Ok(()),
            Ok(Ok(Confirmation::Ack(Some(_)) | Confirmation::Nack(Some(_)))) => {
                told(format!("no queue takes the routing key {routing_key}: bind one"))
            }
            Ok(Ok(Confirmation::Nack(None))) => told("a queue refuses it: it is full, or has trouble".into()),
            Ok(Ok(Confirmation::NotRequested)) => told("the server confirms nothing".into()),
            Ok(Err(error)) => told(words(&error)),
            Err(_) => told(format!("it has not confirmed within {ANSWER_WITHIN:?}: it may be short of memory or disk")),
        }
    }
}

fn properties(event: &Delivery, message: &Message) -> BasicProperties {
    let short = |text: &str| ShortString::try_new(text.to_owned()).ok();
    let mut headers = FieldTable::default();
    let text = |value: &str| AMQPValue::LongString(LongString::from(value));
    for (name, value) in &message.attributes {
        if let Some(name) = short(&format!("cloudEvents_{name}")) {
            headers.insert(name, text(value));
        }
    }
    for (name, value) in &message.trace {
        headers.insert(ShortString::from(*name), text(value));
    }
    let mut properties = BasicProperties::default().with_delivery_mode(PERSISTENT).with_headers(headers);
    if let Some(id) = short(&event.id) {
        properties = properties.with_message_id(id);
    }
    if let Some(name) = short(&event.event_type) {
        properties = properties.with_type(name);
    }
    if let Ok(seconds) = u64::try_from(event.created_at_unix_ms) {
        properties = properties.with_timestamp(seconds / 1_000);
    }
    match message.content_type.as_deref().and_then(short) {
        Some(content_type) => properties.with_content_type(content_type),
        None => properties,
    }
}

/// Somebody else's words, on one line.
fn words(error: &impl std::fmt::Display) -> String {
    one_line(&error.to_string(), WORDS_MAX)
}

struct Publishing<'a>(&'a RabbitMqSink, &'a Live);

#[async_trait]
impl SendOne for Publishing<'_> {
    async fn send(&self, event: &Delivery) -> std::result::Result<(), Refusal> {
        self.0.publish(self.1, event).await
    }
}

#[async_trait]
impl Sink for RabbitMqSink {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> SinkLimits {
        SinkLimits { concurrency: 4, ..SinkLimits::default() }
    }

    async fn check(&self) -> Result<()> {
        self.live().await.map(drop)
    }

    async fn deliver(&self, batch: Arc<[Delivery]>) -> Accepted {
        match self.live().await {
            // A broken connection ends what waits for its confirmations by itself.
            Ok(live) => side_by_side::deliver(&batch, &Publishing(self, &live), std::future::pending()).await,
            Err(error) => Accepted::up_to(0, Refusal::retryable(error.to_string())),
        }
    }
}
