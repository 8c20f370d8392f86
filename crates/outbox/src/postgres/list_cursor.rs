//! Where a publisher's readings of the writers' list stand.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::writers_list::KEYS;
use crate::AggregateId;

/// An aggregate that was listed longer ago moves to the publishers' list, whichever publisher has it, so that the writers' list stays
/// short. This is also the interval between such moves, unless there are as many as one statement reads: each costs the aggregate's next
/// writer an update.
const HAND_OVER_AFTER: Duration = Duration::from_secs(5);

/// The fewest keys of a reading's first page.
const FIRST_PAGE_MIN: usize = 100;

/// The number and the aggregate at which a reading of the writers' list stopped.
pub(super) type ListPlace = (i64, AggregateId);

pub(super) const BEGINNING: ListPlace = (i64::MIN, i64::MIN);

/// Where the next reading continues. A number may be visible later than a higher one of another aggregate, so the place is good for one
/// lap: each begins at the beginning. While more is written than delivered no lap ends, so one begins anew now and then.
#[derive(Debug, Clone)]
pub(super) struct ListCursor(Arc<Mutex<CursorState>>);

#[derive(Debug)]
struct CursorState {
    after: ListPlace,
    goes_first: bool,
    handed_over_at: Option<Instant>,
    /// Whether the last attempt moved any, and where the next one begins: others may hold those at which it began.
    has_moved: bool,
    turn: usize,
    /// How many keys the next reading begins with.
    first_page: usize,
    /// How often the end was passed since something was read.
    empty_laps: u32,
    /// The highest number that was seen, and what it was some time ago. What has a lower number than that is old.
    highest: i64,
    earlier: (Instant, i64),
    old_through: i64,
}

impl Default for ListCursor {
    fn default() -> Self {
        let earlier = (Instant::now(), i64::MIN);
        let state = CursorState {
            after: BEGINNING,
            goes_first: false,
            handed_over_at: None,
            has_moved: false,
            turn: 0,
            first_page: KEYS,
            empty_laps: 0,
            highest: i64::MIN,
            earlier,
            old_through: i64::MIN,
        };
        Self(Arc::new(Mutex::new(state)))
    }
}

impl ListCursor {
    fn state(&self) -> MutexGuard<'_, CursorState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the writers' list is read before the publishers' list: every other time, so that neither fills all readings.
    pub(super) fn goes_first(&self) -> bool {
        let mut state = self.state();
        let first = state.goes_first;
        state.goes_first = !first;
        first
    }

    /// The place to begin at, and the number up to which aggregates are old.
    pub(super) fn begin(&self, anew: bool) -> (ListPlace, i64) {
        let mut state = self.state();
        let (at, highest) = state.earlier;
        if at.elapsed() >= HAND_OVER_AFTER {
            state.old_through = highest;
            state.earlier = (Instant::now(), state.highest);
            state.after = BEGINNING;
        }
        (if anew { BEGINNING } else { state.after }, state.old_through)
    }

    /// How many keys to begin with: a little more than the last reading used, because an aggregate may have many events, and most keys of a
    /// full page would be read again by the next one.
    pub(super) fn first_page(&self) -> usize {
        self.state().first_page
    }

    /// The first page filled the reading at this index, or was not enough.
    pub(super) fn paged(&self, filled_at: Option<usize>) {
        let mut state = self.state();
        let next = filled_at.map_or(state.first_page * 2, |index| index + 1 + index / 4);
        state.first_page = next.clamp(FIRST_PAGE_MIN, KEYS);
    }

    /// Returns whether to go on at once if the reading was cut short. Of a list that is longer than a reading nothing may be this
    /// publisher's: around it twice, and it waits.
    pub(super) fn end(&self, after: ListPlace, highest: i64, found: bool, passed_end: bool) -> bool {
        let mut state = self.state();
        state.after = after;
        state.highest = state.highest.max(highest);
        state.empty_laps = if found { 0 } else { state.empty_laps.saturating_add(passed_end.into()) };
        state.empty_laps < 2
    }

    /// Whether it is time to move so many aggregates to the publishers' list.
    pub(super) fn may_hand_over(&self, some: usize) -> bool {
        let mut state = self.state();
        let is_time = state.handed_over_at.is_none_or(|at| at.elapsed() >= HAND_OVER_AFTER);
        let due = some > 0 && (is_time || some >= KEYS && state.has_moved);
        if due {
            state.handed_over_at = Some(Instant::now());
        }
        due
    }

    /// At which of so many aggregates the next attempt begins.
    pub(super) fn turn(&self, of: usize) -> usize {
        self.state().turn % of.max(1)
    }

    pub(super) fn handed_over(&self, moved: bool) {
        let mut state = self.state();
        state.has_moved = moved;
        state.turn = if moved { 0 } else { state.turn.wrapping_add(KEYS) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_others_hold_keep_none_of_the_rest_on_the_list() {
        let cursor = ListCursor::default();
        assert!(!cursor.may_hand_over(0) && cursor.may_hand_over(1), "the first time");
        assert!(!cursor.may_hand_over(KEYS), "nothing has moved, so not before its time");
        let begins = || {
            cursor.handed_over(false);
            cursor.turn(2_500)
        };
        assert_eq!([begins(), begins(), begins()], [1_000, 2_000, 500]);
        cursor.handed_over(true);
        assert!(cursor.may_hand_over(KEYS) && !cursor.may_hand_over(KEYS - 1) && cursor.turn(2_500) == 0);
    }

    #[test]
    fn a_reading_begins_with_a_little_more_than_the_last_one_used() {
        let cursor = ListCursor::default();
        let next = |filled_at| {
            cursor.paged(filled_at);
            cursor.first_page()
        };
        assert_eq!([next(Some(199)), next(None), next(Some(10)), next(None)], [249, 498, 100, 200]);
        assert_eq!([next(None), next(None), next(None), next(Some(999))], [400, 800, KEYS, KEYS]);
    }

    #[test]
    fn a_list_without_anything_of_ours_is_gone_around_twice_and_then_waits() {
        let cursor = ListCursor::default();
        let end = |found, passed| cursor.end((9, 9), 9, found, passed);
        assert_eq!(
            [end(false, false), end(false, true), end(false, false), end(false, true), end(false, false)],
            [true, true, true, false, false]
        );
        assert_eq!([end(true, true), end(false, true), end(false, true)], [true, true, false]);
    }
}
