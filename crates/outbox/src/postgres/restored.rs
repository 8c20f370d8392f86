//! Raising epochs and sequences after commits were lost: all slots and the floor in one transaction, then the aggregates in batches, so
//! that writers wait only briefly. A repetition changes only epochs; after an interruption everything is repeated from the beginning.

use std::time::Duration;

use sqlx::{Connection, PgConnection};

use super::error::gave_way;
use super::fence::alive;
use super::history;
use super::record::short_of_a_deadlock;
use super::{PostgresStore, call};
use crate::Result;
use crate::store::RestoreResult;
use crate::store::sql::{ErrorContext, checked, unsigned};

const BATCH: i64 = 1_000;
/// How often a batch gives way to writers, and for how long.
const TRIES: usize = 100;
const GIVEN_WAY: Duration = Duration::from_millis(50);

const ALIVE: &str = concat!("SELECT count(*) FROM outbox_publisher AS p WHERE ", alive!("p"));
/// A row that carries the epoch until the first publisher creates the real rows.
const CARRIER: &str =
    "INSERT INTO outbox_slot (slot, epoch, hash_from, hash_to) SELECT 0, 0, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM outbox_slot)";
/// $1 epoch.
const LIFT_SLOTS: &str = "UPDATE outbox_slot SET incarnation = NULL, epoch = 1 + greatest(epoch, $1)";
/// $1 sequence.
const LIFT_FLOOR: &str = "SELECT setval('outbox_floor', $1) FROM outbox_floor WHERE last_value < $1";

/// $1 aggregate, $2 how many to visit, $3 sequence. An aggregate with nothing to send is done up to that sequence; for the others, the
/// skipped numbers are a gap that publishers pass over.
const LIFT: &str = concat!(
    "WITH patience AS MATERIALIZED (SELECT ",
    short_of_a_deadlock!(),
    "), looked AS MATERIALIZED (
        SELECT a.id FROM patience CROSS JOIN outbox_aggregate AS a WHERE a.id > $1 ORDER BY a.id LIMIT $2
    ), low AS MATERIALIZED (
        SELECT a.id, a.last_seq, h.done_seq, h.listed FROM looked AS l JOIN outbox_aggregate AS a ON a.id = l.id AND a.last_seq < $3
        JOIN outbox_head AS h ON h.aggregate = a.id ORDER BY a.id FOR UPDATE OF a, h
    ), aggregates AS (
        UPDATE outbox_aggregate AS a SET last_seq = $3, drained_seq = CASE WHEN l.listed THEN a.drained_seq ELSE $3 END
        FROM low AS l WHERE a.id = l.id
    ), heads AS (
        UPDATE outbox_head AS h SET done_seq = $3 FROM low AS l WHERE h.aggregate = l.id AND NOT l.listed
    )
    SELECT (SELECT count(*) FROM looked), (SELECT max(id) FROM looked), count(*) FROM low"
);

/// $1 sequence. Counted before anything is raised.
const WAITING: &str = "SELECT coalesce(sum(least(a.last_seq, $1) - h.done_seq), 0)::bigint
    FROM outbox_head AS h JOIN outbox_aggregate AS a ON a.id = h.aggregate
    WHERE (h.ready OR h.waiting OR h.blocked_at IS NOT NULL) AND h.done_seq < a.last_seq AND h.done_seq < $1";

pub(super) async fn restored(store: &PostgresStore, epoch_above: u64, sequence_above: u64) -> Result<RestoreResult> {
    let (epoch, sequence) = checked(epoch_above, sequence_above)?;
    let mut restored = call!(store, conn => lift_slots(conn, epoch, sequence))?;
    let mut after = Some(0);
    while let Some(from) = after {
        let (lifted, next) = call!(store, conn => lift_behind_writers(conn, from, sequence))?;
        (restored.aggregates, after) = (restored.aggregates + lifted, next);
    }
    Ok(restored)
}

async fn lift_slots(conn: &mut PgConnection, epoch: i64, sequence: i64) -> Result<RestoreResult, sqlx::Error> {
    let timeline = history::place(conn).await?.and_then(|place| place.timeline);
    let mut tx = conn.begin().await?;
    sqlx::query("SELECT 1 FROM outbox_meta FOR UPDATE").execute(&mut *tx).await?;
    let publishers: i64 = sqlx::query_scalar(ALIVE).fetch_one(&mut *tx).await?;
    let waiting: i64 = sqlx::query_scalar(WAITING).bind(sequence).fetch_one(&mut *tx).await?;
    sqlx::query("SELECT slot FROM outbox_slot ORDER BY slot FOR UPDATE").execute(&mut *tx).await?;
    sqlx::query(CARRIER).execute(&mut *tx).await?;
    sqlx::query(LIFT_SLOTS).bind(epoch).execute(&mut *tx).await?;
    sqlx::query("DELETE FROM outbox_publisher").execute(&mut *tx).await?;
    // New keys begin above it from here on, even if the rest fails.
    sqlx::query(LIFT_FLOOR).bind(sequence).execute(&mut *tx).await?;
    sqlx::query("UPDATE outbox_meta SET timeline = $1").bind(timeline).execute(&mut *tx).await?;
    let highest: i64 = sqlx::query_scalar("SELECT max(epoch) FROM outbox_slot").fetch_one(&mut *tx).await?;
    tx.commit().await?;
    Ok(RestoreResult { epoch: unsigned(highest), aggregates: 0, waiting: unsigned(waiting), publishers: unsigned(publishers) })
}

/// Raises one batch; gives way to writers and retries.
async fn lift_behind_writers(conn: &mut PgConnection, after: i64, sequence: i64) -> Result<(u64, Option<i64>), sqlx::Error> {
    for _ in 1..TRIES {
        match lift(conn, after, sequence).await {
            Err(error) if gave_way(&error) => tokio::time::sleep(GIVEN_WAY).await,
            other => return other,
        }
    }
    lift(conn, after, sequence).await
}

/// Returns how many aggregates were raised, and where to continue.
async fn lift(conn: &mut PgConnection, after: i64, sequence: i64) -> Result<(u64, Option<i64>), sqlx::Error> {
    let (looked_at, last, lifted): (i64, Option<i64>, i64) =
        sqlx::query_as(LIFT).bind(after).bind(BATCH).bind(sequence).fetch_one(conn).await?;
    Ok((unsigned(lifted), last.filter(|_| looked_at == BATCH)))
}
