//! So many a second and no more.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How far apart the lines of what strangers can cause are in the log.
const LINES_APART: Duration = Duration::from_secs(5);

/// A bucket that fills at a steady rate and holds two seconds' worth.
#[derive(Debug)]
pub(crate) struct Rate {
    per_second: f64,
    bucket: Mutex<(f64, Instant)>,
}

impl Rate {
    pub(crate) fn new(per_second: u32) -> Self {
        let per_second = f64::from(per_second);
        Self { per_second, bucket: Mutex::new((per_second * 2.0, Instant::now())) }
    }

    /// Whether one more may pass now.
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

/// Counts what strangers can cause as often as they like, so that it is a line in the log now and then.
#[derive(Debug, Default)]
pub(crate) struct Seldom(Mutex<(u64, Option<Instant>)>);

impl Seldom {
    /// One more; how many since the last line, if one is due.
    pub(crate) fn another(&self) -> Option<u64> {
        self.another_at(Instant::now())
    }

    fn another_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, last) = *state;
        let is_due = last.is_none_or(|last| now.saturating_duration_since(last) >= LINES_APART);
        *state = if is_due { (0, Some(now)) } else { (count.saturating_add(1), last) };
        is_due.then(|| count.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_often_is_a_line_now_and_then_that_counts_it() {
        let (seldom, begin) = (Seldom::default(), Instant::now());
        let lines = |after: u64| (0..100).filter_map(|_| seldom.another_at(begin + Duration::from_millis(after))).collect::<Vec<_>>();
        assert_eq!([0, 4_999, 5_000, 60_000].map(lines), [vec![1], vec![], vec![200], vec![100]]);
    }

    #[test]
    fn two_seconds_worth_at_once_and_then_at_the_rate() {
        let (rate, begin) = (Rate::new(5), Instant::now());
        let passed = |after: u64| (0..100).filter(|_| rate.passes_at(begin + Duration::from_millis(after))).count();
        assert_eq!([0, 0, 1_000, 1_200, 1_100, 60_000].map(passed), [10, 0, 5, 1, 0, 10]);
    }
}
