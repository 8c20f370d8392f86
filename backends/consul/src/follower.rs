//! Following a group with blocking queries.
//!
//! A blocking query asks for an instance that does not exist (an empty answer costs the same for any group). It returns when the
//! group's index has changed, or after a while. An unchanged index proves the view; any change, up or down, only causes the group to be
//! read again. Members and claims are both followed this way.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use shardwise_core::{GroupName, Moment, View};
use shardwise_discovery::feeds::{Feed, FeedLimits, GroupReader, Watched};
use shardwise_discovery::{ClaimTable, LogThrottle};
use tokio::time::{Instant, sleep_until};

use crate::api::Listed;
use crate::claims::keys;
use crate::error::{Failure, Result};
use crate::group_indexes::{GROUPS_MAX, TrackedGroup};
use crate::keys::KvPair;
use crate::names;
use crate::reader::{self, GroupRead};
use crate::registrar::Registrar;

/// The longest and the shortest wait of a blocking query.
const WAIT_LONGEST: Duration = Duration::from_secs(30);
const WAIT_SHORTEST: Duration = Duration::from_millis(20);
/// So many polls may follow each other at once; after that there is one per pause. So a group that changes all the time is read in steps,
/// and one that changes rarely at once.
const BURST: u32 = 20;
const POLL_EVERY: Duration = Duration::from_millis(10);
/// What a failure says it was doing.
const READING_CLAIMS: &str = "reading claims";

/// The most watches that one [`ConsulBackend`](crate::ConsulBackend) and its clones serve at a time.
pub const WATCHERS_MAX: usize = 16_384;

/// A followed part of a group.
pub(crate) trait BlockingQuery: Send + 'static {
    type Shown: Watched;

    /// The index of the group, once it is another one than `index` or the time is over, and when that was asked.
    fn wait(&self, group: &GroupName, index: u64, wait: Duration) -> Wait;

    fn read(&mut self, group: &GroupName) -> impl Future<Output = Result<GroupRead<Self::Shown>>> + Send;
}

/// A blocking query that is under way.
type Wait = BoxFuture<'static, Result<(u64, Moment)>>;

pub(crate) const LIMITS: FeedLimits = FeedLimits { watches: WATCHERS_MAX, groups: GROUPS_MAX };

/// A blocking query that was sent.
struct PendingQuery {
    /// The index that it waits to change, and its longest wait.
    index: u64,
    wait: Duration,
    answer: Wait,
}

/// Reads a group again when its index has changed.
pub(crate) struct IndexReader<Q> {
    query: Q,
    /// The index of what was shown last; `None` where the group has to be read in any case.
    known: Option<u64>,
    /// A blocking query. It goes on beside reads: Consul answers one whose caller has gone all the same, and holds its
    /// connection until then, of which it allows 200. Many members that joined at a time used them up.
    waiting: Option<PendingQuery>,
    due: Instant,
}

impl<Q> IndexReader<Q> {
    pub(crate) fn new(query: Q) -> Self {
        Self { query, known: None, waiting: None, due: a_burst_ago() }
    }

    async fn turn(&mut self) {
        sleep_until(self.due).await;
        self.due = self.due.max(a_burst_ago()) + POLL_EVERY;
    }
}

fn a_burst_ago() -> Instant {
    let now = Instant::now();
    now.checked_sub(POLL_EVERY * BURST).unwrap_or(now)
}

impl<Q: BlockingQuery> IndexReader<Q> {
    async fn read(&mut self, feed: &Feed<Q::Shown>) -> Result<()> {
        self.known = None;
        let GroupRead { shown, proven, index } = self.query.read(feed.group()).await?;
        self.known = Some(index);
        feed.show(shown, Some(proven));
        Ok(())
    }

