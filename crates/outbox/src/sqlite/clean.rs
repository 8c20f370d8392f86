//! Periodic work that needs no slot: hashing new aggregates, and deleting expired parked events, aggregates without events and old audit
//! entries. Candidates are looked up without the write lock and checked again under it.

use std::time::Duration;

use serde_json::json;
use shardwise::ShardKey;

use super::{SqliteStore, unix_ms};
use crate::Result;
use crate::store::CleanResult;
use crate::store::sql::{self, ErrorContext, millis, signed, to_ordered};

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
    let rows = signed(limit);
    let lines = || sqlx::query(FORGET_LINES).bind(unix_ms() - YEAR_MS).bind(rows).execute(&store.writer);
    store.when_free(lines).await.at(store)?;
    let expire = || expire(store, unix_ms().saturating_sub(millis(parked_retention)), rows);
    sql::clean(limit, &store.forget_after, expire, |after| forget(store, after, rows)).await
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
async fn forget(store: &SqliteStore, after: i64, limit: i64) -> Result<Option<(u64, Option<i64>)>> {
    let (visited, last): (i64, Option<i64>) = sqlx::query_as(WINDOW).bind(after).bind(limit).fetch_one(&store.readers).await.at(store)?;
    let Some(last) = last else { return Ok(Some((0, None))) };
    let idle: Vec<i64> = sqlx::query_scalar(IDLE).bind(after).bind(last).fetch_all(&store.readers).await.at(store)?;
    let mut forgotten = 0;
    if !idle.is_empty() {
        let idle = json!(idle).to_string();
        let mut tx = store.begin().await?;
        sqlx::query(RAISE).bind(&idle).execute(&mut *tx).await.at(store)?;
        forgotten = sqlx::query(FORGET).bind(&idle).execute(&mut *tx).await.at(store)?.rows_affected();
        tx.commit().await.at(store)?;
    }
    Ok(Some((forgotten, (visited == limit).then_some(last))))
}

pub(super) async fn place_new(store: &SqliteStore, limit: usize) -> Result<usize> {
    let select = "SELECT id, CAST(key AS BLOB) FROM outbox_aggregate INDEXED BY outbox_aggregate_new WHERE hash IS NULL LIMIT ?1";
    let new: Vec<(i64, Vec<u8>)> = sqlx::query_as(select).bind(signed(limit)).fetch_all(&store.readers).await.at(store)?;
    if new.is_empty() {
        return Ok(0);
    }
    let hashes: Vec<(i64, i64)> = new.iter().map(|(id, key)| (*id, to_ordered(key.as_slice().key_hash()))).collect();
    let update = "UPDATE outbox_aggregate SET hash = h.hash
        FROM (SELECT value ->> 0 AS id, value ->> 1 AS hash FROM json_each(?1)) AS h
        WHERE outbox_aggregate.id = h.id AND outbox_aggregate.hash IS NULL";
    let hashes = json!(hashes).to_string();
    store.when_free(|| sqlx::query(update).bind(&hashes).execute(&store.writer)).await.at(store)?;
    Ok(new.len())
}
