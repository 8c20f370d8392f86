//! Everything that can fail here, in one enum, converted once into the contract's error.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use shardwise_core::{Address, ClaimStore, EpochError, InstanceId, MEMBERS_MAX, SLOTS_MAX};
use shardwise_discovery::{Error, ErrorKind, one_line};

/// Each message is one line: what is wrong, with which file, and what to do. Paths are quoted, so that odd characters cannot
/// break the line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("the path {given:?} {why}; set discovery.local.path to a file on this machine, such as \"/var/lib/my-app/shardwise.db\"")]
    BadPath { given: PathBuf, why: &'static str },
    #[error(
        "cannot create the directory {directory:?}: {source}; create it for this user, or set discovery.local.path to a file elsewhere"
    )]
    NoDirectory { directory: PathBuf, source: io::Error },
    #[error("cannot reach {path:?}: {source}; check the path and the rights of this user")]
    NoFile { path: PathBuf, source: io::Error },
    #[error("{path:?} is a directory, not a file; set discovery.local.path to a file, such as {example:?}")]
    IsADirectory { path: PathBuf, example: PathBuf },
    #[error("{path:?} is {what}, not a file; set discovery.local.path to a file")]
    NotAFile { path: PathBuf, what: &'static str },
    #[error("this user may not both read and write {what} {path:?} ({why}); grant that, or set discovery.local.path to a file elsewhere")]
    ReadOnly { what: &'static str, path: PathBuf, why: String },
    #[error("{path:?} {why}")]
    Untrusted { path: PathBuf, why: String },
    #[error(
        "{path:?} is on a network file system ({kind}), where SQLite cannot share a file safely; set discovery.local.path to a file on a local disk"
    )]
    NetworkFileSystem { path: PathBuf, kind: String },
    #[error("{path:?} is not an SQLite database; set discovery.local.path to another file, or move this one away")]
    NotADatabase { path: PathBuf },
    #[error("{path:?} is the SQLite database of another program (application id {application}); set discovery.local.path to another file")]
    Foreign { path: PathBuf, application: i64 },
    #[error(
        "{path:?} has schema version {found}, this program knows versions up to {known}; upgrade it, or set discovery.local.path to another file"
    )]
    Newer { path: PathBuf, found: i64, known: i64 },
    #[error("{path:?} is damaged ({why}); stop its workers, delete it together with its -wal and -shm files, and start them again")]
    Damaged { path: PathBuf, why: String },
    #[error(
        "{path:?} cannot be shared: SQLite's WAL mode is not possible there (it stays in {mode:?}); set discovery.local.path to a file on a local disk"
    )]
    NoWal { path: PathBuf, mode: String },
    #[error("cannot read {file}: {source}; mount /proc, without it a restart of the machine goes unnoticed")]
    NoBootId { file: &'static str, source: io::Error },
    #[error("this process has a shifted boot clock (a time namespace); run it without one, all workers of a file must share one clock")]
    TimeNamespace,
    #[error("{path:?} is locked by another process; if this lasts, one is stopped inside a write: `fuser -v {path:?}` lists them")]
    Locked { path: PathBuf },
    #[error("the calls of this process wait too long for their turn at {path:?}; if this lasts, it has too many members for one file")]
    Crowded { path: PathBuf },
    #[error("no space left for {path:?}; free some")]
    Full { path: PathBuf },
    #[error("cannot read or write {path:?}: {why}; check the disk, and how many files this process may open")]
    Io { path: PathBuf, why: String },
    #[error("{path:?} was deleted or replaced while in use; it is opened again, and members have to register again")]
    Replaced { path: PathBuf },
    #[error("{path:?} gave no answer within {} ms; check the disk", .after.as_millis())]
    TimedOut { path: PathBuf, after: Duration },
    #[error("{instance_id:?} has no living record here; register again")]
    Lost { instance_id: InstanceId },
    #[error("instance id {instance_id:?} is in use{}; stop the other one, or wait until its record expires", at(.address.as_ref()))]
    InUse { instance_id: InstanceId, address: Option<Address>, stamp: u64 },
    #[error(
        "the group already has {MEMBERS_MAX} members, or {path:?} {records_max} records; stop some, or set discovery.local.path to another file"
    )]
    TooMany { path: PathBuf, records_max: u32 },
    #[error("cannot read the record of {instance_id:?}: {why}; if its worker is of another version, bring both to one")]
    Unreadable { instance_id: String, why: String },
    #[error("the store of claims is {} with the floor {} now, it was {} with {}; ask for it again", .now.id, .now.floor, .was.id, .was.floor)]
    OtherStore { now: ClaimStore, was: ClaimStore },
    #[error("the numbers of acquisitions are used up: {0}")]
    NoEpoch(EpochError),
    #[error("{slot} is not a slot; slots are the numbers below {SLOTS_MAX}")]
    NoSlot { slot: u32 },
    #[error("{count} resources are too many for one call; {SLOTS_MAX} are allowed")]
    TooManyClaims { count: usize },
    #[error("cannot read a claim in {path:?}: {why}; the table `claim` was edited by hand; delete that row")]
    BadClaim { path: PathBuf, why: String },
    #[error("the process is shutting down")]
    ShuttingDown,
    /// Which of the others it is, [`Failure::located`] says.
    #[error(transparent)]
    Sql(#[from] sqlx::Error),
}

