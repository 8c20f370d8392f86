//! Errors of fences, progress and journals.

use std::fmt;

use shardwise_core::{Epoch, Resource, write_with_causes};

use crate::StaleEpoch;

/// Why a fence refused a write, or a position could not be resumed or saved.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// A higher epoch was seen.
    #[error(transparent)]
    Fenced(#[from] StaleEpoch),
    /// The check's effect would end before the write. Use sqlx's `begin` or `begin_with`; sqlx does not notice any other `BEGIN`.
    #[error("a fence holds to the end of a transaction, and there is none: begin one with sqlx first, and write in it")]
    NoTransaction,
    /// `raise` was called within a transaction, whose snapshot of the database may be older.
    #[error("raising an epoch needs its own transaction: call `raise` on a connection without an open one")]
    InTransaction,
    /// The epoch is new and the transaction's snapshot is older: it would not see the former owner's last write.
    #[error(
        "epoch {epoch} of {resource} is new, and a transaction above READ COMMITTED does not see the last writes of its former owner: roll \
         back, call `raise` in its own transaction, and begin again"
    )]
    RaiseApart {
        /// The resource.
        resource: Resource,
        /// Its new epoch.
        epoch: Epoch,
    },
    /// The database has another position of the key than the one that `save` names: another task has saved one since.
    #[error(
        "the progress of {key:?} was not saved: it goes on from position number {from}, but the database has {}; roll back, and resume",
        .found.map_or_else(|| "none, because the transaction of `resume` was not committed".into(), |found| format!("number {found}"))
    )]
    Moved {
        /// The key.
        key: String,
        /// The number of the position that `save` names.
        from: u64,
        /// The number of the position in the database; `None` if it has no row for this key, because the transaction of `resume` was
        /// rolled back.
        found: Option<u64>,
    },
    /// The database's error.
    #[error("a statement of the fence failed: {0}")]
    Sql(#[from] sqlx::Error),
}

/// Why a call on a journal failed. Nothing was written, unless the connection broke during the commit: then the next
/// [`Journal::take_over`](crate::Journal::take_over) shows whether it was.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// A higher epoch was seen.
    #[error(transparent)]
    Fenced(#[from] StaleEpoch),
    /// The journal has another version than the caller expected.
    #[error("the journal is at version {found}, not {expected}: load it again")]
    Version {
        /// What the caller expected.
        expected: u64,
        /// The journal's version.
        found: u64,
    },
    /// A limit is exceeded.
    #[error("{what}: {given} is too much, {max} at most")]
    TooLarge {
        /// The limit, with its unit.
        what: &'static str,
        /// The given amount.
        given: u64,
        /// The allowed amount.
        max: u64,
    },
    /// Loading the events after the latest snapshot would take too long: take a snapshot, then append again.
    #[error("{events} events with {bytes} bytes would stand after the latest snapshot, which is too much to load: take a snapshot first")]
    SnapshotDue {
        /// The number of events.
        events: u64,
        /// The number of bytes in them.
        bytes: u64,
    },
    /// The requested events were deleted: load the snapshot instead.
    #[error("events up to version {upto} are deleted: load the snapshot and read after it")]
    Pruned {
        /// The last deleted event.
        upto: u64,
    },
    /// The database's error.
    #[error("the journal could not be used: {0}")]
    Sql(#[from] sqlx::Error),
}

/// Whether the same transaction may succeed on a retry, without any other change.
fn is_passing(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::WorkerCrashed => true,
        sqlx::Error::Database(error) => {
            let code = error.code();
            let code = code.as_deref().unwrap_or_default();
            // PostgreSQL: serialization failure, deadlock, lock timeout, connection gone, too many connections, shutdown. SQLite: the low
            // byte of its code, busy or locked.
            matches!(code, "40001" | "40P01" | "55P03" | "53300" | "57P01" | "57P02" | "57P03")
                || code.starts_with("08")
                || (code.len() < 5 && code.parse::<u32>().is_ok_and(|code| matches!(code & 0xff, 5 | 6)))
        }
        _ => false,
    }
}

impl fmt::Debug for FenceError {
    /// Like [`Display`](fmt::Display), with the causes: `main` prints a returned error by its `Debug`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_with_causes(f, self)
    }
}

impl fmt::Debug for JournalError {
    /// Like [`Display`](fmt::Display), with the causes: `main` prints a returned error by its `Debug`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_with_causes(f, self)
    }
}

impl FenceError {
    /// Whether the same transaction may succeed on a retry: locks, serialization conflicts and lost connections, never a refusal.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Sql(error) if is_passing(error))
    }
}

impl JournalError {
    /// Whether the same call may succeed on a retry: locks and lost connections, never a refusal. After a lost connection the version
    /// shows whether it had succeeded.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Sql(error) if is_passing(error))
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;

    #[test]
    fn main_shows_what_happened() {
        let error = FenceError::from(sqlx::Error::WorkerCrashed);
        assert_eq!(format!("{error:?}"), error.to_string());
        assert_eq!(format!("{:?}", JournalError::Version { expected: 1, found: 2 }), "the journal is at version 2, not 1: load it again");
    }
}
