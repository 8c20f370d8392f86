//! The status of the outbox. Reads all pending aggregates once, in one snapshot.

use std::time::Duration;

use sqlx::{Row, SqliteConnection};

use super::error::SqliteErrorContext;
use super::fence::alive;
use super::{SqliteStore, retry_ahead_max_ms, unix_ms, unsigned};
use crate::store::{Backlog, BlockedAggregate, ERROR_CHARS_MAX, PublisherStatus, Retrying, Status, UNPUBLISHED_MAX};
use crate::{Result, one_line};

/// Uses the two indexes of pending aggregates instead of all aggregates. Blocked ones are in another index and counted separately.
const PENDING: &str = "
    SELECT coalesce(sum(a.last_seq - a.done_seq), 0), min(iif(typeof(o.created_at) = 'integer', o.created_at, NULL))
    FROM (
        SELECT id, done_seq, last_seq FROM outbox_aggregate INDEXED BY outbox_aggregate_pending
        WHERE done_seq < last_seq AND blocked_at IS NULL AND retry_at IS NULL
        UNION ALL
        SELECT id, done_seq, last_seq FROM outbox_aggregate INDEXED BY outbox_aggregate_waiting
        WHERE done_seq < last_seq AND blocked_at IS NULL AND retry_at IS NOT NULL
    ) AS a
    LEFT JOIN outbox AS o INDEXED BY outbox_in_order ON o.aggregate = a.id AND o.seq = a.done_seq + 1";
/// New aggregates are pending too; their hash is NULL, and so is their entry in the index by hash.
const BLOCKED: &str = "
    SELECT coalesce(sum(a.last_seq - a.done_seq), 0), min(iif(typeof(o.created_at) = 'integer', o.created_at, NULL)), count(*)
    FROM outbox_aggregate AS a INDEXED BY outbox_aggregate_blocked
    LEFT JOIN outbox AS o ON o.aggregate = a.id AND o.seq = a.done_seq + 1
    WHERE a.blocked_at IS NOT NULL";
const BLOCKED_LIST: &str = "
    SELECT CAST(key AS BLOB), last_seq - done_seq, blocked_at, CAST(coalesce(last_error, '') AS BLOB)
    FROM outbox_aggregate WHERE blocked_at IS NOT NULL ORDER BY blocked_at LIMIT 100";
/// ?1 now (ms), ?2 the longest wait a retry can have: a longer wait means that the wall clock was set back; the retry is then due, as for
/// a fetch.
const RETRYING: &str = "
    SELECT count(*), coalesce(sum(last_seq - done_seq), 0), coalesce(min(failing_since), ?1),
           coalesce(min(iif(retry_at > ?1 + ?2, ?1, retry_at)), ?1)
    FROM outbox_aggregate WHERE done_seq < last_seq AND blocked_at IS NULL AND retry_at IS NOT NULL";
/// ?1 now (ms).
const LATEST_FAILURE: &str = "
    SELECT CAST(key AS BLOB), coalesce(attempted_at, ?1), CAST(coalesce(last_error, '') AS BLOB)
    FROM outbox_aggregate WHERE done_seq < last_seq AND blocked_at IS NULL AND retry_at IS NOT NULL
    ORDER BY attempted_at DESC, id LIMIT 1";
/// ?1 boot id, ?2 now (ns).
const PUBLISHERS: &str = concat!(
    "SELECT p.publisher, p.incarnation, ",
    alive!("p", "?1", "?2"),
    ", iif(p.boot_id = ?1, max(?2 - p.seen_at, 0), NULL),
           (SELECT count(*) FROM outbox_slot s WHERE s.incarnation = p.incarnation)
    FROM outbox_publisher p ORDER BY p.publisher, p.incarnation LIMIT 10000"
);
/// ?1 boot id, ?2 now (ns).
const FREE: &str = concat!(
    "SELECT count(*) FROM outbox_slot s WHERE s.incarnation IS NULL OR NOT EXISTS (
        SELECT 1 FROM outbox_publisher p WHERE p.incarnation = s.incarnation AND ",
    alive!("p", "?1", "?2"),
    ")"
);

