//! One watch: turns what the poller last saw into the contract's events, in order and at this watch's own pace.

use std::sync::Arc;
use std::time::Duration;

use futures::stream;
use shardwise_core::{GroupName, Moment};
use shardwise_discovery::{Result, Snapshot, WatchEvent, WatchStream};
use tokio::time::{sleep, timeout};

use crate::poller::{Hub, LOOK_EVERY, News, REPAIR_PAUSE, Subscription};

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
    /// Looks that began before this watch did are not its first view: they may miss what its caller knows.
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
            let due = self.seen.proven.plus(self.prove_every).since(self.hub.now());
            if let Ok(Err(_)) = timeout(due.max(LOOK_EVERY), subscription.news.changed()).await {
                // Nobody feeds this watch any more; a new subscription starts a new poller.
                self.subscription = None;
            }
        }
    }

    async fn subscribe(&mut self) -> Result<()> {
        if std::mem::take(&mut self.refused) {
            sleep(REPAIR_PAUSE).await;
        }
        self.seen = Seen { since: self.hub.now(), ..Seen::default() };
        let answer = self.hub.subscribe(&self.group).map_err(|failure| failure.during("watch"));
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
        if recovered || news.proven >= self.proven.plus(prove_every) {
            (self.failed, self.proven) = (false, news.proven);
            return Some(Ok(WatchEvent::Proven(news.proven)));
        }
        None
    }
}
