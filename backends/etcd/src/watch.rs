//! One watch: turns what the follower last saw into the contract's events, in order and at this watch's own pace.

use std::sync::Arc;
use std::time::Duration;

use futures::stream;
use shardwise_core::{GroupName, Moment};
use shardwise_discovery::{Result, Snapshot, WatchEvent, WatchStream};
use tokio::time::{sleep, timeout};

use crate::hub::{Hub, News, Subscription};

/// How often a watch looks whether somebody still feeds it.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long after a refusal, which lasts until somebody drops watches.
const REPAIR_PAUSE: Duration = Duration::from_secs(5);

/// A watch of `group`. Nothing happens before it is polled.
pub(crate) fn stream(hub: Arc<Hub>, group: GroupName, prove_every: Duration) -> WatchStream {
    let watcher = Watcher { hub, group, prove_every, subscription: None, seen: Seen::default(), refused: false };
    Box::pin(stream::unfold(watcher, |mut watcher| async move {
        let event = watcher.next().await;
        Some((event, watcher))
    }))
}

struct Watcher {
    hub: Arc<Hub>,
    group: GroupName,
    prove_every: Duration,
    subscription: Option<Subscription>,
    seen: Seen,
    refused: bool,
}

/// What this watch has told already.
#[derive(Default)]
struct Seen {
    /// Reads that began before this watch did are not its first view: they may miss what its caller knows.
    since: Moment,
    views: u64,
    failures: u64,
    failed: bool,
    proven: Moment,
}

impl Watcher {
    async fn next(&mut self) -> Result<WatchEvent> {
        loop {
            let Some(subscription) = &mut self.subscription else {
                self.subscribe().await?;
                continue;
            };
            let news = subscription.news.borrow_and_update().clone();
            if let Some(event) = self.seen.event(news, self.prove_every) {
                return event;
            }
            if timeout(LOOK_EVERY, subscription.news.changed()).await.is_err() && !subscription.is_fed() {
                // A new subscription starts a new follower.
                self.subscription = None;
            }
        }
    }

    async fn subscribe(&mut self) -> Result<()> {
        if std::mem::take(&mut self.refused) {
            sleep(REPAIR_PAUSE).await;
        }
        self.seen = Seen { since: self.hub.now(), ..Seen::default() };
        let answer = self.hub.subscribe(&self.group, self.prove_every).map_err(|failure| failure.during("watch"));
        self.refused = answer.is_err();
        self.subscription = Some(answer?);
        Ok(())
    }
}

impl Seen {
    fn event(&mut self, news: News, prove_every: Duration) -> Option<Result<WatchEvent>> {
        if let Some(failure) = news.failure
            && news.failures != self.failures
        {
            (self.failures, self.failed) = (news.failures, true);
            return Some(Err(failure));
        }
        let view = news.view.filter(|_| news.proven >= self.since)?;
        if news.views != self.views {
            *self = Self { views: news.views, failures: news.failures, failed: false, proven: news.proven, ..*self };
            return Some(Ok(WatchEvent::View(Snapshot { view, proven: news.proven })));
        }
        let recovered = self.failed && news.proven > self.proven;
        // The follower proves a little more often than the quickest watch wants it.
        if recovered || news.proven >= self.proven.plus(prove_every / 2) {
            (self.failed, self.proven) = (false, news.proven);
            return Some(Ok(WatchEvent::Proven(news.proven)));
        }
        None
    }
}
