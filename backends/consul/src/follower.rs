//! One task per watched group that follows it with blocking queries, for all watches of the process together.
//!
//! A blocking query asks for nobody (an empty answer costs the same for any group) and returns when the group's index has changed or
//! after a while. An index that has not changed proves the view; one that has, by rising or by falling, is a reason to read the
//! group again, and no more than that. Members are followed so, and claims.

use std::sync::Arc;
use std::time::Duration;

use shardwise_core::{GroupName, Moment, View};
use shardwise_discovery::Error;
use shardwise_discovery::feeds::{Feed, FeedLimits, FeedSource, LimitReached, Watched};
use tokio::time::{Instant, sleep};

use crate::error::{Failure, Result};
use crate::health::InstanceFilter;
use crate::names;
use crate::reader::{self, GROUPS_MAX, GroupIndexes, GroupRead, TrackedGroup};
use crate::registrar::Registrar;

/// The longest and the shortest wait of a blocking query.
const WAIT_LONGEST: Duration = Duration::from_secs(30);
const WAIT_SHORTEST: Duration = Duration::from_millis(20);
/// Pauses after a failure that may pass by itself, doubling.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_LONGEST: Duration = Duration::from_secs(1);
/// How long after a failure that somebody has to repair.
const REPAIR_PAUSE: Duration = Duration::from_secs(5);
/// So many looks may follow each other at once; after that there is one per pause.
const BURST: u32 = 20;
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The most watches that one [`ConsulBackend`](crate::ConsulBackend) and its clones serve at a time.
pub const WATCHERS_MAX: usize = 16_384;

/// What of a group is followed.
pub(crate) trait BlockingQuery: Send + 'static {
    /// What is shown of it.
    type Shown: Watched;
    /// Names the watch in errors.
    const OPERATION: &'static str;

    /// The index of the group, once it is another one than `index` or the time is over, and when that was asked.
    fn wait(&self, group: &GroupName, index: u64, wait: Duration) -> impl Future<Output = Result<(u64, Moment)>> + Send;

    /// The group as it is now.
    fn read(&mut self, group: &GroupName) -> impl Future<Output = Result<QueryResult<Self::Shown>>> + Send;
}

/// What was read of a group.
pub(crate) struct QueryResult<T> {
    pub(crate) shown: Arc<T>,
    pub(crate) proven: Moment,
    /// Consul's index of it.
    pub(crate) index: u64,
}

pub(crate) const LIMITS: FeedLimits = FeedLimits { watches: WATCHERS_MAX, groups: GROUPS_MAX };

/// Follows a group in a task while somebody watches.
pub(crate) fn follow<S: BlockingQuery>(subject: S, feed: Feed<S::Shown>) {
    tokio::spawn(IndexFollower { subject, feed, known: None }.run());
}

/// What a watch is told for which there is no room.
pub(crate) fn no_room(full: LimitReached, operation: &'static str) -> Error {
    let failure = match full {
        LimitReached::Watches(max) => Failure::TooManyWatches { max },
        LimitReached::Groups(max) => Failure::TooManyGroups { max },
    };
    failure.during(operation)
}

struct IndexFollower<S: BlockingQuery> {
    subject: S,
    feed: Feed<S::Shown>,
    /// The index of what was shown last; `None` where the group has to be read in any case.
    known: Option<u64>,
}

impl<S: BlockingQuery> IndexFollower<S> {
    /// Runs while somebody watches.
    async fn run(mut self) {
        let mut pace = Pace::new();
        let mut pause = PAUSE_FIRST;
        while !self.feed.end_unwatched() {
            pace.next().await;
            match self.look().await {
                Ok(()) => pause = PAUSE_FIRST,
                Err(failure) => {
                    self.known = None;
                    let error = failure.during(S::OPERATION);
                    let rest = if error.is_retryable() { pause.mul_f64(rand::random_range(0.5..1.0)) } else { REPAIR_PAUSE };
                    self.feed.fail(error);
                    pause = (pause * 2).min(PAUSE_LONGEST);
                    sleep(rest).await;
                }
            }
        }
    }

    /// Waits for a change and reads the group if there may have been one.
    async fn look(&mut self) -> Result<()> {
        if let (Some(known), Some(prove_every)) = (self.known, self.feed.pace()) {
            // Half of it, since what an answer proves is when its request began.
            let wait = (prove_every / 2).clamp(WAIT_SHORTEST, WAIT_LONGEST);
            let (index, started) = tokio::select! {
                answer = self.subject.wait(self.feed.group(), known, wait) => answer?,
                () = self.feed.stirred() => {
                    if self.feed.has_newcomer() {
                        self.known = None;
                    }
                    return Ok(());
                }
            };
            if index == known {
                self.feed.prove(started);
                return Ok(());
            }
        }
        let QueryResult { shown, proven, index } = self.subject.read(self.feed.group()).await?;
        self.known = Some(index);
        self.feed.show(shown, Some(proven));
        Ok(())
    }
}

/// What followers of members share.
pub(crate) struct Followers {
    pub(crate) registrar: Arc<Registrar>,
    pub(crate) revisions: GroupIndexes,
}

impl FeedSource for Followers {
    fn start(self: Arc<Self>, feed: Feed) {
        follow(MembersQuery { shared: self, tracked: None, foreign: (0, 0) }, feed);
    }

    fn full(&self, full: LimitReached) -> Error {
        no_room(full, MembersQuery::OPERATION)
    }
}

/// The members of a group.
struct MembersQuery {
    shared: Arc<Followers>,
    /// Kept, so that the group is not forgotten.
    tracked: Option<TrackedGroup>,
    /// How many instances of another fleet were there last, and how many more with ids that the view cannot carry.
    foreign: (usize, usize),
}

impl BlockingQuery for MembersQuery {
    type Shown = View;
    const OPERATION: &'static str = "watch";

    async fn wait(&self, group: &GroupName, index: u64, wait: Duration) -> Result<(u64, Moment)> {
        let list = self.shared.registrar.client.passing(&names::service_name(group), InstanceFilter::Nobody, Some((index, wait))).await?;
        Ok((list.index, list.started))
    }

    async fn read(&mut self, group: &GroupName) -> Result<QueryResult<View>> {
        let Followers { registrar, revisions } = &*self.shared;
        let tracked = match self.tracked.take() {
            Some(tracked) => tracked,
            None => revisions.of(group)?,
        };
        let tracked = self.tracked.insert(tracked);
        let GroupRead { view, proven, index, unnamed } = reader::read(&registrar.client, &registrar.registrations, tracked, group).await?;
        let found = (view.foreign().len(), unnamed);
        if std::mem::replace(&mut self.foreign, found) != found {
            tracing::info!(%group, foreign = found.0, unnamed, "passing instances of this service are not ours; their fleet shares its name");
        }
        Ok(QueryResult { shown: view, proven, index })
    }
}

/// A token bucket: what changes all the time is looked at in steps, what changes rarely at once.
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
