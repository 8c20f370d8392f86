//! Fences in PostgreSQL, 13 and newer.
//!
//! The fence is a row with the highest epoch seen. A transaction that writes under that epoch takes a *share* lock on the row until it
//! ends, so writers of one owner do not wait for each other. The first writer under a higher epoch updates the row and therefore waits
//! until all writers under lower epochs have ended. From then on, writers under lower epochs wait for it, and are refused once it has
//! committed. So commits are in the order of the epochs, wherever and for however long a writer was paused.

#[cfg(feature = "postgres")]
mod progress;
#[cfg(feature = "postgres")]
mod queries;

#[cfg(feature = "postgres")]
pub use progress::{resume, save};
#[cfg(feature = "postgres")]
pub use queries::{check, create_tables, raise};

/// Creates the table of fences if it does not exist. For use in your own migrations.
pub const FENCE_UP: &str = include_str!("../../sql/postgres/fence.up.sql");
/// Removes the table of fences.
pub const FENCE_DOWN: &str = include_str!("../../sql/postgres/fence.down.sql");
/// Creates the tables of journals if they do not exist. For use in your own migrations.
pub const JOURNAL_UP: &str = include_str!("../../sql/postgres/journal.up.sql");
/// Removes the tables of journals.
pub const JOURNAL_DOWN: &str = include_str!("../../sql/postgres/journal.down.sql");
/// Creates the table of progress if it does not exist. For use in your own migrations.
pub const PROGRESS_UP: &str = include_str!("../../sql/postgres/progress.up.sql");
/// Removes the table of progress.
pub const PROGRESS_DOWN: &str = include_str!("../../sql/postgres/progress.down.sql");

/// The fence in one statement, for use from any language: `$1` the group, `$2` the resource as text, `$3` the epoch. If one row changed,
/// continue; if none, roll back and give up. Writers of one resource wait for each other until commit.
pub const RAISE: &str = "INSERT INTO shardwise_fence (group_name, resource, epoch) VALUES ($1, $2, $3)
ON CONFLICT (group_name, resource) DO UPDATE SET epoch = excluded.epoch WHERE shardwise_fence.epoch <= excluded.epoch";

/// Like [`RAISE`], with the same parameters but without that wait, as [`check`] uses it. Returns one row with `seen`, `raised` and
/// `fixed`. If `seen` is the epoch or `raised` is true, continue; else roll back and give up. If both `raised` and `fixed` are true, the
/// transaction is above READ COMMITTED: commit, then start the transaction with the writes.
pub const CHECK: &str = "WITH held AS MATERIALIZED (
    SELECT epoch FROM shardwise_fence WHERE group_name = $1::text AND resource = $2::text AND epoch >= $3::bigint FOR SHARE
), raised AS (
    INSERT INTO shardwise_fence AS fence (group_name, resource, epoch)
    SELECT $1::text, $2::text, $3::bigint WHERE NOT EXISTS (SELECT 1 FROM held)
    ON CONFLICT (group_name, resource) DO UPDATE SET epoch = excluded.epoch WHERE fence.epoch <= excluded.epoch
    RETURNING epoch
)
SELECT (SELECT epoch FROM held) AS seen, EXISTS (SELECT 1 FROM raised) AS raised,
    current_setting('transaction_isolation') IN ('repeatable read', 'serializable') AS fixed";

/// Behind a statement of the fence ([`CHECK`] or [`RAISE`]) in the same transaction: `$1` the group, `$2` the key, `$3` the epoch.
/// Returns one row with `number`, `position`, `saved_by` and `saved_epoch`, and refuses every lower epoch for this key from then on. If it
/// returns none, roll back and give up: a higher epoch was seen, or there is no transaction.
// The last condition: the fence's statement has given the transaction its number. Without a transaction that was the number of another.
pub const RESUME: &str = "INSERT INTO shardwise_progress AS progress (group_name, key, epoch, number)
SELECT $1::text, $2::text, $3::bigint, 0 WHERE pg_current_xact_id_if_assigned() IS NOT NULL
ON CONFLICT (group_name, key) DO UPDATE SET epoch = excluded.epoch WHERE progress.epoch <= excluded.epoch
RETURNING number, position, saved_by, saved_epoch";

/// Behind a statement of the fence, as [`RESUME`], and in the transaction that does the work: `$1` the group, `$2` the key, `$3` the
/// epoch, `$4` the instance, `$5` the `number` of the position from which the work went on, `$6` the new position. If one row changed,
/// commit; the new position has the number `$5` + 1. If none, roll back: a higher epoch was seen, another task has saved a position, or
/// there is no transaction.
pub const SAVE: &str = "UPDATE shardwise_progress
SET number = number + 1, position = $6::text, epoch = $3::bigint, saved_by = $4::text, saved_epoch = $3::bigint
WHERE group_name = $1::text AND key = $2::text AND epoch <= $3::bigint AND number = $5::bigint
AND pg_current_xact_id_if_assigned() IS NOT NULL";