    /// Waits for a change and reads the group if there may have been one.
    async fn poll(&mut self, feed: &Feed<Q::Shown>) -> Result<()> {
        if let (Some(known), Some(prove_every)) = (self.known, feed.pace()) {
            // Half of it, since what an answer proves is when its request began.
            let wait = (prove_every / 2).clamp(WAIT_SHORTEST, WAIT_LONGEST);
            // One that waits for too long is given up, and so is one that an index which has fallen does not wake.
            let good = self.waiting.take_if(|pending| pending.wait <= wait && pending.index <= known);
            let asked = || PendingQuery { index: known, wait, answer: self.query.wait(feed.group(), known, wait) };
            let pending = self.waiting.insert(good.unwrap_or_else(asked));
            let (answer, of) = ((&mut pending.answer).await, pending.index);
            self.waiting = None;
            let (index, started) = answer?;
            if index == known {
                feed.prove(started);
                return Ok(());
            }
            // What it waited for was read meanwhile; whether there is more says another one.
            if of < known && index < known {
                return Ok(());
            }
        }
        self.read(feed).await
    }
}

impl<Q: BlockingQuery> GroupReader<Q::Shown> for IndexReader<Q> {
    const NEXT_PROVES: bool = true;

    async fn open(&mut self, feed: &Feed<Q::Shown>) -> shardwise_discovery::Result<()> {
        // It may have failed like what came before.
        self.waiting = None;
        self.prove(feed).await
    }

    async fn prove(&mut self, feed: &Feed<Q::Shown>) -> shardwise_discovery::Result<()> {
        self.turn().await;
        self.read(feed).await.map_err(|failure| failure.during(Q::Shown::OPERATION))
    }

    async fn next(&mut self, feed: &Feed<Q::Shown>) -> shardwise_discovery::Result<()> {
        self.turn().await;
        self.poll(feed).await.map_err(|failure| failure.during(Q::Shown::OPERATION))
    }
}

pub(crate) struct MembersQuery {
    registrar: Arc<Registrar>,
    /// Kept, so that the group is not forgotten.
    tracked: Option<TrackedGroup>,
    /// How many instances of another fleet were there last.
    foreign: usize,
}

impl MembersQuery {
    pub(crate) const fn new(registrar: Arc<Registrar>) -> Self {
        Self { registrar, tracked: None, foreign: 0 }
    }
}

impl BlockingQuery for MembersQuery {
    type Shown = View;

    fn wait(&self, group: &GroupName, index: u64, wait: Duration) -> Wait {
        let (registrar, service) = (Arc::clone(&self.registrar), names::service_name(group));
        Box::pin(async move {
            let list = registrar.client.passing(&service, Some("Service.ID == \"\""), Some((index, wait))).await?;
            Ok((list.index, list.started))
        })
    }

    async fn read(&mut self, group: &GroupName) -> Result<GroupRead<View>> {
        let tracked = match self.tracked.take() {
            Some(tracked) => tracked,
            None => self.registrar.indexes.of(group)?,
        };
        let read = reader::read(&self.registrar, self.tracked.insert(tracked), group).await?;
        let foreign = read.shown.foreign().len();
        if std::mem::replace(&mut self.foreign, foreign) != foreign {
            tracing::info!(%group, foreign, "passing instances of this service are not ours; their fleet shares its name");
        }
        Ok(read)
    }
}

pub(crate) struct ClaimsQuery {
    registrar: Arc<Registrar>,
    /// The pause after a read is as long as the read: while thousands of slots move, each change would cause a read of all of them.
    rested: Instant,
    /// Keys that could not be read.
    damaged: LogThrottle<String>,
}

impl ClaimsQuery {
    pub(crate) fn new(registrar: Arc<Registrar>) -> Self {
        Self { registrar, rested: Instant::now(), damaged: LogThrottle::default() }
    }
}

impl BlockingQuery for ClaimsQuery {
    type Shown = ClaimTable;

    fn wait(&self, group: &GroupName, index: u64, wait: Duration) -> Wait {
        let (registrar, prefix) = (Arc::clone(&self.registrar), keys::prefix(group));
        Box::pin(async move {
            let listed = registrar.client.keys(READING_CLAIMS, &prefix, Some((index, wait))).await?;
            Ok((listed.index, listed.started))
        })
    }

