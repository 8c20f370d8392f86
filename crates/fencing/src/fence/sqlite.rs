//! Fences in SQLite, 3.24 and newer.
//!
//! A file has one writer at a time. So the statement that checks the epoch also takes the file's write lock and holds it until the
//! transaction ends. If a transaction has read before and its snapshot is outdated by then, SQLite fails it with `SQLITE_BUSY_SNAPSHOT`,
//! and it must be repeated; `BEGIN IMMEDIATE` avoids that.

#[cfg(feature = "sqlite")]
pub(crate) mod progress;
#[cfg(feature = "sqlite")]
mod queries;

#[cfg(feature = "sqlite")]
pub use progress::{resume, save};
#[cfg(feature = "sqlite")]
pub use queries::{check, create_tables};

/// Creates the table of fences if it does not exist. For use in your own migrations.
pub const FENCE_UP: &str = include_str!("../../sql/sqlite/fence.up.sql");
/// Removes the table of fences.
pub const FENCE_DOWN: &str = include_str!("../../sql/sqlite/fence.down.sql");
/// Creates the tables of journals if they do not exist. For use in your own migrations.
pub const JOURNAL_UP: &str = include_str!("../../sql/sqlite/journal.up.sql");
/// Removes the tables of journals.
pub const JOURNAL_DOWN: &str = include_str!("../../sql/sqlite/journal.down.sql");
/// Creates the table of progress if it does not exist. For use in your own migrations.
pub const PROGRESS_UP: &str = include_str!("../../sql/sqlite/progress.up.sql");
/// Removes the table of progress.
pub const PROGRESS_DOWN: &str = include_str!("../../sql/sqlite/progress.down.sql");

/// The fence in one statement, for use from any language: `?1` the group, `?2` the resource as text, `?3` the epoch. If one row changed,
/// continue; if none, roll back and give up.
pub const CHECK: &str = "INSERT INTO shardwise_fence (group_name, resource, epoch) VALUES (?1, ?2, ?3)
ON CONFLICT (group_name, resource) DO UPDATE SET epoch = excluded.epoch WHERE shardwise_fence.epoch <= excluded.epoch";

/// Behind [`CHECK`] in the same transaction: `?1` the group, `?2` the key, `?3` the epoch. Refuses every lower epoch for this key from
/// then on. If one row changed, read it with [`POSITION`]; if none, roll back and give up.
pub const RESUME: &str = "INSERT INTO shardwise_progress (group_name, key, epoch, number) VALUES (?1, ?2, ?3, 0)
ON CONFLICT (group_name, key) DO UPDATE SET epoch = excluded.epoch WHERE shardwise_progress.epoch <= excluded.epoch";

/// The position of a key: `?1` the group, `?2` the key. Returns `number`, `position`, `saved_by` and `saved_epoch`.
pub const POSITION: &str = "SELECT number, position, saved_by, saved_epoch FROM shardwise_progress WHERE group_name = ?1 AND key = ?2";

/// Behind [`CHECK`], in the transaction that does the work: `?1` the group, `?2` the key, `?3` the epoch, `?4` the instance, `?5` the
/// `number` of the position from which the work went on, `?6` the new position. If one row changed, commit; the new position has the number
/// `?5` + 1. If none, roll back: a higher epoch was seen, or another task has saved a position.
pub const SAVE: &str = "UPDATE shardwise_progress
SET number = number + 1, position = ?6, epoch = ?3, saved_by = ?4, saved_epoch = ?3
WHERE group_name = ?1 AND key = ?2 AND epoch <= ?3 AND number = ?5";
