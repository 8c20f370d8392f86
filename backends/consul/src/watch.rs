//! One watch: turns what the follower last saw into the contract's events, in order and at this watch's own pace.

use std::sync::Arc;
use std::time::Duration;

use futures::stream;
use shardwise_core::{GroupName, Moment};
use shardwise_discovery::{Result, Snapshot, WatchEvent, WatchStream};
use tokio::sync::watch;

use crate::follower::{Hub, News};

/// A watch of `group`. Nothing happens before it is polled.
pub(crate) fn stream(hub: Arc<Hub>, group: GroupName, prove_every: Duration) -> WatchStream {
    let watcher = Watcher { hub, group, prove_every, news: None, told: Told::default() };
    Box::pin(stream::unfold(watcher, |mut watcher| async move {
        let event = watcher.next().await;
        Some((event, watcher))
    }))
}

struct Watcher {
    hub: Arc<Hub>,
    group: GroupName,
    prove_every: Duration,
    news: Option<watch::Receiver<News>>,
    told: Told,
}

/// What this watch has told already.
#[derive(Default)]
struct Told {
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
            let Some(news) = &mut self.news else {
                self.told = Told { since: self.hub.now(), ..Told::default() };
                self.news = Some(self.hub.subscribe(&self.group, self.prove_every));
                continue;
            };
            let seen = news.borrow_and_update().clone();
            if let Some(event) = self.told.event(seen, self.prove_every) {
                return event;
            }
            if news.changed().await.is_err() {
                // Nobody feeds this watch any more; a new subscription starts a new follower.
                self.news = None;
            }
        }
    }
}

impl Told {
    fn event(&mut self, news: News, prove_every: Duration) -> Option<Result<WatchEvent>> {
        if let Some(failure) = news.failure
            && news.failures != self.failures
        {
            (self.failures, self.failed) = (news.failures, true);
            return Some(Err(failure));
        }
        let view = news.view.filter(|_| news.proven >= self.since)?;
        if news.views != self.views {
            (self.views, self.proven, self.failed) = (news.views, news.proven, false);
            return Some(Ok(WatchEvent::View(Snapshot { view, proven: news.proven })));
        }
        let recovered = self.failed && news.proven > self.proven;
        // The proofs come twice as often as they are wanted; every other one may be a little early.
        if recovered || news.proven >= self.proven.plus(prove_every / 2) {
            (self.failed, self.proven) = (false, news.proven);
            return Some(Ok(WatchEvent::Proven(news.proven)));
        }
        None
    }
}
