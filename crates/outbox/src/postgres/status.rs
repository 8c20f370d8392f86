//! The status of the outbox. Reads all pending aggregates once, in one snapshot and as of its beginning.

use std::time::Duration;

use sqlx::{Connection, PgConnection, Row};

use super::error::StatementError;
use super::fence::alive;
use super::{ago, retry_ahead_max_ms, small, unsigned};
use crate::one_line;
use crate::store::{Backlog, BlockedAggregate, ERROR_CHARS_MAX, PublisherStatus, Retrying, Status, UNPUBLISHED_MAX};

macro_rules! ms_since {
    ($time:literal) => {
        concat!("(extract(epoch FROM now() - ", $time, ") * 1000)::bigint")
    };
}

/// New aggregates, whose hash is NULL, are pending too. Listed aggregates that have nothing to send count in neither sum.
const PENDING: &str = concat!(
    "SELECT coalesce(sum(a.last_seq - h.done_seq), 0)::bigint, ",
    ms_since!("min(o.created_at)"),
    ", count(*) FILTER (WHERE h.blocked_at IS NOT NULL),
    coalesce(sum(a.last_seq - h.done_seq) FILTER (WHERE h.blocked_at IS NOT NULL), 0)::bigint
    FROM outbox_head AS h JOIN outbox_aggregate AS a ON a.id = h.aggregate
    LEFT JOIN outbox AS o ON o.aggregate = h.aggregate AND o.seq = h.done_seq + 1
    WHERE h.ready OR h.waiting OR h.blocked_at IS NOT NULL"
);
const BLOCKED_LIST: &str = concat!(
    "SELECT a.key, a.last_seq - h.done_seq, ",
    ms_since!("h.blocked_at"),
    ", coalesce(h.last_error, '') FROM outbox_head AS h JOIN outbox_aggregate AS a ON a.id = h.aggregate
    WHERE h.blocked_at IS NOT NULL ORDER BY h.blocked_at LIMIT 100"
);
/// $1 the longest wait a retry can have, in milliseconds: a longer wait means that the clock was set back; the retry is then due, as for a
/// fetch.
const RETRYING: &str = concat!(
    "SELECT count(*), coalesce(sum(a.last_seq - h.done_seq), 0)::bigint, coalesce(",
    ms_since!("min(h.failing_since)"),
    ", 0), coalesce(-",
    ms_since!("min(h.retry_at) FILTER (WHERE h.retry_at <= now() + $1::bigint * interval '1 millisecond')"),
    ", 0) FROM outbox_head AS h JOIN outbox_aggregate AS a ON a.id = h.aggregate AND h.done_seq < a.last_seq
    WHERE h.waiting"
);
const LATEST_FAILURE: &str = concat!(
    "SELECT a.key, coalesce(",
    ms_since!("h.attempted_at"),
    ", 0), coalesce(h.last_error, '') FROM outbox_head AS h JOIN outbox_aggregate AS a ON a.id = h.aggregate AND h.done_seq < a.last_seq
    WHERE h.waiting ORDER BY h.attempted_at DESC NULLS LAST, a.id LIMIT 1"
);
const PUBLISHERS: &str = concat!(
    "SELECT p.publisher, p.incarnation, ",
    alive!("p"),
    ", (extract(epoch FROM outbox_now() - p.seen_at) * 1000)::bigint,
    (SELECT count(*) FROM outbox_slot AS s WHERE s.incarnation = p.incarnation)
    FROM outbox_publisher AS p ORDER BY p.publisher, p.incarnation LIMIT 10000"
);
const FREE: &str = concat!(
    "SELECT count(*) FROM outbox_slot AS s WHERE s.incarnation IS NULL OR NOT EXISTS (
        SELECT 1 FROM outbox_publisher AS p WHERE p.incarnation = s.incarnation AND ",
    alive!("p"),
    ")"
);

