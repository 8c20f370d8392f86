//! Looks now and then how much waits in the whole outbox, for the metrics.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::Store;
use crate::metrics::Meters;
use crate::store::Backlog;

/// Before the first look: whoever has just begun has slots to take and what a restart left waiting to send, and a look at a full outbox reads 10,000 aggregates.
const AFTER: Duration = Duration::from_secs(2);
/// Between two looks.
const EVERY: Duration = Duration::from_secs(10);
/// A look that takes longer is given up; the gauges stay as they were.
const WITHIN: Duration = Duration::from_secs(5);
/// So much of each kind is looked at, which bounds the cost.
const MOST: usize = 10_000;

/// What the log says of slots without a publisher.
#[derive(Debug, Default)]
struct Unserved {
    /// When they were first seen.
    since: Option<Instant>,
    is_said: bool,
}

/// What a look gives to say.
#[derive(Debug, PartialEq, Eq)]
enum News {
    /// Slots have had no publisher for a TTL.
    Unserved,
    /// Every slot that was said to have none has one again.
    Served,
}

impl Unserved {
    /// Says once that slots have had no publisher for a TTL, and once when that has passed.
    fn look(&mut self, free_slots: u32, ttl: Duration, now: Instant) -> Option<News> {
        if free_slots == 0 {
            let was_said = std::mem::take(self).is_said;
            return was_said.then_some(News::Served);
        }
        let since = *self.since.get_or_insert(now);
        let is_new = !self.is_said && now - since >= ttl;
        self.is_said |= is_new;
        is_new.then_some(News::Unserved)
    }
}

fn say(news: Option<&News>, backlog: &Backlog) {
    match news {
        None => {}
        Some(News::Served) => tracing::info!("every slot of the outbox has a living publisher again"),
        Some(News::Unserved) => tracing::warn!(
            slots = backlog.free_slots,
            events = backlog.unpublished,
            "no publisher has held these slots of the outbox for a TTL, and their events wait; see `shardwise outbox status` and `shardwise members`"
        ),
    }
}

/// Looks until the handle is dropped.
pub(super) fn watch(store: &Arc<dyn Store>, meters: &Meters, poll: Duration, ttl: Duration) -> AbortOnDropHandle<()> {
    let (store, meters) = (Arc::clone(store), meters.clone());
    let mut unserved = Unserved::default();
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut turns = interval_at(Instant::now() + AFTER, EVERY);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            turns.tick().await;
            match timeout(WITHIN, store.backlog(MOST)).await {
                Ok(Ok(Some(backlog))) => {
                    meters.backlog(&backlog, poll);
                    say(unserved.look(backlog.free_slots, ttl, Instant::now()).as_ref(), &backlog);
                }
                // This store does not count.
                Ok(Ok(None)) => return,
                Ok(Err(error)) => tracing::debug!(%error, "the backlog cannot be counted; trying again"),
                Err(_) => tracing::debug!("the backlog was not counted in time; trying again"),
            }
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn slots_without_a_publisher_are_said_once_after_a_ttl_and_once_when_they_have_one() {
        let (mut unserved, begun, ttl) = (Unserved::default(), Instant::now(), Duration::from_secs(15));
        let mut look = |free, seconds| unserved.look(free, ttl, begun + Duration::from_secs(seconds));
        assert_eq!([look(3, 0), look(0, 10), look(3, 20), look(2, 30)], [None, None, None, None], "no TTL has passed");
        assert_eq!([look(2, 35), look(2, 50)], [Some(News::Unserved), None]);
        assert_eq!([look(0, 60), look(0, 70)], [Some(News::Served), None]);
        assert_eq!([look(1, 80), look(1, 95)], [None, Some(News::Unserved)], "again");
    }
}