    async fn read(&mut self, group: &GroupName) -> Result<GroupRead<ClaimTable>> {
        sleep_until(self.rested).await;
        let begun = Instant::now();
        let prefix = keys::prefix(group);
        let client = &self.registrar.client;
        let mut listed = client.keys(READING_CLAIMS, &prefix, None).await?;
        if listed.found.is_none() {
            client.may_see_keys(&prefix).await?;
            listed = client.keys(READING_CLAIMS, &prefix, None).await?;
        }
        let Listed { started, index, found } = listed;
        let (table, damaged) = match found {
            None => (ClaimTable::default(), Vec::new()),
            Some(answer) => {
                // A megabyte for 4,096 slots: other tasks need not wait for it.
                let registrar = Arc::clone(&self.registrar);
                let parsing = tokio::task::spawn_blocking(move || Ok(table(&prefix, &registrar.client.parsed::<Vec<KvPair>>(&answer)?)));
                parsing.await.unwrap_or(Err(Failure::ShuttingDown))?
            }
        };
        self.rested = Instant::now() + begun.elapsed();
        for (key, failure) in damaged {
            if let Some(seen) = self.damaged.another(key) {
                tracing::warn!(%failure, seen, "a claim cannot be read: it is reported without a holder until its holder locks it again");
            }
        }
        Ok(GroupRead { shown: Arc::new(table), proven: started, index })
    }
}

/// The claims, and the keys that are locked but cannot be read. Such a key counts as free in this table, but is still locked in Consul.
/// Its holder sees the claim as lost and locks the key again; no other member can.
fn table(prefix: &str, stored: &[KvPair]) -> (ClaimTable, Vec<(String, Failure)>) {
    let (mut table, mut damaged) = (ClaimTable::default(), Vec::new());
    for stored in stored {
        match keys::claim(prefix, stored) {
            Ok(claim) => table.0.extend(claim),
            Err(failure) => damaged.push((stored.key.clone(), failure)),
        }
    }
    (table, damaged)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures::StreamExt;
    use futures::future::pending;
    use shardwise_discovery::feeds::{Hub, follow};
    use shardwise_discovery::{Clock, WatchEvent};

    use super::*;

    /// A group that never changes, and the longest waits of its blocking queries.
    struct Quiet(Clock, Arc<Mutex<Vec<Duration>>>);

    impl BlockingQuery for Quiet {
        type Shown = View;

        fn wait(&self, _group: &GroupName, _index: u64, wait: Duration) -> Wait {
            self.1.lock().unwrap().push(wait);
            Box::pin(pending())
        }

        async fn read(&mut self, _group: &GroupName) -> Result<GroupRead<View>> {
            Ok(GroupRead { shown: Arc::default(), proven: self.0.now(), index: 7 })
        }
    }

    /// Regression: each watch that came made the blocking query be given up, which Consul answers all the same, and its connection was one
    /// of two hundred until then.
    #[tokio::test(start_paused = true)]
    async fn a_blocking_query_goes_on_while_watches_come() {
        let (clock, waits) = (Clock::tokio(), Arc::<Mutex<Vec<_>>>::default());
        let parts = (clock.clone(), Arc::clone(&waits));
        let limits = FeedLimits { watches: 64, groups: 1 };
        let hub = Hub::new(clock, limits, move |feed| follow(IndexReader::new(Quiet(parts.0.clone(), Arc::clone(&parts.1))), feed));
        let group = GroupName::new("g").unwrap();
        let mut watches = Vec::new();
        for pace in [8, 8, 8, 8, 20, 2, 8] {
            let mut watch = hub.watch(&group, Duration::from_secs(pace));
            assert!(matches!(watch.next().await, Some(Ok(WatchEvent::View(_)))), "it is read for whoever comes");
            watches.push(watch);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let waits: Vec<_> = waits.lock().unwrap().iter().map(Duration::as_secs).collect();
        assert_eq!(waits, [4, 1], "another one only for a watch that wants proofs more often");
    }
}
