//! One task per backend that looks whether the file has changed, for all watches together.
//!
//! SQLite tells nobody about changes, so somebody has to look. One look is one `PRAGMA data_version`, which touches shared memory
//! only; the rows are read when the group's revision has risen or a record expires. The task runs while somebody watches.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shardwise_core::{GroupName, Moment, View};
use shardwise_discovery::Error;
use sqlx::sqlite::SqliteConnection;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::backend::{WATCHERS_MAX, read_alive};
use crate::client::{Client, Store};
use crate::error::Failure;
use crate::statements::Judged;

/// How often the file is looked at.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(25);
/// How long one look at all groups may take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);
/// How long after a failure that may pass by itself.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// How long after a failure that somebody has to repair.
pub(crate) const REPAIR_PAUSE: Duration = Duration::from_secs(5);

/// What the newest look at one group showed. Watches read the newest only, so nothing can pile up.
#[derive(Debug, Clone, Default)]
pub(crate) struct News {
    pub(crate) view: Option<Arc<View>>,
    /// How many views there were; a new number is a new view.
    pub(crate) views: u64,
    /// Before the request that proved the view current.
    pub(crate) proven: Moment,
    /// Why the view could not be proven just now.
    pub(crate) failure: Option<Error>,
    /// How many failures there were.
    pub(crate) failures: u64,
}

/// Where watches and the poller meet.
pub(crate) struct Hub {
    client: Arc<Client>,
    feeds: Mutex<Feeds>,
    wake: Notify,
}

#[derive(Default)]
struct Feeds {
    by_group: HashMap<GroupName, watch::Sender<News>>,
    watchers: usize,
    /// Whether a poller runs.
    polled: bool,
    /// Somebody new waits for a look that began after it came.
    announce: bool,
}

/// One watch's place. Dropping it ends the work for it.
pub(crate) struct Subscription {
    hub: Arc<Hub>,
    pub(crate) news: watch::Receiver<News>,
}

impl Hub {
    pub(crate) fn new(client: Arc<Client>) -> Self {
        Self { client, feeds: Mutex::default(), wake: Notify::new() }
    }

    /// Looks at once instead of at the next turn.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    pub(crate) fn now(&self) -> Moment {
        self.client.now()
    }

    /// A place among the watches of `group`. Starts the poller if none runs.
    pub(crate) fn subscribe(self: &Arc<Self>, group: &GroupName) -> Result<Subscription, Failure> {
        let mut feeds = self.feeds();
        if feeds.watchers >= WATCHERS_MAX {
            return Err(Failure::TooManyWatchers { path: self.client.path().to_owned(), max: WATCHERS_MAX });
        }
        feeds.watchers += 1;
        feeds.announce = true;
        let news = feeds.by_group.entry(group.clone()).or_default().subscribe();
        if !feeds.polled {
            feeds.polled = true;
            tokio::spawn(Poller { hub: Arc::clone(self), link: None, known: HashMap::new(), ended: false }.run());
        }
        drop(feeds);
        self.wake();
        Ok(Subscription { hub: Arc::clone(self), news })
    }

    fn feeds(&self) -> MutexGuard<'_, Feeds> {
        // Nothing under this lock can panic halfway through a change.
        self.feeds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.hub.feeds().watchers -= 1;
    }
}

struct Poller {
    hub: Arc<Hub>,
    link: Option<Link>,
    known: HashMap<GroupName, Known>,
    ended: bool,
}

/// A connection of the poller's own and the version it last saw there.
struct Link {
    store: Arc<Store>,
    connection: SqliteConnection,
    data_version: Option<i64>,
}

/// What the last look at a group showed.
struct Known {
    revision: u64,
    next_end: Option<Moment>,
    /// After a failure of this group alone: when to look again.
    failing_until: Option<Moment>,
}

/// A watched group and who listens.
struct Feed {
    group: GroupName,
    news: watch::Sender<News>,
}

impl Poller {
    async fn run(mut self) {
        while let Some((feeds, announce)) = self.feeds() {
            let looked = timeout(LOOK_TIMEOUT, self.look(&feeds, announce)).await;
            let late = || Failure::TimedOut { path: self.hub.client.path().to_owned(), after: LOOK_TIMEOUT };
            let pause = match looked.unwrap_or_else(|_| Err(late())) {
                Ok(()) => self.until_next_end().min(LOOK_EVERY),
                Err(failure) => self.failed(&feeds, &failure),
            };
            drop(feeds);
            // Either way it is time to look again.
            let _ = timeout(pause, self.hub.wake.notified()).await;
        }
    }

    /// Who listens now; `None` if nobody does, and then the next watch starts a new poller.
    fn feeds(&mut self) -> Option<(Vec<Feed>, bool)> {
        let mut feeds = self.hub.feeds();
        feeds.by_group.retain(|_, news| news.receiver_count() > 0);
        self.known.retain(|group, _| feeds.by_group.contains_key(group));
        let announce = std::mem::take(&mut feeds.announce);
        let listened = feeds.by_group.iter().map(|(group, news)| Feed { group: group.clone(), news: news.clone() }).collect::<Vec<_>>();
        self.ended = listened.is_empty();
        feeds.polled = !self.ended;
        (!self.ended).then_some((listened, announce))
    }

