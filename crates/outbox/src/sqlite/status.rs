//! How the outbox stands, for people. Reads all pending aggregates once, in one snapshot.

use std::time::Duration;

use sqlx::{Row, SqliteConnection};

use super::error::Context;
use super::fence::alive;
use super::{SqliteStore, unix_ms, unsigned};
use crate::Result;
use crate::store::{BlockedAggregate, PublisherStatus, Status};

/// ?1 now (ms). The blocked are counted apart, since they are in another index.
const PENDING: &str = "
    SELECT coalesce(sum(a.last_seq - a.done_seq), 0), min(o.created_at), count(a.retry_at)
    FROM outbox_aggregate AS a
    LEFT JOIN outbox AS o ON o.aggregate = a.id AND o.seq = a.done_seq + 1
    WHERE a.done_seq < a.last_seq AND a.blocked_at IS NULL";
/// New aggregates are pending too; their hash is NULL, and so is their place in the index by hash.
const BLOCKED: &str = "
    SELECT coalesce(sum(a.last_seq - a.done_seq), 0), min(o.created_at), count(*)
    FROM outbox_aggregate AS a INDEXED BY outbox_aggregate_blocked
    LEFT JOIN outbox AS o ON o.aggregate = a.id AND o.seq = a.done_seq + 1
    WHERE a.blocked_at IS NOT NULL";
const BLOCKED_LIST: &str = "
    SELECT CAST(key AS BLOB), last_seq - done_seq, blocked_at, coalesce(last_error, '')
    FROM outbox_aggregate WHERE blocked_at IS NOT NULL ORDER BY blocked_at LIMIT 100";
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

pub(super) async fn status(store: &SqliteStore) -> Result<Status> {
    let mut tx = store.readers.begin().await.at(store)?;
    let mut status = read(store, &mut tx).await.at(store)?;
    status.publishers = publishers(store, &mut tx).await.at(store)?;
    Ok(status)
}

async fn read(store: &SqliteStore, conn: &mut SqliteConnection) -> Result<Status, sqlx::Error> {
    let now = unix_ms();
    let ago = |since: i64| Duration::from_millis(unsigned(now - since));
    let (pending, oldest, retrying): (i64, Option<i64>, i64) = sqlx::query_as(PENDING).fetch_one(&mut *conn).await?;
    let (held_back, oldest_blocked, blocked_count): (i64, Option<i64>, i64) = sqlx::query_as(BLOCKED).fetch_one(&mut *conn).await?;
    let mut blocked = Vec::new();
    for row in sqlx::query(BLOCKED_LIST).fetch_all(&mut *conn).await? {
        blocked.push(BlockedAggregate {
            key: String::from_utf8_lossy(row.try_get(0)?).into_owned(),
            pending: unsigned(row.try_get(1)?),
            blocked_for: ago(row.try_get(2)?),
            error: row.try_get(3)?,
        });
    }
    let parked: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox WHERE parked_at IS NOT NULL").fetch_one(&mut *conn).await?;
    let slots: Option<u32> = sqlx::query_scalar("SELECT slots FROM outbox_meta").fetch_one(&mut *conn).await?;
    let free: u32 = sqlx::query_scalar(FREE).bind(&store.config.boot_id).bind(store.boot_nanos()).fetch_one(conn).await?;
    Ok(Status {
        pending: unsigned(pending + held_back),
        oldest_pending_age: oldest.into_iter().chain(oldest_blocked).min().map(ago),
        blocked_aggregates: unsigned(blocked_count),
        blocked,
        retrying_aggregates: unsigned(retrying),
        parked: unsigned(parked),
        publishers: Vec::new(),
        slots,
        free_slots: free,
    })
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
