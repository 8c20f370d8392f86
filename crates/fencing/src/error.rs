//! What a caller is told, and what he can do about it.

use std::fmt;

use shardwise_core::{Epoch, GroupName, Resource, write_with_causes};

/// The database has seen a higher epoch: somebody else has had the resource since, and this write must not be. Roll back, give up what was
/// to be written, and drop what was remembered of the resource.
#[derive(Clone, PartialEq, Eq)]
pub struct StaleEpoch {
    /// The group.
    pub group: GroupName,
    /// The resource.
    pub resource: Resource,
    /// The epoch of the write.
    pub epoch: Epoch,
    /// The epoch that the database has seen; `None` if its row was gone when that was looked up.
    pub seen: Option<Epoch>,
}

impl fmt::Debug for StaleEpoch {
    /// As [`Display`](fmt::Display), with the causes: `main` shows an error that it returns by its `Debug`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_with_causes(f, self)
    }
}

impl fmt::Display for StaleEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, resource, epoch, seen } = self;
        write!(f, "{resource} of group {group:?} is held under a higher epoch than {epoch}")?;
        if let Some(seen) = seen {
            write!(f, " ({seen} was seen)")?;
        }
        f.write_str(": somebody else has had it since; roll back and give up this work")
    }
}

impl std::error::Error for StaleEpoch {}

/// Why a fence did not let a write pass.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// A higher epoch was seen.
    #[error(transparent)]
    Refused(#[from] StaleEpoch),
    /// The check would end before the write that it is for. Begin with `begin` or `begin_with` of sqlx, which knows of no other `BEGIN`.
    #[error("a fence holds to the end of a transaction, and there is none: begin one with sqlx first, and write in it")]
    NoTransaction,
    /// The epoch would be raised in a transaction that goes on, whose view of the database may be from before.
    #[error("an epoch is raised in a transaction of its own: call `raise` on a connection that has begun none")]
    InTransaction,
    /// The epoch is new, and the transaction's view of the database is from before: it would not see what the former owner wrote last.
    #[error(
        "epoch {epoch} of {resource} is new, and a transaction above READ COMMITTED does not see what its former owner wrote last: roll \
         back, call `raise` in a transaction of its own, and begin again"
    )]
    RaiseApart {
        /// The resource.
        resource: Resource,
        /// Its new epoch.
        epoch: Epoch,
    },
    /// The database's own error.
    #[error("the fence could not be checked: {0}")]
    Sql(#[from] sqlx::Error),
}

/// Why a journal did not do what it was told. Whatever the reason, nothing was written, unless the connection broke at the commit: then the
/// next [`Journal::take_over`](crate::Journal::take_over) tells whether it was.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// A higher epoch was seen.
    #[error(transparent)]
    Refused(#[from] StaleEpoch),
    /// The journal is not where the caller believes it to be.
    #[error("the journal is at version {found}, not {expected}: load it again")]
    Version {
        /// What the caller expected.
        expected: u64,
        /// What it is.
        found: u64,
    },
    /// Something is larger than allowed.
    #[error("{what}: {given} is too much, {max} at most")]
    TooLarge {
        /// What, with its unit.
        what: &'static str,
        /// How much was given.
        given: u64,
        /// How much is allowed.
        max: u64,
    },
    /// So much would stand after the latest snapshot that loading it would take too long: take a snapshot, then append again.
    #[error("{events} events with {bytes} bytes would stand after the latest snapshot, which is too much to load: take a snapshot first")]
    SnapshotDue {
        /// How many events.
        events: u64,
        /// How many bytes in them.
        bytes: u64,
    },
    /// Events that are asked for are deleted: load the snapshot instead.
    #[error("events up to version {upto} are deleted: load the snapshot and read after it")]
    Pruned {
        /// The last one that is deleted.
        upto: u64,
    },
    /// The database's own error.
    #[error("the journal could not be used: {0}")]
    Sql(#[from] sqlx::Error),
}

/// Whether the same transaction may succeed when it is begun again, without anybody changing anything.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
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

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl fmt::Debug for FenceError {
    /// As [`Display`](fmt::Display), with the causes: `main` shows an error that it returns by its `Debug`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_with_causes(f, self)
    }
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl fmt::Debug for JournalError {
    /// As [`Display`](fmt::Display), with the causes: `main` shows an error that it returns by its `Debug`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_with_causes(f, self)
    }
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl FenceError {
    /// Whether the same transaction may pass when it is begun again: locks, conflicts of serialization and lost connections, never a refusal.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Sql(error) if is_passing(error))
    }
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl JournalError {
    /// Whether the same call may succeed when it is made again: locks and lost connections, never a refusal. After a lost connection
    /// the version tells whether it had succeeded.
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