/// ?1 boot id, ?2 now (ns), ?3 how many aggregates to visit. Counts events in slots that no live publisher holds, if any publisher is
/// alive: the ranges of free slots are looked up in the index by hash. Events that wait for a retry are not in that index.
const UNPUBLISHED: &str = concat!(
    "WITH free AS MATERIALIZED (SELECT s.hash_from, s.hash_to FROM outbox_slot s WHERE s.incarnation IS NULL OR NOT EXISTS (
        SELECT 1 FROM outbox_publisher p WHERE p.incarnation = s.incarnation AND ",
    alive!("p", "?1", "?2"),
    ")), due AS (
        SELECT a.last_seq - a.done_seq AS events FROM free AS f
        CROSS JOIN outbox_aggregate AS a INDEXED BY outbox_aggregate_pending ON a.hash BETWEEN f.hash_from AND f.hash_to
        WHERE a.done_seq < a.last_seq AND a.blocked_at IS NULL AND a.retry_at IS NULL LIMIT ?3
    ), waiting AS (
        SELECT a.last_seq - a.done_seq AS events, a.hash FROM outbox_aggregate AS a INDEXED BY outbox_aggregate_waiting
        WHERE a.done_seq < a.last_seq AND a.blocked_at IS NULL AND a.retry_at IS NOT NULL LIMIT ?3
    )
    SELECT (SELECT coalesce(sum(events), 0) FROM due)
        + (SELECT coalesce(sum(w.events), 0) FROM waiting AS w WHERE EXISTS (SELECT 1 FROM free AS f WHERE w.hash BETWEEN f.hash_from AND f.hash_to))"
);
/// ?1 boot id, ?2 now (ns).
const ANY_ALIVE: &str = concat!("SELECT EXISTS (SELECT 1 FROM outbox_publisher p WHERE ", alive!("p", "?1", "?2"), ")");

/// The number of events, the time of the oldest, and the number of aggregates in an index. ?1 how many to visit.
#[rustfmt::skip]
macro_rules! counted {
    ($index:literal, $which:literal) => {
        concat!(
            "SELECT coalesce(sum(a.last_seq - a.done_seq), 0), min(iif(typeof(o.created_at) = 'integer', o.created_at, NULL)), count(*)
            FROM (SELECT id, done_seq, last_seq FROM outbox_aggregate INDEXED BY ", $index, " WHERE ", $which, " LIMIT ?1) AS a
            LEFT JOIN outbox AS o INDEXED BY outbox_in_order ON o.aggregate = a.id AND o.seq = a.done_seq + 1"
        )
    };
}
const COUNTED: [&str; 3] = [
    counted!("outbox_aggregate_pending", "done_seq < last_seq AND blocked_at IS NULL AND retry_at IS NULL"),
    counted!("outbox_aggregate_waiting", "done_seq < last_seq AND blocked_at IS NULL AND retry_at IS NOT NULL"),
    counted!("outbox_aggregate_blocked", "blocked_at IS NOT NULL"),
];
const PARKED: &str = "SELECT count(*) FROM (SELECT 1 FROM outbox INDEXED BY outbox_parked WHERE parked_at IS NOT NULL LIMIT ?1)";

pub(super) async fn backlog(store: &SqliteStore, most: usize) -> Result<Backlog> {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let mut tx = store.readers.begin().await.at(store)?;
    let mut backlog = Backlog { complete: true, ..Backlog::default() };
    let mut oldest: Option<i64> = None;
    let mut blocked = 0;
    for sql in COUNTED {
        let counted = sqlx::query_as(sql).bind(most).fetch_one(&mut *tx).await.at(store)?;
        let (events, since, aggregates): (i64, Option<i64>, i64) = counted;
        backlog.pending += unsigned(events);
        blocked = unsigned(events);
        backlog.complete &= aggregates < most;
        // Only this count is of blocked aggregates.
        backlog.blocked_aggregates = unsigned(aggregates);
        oldest = oldest.into_iter().chain(since).min();
    }
    let parked: i64 = sqlx::query_scalar(PARKED).bind(most).fetch_one(&mut *tx).await.at(store)?;
    backlog.complete &= parked < most;
    backlog.free_slots = free_slots(store, &mut tx).await.at(store)?;
    backlog.unpublished = unpublished(store, &mut tx, backlog.pending - blocked).await.at(store)?;
    Ok(Backlog { parked: unsigned(parked), oldest_pending_age: oldest.map(|since| between(since, unix_ms())), ..backlog })
}

pub(super) async fn status(store: &SqliteStore) -> Result<Status> {
    let mut tx = store.readers.begin().await.at(store)?;
    let mut status = read(store, &mut tx).await.at(store)?;
    status.publishers = publishers(store, &mut tx).await.at(store)?;
    Ok(status)
}

