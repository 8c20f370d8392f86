//! The publisher: carries out the actions of `decide`.

mod jobs;
mod runner;
mod stats;
mod traced;
mod watch;

use std::fmt;
use std::sync::Arc;

use shardwise::Sharding;
use shardwise::discovery::{Clock, random_incarnation};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub use stats::PublisherStats;
pub use watch::report_backlog;

use self::runner::PublisherRunner;
use crate::store::PublisherRegistration;
use crate::{Error, ErrorKind, PublisherOptions, Result, Sink, Store};

/// Delivers an outbox's events to a sink. Several publishers, in one process or many, divide the work by their sharding.
///
/// ```no_run
/// # async fn example(sharding: std::sync::Arc<dyn shardwise::Sharding>) -> shardwise_outbox::Result<()> {
/// use shardwise_outbox::{FileSink, OutboxPublisher, SqliteStore};
/// use tokio_util::sync::CancellationToken;
///
/// let shutdown = CancellationToken::new();
/// OutboxPublisher::builder()
///     .store(SqliteStore::open("app.db").await?)
///     .sink(FileSink::new("events.jsonl", "/outbox/orders"))
///     .sharding(sharding)
///     .run(shutdown)
///     .await
/// # }
/// ```
pub struct OutboxPublisher {
    store: Arc<dyn Store>,
    sink: Arc<dyn Sink>,
    sharding: Arc<dyn Sharding>,
    options: PublisherOptions,
    clock: Clock,
    stats: PublisherStats,
    nudge: Nudge,
}

impl OutboxPublisher {
    /// Starts building a publisher.
    pub fn builder() -> OutboxPublisherBuilder {
        OutboxPublisherBuilder { store: None, sink: None, sharding: None, options: PublisherOptions::default(), clock: Clock::system() }
    }

    /// The publisher's numbers, readable while it runs.
    pub fn stats(&self) -> PublisherStats {
        self.stats.clone()
    }

    /// For writers in this process: notifies the publisher after a commit.
    pub fn nudge_handle(&self) -> Nudge {
        self.nudge.clone()
    }

    /// Works until `shutdown` is cancelled, then finishes or returns what is in flight, releases its slots and returns. Dropping the
    /// future is like a crash: other publishers take over after the TTL.
    ///
    /// Leave the group (`deregister_self`) at the same time, not afterwards: the other members then want the slots while they are being
    /// released, and receive each of them immediately.
    ///
    /// Temporary failures are retried forever and shown in the numbers and the log. A failure that an operator must fix ends the call with
    /// an error: another schema or number of slots, a store that is not an outbox, is missing or is read-only.
    pub async fn run(self, shutdown: CancellationToken) -> Result<()> {
        let ownership = self.sharding.ownership();
        let me = PublisherRegistration {
            publisher: self.sharding.instance_id().as_str().to_owned(),
            incarnation: random_incarnation(),
            ttl: self.sharding.timing().ttl,
            slots: ownership.slots().slots(),
        };
        PublisherRunner::new(self, me).run(shutdown).await
    }
}

impl fmt::Debug for OutboxPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboxPublisher").field("sink", &self.sink.name()).field("options", &self.options).finish_non_exhaustive()
    }
}

/// Builds an [`OutboxPublisher`].
pub struct OutboxPublisherBuilder {
    store: Option<Arc<dyn Store>>,
    sink: Option<Arc<dyn Sink>>,
    sharding: Option<Arc<dyn Sharding>>,
    options: PublisherOptions,
    clock: Clock,
}

impl OutboxPublisherBuilder {
    /// Where events wait. Required.
    #[must_use]
    pub fn store(self, store: impl Store) -> Self {
        Self { store: Some(Arc::new(store)), ..self }
    }

    /// Where events go. Required.
    #[must_use]
    pub fn sink(self, sink: impl Sink) -> Self {
        Self { sink: Some(Arc::new(sink)), ..self }
    }

    /// Which slots belong to this worker. Required. Its TTL is also the publisher's; its number of slots must be the same for all
    /// publishers of an outbox. A sharding with a key placement has no slots and is refused.
    #[must_use]
    pub fn sharding(self, sharding: impl Sharding + 'static) -> Self {
        Self { sharding: Some(Arc::new(sharding)), ..self }
    }

    /// The options; the defaults are those of the settings.
    #[must_use]
    pub fn options(self, options: PublisherOptions) -> Self {
        Self { options, ..self }
    }

    /// Replaces the machine's clock, for tests.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// Checks the parts.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`]: a part is missing, an option is out of its range, or the sharding has no slots.
    pub fn build(self) -> Result<OutboxPublisher> {
        let missing = |what| Error::new(ErrorKind::Settings, format!("the publisher has no {what}: give the builder one"));
        let store = self.store.ok_or_else(|| missing("store"))?;
        let sink = self.sink.ok_or_else(|| missing("sink"))?;
        let sharding = self.sharding.ok_or_else(|| missing("sharding"))?;
        if sharding.ownership().slots().slots() == 0 {
            let text = "the sharding has no slots, and an outbox fences each slot in its database: \
                        give the builder one whose policy has placement = \"ring\"";
            return Err(Error::new(ErrorKind::Settings, text));
        }
        Ok(OutboxPublisher {
            store,
            sink,
            sharding,
            options: self.options.validated()?,
            clock: self.clock,
            stats: PublisherStats::default(),
            nudge: Nudge::default(),
        })
    }

    /// Checks the parts and runs; see [`OutboxPublisher::run`].
    pub async fn run(self, shutdown: CancellationToken) -> Result<()> {
        self.build()?.run(shutdown).await
    }
}

impl fmt::Debug for OutboxPublisherBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboxPublisherBuilder").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Wakes a publisher immediately instead of at its next check; see [`OutboxPublisher::nudge_handle`].
#[derive(Debug, Clone, Default)]
pub struct Nudge(Arc<Notify>);

impl Nudge {
    /// Reports that there is something new.
    pub fn nudge(&self) {
        self.0.notify_one();
    }
}
