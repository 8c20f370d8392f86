//! Looks now and then how much waits in the whole outbox, for the metrics.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::Store;
use crate::metrics::Meters;

/// Before the first look: whoever has just begun has slots to take and what a restart left waiting to send, and a look at a full outbox reads 10,000 aggregates.
const AFTER: Duration = Duration::from_secs(2);
/// Between two looks.
const EVERY: Duration = Duration::from_secs(10);
/// A look that takes longer is given up; the gauges stay as they were.
const WITHIN: Duration = Duration::from_secs(5);
/// So much of each kind is looked at, which bounds the cost.
const MOST: usize = 10_000;

/// Looks until the handle is dropped.
pub(super) fn watch(store: &Arc<dyn Store>, meters: &Meters) -> AbortOnDropHandle<()> {
    let (store, meters) = (Arc::clone(store), meters.clone());
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut turns = interval_at(Instant::now() + AFTER, EVERY);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            turns.tick().await;
            match timeout(WITHIN, store.backlog(MOST)).await {
                Ok(Ok(Some(backlog))) => meters.backlog(&backlog),
                // This store does not count.
                Ok(Ok(None)) => return,
                Ok(Err(error)) => tracing::debug!(%error, "the backlog cannot be counted; trying again"),
                Err(_) => tracing::debug!("the backlog was not counted in time; trying again"),
            }
        }
    }))
}
