//! Common parts of the SQL stores.

use super::{HeadUpdate, Outcome};

const ERROR_BYTES_MAX: usize = 1_000;

/// Unsigned hashes as SQL's signed integers, in the same order.
pub(crate) const fn to_ordered(hash: u64) -> i64 {
    (hash ^ (1 << 63)).cast_signed()
}

/// The inverse of [`to_ordered`].
pub(crate) const fn from_ordered(stored: i64) -> u64 {
    stored.cast_unsigned() ^ (1 << 63)
}

/// A number that the schema keeps non-negative.
pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// The ranges of hashes for a reading: first behind the cursor, then around to it; the cursor's own aggregate comes last.
pub(crate) fn around(after: Option<u64>) -> impl Iterator<Item = (i64, i64)> {
    let after = after.map_or(i64::MAX, to_ordered);
    after.checked_add(1).map(|from| (from, i64::MAX)).into_iter().chain([(i64::MIN, after)])
}

/// The sink's message, cut at a character boundary.
pub(crate) fn shortened(error: &str) -> &str {
    &error[..error.floor_char_boundary(ERROR_BYTES_MAX)]
}

/// The sequence up to which an outcome moves its aggregate; `None` if it does not move.
pub(crate) fn done_through(outcome: &Outcome) -> Option<u64> {
    match outcome.then {
        HeadUpdate::Park { sequence, .. } | HeadUpdate::Discard { sequence, .. } => Some(sequence),
        HeadUpdate::Next | HeadUpdate::Retry { .. } | HeadUpdate::Block { .. } => outcome.through,
    }
}

/// How many rows of aggregates the outcomes change if all their holds are current.
pub(crate) fn changes(outcomes: &[Outcome]) -> u64 {
    let of = |outcome: &Outcome| {
        let fails = matches!(outcome.then, HeadUpdate::Retry { .. } | HeadUpdate::Block { .. });
        u64::from(done_through(outcome).is_some()) + u64::from(fails)
    };
    outcomes.iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_hashes_keep_their_order() {
        let hashes = [0, 1, u64::MAX / 2, u64::MAX / 2 + 1, u64::MAX - 1, u64::MAX];
        assert!(hashes.windows(2).all(|pair| to_ordered(pair[0]) < to_ordered(pair[1])));
        assert!(hashes.iter().all(|hash| from_ordered(to_ordered(*hash)) == *hash));
        assert_eq!((to_ordered(0), to_ordered(u64::MAX)), (i64::MIN, i64::MAX));
    }

    #[test]
    fn a_reading_goes_once_around() {
        let ranges = |after| around(after).collect::<Vec<_>>();
        assert_eq!(ranges(None), [(i64::MIN, i64::MAX)]);
        assert_eq!(ranges(Some(u64::MAX)), [(i64::MIN, i64::MAX)]);
        assert_eq!(ranges(Some(1 << 63)), [(1, i64::MAX), (i64::MIN, 0)]);
    }
}
