//! One task per backend that looks whether the file has changed, for all watches together.
//!
//! SQLite tells nobody about changes, so somebody has to look. One look is one `PRAGMA data_version`, which touches shared memory
//! only; the rows are read when the group's revision has risen or a record expires. The task runs while somebody watches. How it follows
//! claims is in `claims`.

mod claims;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shardwise_core::{GroupName, Moment, View};
use shardwise_discovery::feeds::{Feed, FeedLimits, FeedSource, LimitReached, Watched};
use shardwise_discovery::{ClaimTable, Error};
use sqlx::sqlite::SqliteConnection;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::backend::read_alive;
use crate::client::{Client, OpenStore};
use crate::error::Failure;
use crate::statements::EvaluatedView;
use claims::WatchedClaims;

/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// How long one look at all groups may take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);
/// How long after a failure that may pass by itself.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// How long after a failure that somebody has to repair.
const REPAIR_PAUSE: Duration = Duration::from_secs(5);

/// The most watches that one [`LocalBackend`](crate::LocalBackend) and its clones serve at a time.
pub const WATCHERS_MAX: usize = 16_384;
/// A watched group has a watch, so that these are never too many.
pub(crate) const LIMITS: FeedLimits = FeedLimits { watches: WATCHERS_MAX, groups: WATCHERS_MAX };

/// Has groups read by one poller.
pub(crate) struct PollingSource {
    client: Arc<Client>,
    wake: Notify,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// For the poller to take in.
    fresh: Vec<Feed>,
    fresh_claims: Vec<Feed<ClaimTable>>,
    /// Whether a poller runs.
    polled: bool,
}

impl PollingSource {
    pub(crate) fn new(client: Arc<Client>) -> Self {
        Self { client, wake: Notify::new(), queue: Mutex::default() }
    }

    /// Looks at once instead of at the next turn.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Nothing under this lock can panic halfway through a change.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the poller take something in, and starts it if it does not run.
    fn poll(self: Arc<Self>, put: impl FnOnce(&mut Queue)) {
        let polled = {
            let mut queue = self.queue();
            put(&mut queue);
            std::mem::replace(&mut queue.polled, true)
        };
        if !polled {
            tokio::spawn(Poller { polling: self, link: None, groups: Vec::new(), claims: Vec::new(), ended: false }.run());
        }
    }

    fn no_room(&self, full: LimitReached, operation: &'static str) -> Error {
        let (LimitReached::Watches(max) | LimitReached::Groups(max)) = full;
        Failure::TooManyWatchers { path: self.client.path().to_owned(), max }.during(operation)
    }
}

impl FeedSource for PollingSource {
    fn start(self: Arc<Self>, feed: Feed) {
        self.poll(|queue| queue.fresh.push(feed));
    }

    fn stirred(&self) {
        self.wake();
    }

    fn full(&self, full: LimitReached) -> Error {
        self.no_room(full, "watch")
    }
}

impl FeedSource<ClaimTable> for PollingSource {
    fn start(self: Arc<Self>, feed: Feed<ClaimTable>) {
        self.poll(|queue| queue.fresh_claims.push(feed));
    }

    fn stirred(&self) {
        self.wake();
    }

    fn full(&self, full: LimitReached) -> Error {
        self.no_room(full, "watch_claims")
    }
}

struct Poller {
    polling: Arc<PollingSource>,
    link: Option<PollerConnection>,
    groups: Vec<WatchedGroup>,
    claims: Vec<WatchedClaims>,
    ended: bool,
}

/// A watched group, and what the last look at it showed.
struct WatchedGroup {
    feed: Feed,
    known: Option<LastPoll>,
}

/// A connection of the poller's own and the version it last saw there.
struct PollerConnection {
    store: Arc<OpenStore>,
    connection: SqliteConnection,
    data_version: Option<i64>,
}

/// What the last look at a group showed.
struct LastPoll {
    revision: u64,
    next_end: Option<Moment>,
    /// After a failure of this group alone: when to look again.
    failing_until: Option<Moment>,
}

impl Poller {
    async fn run(mut self) {
        while self.is_wanted() {
            let looked = timeout(LOOK_TIMEOUT, self.look()).await;
            let late = || Failure::TimedOut { path: self.polling.client.path().to_owned(), after: LOOK_TIMEOUT };
            let pause = match looked.unwrap_or_else(|_| Err(late())) {
                Ok(()) => self.until_next_end().min(LOOK_EVERY),
                Err(failure) => self.failed(&failure),
            };
            // Either way it is time to look again.
            let _ = timeout(pause, self.polling.wake.notified()).await;
        }
    }

    /// Takes in who is new and drops who is gone. `false` if nobody watches; then the next watch starts a new poller.
    fn is_wanted(&mut self) -> bool {
        let mut queue = self.polling.queue();
        self.groups.extend(queue.fresh.drain(..).map(|feed| WatchedGroup { feed, known: None }));
        self.groups.retain(|group| !group.feed.end_unwatched());
        self.claims.extend(queue.fresh_claims.drain(..).map(WatchedClaims::new));
        self.claims.retain(|group| !group.feed.end_unwatched());
        self.ended = self.groups.is_empty() && self.claims.is_empty();
        queue.polled = !self.ended;
        !self.ended
    }

