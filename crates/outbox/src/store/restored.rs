//! After commits were lost: numbers that are lifted above what consumers have seen.

use crate::{Error, ErrorKind, Result};

/// The highest number that may be given: it leaves room for as many above it, up to what JSON's readers take for whole numbers.
pub const ABOVE_MAX: u64 = 1 << 52;

/// What lifting epochs and sequences has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestoreResult {
    /// Every epoch from now on is above this one.
    pub epoch: u64,
    /// How many aggregates were lifted; keys without an aggregate begin above the given number too.
    pub aggregates: u64,
    /// So many events at most wait under sequences that are not above the given number. They keep them: those that were delivered before come
    /// again as what they were, and of those that were written since the loss consumers may have seen other events under the same numbers.
    pub waiting: u64,
    /// How many publishers were alive. They take their slots again, and what they have on its way may come twice.
    pub publishers: u64,
}

/// Refuses what leaves no room above it.
pub(crate) fn checked(epoch_above: u64, sequence_above: u64) -> Result<(i64, i64)> {
    for (name, number) in [("epoch", epoch_above), ("sequence", sequence_above)] {
        if number > ABOVE_MAX {
            return Err(Error::new(ErrorKind::Settings, format!("the {name} {number} is too high: at most {ABOVE_MAX} is allowed")));
        }
    }
    Ok((epoch_above.cast_signed(), sequence_above.cast_signed()))
}
