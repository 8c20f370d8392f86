//! Numbers raised above those that consumers have seen, after commits were lost.

use crate::{Error, ErrorKind, Result};

/// The highest number accepted: it leaves as many numbers above it, up to the largest whole number that JSON readers accept.
pub const ABOVE_MAX: u64 = 1 << 52;

/// The result of raising epochs and sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestoreResult {
    /// Every epoch from now on is above this one.
    pub epoch: u64,
    /// How many aggregates were raised; keys without an aggregate also begin above the given number.
    pub aggregates: u64,
    /// The most events that wait with sequences not above the given number. They keep them. Events that were delivered before come again
    /// unchanged; for events written since the loss, consumers may have seen other events with the same numbers.
    pub waiting: u64,
    /// How many publishers were alive. They take their slots again, and events in flight may arrive twice.
    pub publishers: u64,
}

/// Refuses numbers that leave no room above them.
pub(crate) fn checked(epoch_above: u64, sequence_above: u64) -> Result<(i64, i64)> {
    for (name, number) in [("epoch", epoch_above), ("sequence", sequence_above)] {
        if number > ABOVE_MAX {
            return Err(Error::new(ErrorKind::Settings, format!("the {name} {number} is too high: at most {ABOVE_MAX} is allowed")));
        }
    }
    Ok((epoch_above.cast_signed(), sequence_above.cast_signed()))
}
