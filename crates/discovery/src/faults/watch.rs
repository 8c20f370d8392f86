//! A watch under faults: late, repeated and withheld events. Withheld events come with the next one, so that no change is lost for good.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use futures::stream::{BoxStream, unfold};

use super::{FaultState, injected, with};
use crate::{ClaimChange, ClaimsEvent, Result, ViewSnapshot, WatchEvent};

/// Events that can be merged with an event withheld before them.
pub(super) trait MergeableEvent: Clone + Send + 'static {
    /// Both in one.
    fn after(self, withheld: Self) -> Self;

    /// Whether it is more than a proof.
    fn is_change(&self) -> bool;
}

impl MergeableEvent for WatchEvent {
    fn after(self, withheld: Self) -> Self {
        match (self, withheld) {
            (Self::Proven(at), Self::View(known)) => Self::View(ViewSnapshot { proven: at.max(known.proven), ..known }),
            (event, _) => event,
        }
    }

    fn is_change(&self) -> bool {
        matches!(self, Self::View(_))
    }
}

impl MergeableEvent for ClaimsEvent {
    fn after(self, withheld: Self) -> Self {
        match (self, withheld) {
            (Self::Proven(at), Self::All { claims, proven }) => Self::All { claims, proven: at.max(proven) },
            (Self::Proven(at), Self::Changed { changes, proven }) => Self::Changed { changes, proven: at.max(proven) },
            (Self::Changed { changes, proven }, Self::All { claims, .. }) => {
                let mut all: BTreeMap<_, _> = claims.into_iter().collect();
                for ClaimChange { resource, claim } in changes {
                    match claim {
                        Some(claim) => all.insert(resource, claim),
                        None => all.remove(&resource),
                    };
                }
                Self::All { claims: all.into_iter().collect(), proven }
            }
            (Self::Changed { changes, proven }, Self::Changed { changes: mut earlier, .. }) => {
                earlier.extend(changes);
                Self::Changed { changes: earlier, proven }
            }
            (event, _) => event,
        }
    }

    fn is_change(&self) -> bool {
        !matches!(self, Self::Proven(_))
    }
}

/// `events` with faults drawn from `state`.
pub(super) fn faulty<E: MergeableEvent>(
    events: BoxStream<'static, Result<E>>,
    state: Arc<Mutex<FaultState>>,
) -> BoxStream<'static, Result<E>> {
    let watch = FaultyWatch { events, state, withheld: None, again: None };
    unfold(watch, |mut watch| async move { watch.next().await.map(|event| (event, watch)) }).boxed()
}

struct FaultyWatch<E> {
    events: BoxStream<'static, Result<E>>,
    state: Arc<Mutex<FaultState>>,
    /// Changes that were not delivered.
    withheld: Option<E>,
    /// An event that will be repeated.
    again: Option<E>,
}

impl<E: MergeableEvent> FaultyWatch<E> {
    async fn next(&mut self) -> Option<Result<E>> {
        if let Some(event) = self.again.take() {
            return Some(Ok(event));
        }
        loop {
            let next = self.events.next().await;
            let (late, fails, drops, repeats) = with(&self.state, |state| {
                let (late, rates) = (state.delay(), state.rates);
                let fails = state.happens("FailWatch", rates.fail_watch);
                let drops = state.happens("DropEvent", rates.drop_event);
                (late, fails, drops, state.happens("RepeatEvent", rates.repeat_event))
            });
            tokio::time::sleep(late).await;
            let event = match (next, self.withheld.take()) {
                (Some(Ok(event)), Some(withheld)) => event.after(withheld),
                (Some(Ok(event)), None) => event,
                (Some(Err(error)), withheld) => {
                    self.withheld = withheld;
                    return Some(Err(error));
                }
                (None, withheld) => return withheld.map(Ok),
            };
            if fails || drops {
                self.withheld = Some(event).filter(MergeableEvent::is_change);
                if fails {
                    return Some(Err(injected("watch", "nothing can be proven")));
                }
                continue;
            }
            self.again = repeats.then(|| event.clone());
            return Some(Ok(event));
        }
    }
}
