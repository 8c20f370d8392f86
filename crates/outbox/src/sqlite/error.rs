//! Errors for SQLite's answers: what they mean to the operator, and what to do.

use std::path::Path;

use super::SqliteStore;
use crate::store::sql::SqlStore;
use crate::{Error, ErrorKind, Result};

impl SqlStore for SqliteStore {
    fn classify(error: &sqlx::Error) -> Error {
        classify(error)
    }

    fn locate(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::Event | ErrorKind::Settings => error,
            kind => Error::new(kind, format!("outbox {}: {error}", self.path().display())),
        }
    }
}

/// The primary result code: the low byte of SQLite's code.
fn code(error: &sqlx::Error) -> Option<i32> {
    let code: i32 = error.as_database_error()?.code()?.parse().ok()?;
    Some(code & 0xff)
}

pub(super) fn is_busy(error: &sqlx::Error) -> bool {
    matches!(code(error), Some(5 | 6))
}

pub(super) fn classify(error: &sqlx::Error) -> Error {
    let message = error.as_database_error().map_or_else(|| error.to_string(), |e| e.message().to_owned());
    let of = |kind, text: &str| Error::new(kind, text);
    match code(error) {
        Some(5 | 6) => of(ErrorKind::Unavailable, "the file is locked by another process: look for a long transaction, then try again"),
        Some(8) => of(ErrorKind::ReadOnly, "the file or its directory is read-only: give this user write access to both"),
        Some(10) => Error::new(ErrorKind::Unavailable, format!("the disk reports an error: look at the system's log ({message})")),
        Some(11) => Error::new(ErrorKind::NotADatabase, format!("the file is damaged: restore it from a backup ({message})")),
        Some(13) => of(ErrorKind::Unavailable, "the disk is full: free some space, then try again"),
        Some(14) => of(ErrorKind::Missing, "the file cannot be opened: check that it exists and that this user may read and write it"),
        Some(19) => constraint(&message),
        Some(26) => of(ErrorKind::NotADatabase, "the file is not an SQLite database: check the path"),
        Some(1) if message.contains("no such table") || message.contains("no such column") => Error::new(
            ErrorKind::Schema,
            format!("its tables are not what this version expects ({message}): run `shardwise outbox init`, or upgrade"),
        ),
        _ if matches!(error, sqlx::Error::PoolTimedOut) => of(ErrorKind::Unavailable, "no connection came free in time: try again"),
        _ if matches!(error, sqlx::Error::Io(_)) => Error::new(ErrorKind::Unavailable, format!("{message}: try again")),
        _ => Error::new(ErrorKind::Internal, message),
    }
}

/// A refused insert, in the words of the constraint.
fn constraint(message: &str) -> Error {
    let words = message.strip_prefix("CHECK constraint failed: ").or_else(|| message.strip_prefix("outbox: ")).unwrap_or(message);
    let text = match words {
        "UNIQUE constraint failed: outbox.id" => "an event with this id is in the outbox already".to_owned(),
        _ => words.to_owned(),
    };
    Error::new(ErrorKind::Event, text)
}

/// Distinguishes causes that SQLite would only report as "unable to open".
pub(super) fn check_path(path: &Path, create: bool) -> Result<()> {
    let wrong = |kind, text: &str| Err(Error::new(kind, format!("outbox {}: {text}", path.display())));
    if path.is_dir() {
        return wrong(ErrorKind::NotADatabase, "it is a directory: name a file in it");
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if parent.is_some_and(|parent| !parent.is_dir()) {
        return wrong(ErrorKind::Missing, "its directory does not exist: create it");
    }
    if !create && !path.exists() {
        return wrong(ErrorKind::Missing, "there is no such file: check the path, or run `shardwise outbox init`");
    }
    Ok(())
}