fn at(address: Option<&Address>) -> String {
    address.map(|address| format!(" at {address}")).unwrap_or_default()
}

impl Failure {
    /// The same with the meaning of a failure of SQLite or of the pool, for the file at `path`.
    pub(crate) fn located(self, path: &Path) -> Self {
        let Self::Sql(error) = self else { return self };
        let path = path.to_owned();
        let why = match &error {
            sqlx::Error::Database(database) => one_line(database.message()),
            other => one_line(&other.to_string()),
        };
        match (&error, code(&error)) {
            (sqlx::Error::PoolTimedOut, _) => Self::Crowded { path },
            (sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::RowNotFound, _) => Self::Damaged { path, why },
            // SQLITE_READONLY_DBMOVED
            (_, Some(1032)) => Self::Replaced { path },
            _ => match primary_code(&error) {
                // BUSY, LOCKED, PROTOCOL (gave up after many rounds of a race), SCHEMA (changed while it was read)
                Some(5 | 6 | 15 | 17) => Self::Locked { path },
                // PERM, READONLY, AUTH
                Some(3 | 8 | 23) => Self::ReadOnly { what: "the file", path, why },
                Some(13) => Self::Full { path },
                // ERROR (no such table), CORRUPT, CONSTRAINT, MISMATCH, FORMAT
                Some(1 | 11 | 19 | 20 | 24) => Self::Damaged { path, why },
                Some(26) => Self::NotADatabase { path },
                // IOERR, CANTOPEN, NOMEM and the rest
                _ => Self::Io { path, why },
            },
        }
    }

    fn kind(&self) -> ErrorKind {
        match self {
            Self::NoDirectory { source, .. } | Self::NoFile { source, .. } => kind_of_io(source),
            Self::ReadOnly { .. } | Self::Untrusted { .. } => ErrorKind::Denied,
            Self::Locked { .. }
            | Self::Crowded { .. }
            | Self::Full { .. }
            | Self::Io { .. }
            | Self::Replaced { .. }
            | Self::ShuttingDown => ErrorKind::Unavailable,
            Self::TimedOut { .. } => ErrorKind::TimedOut,
            Self::Lost { .. } => ErrorKind::Lost,
            Self::InUse { address, stamp, .. } => ErrorKind::InUse { address: address.clone(), stamp: *stamp },
            Self::OtherStore { .. } => ErrorKind::OtherStore,
            Self::TooMany { .. } | Self::NoSlot { .. } | Self::TooManyClaims { .. } => ErrorKind::TooLarge,
            // The setting, the file or the machine: an operator has to change something.
            _ => ErrorKind::Misconfigured,
        }
    }

