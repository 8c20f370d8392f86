//! Periodic work that needs no slot: hashing new aggregates, removing drained ones from the list, unblocking aggregates.

use shardwise::ShardKey;
use sqlx::PgConnection;

use super::error::StatementError;
use super::record::short_of_a_deadlock;
use super::to_ordered;

/// $1 listed aggregates. Removes those that have nothing to send from the list, unless a writer holds the row.
const STRIKE_OFF: &str = concat!(
    "WITH patience AS MATERIALIZED (SELECT ",
    short_of_a_deadlock!(),
    "), drained AS (
        UPDATE outbox_aggregate AS a SET drained_seq = a.last_seq
        FROM (
            SELECT a.id FROM patience CROSS JOIN outbox_head AS h JOIN outbox_aggregate AS a ON a.id = h.aggregate AND a.last_seq = h.done_seq
            WHERE h.aggregate = ANY ($1::bigint[]) AND h.listed
            FOR NO KEY UPDATE OF a, h SKIP LOCKED
        ) AS free
        WHERE a.id = free.id RETURNING a.id
    )
    UPDATE outbox_head AS h SET listed = false FROM drained AS d WHERE h.aggregate = d.id"
);

pub(super) async fn strike_off(conn: &mut PgConnection, aggregates: &[i64]) -> Result<(), StatementError> {
    match sqlx::query(STRIKE_OFF).bind(aggregates).execute(conn).await.map_err(StatementError::from) {
        // They stay on the list until the next reading finds them.
        Err(fault) if !fault.gave_way() => Err(fault),
        _ => Ok(()),
    }
}

pub(super) async fn place_new(conn: &mut PgConnection, limit: usize) -> Result<usize, StatementError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let select = "SELECT h.aggregate, a.key FROM outbox_head AS h JOIN outbox_aggregate AS a ON a.id = h.aggregate
        WHERE h.hash IS NULL ORDER BY h.aggregate LIMIT $1";
    let new: Vec<(i64, String)> = sqlx::query_as(select).bind(limit).fetch_all(&mut *conn).await?;
    if new.is_empty() {
        return Ok(0);
    }
    let (ids, hashes): (Vec<i64>, Vec<i64>) = new.iter().map(|(id, key)| (*id, to_ordered(key.as_str().key_hash()))).unzip();
    // Does not wait for another publisher that works on the same rows: it writes the same values.
    let update = "WITH free AS MATERIALIZED (
            SELECT h.aggregate, n.hash FROM unnest($1::bigint[], $2::bigint[]) AS n (aggregate, hash)
            JOIN outbox_head AS h ON h.aggregate = n.aggregate AND h.hash IS NULL
            FOR NO KEY UPDATE OF h SKIP LOCKED
        )
        UPDATE outbox_head AS h SET hash = f.hash FROM free AS f WHERE h.aggregate = f.aggregate";
    sqlx::query(update).bind(ids).bind(hashes).execute(conn).await?;
    Ok(new.len())
}

pub(super) async fn unblock(conn: &mut PgConnection, key: Option<&str>) -> Result<u64, StatementError> {
    let update = "UPDATE outbox_head AS h
        SET blocked_at = NULL, retry_at = NULL, attempts = 0, failures = 0, failing_since = NULL, attempted_at = NULL
        FROM outbox_aggregate AS a
        WHERE h.blocked_at IS NOT NULL AND a.id = h.aggregate AND ($1::text IS NULL OR a.key = $1)";
    Ok(sqlx::query(update).bind(key).execute(conn).await?.rows_affected())
}
