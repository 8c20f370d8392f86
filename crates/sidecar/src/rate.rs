//! A token bucket.

use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

/// A bucket that fills at a steady rate and holds as much as two seconds add.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    per_second: f64,
    bucket: Mutex<(f64, Instant)>,
}

impl RateLimiter {
    pub(crate) fn new(per_second: u32) -> Self {
        let per_second = f64::from(per_second);
        Self { per_second, bucket: Mutex::new((per_second * 2.0, Instant::now())) }
    }

    /// Takes one token; `false` if the bucket is empty.
    pub(crate) fn passes(&self) -> bool {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let ((left, filled), now) = (*bucket, Instant::now());
        let left = (left + (now - filled).as_secs_f64() * self.per_second).min(self.per_second * 2.0);
        let passes = left >= 1.0;
        *bucket = (if passes { left - 1.0 } else { left }, now);
        passes
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn two_seconds_worth_at_once_and_then_at_the_rate() {
        let rate = RateLimiter::new(5);
        for (after, passed) in [(0, 10), (0, 0), (1_000, 5), (200, 1), (0, 0), (58_800, 10)] {
            tokio::time::advance(Duration::from_millis(after)).await;
            assert_eq!((0..100).filter(|_| rate.passes()).count(), passed, "after {after} ms");
        }
    }
}
