//! The statements, carried out with sqlx.

use shardwise_core::{Epoch, GroupName, Resource};
use sqlx::{Connection, PgConnection};

use crate::error::FenceError;
use crate::resource_text;
use crate::stale_epoch::{refused, to_sql};

use super::{CHECK, FENCE_UP, JOURNAL_UP, PROGRESS_UP, RAISE};

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

/// Makes the epoch the highest seen, in a separate transaction, and waits for all transactions that write under a lower one. Call
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

/// Creates missing tables of fences, journals and progress; safe to call from several processes at once. For programs without
/// migrations; others add [`FENCE_UP`], [`JOURNAL_UP`] and [`PROGRESS_UP`] to theirs.
///
/// # Errors
///
/// The database's errors, such as a role that may not create tables.
pub async fn create_tables(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    let mut tx = conn.begin().await?;
    for sql in [ONE_AT_A_TIME, FENCE_UP, JOURNAL_UP, PROGRESS_UP] {
        sqlx::raw_sql(sql).execute(&mut *tx).await?;
    }
    tx.commit().await
}
