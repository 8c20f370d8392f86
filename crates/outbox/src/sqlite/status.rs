//! The status of the outbox, in one snapshot.

use sqlx::SqliteConnection;

use super::fence::alive;
use super::{LossyText, SqliteStore, unix_ms};
use crate::Result;
use crate::store::sql::{ErrorContext, ago, retry_ahead_max_ms, small, unsigned};
use crate::store::{Backlog, BlockedAggregate, PublisherStatus, Retrying, Status, UNPUBLISHED_MAX};

/// ?1 now (ms).
const BLOCKED_LIST: &str = "
    SELECT CAST(key AS BLOB), last_seq - done_seq, ?1 - blocked_at, CAST(coalesce(last_error, '') AS BLOB)
    FROM outbox_aggregate WHERE blocked_at IS NOT NULL ORDER BY blocked_at LIMIT 100";
/// ?1 now (ms), ?2 the longest wait a retry can have: with a longer one the wall clock was set back, and the retry is due.
const RETRYING: &str = "
    SELECT count(*), coalesce(sum(last_seq - done_seq), 0), ?1 - coalesce(min(failing_since), ?1),
           coalesce(min(iif(retry_at > ?1 + ?2, ?1, retry_at)), ?1) - ?1
    FROM outbox_aggregate WHERE done_seq < last_seq AND blocked_at IS NULL AND retry_at IS NOT NULL";
/// ?1 now (ms).
const LATEST_FAILURE: &str = "
    SELECT CAST(key AS BLOB), ?1 - coalesce(attempted_at, ?1), CAST(coalesce(last_error, '') AS BLOB)
    FROM outbox_aggregate WHERE done_seq < last_seq AND blocked_at IS NULL AND retry_at IS NOT NULL
    ORDER BY attempted_at DESC, id LIMIT 1";
/// ?1 boot id, ?2 now (ns).
const PUBLISHERS: &str = concat!(
    "SELECT p.publisher, p.incarnation, ",
    alive!("p", "?1", "?2"),
    ", iif(p.boot_id = ?1, (?2 - p.seen_at) / 1000000, NULL),
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

pub(super) async fn backlog(store: &SqliteStore, most: i64) -> Result<Backlog> {
    let mut tx = store.readers.begin().await.at(store)?;
    count(store, &mut tx, most).await.at(store)
}

async fn count(store: &SqliteStore, conn: &mut SqliteConnection, most: i64) -> Result<Backlog, sqlx::Error> {
    let mut backlog = Backlog { complete: true, ..Backlog::default() };
    let mut oldest: Option<i64> = None;
    let mut blocked = 0;
    for sql in COUNTED {
        let (events, since, aggregates): (i64, Option<i64>, i64) = sqlx::query_as(sql).bind(most).fetch_one(&mut *conn).await?;
        backlog.pending += unsigned(events);
        blocked = unsigned(events);
        backlog.complete &= aggregates < most;
        // Only the last count is of blocked aggregates.
        backlog.blocked_aggregates = unsigned(aggregates);
        oldest = oldest.into_iter().chain(since).min();
    }
    let parked: i64 = sqlx::query_scalar(PARKED).bind(most).fetch_one(&mut *conn).await?;
    backlog.complete &= parked < most;
    backlog.parked = unsigned(parked);
    backlog.oldest_pending_age = oldest.map(|since| ago(unix_ms().saturating_sub(since)));
    let (boot_id, now) = (&store.config.boot_id, store.boot_nanos());
    backlog.free_slots = sqlx::query_scalar(FREE).bind(boot_id).bind(now).fetch_one(&mut *conn).await?;
    backlog.unpublished = backlog.pending - blocked;
    // Without a living publisher, that is all of them.
    if backlog.unpublished > 0 && sqlx::query_scalar(ANY_ALIVE).bind(boot_id).bind(now).fetch_one(&mut *conn).await? {
        let unpublished = sqlx::query_scalar(UNPUBLISHED).bind(boot_id).bind(now).bind(UNPUBLISHED_MAX);
        backlog.unpublished = unpublished.fetch_one(conn).await.map(unsigned)?;
    }
    Ok(backlog)
}

pub(super) async fn status(store: &SqliteStore) -> Result<Status> {
    let mut tx = store.readers.begin().await.at(store)?;
    read(store, &mut tx).await.at(store)
}

async fn read(store: &SqliteStore, conn: &mut SqliteConnection) -> Result<Status, sqlx::Error> {
    let now = unix_ms();
    let counted = count(store, conn, i64::MAX).await?;
    let blocked = sqlx::query_as(BLOCKED_LIST).bind(now).fetch_all(&mut *conn).await?;
    let sums = sqlx::query_as(RETRYING).bind(now).bind(retry_ahead_max_ms()).fetch_one(&mut *conn).await?;
    let latest: Option<_> = sqlx::query_as(LATEST_FAILURE).bind(now).fetch_optional(&mut *conn).await?;
    let publishers = sqlx::query_as(PUBLISHERS).bind(&store.config.boot_id).bind(store.boot_nanos()).fetch_all(&mut *conn).await?;
    let slots: Option<i64> = sqlx::query_scalar("SELECT slots FROM outbox_meta").fetch_one(conn).await?;
    Ok(Status {
        blocked: blocked.into_iter().map(BlockedAggregate::from_row::<LossyText>).collect(),
        retrying: latest.map(|latest| Retrying::from_rows::<LossyText>(sums, latest)),
        publishers: publishers.into_iter().map(PublisherStatus::from_row).collect(),
        slots: slots.map(small),
        ..Status::from(counted)
    })
}
