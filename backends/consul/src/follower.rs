//! Following a group with blocking queries.
//!
//! A blocking query asks for an instance that does not exist (an empty answer costs the same for any group). It returns when the
//! group's index has changed, or after a while. An unchanged index proves the view; any change, up or down, only causes the group to be
//! read again. Members and claims are both followed this way.

use std::sync::Arc;
use std::time::Duration;

use shardwise_core::{GroupName, Moment, View};
use shardwise_discovery::feeds::{Feed, FeedLimits, GroupReader, Watched};
use tokio::time::{Instant, sleep};

use crate::error::Result;
use crate::health::InstanceFilter;
use crate::names;
use crate::reader::{self, GROUPS_MAX, GroupIndexes, GroupRead, TrackedGroup};
use crate::registrar::Registrar;

/// The longest and the shortest wait of a blocking query.
const WAIT_LONGEST: Duration = Duration::from_secs(30);
const WAIT_SHORTEST: Duration = Duration::from_millis(20);
/// So many looks may follow each other at once; after that there is one per pause.
const BURST: u32 = 20;
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The most watches that one [`ConsulBackend`](crate::ConsulBackend) and its clones serve at a time.
pub const WATCHERS_MAX: usize = 16_384;

/// A followed part of a group.
pub(crate) trait BlockingQuery: Send + 'static {
    /// The state that watches see.
    type Shown: Watched;

    /// The index of the group, once it is another one than `index` or the time is over, and when that was asked.
    fn wait(&self, group: &GroupName, index: u64, wait: Duration) -> impl Future<Output = Result<(u64, Moment)>> + Send;

    /// The group as it is now.
    fn read(&mut self, group: &GroupName) -> impl Future<Output = Result<QueryResult<Self::Shown>>> + Send;
}

/// The result of one read of a group.
pub(crate) struct QueryResult<T> {
    pub(crate) shown: Arc<T>,
    pub(crate) proven: Moment,
    /// Consul's index of it.
    pub(crate) index: u64,
}

pub(crate) const LIMITS: FeedLimits = FeedLimits { watches: WATCHERS_MAX, groups: GROUPS_MAX };

/// Reads a group again when its index has changed.
pub(crate) struct IndexReader<Q> {
    query: Q,
    /// The index of what was shown last; `None` where the group has to be read in any case.
    known: Option<u64>,
    pace: Pace,
}

impl<Q> IndexReader<Q> {
    pub(crate) fn new(query: Q) -> Self {
        Self { query, known: None, pace: Pace::new() }
    }
}

impl<Q: BlockingQuery> IndexReader<Q> {
    async fn read(&mut self, feed: &Feed<Q::Shown>) -> Result<()> {
        self.known = None;
        let QueryResult { shown, proven, index } = self.query.read(feed.group()).await?;
        self.known = Some(index);
        feed.show(shown, Some(proven));
        Ok(())
    }

    /// Waits for a change and reads the group if there may have been one.
    async fn look(&mut self, feed: &Feed<Q::Shown>) -> Result<()> {
        if let (Some(known), Some(prove_every)) = (self.known, feed.pace()) {
            // Half of it, since what an answer proves is when its request began.
            let wait = (prove_every / 2).clamp(WAIT_SHORTEST, WAIT_LONGEST);
            let (index, started) = self.query.wait(feed.group(), known, wait).await?;
            if index == known {
                feed.prove(started);
                return Ok(());
            }
        }
        self.read(feed).await
    }
}

impl<Q: BlockingQuery> GroupReader<Q::Shown> for IndexReader<Q> {
    const NEXT_PROVES: bool = true;

    async fn open(&mut self, feed: &Feed<Q::Shown>) -> shardwise_discovery::Result<()> {
        self.pace.next().await;
        self.read(feed).await.map_err(|failure| failure.during(Q::Shown::OPERATION))
    }

    async fn next(&mut self, feed: &Feed<Q::Shown>) -> shardwise_discovery::Result<()> {
        self.pace.next().await;
        self.look(feed).await.map_err(|failure| failure.during(Q::Shown::OPERATION))
    }
}

/// The members of a group.
pub(crate) struct MembersQuery {
    registrar: Arc<Registrar>,
    indexes: Arc<GroupIndexes>,
    /// Kept, so that the group is not forgotten.
    tracked: Option<TrackedGroup>,
    /// How many instances of another fleet were there last, and how many more with ids that the view cannot carry.
    foreign: (usize, usize),
}

impl MembersQuery {
    pub(crate) const fn new(registrar: Arc<Registrar>, indexes: Arc<GroupIndexes>) -> Self {
        Self { registrar, indexes, tracked: None, foreign: (0, 0) }
    }
}

impl BlockingQuery for MembersQuery {
    type Shown = View;

    async fn wait(&self, group: &GroupName, index: u64, wait: Duration) -> Result<(u64, Moment)> {
        let list = self.registrar.client.passing(&names::service_name(group), InstanceFilter::IndexOnly, Some((index, wait))).await?;
        Ok((list.index, list.started))
    }

    async fn read(&mut self, group: &GroupName) -> Result<QueryResult<View>> {
        let tracked = match self.tracked.take() {
            Some(tracked) => tracked,
            None => self.indexes.of(group)?,
        };
        let tracked = self.tracked.insert(tracked);
        let GroupRead { view, proven, index, unnamed } =
            reader::read(&self.registrar.client, &self.registrar.registrations, tracked, group).await?;
        let found = (view.foreign().len(), unnamed);
        if std::mem::replace(&mut self.foreign, found) != found {
            tracing::info!(%group, foreign = found.0, unnamed, "passing instances of this service are not ours; their fleet shares its name");
        }
        Ok(QueryResult { shown: view, proven, index })
    }
}

/// A token bucket: a group that changes all the time is read in steps, one that changes rarely at once.
struct Pace {
    left: u32,
    filled: Instant,
}

impl Pace {
    fn new() -> Self {
        Self { left: BURST, filled: Instant::now() }
    }

    async fn next(&mut self) {
        if self.left == 0 {
            sleep(LOOK_EVERY.saturating_sub(self.filled.elapsed())).await;
        }
        let steps = u32::try_from(self.filled.elapsed().as_nanos() / LOOK_EVERY.as_nanos()).unwrap_or(u32::MAX);
        if steps > 0 {
            self.left = self.left.saturating_add(steps).min(BURST);
            self.filled = Instant::now();
        }
        self.left = self.left.saturating_sub(1);
    }
}
