//! The status of the outbox, in one snapshot and as of its beginning.

use shardwise::ShardKey;
use sqlx::{Connection, PgConnection};

use super::fence::{IS_NUMBERED, alive};
use super::writers_list::{delivered, listed_by_writers, writers_list};
use crate::store::sql::{ago, retry_ahead_max_ms, small, to_ordered, unsigned};
use crate::store::{Backlog, BlockedAggregate, PublisherStatus, Retrying, Status, UNPUBLISHED_MAX};

macro_rules! ms_since {
    ($time:literal) => {
        concat!("(extract(epoch FROM now() - ", $time, ") * 1000)::bigint")
    };
}

/// The pending events of an aggregate, one by one: numbers jump, so they cannot be subtracted. `$of` has its columns `aggregate` and
/// `done_seq`. An index has both columns, so no event is read.
#[rustfmt::skip]
macro_rules! pending {
    ($of:literal) => {
        concat!("outbox AS o WHERE o.aggregate = ", $of, ".aggregate AND o.seq > ", $of, ".done_seq")
    };
}

/// How many events of the aggregates in `$from` are pending, counted up to $1.
#[rustfmt::skip]
macro_rules! counted {
    ($from:literal) => {
        concat!(
            "(SELECT count(*) FROM (SELECT 1 FROM ", $from, " AS b CROSS JOIN LATERAL (SELECT 1 FROM ", pending!("b"),
            " LIMIT $1) AS e LIMIT $1) AS counted)"
        )
    };
}

const BLOCKED_LIST: &str = concat!(
    "SELECT a.key, (SELECT count(*) FROM ",
    pending!("h"),
    "), ",
    ms_since!("h.blocked_at"),
    ", coalesce(h.last_error, '') FROM outbox_head AS h JOIN outbox_aggregate AS a ON a.id = h.aggregate
    WHERE h.blocked_at IS NOT NULL ORDER BY h.blocked_at LIMIT 100"
);
/// $1 the longest wait a retry can have, in milliseconds: with a longer one the clock was set back, and the retry is due.
const RETRYING: &str = concat!(
    "SELECT count(*), coalesce(sum(e.events), 0)::bigint, coalesce(",
    ms_since!("min(h.failing_since)"),
    ", 0), coalesce(-",
    ms_since!("min(h.retry_at) FILTER (WHERE h.retry_at <= now() + $1::bigint * interval '1 millisecond')"),
    ", 0) FROM outbox_head AS h CROSS JOIN LATERAL (SELECT count(*) AS events FROM ",
    pending!("h"),
    ") AS e WHERE h.waiting AND e.events > 0"
);
const LATEST_FAILURE: &str = concat!(
    "SELECT a.key, coalesce(",
    ms_since!("h.attempted_at"),
    ", 0), coalesce(h.last_error, '') FROM outbox_head AS h JOIN outbox_aggregate AS a ON a.id = h.aggregate
    CROSS JOIN LATERAL (SELECT 1 FROM ",
    pending!("h"),
    " LIMIT 1) AS e WHERE h.waiting ORDER BY h.attempted_at DESC NULLS LAST, a.id LIMIT 1"
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

/// $1 how many. The database cannot compute the hashes of these.
const WRITERS_KEYS: &str = concat!("SELECT i.aggregate, i.key FROM (", writers_list!("$1"), ") AS i");

/// $1 how many aggregates to visit, and how many events to count, $2 aggregates of the writers' list and $3 their hashes. Counts events in
/// slots that no live publisher holds, if any publisher is alive: the ranges of free slots are looked up in the index by hash. Events that
/// wait for a retry are not in that index.
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
    ), new AS (
        SELECT g.aggregate, d.done_seq FROM unnest($2::bigint[], $3::bigint[]) AS g (aggregate, hash) CROSS JOIN LATERAL ",
    delivered!("g.aggregate"),
    " AS d WHERE EXISTS (SELECT 1 FROM free AS f WHERE g.hash BETWEEN f.hash_from AND f.hash_to)
    ), every AS (SELECT * FROM due UNION ALL SELECT * FROM waiting UNION ALL SELECT * FROM new)
    SELECT ",
    counted!("every")
);
const ANY_ALIVE: &str = concat!("SELECT EXISTS (SELECT 1 FROM outbox_publisher AS p WHERE ", alive!("p"), ")");