    async fn look(&mut self, feeds: &[Feed], announce: bool) -> Result<(), Failure> {
        let client = Arc::clone(&self.hub.client);
        // Before every request of this look.
        let now = client.now();
        let link = match &mut self.link {
            Some(link) => link,
            none => none.insert(Link::open(&client).await?),
        };
        let version = link.store.data_version(&mut link.connection).await;
        let version = client.settle(&link.store, version)?;
        let changed = link.data_version != Some(version);
        for feed in feeds {
            let known = self.known.get(&feed.group);
            match link.look_at(&client, &feed.group, known, changed, now).await {
                Ok(Seen::Nothing) => {}
                Ok(Seen::Same) => confirm(&feed.news, now, announce),
                Ok(Seen::New(Judged { view, next_end })) => {
                    let known = Known { revision: view.revision(), next_end, failing_until: None };
                    self.known.insert(feed.group.clone(), known);
                    publish(&feed.news, view, now, announce);
                }
                Err(failure @ (Failure::Unreadable { .. } | Failure::TooMany { .. })) => {
                    let known = Known { revision: 0, next_end: None, failing_until: Some(now.plus(REPAIR_PAUSE)) };
                    self.known.insert(feed.group.clone(), known);
                    fail(&feed.news, &failure.during("watch"));
                }
                Err(failure) => return Err(failure),
            }
        }
        // Only now: after a failure everything is looked at again.
        link.data_version = Some(version);
        Ok(())
    }

    fn failed(&mut self, feeds: &[Feed], failure: &Failure) -> Duration {
        let error = failure.during("watch");
        for feed in feeds {
            fail(&feed.news, &error);
        }
        // A slow disk needs no new connection, and one more per failure would pile up.
        if !matches!(failure, Failure::TimedOut { .. }) {
            self.link = None;
        }
        if error.is_retryable() { RETRY_PAUSE } else { REPAIR_PAUSE }
    }

    fn until_next_end(&self) -> Duration {
        let next_end = self.known.values().filter_map(|known| known.next_end).min();
        let wait = next_end.map_or(LOOK_EVERY, |end| end.since(self.hub.now()));
        // A clock that stands still must not make this spin.
        wait.max(Duration::from_millis(1))
    }
}

impl Drop for Poller {
    /// The runtime ends under watches of another one: they notice that nobody feeds them, and the first starts a new poller.
    fn drop(&mut self) {
        if !self.ended {
            let mut feeds = self.hub.feeds();
            feeds.by_group.clear();
            feeds.polled = false;
        }
    }
}

/// What a look at one group showed.
enum Seen {
    /// It was not looked at.
    Nothing,
    Same,
    New(Judged),
}

impl Link {
    async fn open(client: &Client) -> Result<Self, Failure> {
        let store = client.store().await?;
        let connection = store.connect().await?;
        Ok(Self { store, connection, data_version: None })
    }

    async fn look_at(
        &mut self,
        client: &Client,
        group: &GroupName,
        known: Option<&Known>,
        changed: bool,
        now: Moment,
    ) -> Result<Seen, Failure> {
        let Self { store, connection, .. } = self;
        if let Some(known) = known {
            if known.failing_until.is_some_and(|until| now < until) {
                return Ok(Seen::Nothing);
            }
            let expiring = known.failing_until.is_some() || known.next_end.is_some_and(|end| end <= now);
            if !changed && !expiring {
                return Ok(Seen::Same);
            }
            let before = client.known();
            let at = client.settle(store, store.revision(connection, group).await)?;
            client.settle(store, client.check(store, &at, before))?;
            if !expiring && at.revision == known.revision {
                return Ok(Seen::Same);
            }
        }
        let answer = read_alive(client, store, connection, group, now).await;
        client.settle(store, answer).map(Seen::New)
    }
}

/// Nothing has changed. Listeners look by themselves when they want to know since when, so they are woken only if they wait for it.
fn confirm(news: &watch::Sender<News>, now: Moment, announce: bool) {
    news.send_if_modified(|news| {
        news.proven = now;
        news.failure.take().is_some() || announce
    });
}

fn publish(news: &watch::Sender<News>, view: View, now: Moment, announce: bool) {
    news.send_if_modified(|news| {
        news.proven = now;
        let recovered = news.failure.take().is_some();
        // The revision of an empty group rises with changes to other groups; that is no news.
        let same = |old: &View| old.members() == view.members() && (old.revision() == view.revision() || view.members().is_empty());
        let fresh = !news.view.as_deref().is_some_and(same);
        if fresh {
            news.view = Some(Arc::new(view));
            news.views += 1;
        }
        fresh || recovered || announce
    });
}

fn fail(news: &watch::Sender<News>, error: &Error) {
    news.send_modify(|news| {
        news.failure = Some(error.clone());
        news.failures += 1;
    });
}
