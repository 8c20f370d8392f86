//! Periodic cleaning: expired parked events, aggregates without events, old audit entries.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};

use super::error::{PgErrorContext, StatementError};
use super::record::short_of_a_deadlock;
use super::{PostgresStore, call, millis, unsigned};
use crate::Result;
use crate::store::CleanResult;

/// The most batches of one kind in one call, and how long they may take together.
const BATCHES: usize = 20;
const WITHIN: Duration = Duration::from_secs(3);

/// $1 age in milliseconds, $2 how many. Each event leaves an audit entry, because it was never delivered.
const EXPIRE: &str = "WITH old AS MATERIALIZED (
        SELECT o.position FROM outbox AS o WHERE o.parked_at < statement_timestamp() - $1::bigint * interval '1 millisecond'
        ORDER BY o.parked_at LIMIT $2 FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM outbox AS d USING old WHERE d.position = old.position
        RETURNING d.id, d.aggregatetype || '/' || d.aggregateid AS key, d.seq, d.parked_error
    )
    INSERT INTO outbox_audit (who, action, event, key, seq, why)
    SELECT 'retention', 'expire', id, key, seq, coalesce(parked_error, '') FROM gone";

const FORGET_LINES: &str = "DELETE FROM outbox_audit AS d USING (
        SELECT id FROM outbox_audit WHERE at < statement_timestamp() - interval '365 days' ORDER BY at LIMIT $1
    ) AS old WHERE d.id = old.id";

/// $1 aggregate, $2 how many to visit. An aggregate is idle if it is not on the list (so no publisher has any of it in memory) and has no
/// row. A change since the visit is found by the sequence of its last event when its row is locked.
const IDLE: &str = concat!(
    "WITH patience AS MATERIALIZED (SELECT ",
    short_of_a_deadlock!(),
    "), looked AS MATERIALIZED (
        SELECT id, last_seq, drained_seq FROM patience CROSS JOIN outbox_aggregate WHERE id > $1 ORDER BY id LIMIT $2
    ), idle AS MATERIALIZED (
        SELECT a.id, a.last_seq FROM looked AS l JOIN outbox_aggregate AS a ON a.id = l.id AND a.last_seq = l.last_seq AND a.last_seq = a.drained_seq
        JOIN outbox_head AS h ON h.aggregate = a.id AND NOT h.listed
        WHERE l.last_seq = l.drained_seq AND NOT EXISTS (SELECT 1 FROM outbox AS o WHERE o.aggregate = l.id)
        FOR UPDATE OF a, h SKIP LOCKED
    )
    SELECT (SELECT count(*) FROM looked), (SELECT max(id) FROM looked), coalesce(array_agg(id), '{}'), coalesce(max(last_seq), 0)::bigint
    FROM idle"
);

/// $1 the highest sequence of the aggregates to forget. Every transaction sees it from now on, even if this one fails.
const RAISE: &str = "SELECT setval('outbox_floor', $1) FROM outbox_floor WHERE last_value < $1";

pub(super) async fn clean(store: &PostgresStore, parked_retention: Duration, limit: usize) -> Result<CleanResult> {
    let (begun, rows) = (Instant::now(), i64::try_from(limit).unwrap_or(i64::MAX));
    let mut cleaned = CleanResult::default();
    for _ in 0..BATCHES {
        let expired = call!(store, conn => expire(conn, parked_retention, rows))?;
        cleaned.expired += expired;
        cleaned.more = expired >= limit as u64;
        if !cleaned.more || begun.elapsed() > WITHIN {
            break;
        }
    }
    let mut further = false;
    for _ in 0..BATCHES {
        let after = *store.forget_after.lock().unwrap_or_else(PoisonError::into_inner);
        // If a writer holds a row, the range is visited again next time.
        let Some((forgotten, next)) = call!(store, conn => forget_unless_in_the_way(conn, after, rows))? else { break };
        cleaned.forgotten += forgotten;
        *store.forget_after.lock().unwrap_or_else(PoisonError::into_inner) = next.unwrap_or(0);
        further = next.is_some();
        if !further || begun.elapsed() > WITHIN {
            break;
        }
    }
    cleaned.more |= further && cleaned.forgotten > 0;
    Ok(cleaned)
}

async fn expire(conn: &mut PgConnection, parked_retention: Duration, limit: i64) -> Result<u64, StatementError> {
    sqlx::query(FORGET_LINES).bind(limit).execute(&mut *conn).await?;
    let age = millis(parked_retention).min(super::sweep::RETENTION_MS_MAX);
    Ok(sqlx::query(EXPIRE).bind(age).bind(limit).execute(conn).await?.rows_affected())
}

/// Returns `None` if it gave way to a writer.
async fn forget_unless_in_the_way(conn: &mut PgConnection, after: i64, limit: i64) -> Result<Option<(u64, Option<i64>)>, StatementError> {
    match forget(conn, after, limit).await {
        Err(fault) if fault.gave_way() => Ok(None),
        other => other.map(Some),
    }
}

/// Returns the number of forgotten aggregates, and where to continue.
async fn forget(conn: &mut PgConnection, after: i64, limit: i64) -> Result<(u64, Option<i64>), StatementError> {
    let mut tx = conn.begin().await?;
    // One process at a time, or a lower floor might be set after a higher one.
    let alone = sqlx::query("SELECT 1 FROM outbox_meta FOR UPDATE SKIP LOCKED").fetch_optional(&mut *tx).await?;
    if alone.is_none() {
        return Ok((0, None));
    }
    let idle = sqlx::query_as(IDLE).bind(after).bind(limit).fetch_one(&mut *tx).await?;
    let (looked_at, last, idle, highest): (i64, Option<i64>, Vec<i64>, i64) = idle;
    if !idle.is_empty() {
        sqlx::query(RAISE).bind(highest).execute(&mut *tx).await?;
        sqlx::query("DELETE FROM outbox_head WHERE aggregate = ANY ($1)").bind(&idle).execute(&mut *tx).await?;
        sqlx::query("DELETE FROM outbox_aggregate WHERE id = ANY ($1)").bind(&idle).execute(&mut *tx).await?;
    }
    tx.commit().await?;
    Ok((unsigned(i64::try_from(idle.len()).unwrap_or(0)), if looked_at == limit { last } else { None }))
}
