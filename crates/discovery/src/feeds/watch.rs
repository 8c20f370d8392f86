//! What is shown of a group, and one watch of it: turns the last state read into the contract's events, in order and at the watch's pace.

use std::sync::Arc;
use std::time::Duration;

use futures::stream;
use futures::stream::BoxStream;
use shardwise_core::{GroupName, Moment, View};
use tokio::time::sleep;

use super::feed::FeedState;
use super::{Hub, REPAIR_PAUSE, Subscription};
use crate::{ClaimTable, ClaimsEvent, Result, ViewSnapshot, WatchEvent};

/// How long after a reader has ended under its watches; one that always ends at once must not make them spin.
const RESTART_PAUSE: Duration = Duration::from_millis(20);

/// A part of a group that is read and delivered to watches.
pub trait Watched: PartialEq + Send + Sync + 'static {
    /// The events of its watches.
    type Event: Send + 'static;
    /// Names the watch in errors.
    const OPERATION: &'static str;

    /// The event for a watch that has delivered `before` and now sees `now`; `None` if nothing is new.
    fn event(before: Option<&Self>, now: &Arc<Self>, proven: Moment) -> Option<Self::Event>;

    /// Nothing is new; the last state was still current at this moment.
    fn proven(at: Moment) -> Self::Event;
}

impl Watched for View {
    type Event = WatchEvent;
    const OPERATION: &'static str = "watch";

    fn event(_before: Option<&Self>, now: &Arc<Self>, proven: Moment) -> Option<WatchEvent> {
        Some(WatchEvent::View(ViewSnapshot { view: Arc::clone(now), proven }))
    }

    fn proven(at: Moment) -> WatchEvent {
        WatchEvent::Proven(at)
    }
}

/// A watch compares what it delivered with the present state, so that a slow watch leaves nothing out.
impl Watched for ClaimTable {
    type Event = ClaimsEvent;
    const OPERATION: &'static str = "watch_claims";

    fn event(before: Option<&Self>, now: &Arc<Self>, proven: Moment) -> Option<ClaimsEvent> {
        let Some(before) = before else {
            return Some(ClaimsEvent::All { claims: now.0.clone().into_iter().collect(), proven });
        };
        let changes = before.changes_to(now);
        (!changes.is_empty()).then_some(ClaimsEvent::Changed { changes, proven })
    }

    fn proven(at: Moment) -> ClaimsEvent {
        ClaimsEvent::Proven(at)
    }
}

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
                let state = subscription.feed_state.borrow_and_update();
                (self.seen.event(&state, self.prove_every), state.over)
            };
            if let Some(event) = event {
                return event;
            }
            if over || subscription.feed_state.changed().await.is_err() {
                (self.subscription, self.pause) = (None, Some(RESTART_PAUSE));
            }
        }
    }

    async fn subscribe(&mut self) -> Result<()> {
        if let Some(pause) = self.pause {
            sleep(pause).await;
        }
        let since = self.hub.0.clock.now();
        self.seen = DeliveredState::since(since);
        let subscribed = self.hub.subscribe(&self.group, self.prove_every, since);
        self.pause = subscribed.is_err().then_some(REPAIR_PAUSE);
        self.subscription = Some(subscribed?);
        Ok(())
    }
}

/// What this watch has delivered already.
struct DeliveredState<T> {
    /// Reads that began before this watch did are not its first events: they may miss what its caller knows.
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

    fn event(&mut self, state: &FeedState<T>, prove_every: Duration) -> Option<Result<T::Event>> {
        if let Some(failure) = &state.failure
            && state.failures != self.failures
        {
            (self.failures, self.failed) = (state.failures, true);
            return Some(Err(failure.clone()));
        }
        let now = state.shown.as_ref().filter(|_| state.proven >= self.since)?;
        if state.shows != self.shows {
            self.shows = state.shows;
            let event = T::event(self.sent.as_deref(), now, state.proven);
            self.sent = Some(Arc::clone(now));
            if let Some(event) = event {
                (self.proven, self.failed) = (state.proven, false);
                return Some(Ok(event));
            }
        }
        let recovered = self.failed && state.proven > self.proven;
        // Readers prove a little more often than the quickest watch wants it.
        if recovered || state.proven >= self.proven.plus(prove_every / 2) {
            (self.failed, self.proven) = (false, state.proven);
            return Some(Ok(T::proven(state.proven)));
        }
        None
    }
}
