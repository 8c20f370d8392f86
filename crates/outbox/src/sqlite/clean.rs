//! Periodic cleaning: expired parked events, aggregates without events, old audit entries. Candidates are looked up without
//! the write lock and checked again under it.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use serde_json::json;

use super::error::SqliteErrorContext;
use super::{SqliteStore, millis, unix_ms};
use crate::Result;
use crate::store::CleanResult;

/// The most batches of one kind in one call, and how long they may take together.
const BATCHES: usize = 20;
const WITHIN: Duration = Duration::from_secs(3);
const YEAR_MS: i64 = 365 * 24 * 3_600 * 1_000;

/// ?1 the oldest time to keep (ms), ?2 how many.
const OLD: &str =
    "SELECT position FROM outbox INDEXED BY outbox_parked WHERE parked_at < ?1 AND parked_at IS NOT NULL ORDER BY parked_at LIMIT ?2";
/// ?1 positions as a JSON list, ?2 the oldest time to keep, ?3 now. Each event leaves an audit entry, because it was never delivered.
const NOTE: &str = "INSERT INTO outbox_audit (at, who, action, event, key, seq, why)
    SELECT ?3, 'retention', 'expire', id, aggregatetype || '/' || aggregateid, seq, coalesce(parked_error, '')
    FROM outbox WHERE position IN (SELECT value FROM json_each(?1)) AND parked_at < ?2";
const EXPIRE: &str = "DELETE FROM outbox WHERE position IN (SELECT value FROM json_each(?1)) AND parked_at < ?2";
/// ?1 the oldest time to keep (ms), ?2 how many.
const FORGET_LINES: &str = "DELETE FROM outbox_audit WHERE id IN (SELECT id FROM outbox_audit WHERE at < ?1 ORDER BY at LIMIT ?2)";

/// ?1 aggregate, ?2 how many.
const WINDOW: &str = "SELECT count(*), max(id) FROM (SELECT id FROM outbox_aggregate WHERE id > ?1 ORDER BY id LIMIT ?2)";
/// Whether an aggregate has nothing to send and no row.
macro_rules! idle {
    () => {
        "done_seq = last_seq AND NOT EXISTS (SELECT 1 FROM outbox AS o INDEXED BY outbox_in_order WHERE o.aggregate = outbox_aggregate.id)"
    };
}
/// ?1 and ?2 first (excluded) and last aggregate.
const IDLE: &str = concat!("SELECT id FROM outbox_aggregate WHERE id > ?1 AND id <= ?2 AND ", idle!());
/// ?1 aggregates as a JSON list.
const RAISE: &str = concat!(
    "UPDATE outbox_meta SET seq_floor = max(seq_floor, coalesce((
        SELECT max(last_seq) FROM outbox_aggregate WHERE id IN (SELECT value FROM json_each(?1)) AND ",
    idle!(),
    "), 0))"
);
const FORGET: &str = concat!("DELETE FROM outbox_aggregate WHERE id IN (SELECT value FROM json_each(?1)) AND ", idle!());

pub(super) async fn clean(store: &SqliteStore, parked_retention: Duration, limit: usize) -> Result<CleanResult> {
    let (begun, rows) = (Instant::now(), i64::try_from(limit).unwrap_or(i64::MAX));
    let mut cleaned = CleanResult::default();
    let lines = || sqlx::query(FORGET_LINES).bind(unix_ms() - YEAR_MS).bind(rows).execute(&store.writer);
    store.when_free(lines).await.at(store)?;
    for _ in 0..BATCHES {
        let expired = expire(store, unix_ms().saturating_sub(millis(parked_retention)), rows).await?;
        cleaned.expired += expired;
        cleaned.more = expired >= limit as u64;
        if !cleaned.more || begun.elapsed() > WITHIN {
            break;
        }
    }
    let mut further = false;
    for _ in 0..BATCHES {
        let after = *store.forget_after.lock().unwrap_or_else(PoisonError::into_inner);
        let (forgotten, next) = forget(store, after, rows).await?;
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

async fn expire(store: &SqliteStore, oldest_kept: i64, limit: i64) -> Result<u64> {
    let old: Vec<i64> = sqlx::query_scalar(OLD).bind(oldest_kept).bind(limit).fetch_all(&store.readers).await.at(store)?;
    if old.is_empty() {
        return Ok(0);
    }
    let old = json!(old).to_string();
    let mut tx = store.begin().await?;
    sqlx::query(NOTE).bind(&old).bind(oldest_kept).bind(unix_ms()).execute(&mut *tx).await.at(store)?;
    let expired = sqlx::query(EXPIRE).bind(&old).bind(oldest_kept).execute(&mut *tx).await.at(store)?.rows_affected();
    tx.commit().await.at(store)?;
    Ok(expired)
}

/// Returns the number of forgotten aggregates, and where to continue.
async fn forget(store: &SqliteStore, after: i64, limit: i64) -> Result<(u64, Option<i64>)> {
    let (looked_at, last): (i64, Option<i64>) = sqlx::query_as(WINDOW).bind(after).bind(limit).fetch_one(&store.readers).await.at(store)?;
    let Some(last) = last else { return Ok((0, None)) };
    let idle: Vec<i64> = sqlx::query_scalar(IDLE).bind(after).bind(last).fetch_all(&store.readers).await.at(store)?;
    let mut forgotten = 0;
    if !idle.is_empty() {
        let idle = json!(idle).to_string();
        let mut tx = store.begin().await?;
        sqlx::query(RAISE).bind(&idle).execute(&mut *tx).await.at(store)?;
        forgotten = sqlx::query(FORGET).bind(&idle).execute(&mut *tx).await.at(store)?.rows_affected();
        tx.commit().await.at(store)?;
    }
    Ok((forgotten, (looked_at == limit).then_some(last)))
}
