//! Whether the database is still the one that this process knows, and one rising line of revisions if it is not.
//!
//! A failover to a standby begins a new timeline. A restored copy of the same timeline has a shorter write-ahead log: less of it is on the
//! disk than an earlier answer had shown. Either begins a new *era* here, in which revisions go on above all that were shown before.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Failure, PgResult};
use crate::sql::position::LogPosition;

/// What was known before a request was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    /// How often an era has begun.
    pub(crate) era: u64,
    /// How much of the log was on the disk.
    pub(crate) lsn: u64,
}

/// What the connections of one backend have seen.
#[derive(Debug, Default)]
pub(crate) struct ServerHistory(Mutex<HistoryState>);

#[derive(Debug, Default)]
struct HistoryState {
    era: u64,
    origin: Option<String>,
    lsn: u64,
    /// The highest revision shown.
    shown: u64,
    /// What is added to the revisions of this era.
    offset: u64,
}

impl ServerHistory {
    fn state(&self) -> MutexGuard<'_, HistoryState> {
        // Nothing under this lock can panic halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be asked before a request is sent.
    pub(crate) fn now(&self) -> Known {
        let HistoryState { era, lsn, .. } = *self.state();
        Known { era, lsn }
    }

    /// Takes note of where an answer came from, and gives its era. An answer that crosses the beginning of an era belongs to none.
    pub(crate) fn arrive(&self, before: Known, at: &LogPosition) -> PgResult<u64> {
        if at.is_replica {
            return Err(Failure::Replica);
        }
        let mut state = self.state();
        if state.era != before.era {
            return Err(Failure::Replaced);
        }
        let is_other = state.origin.as_ref().is_some_and(|origin| *origin != at.origin);
        if is_other || at.lsn < before.lsn {
            tracing::warn!(
                from = state.origin,
                to = at.origin,
                "the database has another history than before: a failover, or an older copy was restored; all groups are read again"
            );
            *state = HistoryState { era: state.era + 1, origin: None, lsn: 0, shown: state.shown, offset: state.shown + 1 };
        }
        state.origin = Some(at.origin.clone());
        state.lsn = state.lsn.max(at.lsn);
        Ok(state.era)
    }

    /// What to show for the revision of a group that was read in that era.
    pub(crate) fn show(&self, era: u64, revision: u64) -> PgResult<u64> {
        let mut state = self.state();
        if state.era != era {
            return Err(Failure::Replaced);
        }
        let shown = state.offset.saturating_add(revision);
        state.shown = state.shown.max(shown);
        Ok(shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(origin: &str, lsn: u64) -> LogPosition {
        LogPosition { is_replica: false, origin: origin.into(), lsn }
    }

    fn arrived(history: &ServerHistory, before: Known, at: &LogPosition) -> Option<u64> {
        history.arrive(before, at).ok()
    }

    #[test]
    fn answers_that_overtake_each_other_are_no_new_era() {
        let history = ServerHistory::default();
        let (first, second) = (history.now(), history.now());
        assert_eq!(arrived(&history, second, &at("a", 8)), Some(0));
        assert_eq!(arrived(&history, first, &at("a", 7)), Some(0));
        assert_eq!(arrived(&history, history.now(), &at("a", 8)), Some(0));
        assert_eq!(history.show(0, 5).ok(), Some(5));
    }

    #[test]
    fn revisions_go_on_above_after_a_failover_and_after_a_restored_copy() {
        let history = ServerHistory::default();
        assert_eq!(arrived(&history, history.now(), &at("a/1", 100)), Some(0));
        assert_eq!(history.show(0, 41).ok(), Some(41));
        let early = history.now();
        assert_eq!(arrived(&history, early, &at("a/2", 120)), Some(1), "another timeline");
        assert_eq!(arrived(&history, early, &at("a/2", 120)), None, "of the old era or of the new one?");
        assert!(history.show(0, 42).is_err());
        assert_eq!(history.show(1, 3).ok(), Some(45));
        assert_eq!(arrived(&history, history.now(), &at("a/2", 119)), Some(2), "an older copy of the same timeline");
        assert_eq!(history.show(2, 0).ok(), Some(46));
        assert_eq!(arrived(&history, history.now(), &at("b/2", 119)), Some(3), "tables that were recreated");
    }

    #[test]
    fn a_replica_is_refused_and_leaves_no_trace() {
        let history = ServerHistory::default();
        let replica = LogPosition { is_replica: true, ..at("a/1", 0) };
        assert!(matches!(history.arrive(history.now(), &replica), Err(Failure::Replica)));
        assert_eq!(history.now(), Known { era: 0, lsn: 0 });
    }
}
