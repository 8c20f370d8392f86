//! Pauses between attempts.

use std::time::Duration;

/// Exponential backoff: the first pause, doubled after each consecutive failure, up to the longest. Callers add jitter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// No failure yet.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0 }
    }

    /// Counts a failure and returns the pause before the next attempt.
    pub fn fail(&mut self) -> Duration {
        let pause = exponential(self.first, self.failures, self.longest);
        self.failures = self.failures.saturating_add(1);
        pause
    }

    /// Handles a success: the next failure counts as the first again.
    pub const fn reset(&mut self) {
        self.failures = 0;
    }

    /// The number of failures since the last success.
    pub const fn failures(&self) -> u32 {
        self.failures
    }
}

/// `first` doubled `doublings` times, but at most `longest`.
pub fn exponential(first: Duration, doublings: u32, longest: Duration) -> Duration {
    first.saturating_mul(2_u32.saturating_pow(doublings)).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let second = Duration::from_secs(1);
        let waits: Vec<_> = [0, 1, 2, 8, 9, 31, 32, u32::MAX].map(|n| exponential(second, n, Duration::from_mins(5)).as_secs()).into();
        assert_eq!(waits, [1, 2, 4, 256, 300, 300, 300, 300]);
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_start_over_after_a_success() {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(300));
        let mut pauses = |count| (0..count).map(|_| backoff.fail().as_millis()).collect::<Vec<_>>();
        assert_eq!(pauses(5), [50, 100, 200, 300, 300]);
        assert_eq!(pauses(100).last(), Some(&300), "and never overflows");
        assert_eq!(backoff.failures(), 105);
        backoff.reset();
        assert_eq!((backoff.failures(), backoff.fail()), (0, Duration::from_millis(50)));
    }
}
