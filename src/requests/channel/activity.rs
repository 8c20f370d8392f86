//! Whether a connection has requests in flight, and since when it has none: an idle one is closed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::error::locked;

/// The requests in flight on one connection.
pub(super) struct Activity(Mutex<ActivityState>);

struct ActivityState {
    in_flight: usize,
    /// When the last one ended, or the connection began.
    last: Instant,
}

/// A request that is in flight until this is dropped.
pub(super) struct ActiveRequest(Arc<Activity>);

impl Activity {
    /// None is in flight yet.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(ActivityState { in_flight: 0, last: Instant::now() })))
    }

    pub(super) fn begin(self: &Arc<Self>) -> ActiveRequest {
        locked(&self.0).in_flight += 1;
        ActiveRequest(Arc::clone(self))
    }

    /// Since when none is in flight; `None` if one is.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let state = locked(&self.0);
        (state.in_flight == 0).then_some(state.last)
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
        let mut state = locked(&self.0.0);
        state.in_flight = state.in_flight.saturating_sub(1);
        state.last = Instant::now();
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