/// $1 how many aggregates to visit. Counts events in slots that no live publisher holds, if any publisher is alive: the ranges of free
/// slots are looked up in the index by hash. Events that wait for a retry are not in that index.
const UNPUBLISHED: &str = concat!(
    "WITH free AS MATERIALIZED (SELECT s.hash_from, s.hash_to FROM outbox_slot AS s WHERE s.incarnation IS NULL OR NOT EXISTS (
        SELECT 1 FROM outbox_publisher AS p WHERE p.incarnation = s.incarnation AND ",
    alive!("p"),
    ")), due AS (
        SELECT h.aggregate, h.done_seq FROM free AS f CROSS JOIN LATERAL (
            SELECT h.aggregate, h.done_seq FROM outbox_head AS h WHERE h.ready AND h.hash BETWEEN f.hash_from AND f.hash_to
            ORDER BY h.hash, h.aggregate LIMIT $1
        ) AS h LIMIT $1
    ), waiting AS (
        SELECT h.aggregate, h.done_seq FROM (
            SELECT h.aggregate, h.done_seq, h.hash FROM outbox_head AS h WHERE h.waiting ORDER BY h.retry_at LIMIT $1
        ) AS h WHERE EXISTS (SELECT 1 FROM free AS f WHERE h.hash BETWEEN f.hash_from AND f.hash_to)
    )
    SELECT coalesce(sum(greatest(a.last_seq - n.done_seq, 0)), 0)::bigint
    FROM (SELECT * FROM due UNION ALL SELECT * FROM waiting) AS n JOIN outbox_aggregate AS a ON a.id = n.aggregate"
);
const ANY_ALIVE: &str = concat!("SELECT EXISTS (SELECT 1 FROM outbox_publisher AS p WHERE ", alive!("p"), ")");

/// $1 how many of each kind to visit.
const BACKLOG: &str = concat!(
    "WITH waiting AS MATERIALIZED (
        SELECT h.aggregate, h.done_seq, a.last_seq FROM outbox_head AS h JOIN outbox_aggregate AS a ON a.id = h.aggregate
        WHERE h.ready ORDER BY h.hash, h.aggregate LIMIT $1
    ), retrying AS MATERIALIZED (
        SELECT h.aggregate, h.done_seq, a.last_seq FROM outbox_head AS h JOIN outbox_aggregate AS a ON a.id = h.aggregate
        WHERE h.waiting ORDER BY h.retry_at LIMIT $1
    ), blocked AS MATERIALIZED (
        SELECT h.aggregate, h.done_seq, a.last_seq FROM outbox_head AS h JOIN outbox_aggregate AS a ON a.id = h.aggregate
        WHERE h.blocked_at IS NOT NULL ORDER BY h.blocked_at LIMIT $1
    ), parked AS MATERIALIZED (
        SELECT 1 FROM outbox WHERE parked_at IS NOT NULL ORDER BY parked_at LIMIT $1
    ), every AS (SELECT * FROM waiting UNION ALL SELECT * FROM retrying UNION ALL SELECT * FROM blocked)
    SELECT coalesce(sum(b.last_seq - b.done_seq), 0)::bigint, ",
    ms_since!("min(o.created_at)"),
    ", greatest((SELECT count(*) FROM waiting), (SELECT count(*) FROM retrying)), (SELECT count(*) FROM blocked), (SELECT count(*) FROM parked),
    (SELECT coalesce(sum(last_seq - done_seq), 0)::bigint FROM blocked)
    FROM every AS b LEFT JOIN outbox AS o ON o.aggregate = b.aggregate AND o.seq = b.done_seq + 1"
);

pub(super) async fn backlog(conn: &mut PgConnection, most: usize) -> Result<Backlog, StatementError> {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let found = sqlx::query_as(BACKLOG).bind(most).fetch_one(&mut *conn).await?;
    let (pending, oldest, waiting, blocked, parked, held_back): (i64, Option<i64>, i64, i64, i64, i64) = found;
    let free: i64 = sqlx::query_scalar(FREE).fetch_one(&mut *conn).await?;
    Ok(Backlog {
        unpublished: unpublished(conn, unsigned(pending - held_back)).await?,
        free_slots: small(free),
        pending: unsigned(pending),
        oldest_pending_age: oldest.map(ago),
        blocked_aggregates: unsigned(blocked),
        parked: unsigned(parked),
        complete: waiting.max(blocked).max(parked) < most,
    })
}

