//! What has to be done now and then and needs no slot: hashes of new aggregates, retention, letting blocked aggregates go on.

use std::time::Duration;

use serde_json::json;
use shardwise::ShardKey;
use sqlx::Row;

use super::error::Context;
use super::{SqliteStore, millis, to_ordered, unix_ms};
use crate::Result;

pub(super) async fn place_new(store: &SqliteStore, limit: usize) -> Result<usize> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let select = "SELECT id, CAST(key AS BLOB) FROM outbox_aggregate INDEXED BY outbox_aggregate_new WHERE hash IS NULL LIMIT ?1";
    let rows = sqlx::query(select).bind(limit).fetch_all(&store.readers).await.at(store)?;
    if rows.is_empty() {
        return Ok(0);
    }
    let mut hashes: Vec<(i64, i64)> = Vec::with_capacity(rows.len());
    for row in &rows {
        let key: &[u8] = row.try_get(1).at(store)?;
        hashes.push((row.try_get(0).at(store)?, to_ordered(key.key_hash())));
    }
    let update = "UPDATE outbox_aggregate SET hash = h.hash
        FROM (SELECT value ->> 0 AS id, value ->> 1 AS hash FROM json_each(?1)) AS h
        WHERE outbox_aggregate.id = h.id AND outbox_aggregate.hash IS NULL";
    let hashes = json!(hashes).to_string();
    store.when_free(|| sqlx::query(update).bind(&hashes).execute(&store.writer)).await.at(store)?;
    Ok(rows.len())
}

/// ?1 position, ?2 rows to look at.
const WINDOW: &str = "SELECT count(*), max(position), min(created_at)
    FROM (SELECT position, created_at FROM outbox WHERE position > ?1 ORDER BY position LIMIT ?2)";

/// ?1 and ?2 first (excluded) and last position, ?3 the oldest time to keep (ms).
const DELETE: &str = "DELETE FROM outbox WHERE position IN (
    SELECT o.position FROM outbox AS o CROSS JOIN outbox_aggregate AS a
    WHERE o.position > ?1 AND o.position <= ?2 AND o.created_at < ?3 AND o.parked_at IS NULL
      AND a.id = o.aggregate AND o.seq <= a.done_seq)";

pub(super) async fn sweep(store: &SqliteStore, retention: Duration, position: i64, limit: usize) -> Result<Option<i64>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let oldest_kept = unix_ms().saturating_sub(millis(retention));
    let window = sqlx::query(WINDOW).bind(position).bind(limit).fetch_one(&store.readers).await.at(store)?;
    let looked_at: i64 = window.try_get(0).at(store)?;
    let (Some(last), Some(oldest)) = (window.try_get::<Option<i64>, _>(1).at(store)?, window.try_get::<Option<i64>, _>(2).at(store)?)
    else {
        return Ok(None);
    };
    // Positions rise with time but for the writers' clocks: behind a window without anything old there is nothing old.
    if oldest >= oldest_kept {
        return Ok(None);
    }
    let delete = || sqlx::query(DELETE).bind(position).bind(last).bind(oldest_kept).execute(&store.writer);
    store.when_free(delete).await.at(store)?;
    Ok((looked_at == limit).then_some(last))
}

pub(super) async fn unblock(store: &SqliteStore, key: Option<&str>) -> Result<u64> {
    let update = "UPDATE outbox_aggregate
        SET blocked_at = NULL, retry_at = NULL, attempts = 0, failures = 0, failing_since = NULL, attempted_at = NULL
        WHERE blocked_at IS NOT NULL AND (?1 IS NULL OR key = ?1)";
    Ok(store.when_free(|| sqlx::query(update).bind(key).execute(&store.writer)).await.at(store)?.rows_affected())
}
