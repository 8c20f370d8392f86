//! The places for connections of members. If all are taken, the connection that has been idle for longest makes room.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::activity::Activity;
use crate::error::locked;

/// How long a connection waits for one that makes room: that one says that it ends, and waits for the caller's word.
const ROOM_WITHIN: Duration = Duration::from_secs(1);

pub(super) struct ConnectionPlaces {
    free: Semaphore,
    taken: Mutex<HashMap<u64, TakenPlace>>,
    numbered: AtomicU64,
}

#[derive(Clone)]
struct TakenPlace {
    activity: Arc<Activity>,
    ending: CancellationToken,
}

/// The place of one connection, until this is dropped.
pub(super) struct ConnectionPlace<'a> {
    places: &'a ConnectionPlaces,
    number: u64,
    taken: TakenPlace,
    _permit: SemaphorePermit<'a>,
}

impl ConnectionPlaces {
    /// So many.
    pub(super) fn new(most: usize) -> Self {
        Self { free: Semaphore::new(most), taken: Mutex::default(), numbered: AtomicU64::new(0) }
    }

    /// A place for one more connection; `None` if all are taken and no connection is idle, or the idle one does not end in time.
    pub(super) async fn take(&self) -> Option<ConnectionPlace<'_>> {
        let permit = match self.free.try_acquire() {
            Ok(permit) => permit,
            Err(_) if self.makes_room() => timeout(ROOM_WITHIN, self.free.acquire()).await.ok()?.ok()?,
            Err(_) => return None,
        };
        let number = self.numbered.fetch_add(1, Ordering::Relaxed);
        let taken = TakenPlace { activity: Activity::new(), ending: CancellationToken::new() };
        locked(&self.taken).insert(number, taken.clone());
        Some(ConnectionPlace { places: self, number, taken, _permit: permit })
    }

    /// Asks the connection that has been idle for longest to end; false if none is idle.
    fn makes_room(&self) -> bool {
        let taken = locked(&self.taken);
        let staying = taken.values().filter(|place| !place.ending.is_cancelled());
        let idle = staying.filter_map(|place| Some((place.activity.idle_since()?, &place.ending)));
        let oldest = idle.min_by_key(|(since, _)| *since);
        oldest.inspect(|(_, ending)| ending.cancel()).is_some()
    }
}

impl ConnectionPlace<'_> {
    /// What is in flight on the connection; its user counts there.
    pub(super) const fn activity(&self) -> &Arc<Activity> {
        &self.taken.activity
    }

    /// Waits until the connection is to make room.
    pub(super) async fn ending(&self) {
        self.taken.ending.cancelled().await;
    }
}

impl Drop for ConnectionPlace<'_> {
    fn drop(&mut self) {
        locked(&self.places.taken).remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_connection_that_has_been_idle_for_longest_makes_room_and_a_busy_one_does_not() {
        let places = Arc::new(ConnectionPlaces::new(3));
        let busy = places.take().await.unwrap();
        let in_flight = busy.activity().begin();
        let idle = |places: Arc<ConnectionPlaces>| async move {
            let place = places.take().await.unwrap();
            place.ending().await;
        };
        let first = tokio::spawn(idle(Arc::clone(&places)));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let second = tokio::spawn(idle(Arc::clone(&places)));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let new = places.take().await.unwrap();
        assert!(first.is_finished() && !second.is_finished());
        let newer = places.take().await.unwrap();
        assert!(second.is_finished());
        let all_busy = [new.activity().begin(), newer.activity().begin()];
        assert!(places.take().await.is_none(), "none is idle");
        drop((in_flight, all_busy));
        assert!(places.take().await.is_none(), "the one that was asked does not end");
        drop((busy, new, newer));
        assert!(places.take().await.is_some() && locked(&places.taken).is_empty());
    }
}
