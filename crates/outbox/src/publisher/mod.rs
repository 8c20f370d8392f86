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
/// use std::sync::Arc;
///
/// use shardwise_outbox::{FileSink, OutboxPublisher, SqliteStore};
/// use tokio_util::sync::CancellationToken;
///
/// let store = SqliteStore::open("app.db").await?;
/// let sink = FileSink::new("events.jsonl", "/outbox/orders");
/// OutboxPublisher::new(Arc::new(store), Arc::new(sink), sharding)?.run(CancellationToken::new()).await
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
    /// A publisher with the default options. The sharding says which slots belong to this worker: its TTL is also the publisher's, and its
    /// number of slots must be the same for all publishers of an outbox.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`]: the sharding has a key placement, and so no slots.
    pub fn new(store: Arc<dyn Store>, sink: Arc<dyn Sink>, sharding: Arc<dyn Sharding>) -> Result<Self> {
        if sharding.ownership().slots().slots() == 0 {
            let text = "the sharding has no slots, and an outbox fences each slot in its database: \
                        give the publisher one whose policy has placement = \"ring\"";
            return Err(Error::new(ErrorKind::Settings, text));
        }
        let (options, clock) = (PublisherOptions::default(), Clock::system());
        Ok(Self { store, sink, sharding, options, clock, stats: PublisherStats::default(), nudge: Nudge::default() })
    }

    /// Replaces the options.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`]: an option is out of its range.
    pub fn options(self, options: PublisherOptions) -> Result<Self> {
        Ok(Self { options: options.validated()?, ..self })
    }

    /// Replaces the machine's clock, for tests.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
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

/// Wakes a publisher immediately instead of at its next check; see [`OutboxPublisher::nudge_handle`].
#[derive(Debug, Clone, Default)]
pub struct Nudge(Arc<Notify>);

impl Nudge {
    /// Reports that there is something new.
    pub fn nudge(&self) {
        self.0.notify_one();
    }
}