/// $1 how many aggregates of each kind to visit, and how many events of each kind to count. Heads whose hash is NULL are pending too.
/// Listed aggregates that have nothing to send count in no sum.
///
/// Returns the pending events of aggregates that are ready, also on the writers' list, that wait for a retry, and that are blocked; the age
/// of the oldest head; and how many aggregates were visited, how many of them blocked, and how many events are parked.
const BACKLOG: &str = concat!(
    "WITH waiting AS MATERIALIZED (
        (SELECT h.aggregate, h.done_seq FROM outbox_head AS h WHERE h.ready ORDER BY h.hash, h.aggregate LIMIT $1) UNION ALL
        SELECT i.aggregate, i.done_seq FROM (",
    writers_list!("$1"),
    ") AS i
    ), retrying AS MATERIALIZED (
        SELECT h.aggregate, h.done_seq FROM outbox_head AS h WHERE h.waiting ORDER BY h.retry_at LIMIT $1
    ), blocked AS MATERIALIZED (
        SELECT h.aggregate, h.done_seq FROM outbox_head AS h WHERE h.blocked_at IS NOT NULL ORDER BY h.blocked_at LIMIT $1
    ), parked AS MATERIALIZED (
        SELECT 1 FROM outbox WHERE parked_at IS NOT NULL ORDER BY parked_at LIMIT $1
    ), every AS (SELECT * FROM waiting UNION ALL SELECT * FROM retrying UNION ALL SELECT * FROM blocked)
    SELECT ",
    counted!("waiting"),
    ", ",
    counted!("retrying"),
    ", ",
    counted!("blocked"),
    ", (SELECT ",
    ms_since!("min(e.created_at)"),
    " FROM every AS b CROSS JOIN LATERAL (SELECT o.created_at FROM ",
    pending!("b"),
    " ORDER BY o.seq LIMIT 1) AS e),
    greatest((SELECT count(*) FROM waiting), (SELECT count(*) FROM retrying), (SELECT count(*) FROM (",
    listed_by_writers!("$1"),
    ") AS i)), (SELECT count(*) FROM blocked), (SELECT count(*) FROM parked)"
);

/// A status counts every pending event, which may take longer than a publisher's statements may.
pub(super) const AT_LENGTH: &str = "SET LOCAL statement_timeout = '2min'";

pub(super) async fn backlog(conn: &mut PgConnection, most: i64) -> Result<Backlog, sqlx::Error> {
    let found = sqlx::query_as(BACKLOG).bind(most).fetch_one(&mut *conn).await?;
    let (ready, retrying, held_back, oldest, visited, blocked, parked): (i64, i64, i64, Option<i64>, i64, i64, i64) = found;
    let free = sqlx::query_scalar(FREE).fetch_one(&mut *conn).await?;
    let mut unpublished = ready + retrying;
    // Without a living publisher, that is all of them.
    if unpublished > 0 && sqlx::query_scalar(ANY_ALIVE).fetch_one(&mut *conn).await? {
        let listed: Vec<(i64, String)> = sqlx::query_as(WRITERS_KEYS).bind(UNPUBLISHED_MAX).fetch_all(&mut *conn).await?;
        let (aggregates, hashes): (Vec<i64>, Vec<i64>) = listed.iter().map(|(id, key)| (*id, to_ordered(key.as_str().key_hash()))).unzip();
        let query = sqlx::query_scalar(UNPUBLISHED).bind(UNPUBLISHED_MAX).bind(aggregates).bind(hashes);
        unpublished = query.fetch_one(conn).await?;
    }
    Ok(Backlog {
        unpublished: unsigned(unpublished),
        free_slots: small(free),
        pending: unsigned(ready + retrying + held_back),
        oldest_pending_age: oldest.map(ago),
        blocked_aggregates: unsigned(blocked),
        parked: unsigned(parked),
        complete: [ready, retrying, held_back, visited, blocked, parked].iter().all(|counted| *counted < most),
    })
}

pub(super) async fn status(conn: &mut PgConnection) -> Result<Status, sqlx::Error> {
    let mut tx = conn.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
    sqlx::raw_sql(AT_LENGTH).execute(&mut *tx).await?;
    let counted = backlog(&mut tx, i64::MAX).await?;
    let blocked = sqlx::query_as(BLOCKED_LIST).fetch_all(&mut *tx).await?;
    let sums = sqlx::query_as(RETRYING).bind(retry_ahead_max_ms()).fetch_one(&mut *tx).await?;
    let latest: Option<_> = sqlx::query_as(LATEST_FAILURE).fetch_optional(&mut *tx).await?;
    let publishers = sqlx::query_as(PUBLISHERS).fetch_all(&mut *tx).await?;
    let slots: Option<i64> = sqlx::query_scalar("SELECT slots FROM outbox_meta").fetch_one(&mut *tx).await?;
    let is_numbered: bool = sqlx::query_scalar(IS_NUMBERED).fetch_one(&mut *tx).await?;
    tx.commit().await?;
    Ok(Status {
        needs_restored: !is_numbered,
        blocked: blocked.into_iter().map(BlockedAggregate::from_row::<String>).collect(),
        retrying: latest.map(|latest| Retrying::from_rows::<String>(sums, latest)),
        publishers: publishers.into_iter().map(PublisherStatus::from_row).collect(),
        slots: slots.map(small),
        ..Status::from(counted)
    })
}
