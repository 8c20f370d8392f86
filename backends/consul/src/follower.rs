//! One task per watched group that follows it with blocking queries, for all watches of the process together.
//!
//! A blocking query asks for nobody (an empty answer costs the same for any group) and returns when the group's index has changed or
//! after a while. An index that has not changed proves the view; one that has, by rising or by falling, is a reason to read the
//! group again, and no more than that.

use std::sync::Arc;
use std::time::Duration;

use shardwise_discovery::Error;
use shardwise_discovery::feeds::{Feed, Full, Limits, Source};
use tokio::time::{Instant, sleep};

use crate::error::{Failure, Result};
use crate::health::Whom;
use crate::names;
use crate::reader::{self, GROUPS_MAX, Reading, Revisions};
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

/// What followers share.
pub(crate) struct Followers {
    pub(crate) registrar: Arc<Registrar>,
    pub(crate) revisions: Revisions,
}

pub(crate) const LIMITS: Limits = Limits { watches: WATCHERS_MAX, groups: GROUPS_MAX };

impl Source for Followers {
    fn start(self: Arc<Self>, feed: Feed) {
        tokio::spawn(Follower { shared: self, feed, known: None, foreign: (0, 0) }.run());
    }

    fn full(&self, full: Full) -> Error {
        let failure = match full {
            Full::Watches(max) => Failure::TooManyWatches { max },
            Full::Groups(max) => Failure::TooManyGroups { max },
        };
        failure.during("watch")
    }
}

struct Follower {
    shared: Arc<Followers>,
    feed: Feed,
    /// The index of the last view; `None` where the group has to be read in any case.
    known: Option<u64>,
    /// How many instances of another fleet were there last, and how many more with ids that the view cannot carry.
    foreign: (usize, usize),
}

impl Follower {
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
                    let error = failure.during("watch");
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
        let Followers { registrar, revisions } = &*self.shared;
        let client = &registrar.client;
        if let (Some(index), Some(prove_every)) = (self.known, self.feed.pace()) {
            // Half of it, since what an answer proves is when its request began.
            let wait = (prove_every / 2).clamp(WAIT_SHORTEST, WAIT_LONGEST);
            let service = names::service_name(self.feed.group());
            let list = tokio::select! {
                list = client.passing(&service, Whom::Nobody, Some((index, wait))) => list?,
                () = self.feed.stirred() => {
                    if self.feed.has_newcomer() {
                        self.known = None;
                    }
                    return Ok(());
                }
            };
            if list.index == index {
                self.feed.prove(list.started);
                return Ok(());
            }
        }
        let reading = reader::read(client, &registrar.seats, revisions, self.feed.group()).await?;
        self.known = Some(reading.index);
        self.publish(reading);
        Ok(())
    }

    fn publish(&mut self, reading: Reading) {
        let Reading { view, proven, unnamed, .. } = reading;
        let found = (view.foreign().len(), unnamed);
        if std::mem::replace(&mut self.foreign, found) != found {
            tracing::info!(group = %self.feed.group(), foreign = found.0, unnamed, "passing instances of this service are not ours; their fleet shares its name");
        }
        self.feed.show(view, Some(proven));
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
