//! Where events go: the trait, and this crate's sinks.
//!
#![doc = include_str!("../../sinks.md")]

pub(crate) mod cloud_event;
#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq", feature = "redis"))]
mod connection;
mod file;
#[cfg(feature = "http")]
mod http;
mod json;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "tls")]
mod message;
#[cfg(feature = "nats")]
mod nats;
#[cfg(any(feature = "kafka", feature = "redis", feature = "rabbitmq"))]
mod net;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
mod read;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "http", feature = "nats", feature = "rabbitmq"))]
mod side_by_side;
mod stdout;
mod template;
#[cfg(feature = "tls")]
mod tls;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;

use crate::{AggregateId, Delivery, Result};

pub use cloud_event::encode;
pub use file::FileSink;
#[cfg(feature = "http")]
pub use http::{HttpConfig, HttpSink};
#[cfg(feature = "kafka")]
pub use kafka::{KafkaConfig, KafkaSink};
#[cfg(feature = "tls")]
pub use message::secret_in_file;
#[cfg(feature = "nats")]
pub use nats::{NatsConfig, NatsSink};
#[cfg(feature = "rabbitmq")]
pub use rabbitmq::{RabbitMqConfig, RabbitMqSink};
pub use read::{ReadEvent, parse_line, read_events};
#[cfg(feature = "redis")]
pub use redis::{RedisConfig, RedisSink};
pub use stdout::StdoutSink;
pub use template::Template;
#[cfg(feature = "tls")]
pub use tls::TlsFiles;

/// How an event is encoded in a message of a protocol with headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// Attributes are headers or fields of the destination; the payload is the unchanged body.
    #[default]
    Binary,
    /// The body is the whole event in JSON.
    Structured,
}

/// How a user of Kafka proves the password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SaslMechanism {
    /// The password is sent as it is, so only with TLS.
    Plain,
    /// `SCRAM-SHA-256`.
    ScramSha256,
    /// `SCRAM-SHA-512`.
    #[default]
    ScramSha512,
}

impl SaslMechanism {
    /// All mechanisms.
    pub const ALL: [Self; 3] = [Self::Plain, Self::ScramSha256, Self::ScramSha512];

    /// The name that the protocol has for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

/// How much a sink accepts at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SinkLimits {
    /// The most events of one batch: one or more.
    pub batch_events: usize,
    /// The approximate most bytes of one batch; a single event is sent whatever its size.
    pub batch_bytes: usize,
    /// How many batches may be in flight at the same time: one or more. They never share an aggregate.
    pub concurrency: usize,
    /// Whether one batch may carry several aggregates. If not, a slow aggregate delays no other.
    pub mixed: bool,
}

impl Default for SinkLimits {
    /// 10,000 events or 16 MiB of any aggregates, one batch at a time.
    fn default() -> Self {
        Self { batch_events: 10_000, batch_bytes: 16 << 20, concurrency: 1, mixed: true }
    }
}

/// Why the event after the accepted ones was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// A retry of the same event cannot help: it is too large or malformed for this destination.
    pub permanent: bool,
    /// The destination's message; never a secret.
    pub message: String,
    /// How long the destination asked to wait before a retry.
    pub retry_after: Option<Duration>,
    /// Another event is the cause: this one was not tried, or its fate is unknown, because a failure of the other one ended what both were
    /// sent with. The attempt is never charged, and does not count towards an outage of the destination. Set it only if the other event is
    /// refused for a reason that is its own, in this answer or in that of another batch: otherwise an outage is not noticed.
    pub blameless: bool,
}

impl Refusal {
    /// A refusal of an event that will never be accepted.
    pub fn permanent(message: impl Into<String>) -> Self {
        Self { permanent: true, message: message.into(), retry_after: None, blameless: false }
    }

    /// A refusal of an event that may be accepted later.
    pub fn retryable(message: impl Into<String>) -> Self {
        Self { permanent: false, message: message.into(), retry_after: None, blameless: false }
    }

