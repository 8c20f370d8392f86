//! Backoff after failed calls to the store.

use std::time::Duration;

use shardwise::Moment;

const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(2);

/// A backoff that grows with every consecutive failure.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pause {
    failures: u32,
    until: Moment,
}

impl Pause {
    pub(crate) fn failed(&mut self, now: Moment) {
        self.until = now.plus(exponential(FIRST, self.failures, LONGEST));
        self.failures = self.failures.saturating_add(1);
    }

    pub(crate) fn succeeded(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn over(&self, now: Moment) -> bool {
        now >= self.until
    }

    pub(crate) fn until(&self, now: Moment) -> Option<Moment> {
        (!self.over(now)).then_some(self.until)
    }
}

/// `first` doubled `doublings` times, but at most `longest`.
pub(crate) fn exponential(first: Duration, doublings: u32, longest: Duration) -> Duration {
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
}
