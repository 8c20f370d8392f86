//! Common parts of the SQL stores.

use std::future::Future;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use shardwise::core::slot_start;

use super::{ABOVE_MAX, CleanResult, HeadUpdate, Hold, Outcome};
use crate::options::RETRY_DELAY_MAX;
use crate::{Error, ErrorKind, Result};

const ERROR_BYTES_MAX: usize = 1_000;
/// The most batches of one kind in one call of [`clean`], and how long they may take together.
const BATCHES: usize = 20;
const WITHIN: Duration = Duration::from_secs(3);

/// One migration, for the user's own migration tool: the resulting version, the statements, and their reversal. Each runs in one
/// transaction.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    /// The resulting schema version.
    pub version: i64,
    /// The statements.
    pub up: &'static str,
    /// The statements that revert it, which delete the events too.
    pub down: &'static str,
}

/// A migration from its two files.
macro_rules! migration {
    ($version:literal, $file:literal) => {
        $crate::store::sql::Migration {
            version: $version,
            up: include_str!(concat!("../../migrations/", $file, ".up.sql")),
            down: include_str!(concat!("../../migrations/", $file, ".down.sql")),
        }
    };
}
pub(crate) use migration;

/// Why a statement failed: the database's error, or one of this crate.
#[derive(Debug)]
pub(crate) enum StatementError {
    Sql(sqlx::Error),
    Ours(Error),
}

impl From<sqlx::Error> for StatementError {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<Error> for StatementError {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

/// What the errors of a database mean to the operator, and what to do.
pub(crate) trait SqlStore {
    fn classify(error: &sqlx::Error) -> Error;

    /// Puts the database's place before a message that has none.
    fn locate(&self, error: Error) -> Error;
}

/// Converts errors into those of this crate, with the database's place.
pub(crate) trait ErrorContext<T> {
    fn at<S: SqlStore>(self, store: &S) -> Result<T>;
}

impl<T, E: Into<StatementError>> ErrorContext<T> for Result<T, E> {
    fn at<S: SqlStore>(self, store: &S) -> Result<T> {
        self.map_err(|error| match error.into() {
            StatementError::Sql(error) => store.locate(S::classify(&error)),
            StatementError::Ours(error) => store.locate(error),
        })
    }
}

pub(crate) fn refuse_newer(found: i64, known: i64) -> Result<()> {
    if found > known {
        let text = format!("its schema is {found}, newer than this version's {known}: use a newer shardwise");
        return Err(Error::new(ErrorKind::Schema, text));
    }
    Ok(())
}

/// Fails unless the schema is `known`; `none` says that there is none.
pub(crate) fn require_schema(found: i64, known: i64, none: &str) -> Result<()> {
    refuse_newer(found, known)?;
    let what = match found {
        _ if found == known => return Ok(()),
        0 => none.to_owned(),
        _ => format!("its schema is {found}, this version needs {known}"),
    };
    Err(Error::new(ErrorKind::Schema, format!("{what}: run `shardwise outbox init`")))
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

/// The error for a publisher with another number of slots than the living `other`.
pub(crate) fn other_slots(recorded: i64, other: &str, mine: u32) -> Error {
    let text = format!(
        "its publishers use {recorded} slots ({other} is alive), this one has {mine}: give all of them the same number, or stop the others first"
    );
    Error::new(ErrorKind::OtherSlots, text)
}

/// The slots with the first and last hash of each, as they are stored.
pub(crate) fn arcs(slots: u32) -> impl Iterator<Item = (u32, i64, i64)> {
    (0..slots).map(move |slot| {
        let last = if slot + 1 == slots { u64::MAX } else { slot_start(slot + 1, slots) - 1 };
        (slot, to_ordered(slot_start(slot, slots)), to_ordered(last))
    })
}

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

/// A number that the schema keeps between 0 and a few thousand.
pub(crate) fn small(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// A limit as a statement's argument.
pub(crate) fn signed(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// A retry further in the future than this, in milliseconds, is due: it means that the clock was set back.
pub(crate) fn retry_ahead_max_ms() -> i64 {
    2 * millis(RETRY_DELAY_MAX)
}

/// A duration from milliseconds, which are negative if a clock was set back.
pub(crate) fn ago(ms: i64) -> Duration {
    Duration::from_millis(unsigned(ms))
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

/// Holds from slots and epochs.
pub(crate) fn holds(rows: Vec<(i64, i64)>) -> Vec<Hold> {
    rows.into_iter().map(|(slot, epoch)| Hold { slot: small(slot), epoch: unsigned(epoch) }).collect()
}

/// The holds of the outcomes, each once.
pub(crate) fn holds_of(outcomes: &[Outcome]) -> Vec<Hold> {
    let mut holds: Vec<Hold> = outcomes.iter().map(|outcome| outcome.hold).collect();
    holds.sort_unstable();
    holds.dedup();
    holds
}

/// Cleans in batches of `limit`. `expire` deletes expired parked events and returns how many. `forget` visits aggregates behind a position
/// and deletes those without events: it returns how many, and where to continue; `None` if a writer was in the way, and they are visited
/// again next time. The search continues at `position` in the next call.
pub(crate) async fn clean<E, F>(
    limit: usize,
    position: &AtomicI64,
    expire: impl Fn() -> E,
    forget: impl Fn(i64) -> F,
) -> Result<CleanResult>
where
    E: Future<Output = Result<u64>>,
    F: Future<Output = Result<Option<(u64, Option<i64>)>>>,
{
    let begun = Instant::now();
    let mut cleaned = CleanResult::default();
    for _ in 0..BATCHES {
        let expired = expire().await?;
        cleaned.expired += expired;
        cleaned.more = expired >= limit as u64;
        if !cleaned.more || begun.elapsed() > WITHIN {
            break;
        }
    }
    let mut further = false;
    for _ in 0..BATCHES {
        let Some((forgotten, next)) = forget(position.load(Ordering::Relaxed)).await? else { break };
        cleaned.forgotten += forgotten;
        position.store(next.unwrap_or(0), Ordering::Relaxed);
        further = next.is_some();
        if !further || begun.elapsed() > WITHIN {
            break;
        }
    }
    cleaned.more |= further && cleaned.forgotten > 0;
    Ok(cleaned)
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
