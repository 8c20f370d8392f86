//! One task per watched group that follows it with blocking queries, for all watches of the process together.
//!
//! A blocking query asks for nobody (an empty answer costs the same for any group) and returns when the group's index has changed or
//! after a while. An index that has not changed proves the view; one that has, by rising or by falling, is a reason to read the
//! group again, and no more than that.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shardwise_core::{GroupName, Moment, View};
use shardwise_discovery::Error;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};

use crate::error::Result;
use crate::health::Whom;
use crate::names;
use crate::reader::{self, Reading, Revisions};
use crate::registrar::Registrar;

/// The longest and the shortest wait of a blocking query.
const WAIT_LONGEST: Duration = Duration::from_secs(30);
const WAIT_SHORTEST: Duration = Duration::from_millis(20);
/// Pauses after a failure that may pass by itself, doubling.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_LONGEST: Duration = Duration::from_secs(1);
/// How long after a failure that somebody has to repair.
pub(crate) const REPAIR_PAUSE: Duration = Duration::from_secs(5);
/// So many looks may follow each other at once; after that there is one per pause.
const BURST: u32 = 20;
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What the newest look at a group showed. Watches read the newest only, so nothing can pile up.
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

/// Where watches and followers meet.
pub(crate) struct Hub {
    registrar: Arc<Registrar>,
    pub(crate) revisions: Revisions,
    feeds: Mutex<HashMap<GroupName, Feed>>,
}

struct Feed {
    news: watch::Sender<News>,
    /// Somebody new waits for a look that began after it came.
    wake: Arc<Notify>,
    prove_every: Duration,
}

impl Hub {
    pub(crate) fn new(registrar: Arc<Registrar>) -> Self {
        Self { registrar, revisions: Revisions::default(), feeds: Mutex::default() }
    }

    pub(crate) fn now(&self) -> Moment {
        self.registrar.client.clock.now()
    }

    /// The news of a group for one more watch. Starts a follower if there is none.
    pub(crate) fn subscribe(self: &Arc<Self>, group: &GroupName, prove_every: Duration) -> watch::Receiver<News> {
        let mut feeds = self.feeds();
        let feed = feeds.entry(group.clone()).or_insert_with(|| {
            let (news, wake) = (watch::Sender::default(), Arc::new(Notify::new()));
            let hub = Arc::clone(self);
            tokio::spawn(
                Follower { hub, group: group.clone(), news: news.clone(), wake: Arc::clone(&wake), known: None, foreign: (0, 0) }.run(),
            );
            Feed { news, wake, prove_every }
        });
        feed.prove_every = feed.prove_every.min(prove_every);
        feed.wake.notify_one();
        feed.news.subscribe()
    }

    fn feeds(&self) -> MutexGuard<'_, HashMap<GroupName, Feed>> {
        // Nothing under this lock can panic halfway through a change.
        self.feeds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Follower {
    hub: Arc<Hub>,
    group: GroupName,
    news: watch::Sender<News>,
    wake: Arc<Notify>,
    /// The index of the last view; `None` where the group has to be read in any case.
    known: Option<u64>,
    /// How many instances of another fleet were there last, and how many more with ids that the view cannot carry.
    foreign: (usize, usize),
}

impl Follower {
    async fn run(mut self) {
        let mut pace = Pace::new();
        let mut pause = PAUSE_FIRST;
        while let Some(prove_every) = self.wanted() {
            pace.next().await;
            match self.look(prove_every).await {
                Ok(()) => pause = PAUSE_FIRST,
                Err(failure) => {
                    self.known = None;
                    let error = failure.during("watch");
                    let rest = if error.is_retryable() { pause.mul_f64(rand::random_range(0.5..1.0)) } else { REPAIR_PAUSE };
                    self.fail(error);
                    pause = (pause * 2).min(PAUSE_LONGEST);
                    sleep(rest).await;
                }
            }
        }
    }

    /// How often somebody wants a proof; `None` if nobody listens, and then the next watch starts a new follower.
    fn wanted(&self) -> Option<Duration> {
        let mut feeds = self.hub.feeds();
        let feed = feeds.get(&self.group).filter(|feed| feed.news.same_channel(&self.news))?;
        if feed.news.receiver_count() > 0 {
            return Some(feed.prove_every);
        }
        feeds.remove(&self.group);
        None
    }

    /// Waits for a change and reads the group if there may have been one.
    async fn look(&mut self, prove_every: Duration) -> Result<()> {
        let client = &self.hub.registrar.client;
        if let Some(index) = self.known {
            // Half of it, since what an answer proves is when its request began.
            let wait = (prove_every / 2).clamp(WAIT_SHORTEST, WAIT_LONGEST);
            let service = names::service_name(&self.group);
            let list = tokio::select! {
                list = client.passing(&service, Whom::Nobody, Some((index, wait))) => list?,
                () = self.wake.notified() => {
                    self.known = None;
                    return Ok(());
                }
            };
            if list.index == index {
                self.confirm(list.started);
                return Ok(());
            }
        }
        let reading = reader::read(client, &self.hub.registrar.seats, &self.hub.revisions, &self.group).await?;
        self.known = Some(reading.index);
        self.publish(reading);
        Ok(())
    }

    fn confirm(&self, proven: Moment) {
        self.news.send_modify(|news| {
            (news.proven, news.failure) = (news.proven.max(proven), None);
        });
    }

    fn publish(&mut self, reading: Reading) {
        let Reading { view, proven, unnamed, .. } = reading;
        let found = (view.foreign().len(), unnamed);
        if std::mem::replace(&mut self.foreign, found) != found {
            tracing::info!(group = %self.group, foreign = found.0, unnamed, "passing instances of this service are not ours; their fleet shares its name");
        }
        self.news.send_modify(|news| {
            (news.proven, news.failure) = (proven, None);
            if news.view.as_ref() != Some(&view) {
                news.view = Some(view);
                news.views += 1;
            }
        });
    }

    fn fail(&self, error: Error) {
        self.news.send_modify(|news| {
            news.failure = Some(error);
            news.failures += 1;
        });
    }
}

impl Drop for Follower {
    /// The runtime ends under watches of another one: they notice that nobody feeds them, and the first starts a new follower.
    fn drop(&mut self) {
        let mut feeds = self.hub.feeds();
        if feeds.get(&self.group).is_some_and(|feed| feed.news.same_channel(&self.news)) {
            feeds.remove(&self.group);
        }
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
