//! The statements, carried out with sqlx.

use shardwise_core::{Epoch, GroupName, Resource};
use sqlx::{Connection, SqliteConnection};

use crate::error::FenceError;
use crate::resource_text;
use crate::stale_epoch::{refused, to_sql};

use super::{CHECK, FENCE_UP, JOURNAL_UP, PROGRESS_UP};

const SEEN: &str = "SELECT epoch FROM shardwise_fence WHERE group_name = ?1 AND resource = ?2";

/// Allows this transaction to write under the epoch until it ends; refuses an epoch below the highest seen.
///
/// ```no_run
/// # async fn example(pool: sqlx::SqlitePool, group: shardwise_fencing::GroupName, fence: shardwise_fencing::Fence)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// use shardwise_fencing::{Resource, sqlite};
///
/// let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
/// sqlite::check(&mut tx, &group, &Resource::Slot(fence.slot), fence.epoch).await?;
/// sqlx::query("UPDATE account SET balance = balance - 10 WHERE id = 42").execute(&mut *tx).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// [`FenceError::Fenced`] for an old epoch, [`FenceError::NoTransaction`] outside a transaction, and the database's errors. After
/// any of them, roll back the transaction.
pub async fn check(conn: &mut SqliteConnection, group: &GroupName, resource: &Resource, epoch: Epoch) -> Result<(), FenceError> {
    if !conn.is_in_transaction() {
        return Err(FenceError::NoTransaction);
    }
    let text = resource_text(resource);
    let done = sqlx::query(CHECK).bind(group.as_str()).bind(&text).bind(to_sql(epoch)).execute(&mut *conn).await?;
    if done.rows_affected() == 1 {
        return Ok(());
    }
    let seen = sqlx::query_scalar(SEEN).bind(group.as_str()).bind(&text).fetch_optional(conn).await?;
    Err(refused(group, resource, epoch, seen).into())
}

/// Creates missing tables of fences, journals and progress; safe to call from several processes at once. For programs without
/// migrations; others add [`FENCE_UP`], [`JOURNAL_UP`] and [`PROGRESS_UP`] to theirs.
///
/// # Errors
///
/// The database's errors, such as a read-only file.
pub async fn create_tables(conn: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    let mut tx = conn.begin_with("BEGIN IMMEDIATE").await?;
    for sql in [FENCE_UP, JOURNAL_UP, PROGRESS_UP] {
        sqlx::raw_sql(sql).execute(&mut *tx).await?;
    }
    tx.commit().await
}