pub(super) async fn status(conn: &mut PgConnection) -> Result<Status, StatementError> {
    let mut tx = conn.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
    let mut status = read(&mut tx).await?;
    status.publishers = publishers(&mut tx).await?;
    tx.commit().await?;
    Ok(status)
}

async fn read(conn: &mut PgConnection) -> Result<Status, sqlx::Error> {
    let (pending, oldest, blocked_count, blocked_events): (i64, Option<i64>, i64, i64) =
        sqlx::query_as(PENDING).fetch_one(&mut *conn).await?;
    let mut blocked = Vec::new();
    for row in sqlx::query(BLOCKED_LIST).fetch_all(&mut *conn).await? {
        blocked.push(BlockedAggregate {
            key: row.try_get(0)?,
            pending: unsigned(row.try_get(1)?),
            blocked_for: ago(row.try_get(2)?),
            error: shown(row.try_get(3)?),
        });
    }
    let retrying = retrying(conn).await?;
    let parked: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox WHERE parked_at IS NOT NULL").fetch_one(&mut *conn).await?;
    let slots: Option<i64> = sqlx::query_scalar("SELECT slots FROM outbox_meta").fetch_one(&mut *conn).await?;
    let free: i64 = sqlx::query_scalar(FREE).fetch_one(&mut *conn).await?;
    let held_back: u64 = unsigned(blocked_events);
    Ok(Status {
        unpublished: unpublished(conn, unsigned(pending).saturating_sub(held_back)).await?,
        pending: unsigned(pending),
        oldest_pending_age: oldest.map(ago),
        blocked_aggregates: unsigned(blocked_count),
        blocked,
        retrying,
        parked: unsigned(parked),
        publishers: Vec::new(),
        slots: slots.map(small),
        free_slots: small(free),
    })
}

/// How many of `pending` events, none of them blocked, are in slots without a live publisher; all of them if no publisher is alive.
async fn unpublished(conn: &mut PgConnection, pending: u64) -> Result<u64, sqlx::Error> {
    if pending == 0 || !sqlx::query_scalar::<_, bool>(ANY_ALIVE).fetch_one(&mut *conn).await? {
        return Ok(pending);
    }
    sqlx::query_scalar(UNPUBLISHED).bind(UNPUBLISHED_MAX).fetch_one(conn).await.map(unsigned)
}

async fn retrying(conn: &mut PgConnection) -> Result<Option<Retrying>, sqlx::Error> {
    let sums = sqlx::query_as(RETRYING).bind(retry_ahead_max_ms()).fetch_one(&mut *conn).await?;
    let (aggregates, pending, failing, next): (i64, i64, i64, i64) = sums;
    let Some(latest) = sqlx::query(LATEST_FAILURE).fetch_optional(conn).await? else { return Ok(None) };
    Ok(Some(Retrying {
        aggregates: unsigned(aggregates),
        pending: unsigned(pending),
        failing_for: ago(failing),
        next_attempt_in: ago(next),
        key: latest.try_get(0)?,
        failed_ago: ago(latest.try_get(1)?),
        error: shown(latest.try_get(2)?),
    }))
}

/// A sink's message in the form for the status.
fn shown(error: &str) -> String {
    one_line(error, ERROR_CHARS_MAX)
}

async fn publishers(conn: &mut PgConnection) -> Result<Vec<PublisherStatus>, sqlx::Error> {
    let publisher = |row: &sqlx::postgres::PgRow| {
        Ok(PublisherStatus {
            publisher: row.try_get(0)?,
            incarnation: row.try_get(1)?,
            alive: row.try_get(2)?,
            seen_ago: Some(Duration::from_millis(unsigned(row.try_get(3)?))),
            slots: small(row.try_get(4)?),
        })
    };
    sqlx::query(PUBLISHERS).fetch_all(conn).await?.iter().map(publisher).collect()
}
