//! Fences in PostgreSQL, 13 and newer.
//!
//! The fence is a row with the highest epoch seen. A transaction that writes under that epoch takes a *share* lock on the row until it
//! ends, so writers of one owner do not wait for each other. The first writer under a higher epoch updates the row and therefore waits
//! until all writers under lower epochs have ended. From then on, writers under lower epochs wait for it, and are refused once it has
//! committed. So commits are in the order of the epochs, wherever and for however long a writer was paused.

use shardwise_core::{Epoch, GroupName, Resource};
use sqlx::{Connection, PgConnection};

use crate::error::FenceError;
use crate::fence::{refused, to_sql};
use crate::resource_text;

/// Creates the table of fences if it does not exist. For use in your own migrations.
pub const FENCE_UP: &str = include_str!("../../sql/postgres/fence.up.sql");
/// Removes the table of fences.
pub const FENCE_DOWN: &str = include_str!("../../sql/postgres/fence.down.sql");
/// Creates the tables of journals if they do not exist. For use in your own migrations.
pub const JOURNAL_UP: &str = include_str!("../../sql/postgres/journal.up.sql");
/// Removes the tables of journals.
pub const JOURNAL_DOWN: &str = include_str!("../../sql/postgres/journal.down.sql");

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

const SEEN: &str = "SELECT epoch FROM shardwise_fence WHERE group_name = $1 AND resource = $2";
/// Creating one table from two processes at once fails; this advisory lock prevents it. The number is arbitrary.
const ONE_AT_A_TIME: &str = "SELECT pg_advisory_xact_lock(7738157320411812467)";

/// Allows this transaction to write under the epoch until it ends; refuses an epoch below the highest seen. Call it first in the
/// transaction: earlier reads may predate the former owner's last write.
///
/// Writers of one epoch do not wait for each other. A transaction over several resources should check them in sorted order; otherwise
/// it may deadlock with another, which is retryable.
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool, group: shardwise_fencing::GroupName, fence: shardwise_fencing::Fence)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// use shardwise_fencing::{Resource, postgres};
///
/// let mut tx = pool.begin().await?;
/// postgres::check(&mut tx, &group, &Resource::Slot(fence.slot), fence.epoch).await?;
/// sqlx::query("UPDATE account SET balance = balance - 10 WHERE id = 42").execute(&mut *tx).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// [`FenceError::Fenced`] for an old epoch; [`FenceError::RaiseApart`] for a new one above READ COMMITTED, see [`raise`];
/// [`FenceError::NoTransaction`] outside a transaction; and the database's errors. After any of them, roll back the transaction.
pub async fn check(conn: &mut PgConnection, group: &GroupName, resource: &Resource, epoch: Epoch) -> Result<(), FenceError> {
    if !conn.is_in_transaction() {
        return Err(FenceError::NoTransaction);
    }
    let (mine, text) = (to_sql(epoch), resource_text(resource));
    let query = sqlx::query_as(CHECK).bind(group.as_str()).bind(&text).bind(mine);
    let (seen, raised, fixed): (Option<i64>, bool, bool) = query.fetch_one(&mut *conn).await?;
    match seen {
        Some(seen) if seen == mine => Ok(()),
        Some(higher) => Err(refused(group, resource, epoch, Some(higher)).into()),
        None if raised && fixed => Err(FenceError::RaiseApart { resource: resource.clone(), epoch }),
        None if raised => Ok(()),
        None => Err(refused(group, resource, epoch, seen_now(conn, group, &text).await?).into()),
    }
}

/// Makes the epoch the highest seen, in a transaction of its own, and waits for all transactions that write under a lower one. Call
/// it once after each acquisition; only transactions above READ COMMITTED need it.
///
/// # Errors
///
/// [`FenceError::Fenced`]; [`FenceError::InTransaction`] within a transaction; and the database's errors.
pub async fn raise(conn: &mut PgConnection, group: &GroupName, resource: &Resource, epoch: Epoch) -> Result<(), FenceError> {
    if conn.is_in_transaction() {
        return Err(FenceError::InTransaction);
    }
    let text = resource_text(resource);
    let done = sqlx::query(RAISE).bind(group.as_str()).bind(&text).bind(to_sql(epoch)).execute(&mut *conn).await?;
    if done.rows_affected() == 1 {
        return Ok(());
    }
    Err(refused(group, resource, epoch, seen_now(conn, group, &text).await?).into())
}

/// The highest epoch seen, for the text of a refusal.
async fn seen_now(conn: &mut PgConnection, group: &GroupName, text: &str) -> Result<Option<i64>, sqlx::Error> {
    sqlx::query_scalar(SEEN).bind(group.as_str()).bind(text).fetch_optional(conn).await
}

/// Creates missing tables of fences and journals; safe to call from several processes at once. For programs without migrations;
/// others add [`FENCE_UP`] and [`JOURNAL_UP`] to theirs.
///
/// # Errors
///
/// The database's errors, such as a role that may not create tables.
pub async fn create_tables(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    let mut tx = conn.begin().await?;
    for sql in [ONE_AT_A_TIME, FENCE_UP, JOURNAL_UP] {
        sqlx::raw_sql(sql).execute(&mut *tx).await?;
    }
    tx.commit().await
}
