//! Follows one group's records or claims for all their watches in this process, again and again from a list on when something fails.

use std::sync::Arc;
use std::time::Duration;

use shardwise_core::View;
use shardwise_discovery::feeds::{Feed, FeedLimits, FeedSource, LimitReached};
use shardwise_discovery::{ClaimTable, Error};
use tokio::time::{Instant, sleep_until, timeout};

use crate::backend::EtcdInner;
use crate::claim_records::ClaimMirror;
use crate::error::Failure;
use crate::mirror::{Mirror, MirrorWatch};
use crate::records::MemberTable;

/// The most watches of members, and as many of claims, that one [`EtcdBackend`](crate::EtcdBackend) and its clones serve at a time.
pub const WATCHERS_MAX: usize = 16_384;
/// The most groups that they watch at a time.
pub const GROUPS_MAX: usize = 256;
pub(crate) const LIMITS: FeedLimits = FeedLimits { watches: WATCHERS_MAX, groups: GROUPS_MAX };

/// How long a proof may take: as long as the watches' pace, but at least and at most so long.
const PROOF_LIMITS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));
/// First pause after a failure; doubled for each further one.
const RETRY_FIRST: Duration = Duration::from_millis(100);
/// Longest pause after failures that may pass by themselves.
const RETRY_LONGEST: Duration = Duration::from_secs(1);
/// Pause after a failure that somebody has to repair.
const REPAIR_PAUSE: Duration = Duration::from_secs(5);

impl FeedSource<View> for EtcdInner {
    fn start(self: Arc<Self>, feed: Feed) {
        tokio::spawn(WatchFollower::<MemberTable>::new(self, feed).run());
    }

    fn full(&self, full: LimitReached) -> Error {
        no_room(full).during(MemberTable::OPERATION)
    }
}

impl FeedSource<ClaimTable> for EtcdInner {
    fn start(self: Arc<Self>, feed: Feed<ClaimTable>) {
        tokio::spawn(WatchFollower::<ClaimMirror>::new(self, feed).run());
    }

    fn full(&self, full: LimitReached) -> Error {
        no_room(full).during(ClaimMirror::OPERATION)
    }
}

fn no_room(full: LimitReached) -> Failure {
    let (what, max) = match full {
        LimitReached::Watches(max) => ("watches", max),
        LimitReached::Groups(max) => ("watched groups", max),
    };
    Failure::TooManyWatches { what, max }
}

struct WatchFollower<S: Mirror> {
    inner: Arc<EtcdInner>,
    feed: Arc<Feed<S::Topic>>,
    /// In a row.
    failures: u32,
}

impl<S: Mirror> WatchFollower<S> {
    fn new(inner: Arc<EtcdInner>, feed: Feed<S::Topic>) -> Self {
        Self { inner, feed: Arc::new(feed), failures: 0 }
    }

    /// Runs while somebody watches.
    async fn run(mut self) {
        while !self.feed.end_unwatched() {
            if let Err(failure) = self.follow().await {
                let pause = self.failed(&failure);
                // Either way it is time to look again.
                let _ = timeout(pause, self.unwatched()).await;
            }
        }
    }

    async fn unwatched(&self) {
        while self.feed.pace().is_some() {
            self.feed.stirred().await;
        }
    }

    /// Until nobody watches, or something fails.
    async fn follow(&mut self) -> Result<(), Failure> {
        let (inner, feed) = (&self.inner, &self.feed);
        let mut mirror_watch =
            self.inner.pool.call(|connection| MirrorWatch::open(Arc::clone(inner), Arc::clone(feed), connection)).await?;
        self.failures = 0;
        let answer = self.keep_up(&mut mirror_watch).await;
        if answer.as_ref().is_err_and(Failure::is_of_endpoint) {
            self.inner.pool.blame(mirror_watch.connection());
        }
        answer
    }

    async fn keep_up(&self, mirror_watch: &mut MirrorWatch<S>) -> Result<(), Failure> {
        let mut last = Instant::now();
        while let Some(pace) = self.feed.pace() {
            tokio::select! {
                news = mirror_watch.news() => {
                    news?;
                    continue;
                }
                // Somebody new wants news that are proven after it came; or nobody is left.
                () = self.feed.stirred() => if self.feed.pace().is_none() { break },
                () = sleep_until(last + pace * 3 / 4) => {}
            }
            last = Instant::now();
            let limit = pace.clamp(PROOF_LIMITS.0, PROOF_LIMITS.1);
            let answer = timeout(limit, mirror_watch.prove()).await;
            answer.unwrap_or_else(|_| Err(mirror_watch.ended(&format!("it was silent for {} ms", limit.as_millis()))))?;
        }
        Ok(())
    }

    /// Tells the watches. For how long to pause.
    fn failed(&mut self, failure: &Failure) -> Duration {
        self.failures = self.failures.saturating_add(1);
        if matches!(failure, Failure::Compacted) && self.failures == 1 {
            // Nothing is wrong: a list tells what was missed.
            return Duration::ZERO;
        }
        self.feed.fail(failure.during(S::OPERATION));
        let longest =
            if failure.may_pass() { (RETRY_FIRST * 2u32.saturating_pow(self.failures.min(10))).min(RETRY_LONGEST) } else { REPAIR_PAUSE };
        // Many processes lose the same server at the same moment.
        longest.mul_f64(rand::random_range(0.5..1.0))
    }
}
