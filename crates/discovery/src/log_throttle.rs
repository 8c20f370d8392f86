//! Rate-limited log lines for events that outsiders can cause at will.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How far apart two lines of one kind are.
const LINES_APART: Duration = Duration::from_mins(1);
/// The most kinds that are distinguished; later ones count as the last kind.
const KINDS_MAX: usize = 16;

/// Counts what happens, by kind, and says when a line is due: for the first of a kind at once, and then once a minute at most.
///
/// So a page that asks every few seconds does not fill a log, and what is new is still seen at once.
#[derive(Debug)]
pub struct LogThrottle<K>(Mutex<Vec<KindCount<K>>>);

#[derive(Debug)]
struct KindCount<K> {
    kind: K,
    /// Since the last line.
    count: u64,
    line: Instant,
}

impl<K> Default for LogThrottle<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: PartialEq> LogThrottle<K> {
    /// One more of that kind; how many there were since the last line, this one with them, if a line is due.
    pub fn another(&self, kind: K) -> Option<u64> {
        self.another_at(kind, Instant::now())
    }

    fn another_at(&self, kind: K, now: Instant) -> Option<u64> {
        // Whole after each change.
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kinds.iter().position(|seen| seen.kind == kind);
        let Some(at) = known.or_else(|| kinds.len().checked_sub(1).filter(|last| last + 1 >= KINDS_MAX)) else {
            kinds.push(KindCount { kind, count: 0, line: now });
            return Some(1);
        };
        let seen = kinds.get_mut(at)?;
        seen.count = seen.count.saturating_add(1);
        if now.saturating_duration_since(seen.line) < LINES_APART {
            return None;
        }
        seen.line = now;
        Some(std::mem::take(&mut seen.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_often_is_a_line_a_minute_that_counts_it() {
        let (seldom, begin) = (LogThrottle::default(), Instant::now());
        let lines = |after: u64| (0..100).filter_map(|_| seldom.another_at("x", begin + Duration::from_millis(after))).collect::<Vec<_>>();
        assert_eq!([0, 59_999, 60_000, 200_000].map(lines), [vec![1], vec![], vec![200], vec![100]]);
    }

    #[test]
    fn another_kind_is_a_line_of_its_own_at_once_and_kinds_without_end_are_not() {
        let (seldom, begin) = (LogThrottle::default(), Instant::now());
        let at = |kind: usize, seconds: u64| seldom.another_at(kind, begin + Duration::from_secs(seconds));
        assert_eq!([at(1, 0), at(2, 1), at(1, 2), at(2, 60), at(1, 60)], [Some(1), Some(1), None, None, Some(2)]);
        let lines = (3..10_000).filter(|kind| at(*kind, 61).is_some()).count();
        assert_eq!(lines, KINDS_MAX - 2);
    }
}
