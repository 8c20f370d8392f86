//! One watch: turns what was last seen into the contract's events, in order and at this watch's own pace.

use std::time::Duration;

use futures::stream;
use shardwise_core::{GroupName, Moment};
use tokio::time::sleep;

use super::feed::News;
use super::{Hub, Source, Subscription};
use crate::{Result, Snapshot, WatchEvent, WatchStream};

/// How long after a refusal, which lasts until somebody drops watches.
const REPAIR_PAUSE: Duration = Duration::from_secs(5);
/// How long after a reader has ended under its watches; one that always ends at once must not make them spin.
const RESTART_PAUSE: Duration = Duration::from_millis(20);

pub(super) fn stream<S: Source>(hub: Hub<S>, group: GroupName, prove_every: Duration) -> WatchStream {
    let watcher = Watcher { hub, group, prove_every, subscription: None, seen: Seen::default(), pause: None };
    Box::pin(stream::unfold(watcher, |mut watcher| async move {
        let event = watcher.next().await;
        Some((event, watcher))
    }))
}

struct Watcher<S> {
    hub: Hub<S>,
    group: GroupName,
    prove_every: Duration,
    subscription: Option<Subscription>,
    seen: Seen,
    /// Before the next subscription.
    pause: Option<Duration>,
}

impl<S: Source> Watcher<S> {
    async fn next(&mut self) -> Result<WatchEvent> {
        loop {
            let Some(subscription) = &mut self.subscription else {
                self.subscribe().await?;
                continue;
            };
            let news = subscription.news.borrow_and_update().clone();
            let over = news.over;
            if let Some(event) = self.seen.event(news, self.prove_every) {
                return event;
            }
            if over || subscription.news.changed().await.is_err() {
                (self.subscription, self.pause) = (None, Some(RESTART_PAUSE));
            }
        }
    }

    async fn subscribe(&mut self) -> Result<()> {
        if let Some(pause) = self.pause {
            sleep(pause).await;
            self.pause = None;
        }
        let since = self.hub.clock.now();
        self.seen = Seen { since, ..Seen::default() };
        match self.hub.subscribe(&self.group, self.prove_every, since) {
            Ok(subscription) => self.subscription = Some(subscription),
            Err(error) => {
                self.pause = Some(REPAIR_PAUSE);
                return Err(error);
            }
        }
        Ok(())
    }
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
            (self.views, self.proven, self.failed) = (news.views, news.proven, false);
            return Some(Ok(WatchEvent::View(Snapshot { view, proven: news.proven })));
        }
        let recovered = self.failed && news.proven > self.proven;
        // Readers prove a little more often than the quickest watch wants it.
        if recovered || news.proven >= self.proven.plus(prove_every / 2) {
            (self.failed, self.proven) = (false, news.proven);
            return Some(Ok(WatchEvent::Proven(news.proven)));
        }
        None
    }
}
