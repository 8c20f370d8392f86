//! The limit on connections of members. At the limit, the connection that has been idle for longest makes room.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::activity::Activity;
use crate::error::locked;

/// How long a connection waits for one that makes room: it announces its end and waits for the caller's confirmation.
const ROOM_WITHIN: Duration = Duration::from_secs(1);

pub(super) struct ConnectionLimit {
    free: Semaphore,
    admitted: Mutex<HashMap<u64, AdmittedConnection>>,
    numbered: AtomicU64,
}

#[derive(Clone)]
struct AdmittedConnection {
    activity: Arc<Activity>,
    ending: CancellationToken,
}

/// Admits one connection, until this is dropped.
pub(super) struct ConnectionPermit<'a> {
    limit: &'a ConnectionLimit,
    number: u64,
    admitted: AdmittedConnection,
    _permit: SemaphorePermit<'a>,
}

impl ConnectionLimit {
    /// Admits at most `most` connections.
    pub(super) fn new(most: usize) -> Self {
        Self { free: Semaphore::new(most), admitted: Mutex::default(), numbered: AtomicU64::new(0) }
    }

    /// Admits one more connection; `None` at the limit if no connection is idle, or the idle one does not end in time.
    pub(super) async fn admit(&self) -> Option<ConnectionPermit<'_>> {
        let permit = match self.free.try_acquire() {
            Ok(permit) => permit,
            Err(_) if self.makes_room() => timeout(ROOM_WITHIN, self.free.acquire()).await.ok()?.ok()?,
            Err(_) => return None,
        };
        let number = self.numbered.fetch_add(1, Ordering::Relaxed);
        let admitted = AdmittedConnection { activity: Activity::new(), ending: CancellationToken::new() };
        locked(&self.admitted).insert(number, admitted.clone());
        Some(ConnectionPermit { limit: self, number, admitted, _permit: permit })
    }

    /// Asks the connection that has been idle for longest to end; false if none is idle.
    fn makes_room(&self) -> bool {
        let admitted = locked(&self.admitted);
        let staying = admitted.values().filter(|connection| !connection.ending.is_cancelled());
        let idle = staying.filter_map(|connection| Some((connection.activity.idle_since()?, &connection.ending)));
        let oldest = idle.min_by_key(|(since, _)| *since);
        oldest.inspect(|(_, ending)| ending.cancel()).is_some()
    }
}

impl ConnectionPermit<'_> {
    /// What is in flight on the connection; its user counts there.
    pub(super) const fn activity(&self) -> &Arc<Activity> {
        &self.admitted.activity
    }

    /// Waits until the connection has to make room.
    pub(super) async fn ending(&self) {
        self.admitted.ending.cancelled().await;
    }
}

impl Drop for ConnectionPermit<'_> {
    fn drop(&mut self) {
        locked(&self.limit.admitted).remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_connection_that_has_been_idle_for_longest_makes_room_and_a_busy_one_does_not() {
        let limit = Arc::new(ConnectionLimit::new(3));
        let busy = limit.admit().await.unwrap();
        let in_flight = busy.activity().begin();
        let idle = |limit: Arc<ConnectionLimit>| async move {
            let permit = limit.admit().await.unwrap();
            permit.ending().await;
        };
        let first = tokio::spawn(idle(Arc::clone(&limit)));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let second = tokio::spawn(idle(Arc::clone(&limit)));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let new = limit.admit().await.unwrap();
        assert!(first.is_finished() && !second.is_finished());
        let newer = limit.admit().await.unwrap();
        assert!(second.is_finished());
        let all_busy = [new.activity().begin(), newer.activity().begin()];
        assert!(limit.admit().await.is_none(), "none is idle");
        drop((in_flight, all_busy));
        assert!(limit.admit().await.is_none(), "the one that was asked does not end");
        drop((busy, new, newer));
        assert!(limit.admit().await.is_some() && locked(&limit.admitted).is_empty());
    }
}