    /// Whether it says nothing about the connection: what stands there for one group cannot be read, or the disk is slow, for which a new
    /// connection is no remedy.
    pub(crate) const fn keeps_connection(&self) -> bool {
        matches!(self, Self::Unreadable { .. } | Self::TooMany { .. } | Self::BadClaim { .. } | Self::TimedOut { .. })
    }

    /// The contract's error for a failure of `operation` on the file at `path`.
    pub(crate) fn during(self, operation: &'static str, path: &Path) -> Error {
        let located = self.located(path);
        Error::new(located.kind(), operation, located.to_string())
    }
}

fn kind_of_io(error: &io::Error) -> ErrorKind {
    use io::ErrorKind as Io;
    match error.kind() {
        Io::PermissionDenied | Io::ReadOnlyFilesystem => ErrorKind::Denied,
        Io::StorageFull | Io::QuotaExceeded | Io::Interrupted | Io::ResourceBusy | Io::OutOfMemory => ErrorKind::Unavailable,
        _ => ErrorKind::Misconfigured,
    }
}

/// SQLite's extended code, if the failure is SQLite's; see <https://www.sqlite.org/rescode.html>.
fn code(error: &sqlx::Error) -> Option<i32> {
    error.as_database_error()?.code()?.parse().ok()
}

/// Its low byte, the primary code.
pub(crate) fn primary_code(error: &sqlx::Error) -> Option<i32> {
    code(error).map(|code| code & 0xff)
}

#[cfg(test)]
mod tests {
    use sqlx::ConnectOptions;
    use sqlx::sqlite::SqliteConnectOptions;

    use super::*;

    /// SQLite's answer to the last of some statements.
    async fn failure_of(statements: &'static str) -> Error {
        let mut connection = SqliteConnectOptions::new().in_memory(true).connect().await.unwrap();
        let error = sqlx::raw_sql(statements).execute(&mut connection).await.unwrap_err();
        Failure::Sql(error).during("renew", Path::new("/run/a b.db"))
    }

    #[tokio::test]
    async fn a_full_disk_may_pass() {
        let error = failure_of("PRAGMA max_page_count = 2; CREATE TABLE a (b); CREATE TABLE c (d)").await;
        assert_eq!(error.to_string(), "renew: no space left for \"/run/a b.db\"; free some");
        assert!(error.is_retryable());
    }

    #[tokio::test]
    async fn a_file_opened_read_only_is_for_the_user_to_change() {
        let error = failure_of("CREATE TABLE a (b); PRAGMA query_only = on; INSERT INTO a VALUES (1)").await;
        assert_eq!(
            error.to_string(),
            "renew: this user may not both read and write the file \"/run/a b.db\" (attempt to write a readonly database); grant that, or set \
             discovery.local.path to a file elsewhere"
        );
        assert_eq!(*error.kind(), ErrorKind::Denied);
    }

    #[test]
    fn what_hangs_or_hinders_says_how_long_and_what_to_do() {
        let path = || PathBuf::from("/run/m.db");
        for (failure, text) in [
            (
                Failure::TimedOut { path: path(), after: Duration::from_secs(2) },
                "\"/run/m.db\" gave no answer within 2000 ms; check the disk",
            ),
            (
                Failure::NoWal { path: path(), mode: "delete".into() },
                "\"/run/m.db\" cannot be shared: SQLite's WAL mode is not possible there (it stays in \"delete\"); set discovery.local.path to a file on a \
                 local disk",
            ),
            (
                Failure::TimeNamespace,
                "this process has a shifted boot clock (a time namespace); run it without one, all workers of a file must share one clock",
            ),
            (
                Failure::NotAFile { path: "/dev/null".into(), what: "a device, pipe or socket" },
                "\"/dev/null\" is a device, pipe or socket, not a file; set discovery.local.path to a file",
            ),
        ] {
            assert_eq!(failure.to_string(), text);
        }
    }

    #[test]
    fn an_odd_path_or_message_stays_on_one_line() {
        let failure = Failure::Io { path: "/run/a\nb".into(), why: one_line("disk\n  I/O error") };
        assert_eq!(
            failure.to_string(),
            "cannot read or write \"/run/a\\nb\": disk I/O error; check the disk, and how many files this process may open"
        );
    }
}
