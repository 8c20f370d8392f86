//! Whether a connection has requests in flight, and since when it has none: an idle one is closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The requests in flight on one connection. Counted for each request, so without a lock.
pub(super) struct Activity {
    in_flight: AtomicUsize,
    begun: Instant,
    /// When the last one ended, in nanoseconds from the beginning of the connection.
    last: AtomicU64,
}

/// A request that is in flight until this is dropped.
pub(super) struct ActiveRequest(Arc<Activity>);

impl Activity {
    /// None is in flight yet.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { in_flight: AtomicUsize::new(0), begun: Instant::now(), last: AtomicU64::new(0) })
    }

    pub(super) fn begin(self: &Arc<Self>) -> ActiveRequest {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        ActiveRequest(Arc::clone(self))
    }

    /// Since when none is in flight; `None` if one is.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        (self.in_flight.load(Ordering::Acquire) == 0).then(|| self.begun + Duration::from_nanos(self.last.load(Ordering::Acquire)))
    }

    /// Waits until none has been in flight for that long.
    pub(super) async fn idle_for(&self, longest: Duration) {
        loop {
            let now = Instant::now();
            let end = self.idle_since().unwrap_or(now) + longest;
            if end <= now {
                return;
            }
            sleep_until(end).await;
        }
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let last = u64::try_from(self.0.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // Before the count: who sees that none is in flight sees when the last one ended.
        self.0.last.store(last, Ordering::Release);
        self.0.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn idle_time_begins_when_the_last_request_ends() {
        let (activity, begun) = (Activity::new(), Instant::now());
        let (one, other) = (activity.begin(), activity.begin());
        let idle = tokio::spawn({
            let activity = Arc::clone(&activity);
            async move {
                activity.idle_for(Duration::from_secs(30)).await;
                begun.elapsed()
            }
        });
        tokio::time::sleep(Duration::from_secs(100)).await;
        drop(one);
        assert_eq!(activity.idle_since(), None, "another one is in flight");
        tokio::time::sleep(Duration::from_secs(11)).await;
        drop(other);
        let after = idle.await.unwrap();
        assert!((Duration::from_secs(141)..Duration::from_secs(142)).contains(&after), "{after:?}");
    }
}