    async fn look(&mut self) -> Result<(), Failure> {
        let client = &*self.polling.client;
        // Before every request of this look.
        let now = client.now();
        if self.link.is_none() && client.is_unmade() {
            self.show_nobody(now);
            return Ok(());
        }
        let link = match &mut self.link {
            Some(link) => link,
            none => none.insert(PollerConnection::open(client).await?),
        };
        let version = link.store.data_version(&mut link.connection).await;
        let version = client.settle(&link.store, version)?;
        let changed = link.data_version != Some(version);
        for WatchedGroup { feed, known } in &mut self.groups {
            match link.look_at(client, feed.group(), known.as_ref(), changed, now).await {
                Ok(PollOutcome::Nothing) => {}
                Ok(PollOutcome::Same) => confirm(feed, now),
                Ok(PollOutcome::New(EvaluatedView { view, next_end })) => {
                    *known = Some(LastPoll { revision: view.revision(), next_end, failing_until: None });
                    publish(feed, view, now);
                }
                Err(failure @ (Failure::Unreadable { .. } | Failure::TooMany { .. })) => {
                    *known = Some(LastPoll { revision: 0, next_end: None, failing_until: Some(now.plus(REPAIR_PAUSE)) });
                    feed.fail(failure.during("watch"));
                }
                Err(failure) => return Err(failure),
            }
        }
        for group in &mut self.claims {
            group.look(client, link, changed, now).await?;
        }
        // Only now: after a failure everything is looked at again.
        link.data_version = Some(version);
        Ok(())
    }

    /// The file does not exist yet: no group has members, and nothing is claimed.
    fn show_nobody(&mut self, now: Moment) {
        for WatchedGroup { feed, known } in &mut self.groups {
            if known.is_none() {
                tracing::info!(path = ?self.polling.client.path(), group = %feed.group(), "there is no such file yet: no member has joined the group there");
                *known = Some(LastPoll { revision: 0, next_end: None, failing_until: None });
            }
            publish(feed, View::default(), now);
        }
        for group in &self.claims {
            group.show_nothing(now);
        }
    }

    fn failed(&mut self, failure: &Failure) -> Duration {
        let error = failure.during("watch");
        for group in &self.groups {
            group.feed.fail(error.clone());
        }
        for group in &self.claims {
            group.feed.fail(failure.during("watch_claims"));
        }
        // A slow disk needs no new connection, and one more per failure would pile up.
        if !matches!(failure, Failure::TimedOut { .. }) {
            self.link = None;
        }
        if error.is_retryable() { RETRY_PAUSE } else { REPAIR_PAUSE }
    }

    fn until_next_end(&self) -> Duration {
        let ends = self.groups.iter().filter_map(|group| group.known.as_ref()?.next_end);
        let next_end = ends.chain(self.claims.iter().filter_map(WatchedClaims::next_end)).min();
        let wait = next_end.map_or(LOOK_EVERY, |end| end.since(self.polling.client.now()));
        // A clock that stands still must not make this spin.
        wait.max(Duration::from_millis(1))
    }
}

impl Drop for Poller {
    /// The runtime ends under watches of another one: they notice that nobody feeds them, and the first starts a new poller.
    fn drop(&mut self) {
        if !self.ended {
            let mut queue = self.polling.queue();
            queue.polled = false;
            let fresh = (std::mem::take(&mut queue.fresh), std::mem::take(&mut queue.fresh_claims));
            drop(queue);
            drop(fresh);
        }
    }
}

/// What a look at one group showed.
enum PollOutcome {
    /// It was not looked at.
    Nothing,
    Same,
    New(EvaluatedView),
}

impl PollerConnection {
    async fn open(client: &Client) -> Result<Self, Failure> {
        let store = client.store().await?;
        let connection = store.connect().await?;
        Ok(Self { store, connection, data_version: None })
    }

    async fn look_at(
        &mut self,
        client: &Client,
        group: &GroupName,
        known: Option<&LastPoll>,
        changed: bool,
        now: Moment,
    ) -> Result<PollOutcome, Failure> {
        let Self { store, connection, .. } = self;
        if let Some(known) = known {
            if known.failing_until.is_some_and(|until| now < until) {
                return Ok(PollOutcome::Nothing);
            }
            let expiring = known.failing_until.is_some() || known.next_end.is_some_and(|end| end <= now);
            if !changed && !expiring {
                return Ok(PollOutcome::Same);
            }
            let before = client.known();
            let at = client.settle(store, store.revision(connection, group).await)?;
            client.settle(store, client.check(store, &at, before))?;
            if !expiring && at.revision == known.revision {
                return Ok(PollOutcome::Same);
            }
        }
        let answer = read_alive(client, store, connection, group, now).await;
        client.settle(store, answer).map(PollOutcome::New)
    }
}

/// Nothing has changed, which is told only when somebody waits for it.
fn confirm<T: Watched>(feed: &Feed<T>, now: Moment) {
    if feed.wants_proof(now) {
        feed.prove(now);
    }
}

fn publish(feed: &Feed, view: View, now: Moment) {
    // The revision of an empty group rises with changes to other groups; that is no news.
    let same = |old: &View| old.members() == view.members() && (old.revision() == view.revision() || view.members().is_empty());
    if feed.latest().is_some_and(|old| same(&old)) {
        confirm(feed, now);
    } else {
        feed.show(Arc::new(view), Some(now));
    }
}
