//! One watch: turns the last state read into the contract's events, in order and at this watch's pace.

use std::sync::Arc;
use std::time::Duration;

use futures::stream;
use futures::stream::BoxStream;
use shardwise_core::{GroupName, Moment};
use tokio::time::sleep;

use super::feed::FeedState;
use super::{Hub, Subscription, Watched};
use crate::Result;

/// The pause after a refusal, which lasts until other watches are dropped.
const REPAIR_PAUSE: Duration = Duration::from_secs(5);
/// How long after a reader has ended under its watches; one that always ends at once must not make them spin.
const RESTART_PAUSE: Duration = Duration::from_millis(20);

pub(super) fn stream<T: Watched>(hub: Hub<T>, group: GroupName, prove_every: Duration) -> BoxStream<'static, Result<T::Event>> {
    let watcher = Watcher { hub, group, prove_every, subscription: None, seen: DeliveredState::since(Moment::ZERO), pause: None };
    Box::pin(stream::unfold(watcher, |mut watcher| async move {
        let event = watcher.next().await;
        Some((event, watcher))
    }))
}

struct Watcher<T: 'static> {
    hub: Hub<T>,
    group: GroupName,
    prove_every: Duration,
    subscription: Option<Subscription<T>>,
    seen: DeliveredState<T>,
    /// Before the next subscription.
    pause: Option<Duration>,
}

impl<T: Watched> Watcher<T> {
    async fn next(&mut self) -> Result<T::Event> {
        loop {
            let Some(subscription) = &mut self.subscription else {
                self.subscribe().await?;
                continue;
            };
            let (event, over) = {
                let news = subscription.news.borrow_and_update();
                (self.seen.event(&news, self.prove_every), news.over)
            };
            if let Some(event) = event {
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
        self.seen = DeliveredState::since(since);
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

/// What this watch has delivered already.
struct DeliveredState<T> {
    /// Reads that began before this watch did are not its first news: they may miss what its caller knows.
    since: Moment,
    sent: Option<Arc<T>>,
    shows: u64,
    failures: u64,
    failed: bool,
    proven: Moment,
}

impl<T: Watched> DeliveredState<T> {
    const fn since(since: Moment) -> Self {
        Self { since, sent: None, shows: 0, failures: 0, failed: false, proven: Moment::ZERO }
    }

    fn event(&mut self, news: &FeedState<T>, prove_every: Duration) -> Option<Result<T::Event>> {
        if let Some(failure) = &news.failure
            && news.failures != self.failures
        {
            (self.failures, self.failed) = (news.failures, true);
            return Some(Err(failure.clone()));
        }
        let now = news.shown.as_ref().filter(|_| news.proven >= self.since)?;
        if news.shows != self.shows {
            self.shows = news.shows;
            let event = T::news(self.sent.as_deref(), now, news.proven);
            self.sent = Some(Arc::clone(now));
            if let Some(event) = event {
                (self.proven, self.failed) = (news.proven, false);
                return Some(Ok(event));
            }
        }
        let recovered = self.failed && news.proven > self.proven;
        // Readers prove a little more often than the quickest watch wants it.
        if recovered || news.proven >= self.proven.plus(prove_every / 2) {
            (self.failed, self.proven) = (false, news.proven);
            return Some(Ok(T::proven(news.proven)));
        }
        None
    }
}
