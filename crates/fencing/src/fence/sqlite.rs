//! Fences in SQLite, 3.24 and newer.
//!
//! A file has one writer at a time. So the statement that checks the epoch also takes the file's write lock and holds it until the
//! transaction ends. If a transaction has read before and its snapshot is outdated by then, SQLite fails it with `SQLITE_BUSY_SNAPSHOT`,
//! and it must be repeated; `BEGIN IMMEDIATE` avoids that.

#[cfg(feature = "sqlite")]
mod queries;

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

/// The fence in one statement, for use from any language: `?1` the group, `?2` the resource as text, `?3` the epoch. If one row changed,
/// continue; if none, roll back and give up.
pub const CHECK: &str = "INSERT INTO shardwise_fence (group_name, resource, epoch) VALUES (?1, ?2, ?3)
ON CONFLICT (group_name, resource) DO UPDATE SET epoch = excluded.epoch WHERE shardwise_fence.epoch <= excluded.epoch";
