//! Progress, with sqlx.

use sqlx::PgConnection;

use crate::error::FenceError;
use crate::progress::{Position, PositionRow, Progress, not_saved};
use crate::stale_epoch::{refused, to_sql};

use super::queries::check;
use super::{RESUME, SAVE};

const FOUND: &str = "SELECT epoch, number FROM shardwise_progress WHERE group_name = $1 AND key = $2";

/// Returns the position from which to go on, and refuses every lower epoch for this key from then on, once the transaction is
/// committed. It checks the fence first, as [`check`] does. Until the transaction ends, other transactions that resume or save the
/// same key wait.
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool, progress: shardwise_fencing::Progress) -> Result<(), Box<dyn std::error::Error>> {
/// use shardwise_fencing::postgres;
///
/// let mut tx = pool.begin().await?;
/// let position = postgres::resume(&mut tx, &progress).await?;
/// let line: i64 = position.value.as_deref().unwrap_or("0").parse()?;
/// let import = "INSERT INTO imported SELECT * FROM staged WHERE line > $1 AND line <= $1 + 1000";
/// sqlx::query(import).bind(line).execute(&mut *tx).await?;
/// postgres::save(&mut tx, &progress, &position, &(line + 1000).to_string()).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// As [`check`]: [`FenceError::Fenced`] if a higher epoch was seen, of the resource or of the key; [`FenceError::RaiseApart`];
/// [`FenceError::NoTransaction`]; and the database's errors. After any of them, roll back the transaction.
pub async fn resume(conn: &mut PgConnection, progress: &Progress) -> Result<Position, FenceError> {
    check(conn, &progress.group, &progress.resource, progress.epoch).await?;
    let query = sqlx::query_as(RESUME).bind(progress.group.as_str()).bind(&progress.key).bind(to_sql(progress.epoch));
    let row: Option<PositionRow> = query.fetch_optional(&mut *conn).await?;
    if let Some(row) = row {
        return Ok(Position::of(row));
    }
    let seen = found(conn, progress).await?.map(|(epoch, _)| epoch);
    Err(refused(&progress.group, &progress.resource, progress.epoch, seen).into())
}

/// Saves the position `to`, tagged with instance and epoch, in the transaction that does the work up to it. Returns it for the next
/// `save`; it counts once the transaction is committed. It checks the fence first, as [`check`] does.
///
/// `from` is the position from which the work went on: the answer of [`resume`], whose transaction must have been committed or be this
/// one, or of the `save` before. If another task has saved a position since, this one is refused.
///
/// # Errors
///
/// [`FenceError::Moved`] if the database has another position than `from`; else as [`resume`]. A key or position that is too long is
/// the database's error. After any of them, roll back the transaction.
pub async fn save(conn: &mut PgConnection, progress: &Progress, from: &Position, to: &str) -> Result<Position, FenceError> {
    check(conn, &progress.group, &progress.resource, progress.epoch).await?;
    let query = sqlx::query(SAVE).bind(progress.group.as_str()).bind(&progress.key).bind(to_sql(progress.epoch));
    let query = query.bind(progress.instance.as_str()).bind(from.number.cast_signed()).bind(to);
    if query.execute(&mut *conn).await?.rows_affected() == 1 {
        return Ok(from.followed_by(progress, to));
    }
    Err(not_saved(progress, from, found(conn, progress).await?))
}

/// The row's epoch and number, for the text of a refusal.
async fn found(conn: &mut PgConnection, progress: &Progress) -> Result<Option<(i64, i64)>, sqlx::Error> {
    sqlx::query_as(FOUND).bind(progress.group.as_str()).bind(&progress.key).fetch_optional(conn).await
}
