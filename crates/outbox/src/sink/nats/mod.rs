//! NATS `JetStream`.
//!
//! Order: an aggregate's next event is sent when the one before is acknowledged; aggregates are sent concurrently. Several events of one
//! aggregate in flight at once would be faster but wrong: when the stream's leader changes, the first may be lost and the second accepted,
//! and then the first, sent again, comes after the second.

mod config;
mod connection;
mod fence;
mod user;

use std::sync::Arc;

use async_nats::HeaderMap;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_trait::async_trait;

pub use self::config::NatsConfig;
use self::connection::NatsConnection;
use self::fence::LastPositions;
use super::connection::{Connection, words};
use super::message::{BrokerMessage, header_value};
use super::{Acceptance, Refusal, Sink, SinkLimits, side_by_side};
use crate::{Delivery, Result};

/// The longest subject: by default a server accepts 4,096 bytes for a message's first line, and closes the connection beyond that.
const SUBJECT_BYTES_MAX: usize = 3_500;

/// Publishes events to a stream of NATS `JetStream`, as `CloudEvents` with [`Delivery::message_id`] as `Nats-Msg-Id`.
#[derive(Debug)]
pub struct NatsSink {
    config: NatsConfig,
    name: String,
    connection: Connection<NatsConnection>,
    remembered: LastPositions,
}

enum PublishFailure {
    Refused(Refusal),
    /// The subject's last message is not the one that this message must follow.
    Overtaken,
}

impl From<Refusal> for PublishFailure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl NatsSink {
    /// Creates a sink that connects when it is used.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`](crate::ErrorKind::Settings): an invalid subject, or options that exclude each other.
    pub fn new(config: NatsConfig) -> Result<Self> {
        let config = config.validated()?;
        let name = format!("nats {} stream {}", config.place, config.stream);
        Ok(Self { config, name, connection: Connection::default(), remembered: LastPositions::default() })
    }

    async fn live(&self) -> Result<Arc<NatsConnection>> {
        self.connection.get(NatsConnection::is_broken, NatsConnection::open(&self.config)).await
    }

    async fn send(&self, live: &NatsConnection, event: &Delivery) -> Result<(), Refusal> {
        let subject = self.config.subject.render(event);
        let sent = if self.config.fence {
            self.publish_fenced(live, event, subject).await
        } else {
            self.publish(live, event, subject, None).await.map(drop)
        };
        sent.map_err(|failure| match failure {
            PublishFailure::Refused(refusal) => refusal,
            PublishFailure::Overtaken => {
                Refusal::retryable("another client writes to this event's subject; only publishers of this outbox may")
            }
        })
    }

    /// Sends one event and waits for its acknowledgement, which contains its position in the stream.
    async fn publish(&self, live: &NatsConnection, event: &Delivery, subject: String, follows: Option<u64>) -> Result<u64, PublishFailure> {
        let too_large = |what: String| PublishFailure::Refused(Refusal::permanent(format!("{}: {what}", self.name)));
        if subject.len() > SUBJECT_BYTES_MAX {
            return Err(too_large(format!("the event's subject has {} bytes, and {SUBJECT_BYTES_MAX} are allowed", subject.len())));
        }
        let message = BrokerMessage::new(event, &self.config.source, self.config.mode);
        let headers = headers(&message);
        let bytes = message.body.len() + bytes_of(&headers);
        if let Some(most) = live.message_bytes_max.filter(|most| bytes > *most) {
            return Err(too_large(format!("the event has {bytes} bytes, and the stream takes {most}")));
        }
        let publish = PublishMessage::build().payload(message.body.into()).headers(headers);
        let publish = publish.expected_stream(&self.config.stream).message_id(header_value(&event.message_id()));
        let publish = match follows {
            Some(place) => publish.expected_last_subject_sequence(place),
            None => publish,
        };
        let acknowledged = match live.context.send_publish(subject, publish).await {
            Ok(acknowledgement) => acknowledgement.await,
            Err(error) => Err(error),
        };
        acknowledged.map(|acknowledged| acknowledged.sequence).map_err(|error| self.failure(&error))
    }

    fn failure(&self, error: &PublishError) -> PublishFailure {
        let code = std::error::Error::source(error).and_then(|source| source.downcast_ref::<async_nats::jetstream::Error>());
        let text = |what: &str| format!("{}: {what}", self.name);
        match error.kind() {
            PublishErrorKind::WrongLastSequence => PublishFailure::Overtaken,
            PublishErrorKind::MaxPayloadExceeded => Refusal::permanent(text(&words(error))).into(),
            PublishErrorKind::StreamNotFound => {
                let what =
                    format!("no stream takes the event's subject: give the stream the subjects {}", self.config.subject.pattern('.'));
                Refusal::retryable(text(&what)).into()
            }
            _ if code.is_some_and(|error| error.error_code() == ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM) => {
                Refusal::permanent(text(&words(error))).into()
            }
            _ => Refusal::retryable(text(&words(error))).into(),
        }
    }
}

/// The approximate number of bytes that the headers have for the server.
fn bytes_of(headers: &HeaderMap) -> usize {
    let of = |name: &str, value: &str| name.len() + value.len() + 4;
    headers.iter().map(|(name, values)| values.iter().map(|value| of(name.as_ref(), value.as_str())).sum::<usize>()).sum()
}

fn headers(message: &BrokerMessage) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in &message.attributes {
        headers.insert(format!("ce-{name}"), header_value(value));
    }
    if let Some(content_type) = &message.content_type {
        headers.insert("content-type", content_type.as_str());
    }
    for (name, value) in &message.trace {
        headers.insert(*name, value.as_str());
    }
    headers
}

#[async_trait]
impl Sink for NatsSink {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> SinkLimits {
        SinkLimits { concurrency: 4, ..SinkLimits::default() }
    }

    fn destination(&self, event: &Delivery) -> Option<String> {
        self.config.subject.destination(event)
    }

    async fn check(&self) -> Result<()> {
        self.live().await.map(drop)
    }

    async fn deliver(&self, batch: Arc<[Delivery]>) -> Acceptance {
        let live = match self.live().await {
            Ok(live) => live,
            Err(error) => return Acceptance::up_to(0, Refusal::retryable(error.to_string())),
        };
        let mut broken = live.broken.clone();
        let broken = async {
            // No acknowledgement can arrive any more, so waiting for the timeout would be useless.
            let reason = broken.wait_for(Option::is_some).await.ok().and_then(|reason| (*reason).clone());
            Refusal::retryable(format!("{}: {}", self.name, reason.as_deref().unwrap_or("the connection broke")))
        };
        side_by_side::deliver(&batch, |event| self.send(&live, event), broken).await
    }
}