    /// A refusal of an event that may be accepted later, and that another event is the cause of; see [`Self::blameless`].
    pub fn blameless(message: impl Into<String>) -> Self {
        Self { blameless: true, ..Self::retryable(message) }
    }
}

/// The result for a batch: the accepted prefix and, unless it is the whole batch, why it ends there. If aggregates are independent, also
/// the aggregates with a different result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acceptance {
    /// How many events were accepted, from the first.
    pub events: usize,
    /// Why the next one was not; events after that one were not tried.
    pub refusal: Option<Refusal>,
    /// Aggregates with their own accepted prefix instead of the batch's: how many of their events in this batch were accepted, and why the
    /// next one was not. Without a reason it was not tried, for lack of time, and something before it was accepted.
    pub apart: BTreeMap<AggregateId, (usize, Option<Refusal>)>,
}

impl Acceptance {
    /// The whole batch was accepted.
    pub const fn all(batch: &[Delivery]) -> Self {
        Self { events: batch.len(), refusal: None, apart: BTreeMap::new() }
    }

    /// The first `events` were accepted; the next one was refused.
    pub const fn up_to(events: usize, refusal: Refusal) -> Self {
        Self { events, refusal: Some(refusal), apart: BTreeMap::new() }
    }

    /// The whole batch was accepted, except for these aggregates: how many events of each were accepted, and why the next one was not, if
    /// it was tried.
    pub const fn all_but(batch: &[Delivery], apart: BTreeMap<AggregateId, (usize, Option<Refusal>)>) -> Self {
        Self { events: batch.len(), refusal: None, apart }
    }

    /// Every reason why something was not accepted.
    pub fn refusals(&self) -> impl Iterator<Item = &Refusal> {
        self.refusal.iter().chain(self.apart.values().filter_map(|(_, refusal)| refusal.as_ref()))
    }
}

/// A destination. Every implementation passes `exercise::sink`:
///
/// 1. Events of one aggregate become visible in the order of the batch; those of one call before those of a later one.
/// 2. An event reported as accepted is safe at the destination: the publisher marks it and never sends it again.
/// 3. At most one event of an aggregate is refused in a call, and no later event of that aggregate was tried.
/// 4. A dropped call (timeout, lost slot) leaves the sink usable. The events that it had begun to send may or may not arrive.
#[async_trait]
pub trait Sink: Send + Sync + 'static {
    /// The destination's name in logs and errors; never a secret.
    fn name(&self) -> &str;

    /// How much the sink accepts at once.
    fn limits(&self) -> SinkLimits {
        SinkLimits::default()
    }

    /// The part of the sink that an event goes to, if parts can be down or slow independently: each has its own circuit breaker, up to
    /// 1,024 of them. It must be the same for the same event, short, and never a secret, because it is logged and stored in messages.
    /// `None`: the sink is one destination.
    fn destination(&self, event: &Delivery) -> Option<String> {
        let _ = event;
        None
    }

    /// Contacts the destination, so that problems appear at the start. An error that is not retryable needs an operator: wrong
    /// credentials, a missing stream.
    async fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Sends a batch of one or more events, in order.
    async fn deliver(&self, batch: Arc<[Delivery]>) -> Acceptance;
}

/// Runs one blocking write at a time, in the order of the calls. A write that hangs keeps its turn even when its call is dropped, so that
/// a later one never overtakes it and at most one thread hangs.
#[derive(Debug, Clone, Default)]
struct Turns(Arc<Mutex<()>>);

impl Turns {
    async fn write(&self, name: &str, write: impl FnOnce() -> Acceptance + Send + 'static) -> Acceptance {
        let turn = Arc::clone(&self.0).lock_owned().await;
        let written = tokio::task::spawn_blocking(move || {
            let accepted = write();
            drop(turn);
            accepted
        });
        written.await.unwrap_or_else(|_| Acceptance::up_to(0, Refusal::retryable(format!("{name}: the write did not finish"))))
    }
}