async fn read(store: &SqliteStore, conn: &mut SqliteConnection) -> Result<Status, sqlx::Error> {
    let now = unix_ms();
    let ago = |since| between(since, now);
    let (pending, oldest): (i64, Option<i64>) = sqlx::query_as(PENDING).fetch_one(&mut *conn).await?;
    let (held_back, oldest_blocked, blocked_count): (i64, Option<i64>, i64) = sqlx::query_as(BLOCKED).fetch_one(&mut *conn).await?;
    let mut blocked = Vec::new();
    for row in sqlx::query(BLOCKED_LIST).fetch_all(&mut *conn).await? {
        blocked.push(BlockedAggregate {
            key: String::from_utf8_lossy(row.try_get(0)?).into_owned(),
            pending: unsigned(row.try_get(1)?),
            blocked_for: ago(row.try_get(2)?),
            error: shown(row.try_get(3)?),
        });
    }
    let retrying = retrying(conn, now).await?;
    let parked: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox WHERE parked_at IS NOT NULL").fetch_one(&mut *conn).await?;
    let slots: Option<u32> = sqlx::query_scalar("SELECT slots FROM outbox_meta").fetch_one(&mut *conn).await?;
    let free = free_slots(store, conn).await?;
    Ok(Status {
        unpublished: unpublished(store, conn, unsigned(pending)).await?,
        pending: unsigned(pending + held_back),
        oldest_pending_age: oldest.into_iter().chain(oldest_blocked).min().map(ago),
        blocked_aggregates: unsigned(blocked_count),
        blocked,
        retrying,
        parked: unsigned(parked),
        publishers: Vec::new(),
        slots,
        free_slots: free,
    })
}

async fn free_slots(store: &SqliteStore, conn: &mut SqliteConnection) -> Result<u32, sqlx::Error> {
    sqlx::query_scalar(FREE).bind(&store.config.boot_id).bind(store.boot_nanos()).fetch_one(conn).await
}

/// How many of `pending` events, none of them blocked, are in slots without a live publisher; all of them if no publisher is alive.
async fn unpublished(store: &SqliteStore, conn: &mut SqliteConnection, pending: u64) -> Result<u64, sqlx::Error> {
    let (boot, now) = (&store.config.boot_id, store.boot_nanos());
    if pending == 0 || !sqlx::query_scalar::<_, bool>(ANY_ALIVE).bind(boot).bind(now).fetch_one(&mut *conn).await? {
        return Ok(pending);
    }
    sqlx::query_scalar(UNPUBLISHED).bind(boot).bind(now).bind(UNPUBLISHED_MAX).fetch_one(conn).await.map(unsigned)
}

async fn retrying(conn: &mut SqliteConnection, now: i64) -> Result<Option<Retrying>, sqlx::Error> {
    let sums = sqlx::query_as(RETRYING).bind(now).bind(retry_ahead_max_ms()).fetch_one(&mut *conn).await?;
    let (aggregates, pending, since, next): (i64, i64, i64, i64) = sums;
    let Some(latest) = sqlx::query(LATEST_FAILURE).bind(now).fetch_optional(conn).await? else { return Ok(None) };
    Ok(Some(Retrying {
        aggregates: unsigned(aggregates),
        pending: unsigned(pending),
        failing_for: between(since, now),
        next_attempt_in: between(now, next),
        key: String::from_utf8_lossy(latest.try_get(0)?).into_owned(),
        failed_ago: between(latest.try_get(1)?, now),
        error: shown(latest.try_get(2)?),
    }))
}

/// The time between two wall clock times; zero if they are in reverse order.
fn between(from: i64, to: i64) -> Duration {
    Duration::from_millis(unsigned(to.saturating_sub(from)))
}

/// A sink's message in the form for the status.
fn shown(error: &[u8]) -> String {
    one_line(&String::from_utf8_lossy(error), ERROR_CHARS_MAX)
}

async fn publishers(store: &SqliteStore, conn: &mut SqliteConnection) -> Result<Vec<PublisherStatus>, sqlx::Error> {
    let rows = sqlx::query(PUBLISHERS).bind(&store.config.boot_id).bind(store.boot_nanos()).fetch_all(conn).await?;
    let publisher = |row: &sqlx::sqlite::SqliteRow| {
        Ok(PublisherStatus {
            publisher: row.try_get(0)?,
            incarnation: row.try_get(1)?,
            alive: row.try_get(2)?,
            seen_ago: row.try_get::<Option<i64>, _>(3)?.map(|nanos| Duration::from_nanos(unsigned(nanos))),
            slots: row.try_get(4)?,
        })
    };
    rows.iter().map(publisher).collect()
}
