//! Periodic work that needs no slot: hashing new aggregates, unblocking aggregates.

use serde_json::json;
use shardwise::ShardKey;
use sqlx::Row;

use super::error::SqliteErrorContext;
use super::{SqliteStore, to_ordered};
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

pub(super) async fn unblock(store: &SqliteStore, key: Option<&str>) -> Result<u64> {
    let update = "UPDATE outbox_aggregate
        SET blocked_at = NULL, retry_at = NULL, attempts = 0, failures = 0, failing_since = NULL, attempted_at = NULL
        WHERE blocked_at IS NOT NULL AND (?1 IS NULL OR key = ?1)";
    Ok(store.when_free(|| sqlx::query(update).bind(key).execute(&store.writer)).await.at(store)?.rows_affected())
}
