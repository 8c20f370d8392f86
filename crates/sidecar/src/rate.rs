//! A token bucket.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

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
        self.passes_at(Instant::now())
    }

    fn passes_at(&self, now: Instant) -> bool {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, filled) = *bucket;
        let left = (left + now.saturating_duration_since(filled).as_secs_f64() * self.per_second).min(self.per_second * 2.0);
        let passes = left >= 1.0;
        *bucket = (if passes { left - 1.0 } else { left }, now.max(filled));
        passes
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn two_seconds_worth_at_once_and_then_at_the_rate() {
        let (rate, begin) = (RateLimiter::new(5), Instant::now());
        let passed = |after: u64| (0..100).filter(|_| rate.passes_at(begin + Duration::from_millis(after))).count();
        assert_eq!([0, 0, 1_000, 1_200, 1_100, 60_000].map(passed), [10, 0, 5, 1, 0, 10]);
    }
}
