//! Periodic work that needs no slot: hashing aggregates that came to the publishers' list without a hash, and deleting expired parked
//! events, aggregates without events and old audit entries. And removing drained aggregates from the list.

use std::time::Duration;

use shardwise::ShardKey;
use sqlx::{Connection, PgConnection};

use super::error::gave_way;
use super::record::short_of_a_deadlock;
use super::{PostgresStore, call};
use crate::Result;
use crate::store::CleanResult;
use crate::store::sql::{self, ErrorContext, millis, signed, to_ordered};

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
/// row. Each writer of such an aggregate lists it, which changes `last_seq`: that shows a change since the visit when the row is locked. A
/// key that comes back needs no number of the forgotten row, because every number is above all that were drawn before. On schema 5 nothing
/// is forgotten: there may still be writers that count from the row.
const IDLE: &str = concat!(
    "WITH patience AS MATERIALIZED (SELECT ",
    short_of_a_deadlock!(),
    "), looked AS MATERIALIZED (
        SELECT id, last_seq, drained_seq FROM patience CROSS JOIN outbox_aggregate
        WHERE id > $1 AND (SELECT schema_version FROM outbox_meta) >= 6 ORDER BY id LIMIT $2
    ), bare AS MATERIALIZED (
        SELECT l.id, l.last_seq FROM looked AS l
        LEFT JOIN LATERAL (SELECT true AS has FROM outbox AS o WHERE o.aggregate = l.id LIMIT 1) AS e ON true
        LEFT JOIN LATERAL (SELECT h.listed FROM outbox_head AS h WHERE h.aggregate = l.id OFFSET 0) AS h ON true
        WHERE l.last_seq = l.drained_seq AND e.has IS NULL AND h.listed IS NOT TRUE
    ), idle AS MATERIALIZED (
        SELECT a.id FROM bare AS b CROSS JOIN LATERAL (
            SELECT w.id FROM outbox_aggregate AS w WHERE w.id = b.id AND w.last_seq = b.last_seq AND w.last_seq = w.drained_seq
            FOR UPDATE SKIP LOCKED
        ) AS a
    )
    SELECT (SELECT count(*) FROM looked), (SELECT max(id) FROM looked), coalesce(array_agg(id), '{}') FROM idle"
);

/// $1 aggregates. Strikes off those that have nothing to send, unless a writer or another publisher holds a row of them. `outbox_strike`
/// looks again behind the writers' lock. A publishers' row of a forgotten aggregate, which a mark inserts if events were deleted by hand
/// meanwhile, is deleted.
const STRIKE_OFF: &str = concat!(
    "WITH patience AS MATERIALIZED (SELECT ",
    short_of_a_deadlock!(),
    "), free AS MATERIALIZED (
        SELECT h.aggregate FROM patience CROSS JOIN outbox_head AS h WHERE h.aggregate = ANY ($1::bigint[]) FOR NO KEY UPDATE OF h SKIP LOCKED
    ), idle AS MATERIALIZED (
        SELECT array_agg(a.id) AS aggregates, array_agg(coalesce(h.done_seq, a.drained_seq)) AS through
        FROM outbox_aggregate AS a
        LEFT JOIN LATERAL (SELECT l.aggregate, l.done_seq FROM outbox_head AS l WHERE l.aggregate = a.id OFFSET 0) AS h ON true
        LEFT JOIN LATERAL (
            SELECT 1 AS pending FROM outbox AS o WHERE o.aggregate = a.id AND o.seq > coalesce(h.done_seq, a.drained_seq) LIMIT 1
        ) AS e ON true
        WHERE a.id = ANY ($1::bigint[]) AND e.pending IS NULL AND (h.aggregate IS NULL OR h.aggregate IN (SELECT aggregate FROM free))
    ), bare AS (
        DELETE FROM outbox_head AS h USING free AS f
        WHERE h.aggregate = f.aggregate AND NOT EXISTS (SELECT 1 FROM outbox_aggregate AS a WHERE a.id = f.aggregate)
    )
    SELECT s.aggregate FROM idle AS i CROSS JOIN LATERAL outbox_strike(i.aggregates, i.through) AS s (aggregate)
    WHERE i.aggregates IS NOT NULL"
);

pub(super) async fn clean(store: &PostgresStore, parked_retention: Duration, limit: usize) -> Result<CleanResult> {
    let rows = signed(limit);
    let expire = || async move { call!(store, conn => expire(conn, parked_retention, rows)) };
    let forget = |after| async move { call!(store, conn => forget_unless_in_the_way(conn, after, rows)) };
    sql::clean(limit, &store.forget_after, expire, forget).await
}

async fn expire(conn: &mut PgConnection, parked_retention: Duration, limit: i64) -> Result<u64, sqlx::Error> {
    sqlx::query(FORGET_LINES).bind(limit).execute(&mut *conn).await?;
    let age = millis(parked_retention).min(super::sweep::RETENTION_MS_MAX);
    Ok(sqlx::query(EXPIRE).bind(age).bind(limit).execute(conn).await?.rows_affected())
}

/// Returns `None` if it gave way to a writer.
async fn forget_unless_in_the_way(conn: &mut PgConnection, after: i64, limit: i64) -> Result<Option<(u64, Option<i64>)>, sqlx::Error> {
    match forget(conn, after, limit).await {
        Err(error) if gave_way(&error) => Ok(None),
        other => other.map(Some),
    }
}

/// Returns the number of forgotten aggregates, and where to continue.
async fn forget(conn: &mut PgConnection, after: i64, limit: i64) -> Result<(u64, Option<i64>), sqlx::Error> {
    let mut tx = conn.begin().await?;
    let idle = sqlx::query_as(IDLE).bind(after).bind(limit).fetch_one(&mut *tx).await?;
    let (looked_at, last, idle): (i64, Option<i64>, Vec<i64>) = idle;
    if !idle.is_empty() {
        sqlx::query("DELETE FROM outbox_head WHERE aggregate = ANY ($1)").bind(&idle).execute(&mut *tx).await?;
        sqlx::query("DELETE FROM outbox_aggregate WHERE id = ANY ($1)").bind(&idle).execute(&mut *tx).await?;
    }
    tx.commit().await?;
    Ok((idle.len() as u64, if looked_at == limit { last } else { None }))
}

pub(super) async fn strike_off(conn: &mut PgConnection, aggregates: &[i64]) -> Result<(), sqlx::Error> {
    match sqlx::query(STRIKE_OFF).bind(aggregates).execute(conn).await {
        // They stay on the list until the next reading finds them.
        Err(error) if !gave_way(&error) => Err(error),
        _ => Ok(()),
    }
}

pub(super) async fn place_new(conn: &mut PgConnection, limit: usize) -> Result<usize, sqlx::Error> {
    let select = "SELECT h.aggregate, a.key FROM outbox_head AS h JOIN outbox_aggregate AS a ON a.id = h.aggregate
        WHERE h.hash IS NULL ORDER BY h.aggregate LIMIT $1";
    let new: Vec<(i64, String)> = sqlx::query_as(select).bind(signed(limit)).fetch_all(&mut *conn).await?;
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
