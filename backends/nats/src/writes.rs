//! How the writes of this process to a group went, for its proofs and for its observer: see [`shardwise_discovery::silence`].

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shardwise_core::Moment;

/// How many answered writes wait for their return. Older ones say less than newer ones.
const WRITES_MAX: usize = 64;

/// The writes to one group.
#[derive(Debug, Default)]
pub(crate) struct GroupWrites(Mutex<AnsweredWrites>);

#[derive(Debug, Default)]
struct AnsweredWrites {
    /// Answered writes that have not come back yet: when each began, and its sequence.
    pending: VecDeque<(Moment, u64)>,
    /// When the last answered write began.
    answered: Moment,
    /// How many writes failed or were given up.
    interrupted: u64,
}

impl GroupWrites {
    fn log(&self) -> MutexGuard<'_, AnsweredWrites> {
        // Nothing under this lock can panic halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A write that began then was answered with that sequence.
    pub(crate) fn answer(&self, started: Moment, sequence: u64) {
        let mut log = self.log();
        log.answered = log.answered.max(started);
        if log.pending.len() >= WRITES_MAX {
            log.pending.pop_front();
        }
        log.pending.push_back((started, sequence));
    }

    /// A write failed, or was given up.
    pub(crate) fn interrupt(&self) {
        let mut log = self.log();
        log.interrupted = log.interrupted.saturating_add(1);
    }

    pub(crate) fn interrupted(&self) -> u64 {
        self.log().interrupted
    }

    /// When the last answered write began.
    pub(crate) fn answered(&self) -> Moment {
        self.log().answered
    }

    /// When the latest of the writes began that have come back, now that everything up to that sequence was delivered.
    pub(crate) fn returned(&self, delivered: u64) -> Option<Moment> {
        let mut log = self.log();
        let back = log.pending.iter().filter(|(_, sequence)| *sequence <= delivered).map(|(started, _)| *started).max();
        log.pending.retain(|(_, sequence)| *sequence > delivered);
        back
    }

    /// The stream was replaced, and what was written to the former one does not come back.
    pub(crate) fn forget(&self) {
        let mut log = self.log();
        log.pending.clear();
        log.answered = Moment::ZERO;
    }
}

/// A write whose failure or success says whether the stream takes writes. Unless it is answered, it counts as interrupted.
pub(crate) struct WriteUnderWay(Option<Arc<GroupWrites>>);

impl WriteUnderWay {
    /// A write to the group of those; `None`: this process does not read the group.
    pub(crate) fn of(writes: Option<Arc<GroupWrites>>) -> Self {
        Self(writes)
    }

    /// The server answered, whatever it said.
    pub(crate) fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for WriteUnderWay {
    fn drop(&mut self) {
        if let Some(writes) = &self.0 {
            writes.interrupt();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_came_back_proves_and_one_that_was_given_up_interrupts() {
        let writes = Arc::new(GroupWrites::default());
        let at = Moment::from_nanos;
        writes.answer(at(10), 5);
        writes.answer(at(9), 6);
        assert_eq!((writes.returned(4), writes.returned(5), writes.answered()), (None, Some(at(10)), at(10)));
        assert_eq!((writes.returned(9), writes.returned(9)), (Some(at(9)), None));
        WriteUnderWay::of(Some(Arc::clone(&writes))).answered();
        assert_eq!(writes.interrupted(), 0);
        drop(WriteUnderWay::of(Some(Arc::clone(&writes))));
        assert_eq!(writes.interrupted(), 1);
        for n in 0..200 {
            writes.answer(at(n), 100 + n);
        }
        assert_eq!(writes.log().pending.len(), WRITES_MAX);
    }
}
