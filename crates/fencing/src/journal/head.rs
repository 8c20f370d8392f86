//! The row with a journal's version and epoch, and the checks on it.

use shardwise_core::{ClaimName, Epoch, GroupName, Resource};

use crate::StaleEpoch;
use crate::error::JournalError;
use crate::stale_epoch::{refused, to_sql};

/// The most bytes in one event.
pub const EVENT_BYTES_MAX: u64 = 1 << 20;
/// The most events in one [`Journal::append`](crate::Journal::append).
pub const APPEND_EVENTS_MAX: u64 = 1_000;
/// The most bytes in the events of one [`Journal::append`](crate::Journal::append).
pub const APPEND_BYTES_MAX: u64 = 8 << 20;
/// The most bytes in a snapshot.
pub const STATE_BYTES_MAX: u64 = 16 << 20;
/// The most events after the latest snapshot.
pub const TAIL_EVENTS_MAX: u64 = 100_000;
/// The most bytes in the events after the latest snapshot.
pub const TAIL_BYTES_MAX: u64 = 64 << 20;

/// Which journal.
#[derive(Debug, Clone)]
pub(super) struct JournalKey {
    pub(super) group: GroupName,
    pub(super) name: ClaimName,
}

/// The row. Versions and epochs are as in SQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JournalHead {
    pub(super) id: i64,
    pub(super) epoch: i64,
    pub(super) version: i64,
    pub(super) snapshot: i64,
    pub(super) pruned: i64,
    pub(super) tail_bytes: i64,
}

impl JournalHead {
    /// Refuses an epoch lower than the highest seen, and records a higher one.
    pub(super) fn admit(&mut self, name: &JournalKey, epoch: Epoch) -> Result<(), StaleEpoch> {
        if to_sql(epoch) < self.epoch {
            return Err(refused(&name.group, &Resource::Name(name.name.clone()), epoch, Some(self.epoch)));
        }
        self.epoch = to_sql(epoch);
        Ok(())
    }

    /// Adds these events, if the journal has the expected version and no snapshot is due.
    pub(super) fn append(&mut self, expected: u64, events: &[&[u8]]) -> Result<(), JournalError> {
        let found = self.version.cast_unsigned();
        if expected != found {
            return Err(JournalError::Version { expected, found });
        }
        let version = self.version.saturating_add(signed(events.len() as u64));
        let (tail, tail_bytes) = (version - self.snapshot, self.tail_bytes.saturating_add(signed(bytes(events))));
        if tail > signed(TAIL_EVENTS_MAX) || tail_bytes > signed(TAIL_BYTES_MAX) {
            return Err(JournalError::SnapshotDue { events: tail.cast_unsigned(), bytes: tail_bytes.cast_unsigned() });
        }
        (self.version, self.tail_bytes) = (version, tail_bytes);
        Ok(())
    }

    /// The version of a new snapshot; `None` if the latest one covers more.
    pub(super) fn covers(&self, version: u64) -> Result<Option<i64>, JournalError> {
        let found = self.version.cast_unsigned();
        if version > found {
            return Err(JournalError::Version { expected: version, found });
        }
        Ok(Some(signed(version)).filter(|version| *version >= self.snapshot))
    }

    /// The version from which to read.
    pub(super) fn readable_from(&self, from: u64) -> Result<i64, JournalError> {
        let from = signed(from).max(1);
        if from <= self.pruned { Err(JournalError::Pruned { upto: self.pruned.cast_unsigned() }) } else { Ok(from) }
    }
}

/// Checks the limits of an append that do not depend on the journal.
pub(super) fn check_append(events: &[&[u8]]) -> Result<(), JournalError> {
    let largest = events.iter().map(|event| event.len() as u64).max().unwrap_or(0);
    at_most("events in one append", events.len() as u64, APPEND_EVENTS_MAX)?;
    at_most("bytes in one event", largest, EVENT_BYTES_MAX)?;
    at_most("bytes in one append", bytes(events), APPEND_BYTES_MAX)
}

/// Checks the limits of a snapshot that do not depend on the journal.
pub(super) fn check_state(state: &[u8]) -> Result<(), JournalError> {
    at_most("bytes in one snapshot", state.len() as u64, STATE_BYTES_MAX)
}

fn at_most(what: &'static str, given: u64, max: u64) -> Result<(), JournalError> {
    if given > max { Err(JournalError::TooLarge { what, given, max }) } else { Ok(()) }
}

fn bytes(events: &[&[u8]]) -> u64 {
    events.iter().map(|event| event.len() as u64).sum()
}

/// A version that SQL cannot represent is beyond the end of every journal.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> JournalHead {
        JournalHead { id: 1, epoch: 5, version: 10, snapshot: 4, pruned: 3, tail_bytes: 60 }
    }

    #[test]
    fn the_tail_is_bounded_in_number_and_in_bytes() {
        let mut full = JournalHead { version: signed(TAIL_EVENTS_MAX) + 3, ..head() };
        let at = full.version.cast_unsigned();
        full.append(at, &[b"last"]).unwrap();
        assert!(matches!(full.append(at + 1, &[b"x"]), Err(JournalError::SnapshotDue { events, .. }) if events == TAIL_EVENTS_MAX + 1));
        let mut heavy = JournalHead { tail_bytes: signed(TAIL_BYTES_MAX) - 1, ..head() };
        heavy.append(10, &[b"x"]).unwrap();
        assert!(matches!(heavy.append(11, &[b"x"]), Err(JournalError::SnapshotDue { bytes, .. }) if bytes == TAIL_BYTES_MAX + 1));
        assert_eq!(heavy.version, 11, "a refused append changes nothing");
    }

    #[test]
    fn limits_are_reported_with_what_was_given() {
        let large = vec![0; usize::try_from(EVENT_BYTES_MAX).unwrap()];
        check_append(&[&large]).unwrap();
        let texts = [
            check_append(&[&[0][..]; 1_001]).unwrap_err().to_string(),
            check_append(&[&[&large[..], b"x"].concat()]).unwrap_err().to_string(),
            check_append(&[&large[..]; 9]).unwrap_err().to_string(),
            check_state(&large.repeat(17)).unwrap_err().to_string(),
        ];
        let expected = [
            "events in one append: 1001 is too much, 1000 at most",
            "bytes in one event: 1048577 is too much, 1048576 at most",
            "bytes in one append: 9437184 is too much, 8388608 at most",
            "bytes in one snapshot: 17825792 is too much, 16777216 at most",
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn versions_beyond_the_journal_or_deleted_are_refused() {
        let head = head();
        assert!(matches!(head.covers(11), Err(JournalError::Version { expected: 11, found: 10 })));
        assert!(matches!(head.covers(u64::MAX), Err(JournalError::Version { .. })));
        assert_eq!(head.covers(3).unwrap(), None, "the latest snapshot covers more");
        assert_eq!(head.covers(4).unwrap(), Some(4));
        assert!(matches!(head.readable_from(0), Err(JournalError::Pruned { upto: 3 })));
        assert_eq!(head.readable_from(4).unwrap(), 4);
        assert_eq!(head.readable_from(u64::MAX).unwrap(), i64::MAX);
    }
}
