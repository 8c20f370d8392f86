//! One rising line of revisions, even if the store is restored or replaced.
//!
//! etcd's own revisions rise for ever, unless it is restored from a backup or begins with empty disks: then they begin lower. A read that
//! began after another one had been answered with a higher revision proves that this has happened. From then on an offset is added.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::Failure;

/// What all connections of one backend have seen.
#[derive(Debug, Default)]
pub(crate) struct Revisions(Mutex<RevisionState>);

/// Where the line stood at some moment.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct RevisionState {
    /// How often the store's revisions have begun anew.
    pub(crate) era: u64,
    /// The highest revision that the store has shown in this era.
    highest: i64,
    /// The offset to the store's revisions in this era.
    offset: i64,
}

impl Revisions {
    fn state(&self) -> MutexGuard<'_, RevisionState> {
        // Nothing under this lock can panic halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be taken before a request is sent.
    pub(crate) fn now(&self) -> RevisionState {
        *self.state()
    }

    /// What to report for the store's `revision`, which a quorum's answer to a request sent at `before` has shown. An answer that crosses
    /// a new beginning belongs to nowhere.
    pub(crate) fn report(&self, before: RevisionState, revision: i64) -> Result<u64, Failure> {
        let mut state = self.state();
        if state.era != before.era {
            return Err(Failure::Replaced);
        }
        if revision < before.highest {
            let offset = state.highest + state.offset + 1 - revision;
            *state = RevisionState { era: state.era + 1, highest: revision, offset };
        }
        state.highest = state.highest.max(revision);
        Ok(u64::try_from(revision + state.offset).unwrap_or_default())
    }

    /// The same for the `revision` of a change that a watch delivered; it may be late, so it proves nothing about the present. `at` is the
    /// state when the watch got its list.
    pub(crate) fn follow(&self, at: RevisionState, revision: i64) -> Result<u64, Failure> {
        let mut state = self.state();
        if state.era != at.era {
            return Err(Failure::Replaced);
        }
        state.highest = state.highest.max(revision);
        Ok(u64::try_from(revision + state.offset).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(revisions: &Revisions, before: RevisionState, revision: i64) -> Option<u64> {
        revisions.report(before, revision).ok()
    }

    #[test]
    fn revisions_pass_through_while_they_rise() {
        let revisions = Revisions::default();
        for revision in [1, 5, 5, 9] {
            assert_eq!(report(&revisions, revisions.now(), revision), u64::try_from(revision).ok());
        }
    }

    #[test]
    fn answers_that_overtake_each_other_are_no_new_beginning() {
        let revisions = Revisions::default();
        let (first, second) = (revisions.now(), revisions.now());
        assert_eq!(report(&revisions, second, 8), Some(8));
        assert_eq!(report(&revisions, first, 7), Some(7));
        assert_eq!(report(&revisions, revisions.now(), 8), Some(8));
    }

    #[test]
    fn a_store_that_begins_anew_goes_on_above() {
        let revisions = Revisions::default();
        assert_eq!(report(&revisions, revisions.now(), 100), Some(100));
        let early = revisions.now();
        assert_eq!(report(&revisions, revisions.now(), 3), Some(101));
        for revision in [4, 105] {
            assert_eq!(report(&revisions, early, revision), None, "of the old store or of the new one?");
            assert!(revisions.follow(early, revision).is_err());
        }
        assert_eq!(report(&revisions, revisions.now(), 9), Some(107));
        assert_eq!(report(&revisions, revisions.now(), 2), Some(108), "and again");
        assert_eq!(report(&revisions, revisions.now(), 2), Some(108));
        assert_eq!(revisions.follow(revisions.now(), 3).ok(), Some(109));
    }
}
