//! Retention: deleting delivered events, a few rows at a time. Rows that another publisher is deleting are skipped.

use std::time::Duration;

use sqlx::PgConnection;

use super::writers_list::delivered;
use crate::store::SweepResult;
use crate::store::sql::{millis, signed};

/// How many rows to sample behind a window without old rows: old rows are found if they are at least one in this many.
const SAMPLES: i64 = 32;

/// $1 position, $2 rows to visit, $3 the age in milliseconds from which rows are deleted.
const OLD: &str = concat!(
    "WITH looked AS MATERIALIZED (
        SELECT position, created_at, aggregate, seq, parked_at FROM outbox WHERE position > $1 ORDER BY position LIMIT $2
    ), gone AS (
        DELETE FROM outbox AS d USING (
            SELECT o.position FROM looked AS l CROSS JOIN LATERAL ",
    delivered!("l.aggregate"),
    " AS d JOIN outbox AS o ON o.position = l.position
            WHERE l.seq <= d.done_seq AND l.created_at < statement_timestamp() - $3::bigint * interval '1 millisecond' AND o.parked_at IS NULL
            FOR UPDATE OF o SKIP LOCKED
        ) AS old WHERE d.position = old.position RETURNING true
    )
    SELECT count(*), max(position), bool_or(created_at < statement_timestamp() - $3::bigint * interval '1 millisecond'),
        (SELECT count(*) FROM gone) FROM looked"
);

/// $1 position, $2 the age in milliseconds, $3 how many rows to sample evenly among those behind that position. Returns whether any is
/// old.
const OLD_BEYOND: &str = "SELECT coalesce(bool_or(p.created_at < statement_timestamp() - $2::bigint * interval '1 millisecond'), false)
    FROM (SELECT position AS last FROM outbox ORDER BY position DESC LIMIT 1) AS o CROSS JOIN generate_series(0, $3::bigint - 1) AS g (n)
    CROSS JOIN LATERAL (
        SELECT created_at FROM outbox WHERE position >= $1::bigint + 1 + div((o.last - $1)::numeric * g.n, $3)::bigint ORDER BY position LIMIT 1
    ) AS p";

/// $1 aggregate, $2 aggregates to visit, $3 rows at most. Each aggregate that has rows is one seek. Pending rows are not visited, however
/// many there are.
const DELIVERED: &str = concat!(
    "WITH RECURSIVE present AS (
        (SELECT aggregate FROM outbox WHERE aggregate > $1 ORDER BY aggregate LIMIT 1)
        UNION ALL
        SELECT (SELECT o.aggregate FROM outbox AS o WHERE o.aggregate > p.aggregate ORDER BY o.aggregate LIMIT 1) FROM present AS p
        WHERE p.aggregate IS NOT NULL
    ), looked AS MATERIALIZED (
        SELECT p.aggregate, d.done_seq FROM (SELECT aggregate FROM present WHERE aggregate IS NOT NULL LIMIT $2) AS p CROSS JOIN LATERAL ",
    delivered!("p.aggregate"),
    " AS d
    ), done AS MATERIALIZED (
        SELECT l.aggregate, e.position FROM looked AS l CROSS JOIN LATERAL (
            SELECT o.position FROM outbox AS o WHERE o.aggregate = l.aggregate AND o.seq <= l.done_seq AND o.parked_at IS NULL
            ORDER BY o.seq LIMIT $3
        ) AS e
        ORDER BY l.aggregate LIMIT $3
    ), gone AS (
        DELETE FROM outbox AS d USING (
            SELECT o.position FROM done AS t JOIN outbox AS o ON o.position = t.position FOR UPDATE OF o SKIP LOCKED
        ) AS old WHERE d.position = old.position RETURNING true
    )
    SELECT count(*), max(aggregate), (SELECT count(*) FROM done), (SELECT max(aggregate) FROM done), (SELECT count(*) FROM gone) FROM looked"
);

pub(super) async fn sweep(conn: &mut PgConnection, retention: Duration, position: i64, limit: usize) -> Result<SweepResult, sqlx::Error> {
    let limit = signed(limit);
    if retention.is_zero() { all_delivered(conn, position, limit).await } else { old(conn, retention, position, limit).await }
}

/// Deletes by row, from the oldest on; the position is a row's.
async fn old(conn: &mut PgConnection, retention: Duration, position: i64, limit: i64) -> Result<SweepResult, sqlx::Error> {
    let age = millis(retention).min(RETENTION_MS_MAX);
    let window = sqlx::query_as(OLD).bind(position).bind(limit).bind(age).fetch_one(&mut *conn).await?;
    let (looked_at, last, any_old, deleted): (i64, Option<i64>, Option<bool>, i64) = window;
    let Some(last) = last.filter(|_| looked_at == limit) else { return Ok(swept(deleted, None)) };
    // Positions rise with time, except for late commits and writers whose clock is ahead. If rows behind a window without old rows are
    // old, the sample is likely to contain some.
    let beyond = sqlx::query_scalar(OLD_BEYOND).bind(last).bind(age).bind(SAMPLES);
    let goes_on = any_old == Some(true) || beyond.fetch_one(conn).await?;
    Ok(swept(deleted, goes_on.then_some(last)))
}

/// A thousand years: longer than any event is kept, and within the range of every clock.
pub(super) const RETENTION_MS_MAX: i64 = 1_000 * 366 * 24 * 3_600 * 1_000;

/// Deletes by aggregate; the position is an aggregate's. Publishers delete on delivery, so this finds only what another retention left.
async fn all_delivered(conn: &mut PgConnection, position: i64, limit: i64) -> Result<SweepResult, sqlx::Error> {
    let window = sqlx::query_as(DELIVERED).bind(position).bind(limit).bind(limit).fetch_one(conn).await?;
    let (looked_at, last, found, last_found, deleted): (i64, Option<i64>, i64, Option<i64>, i64) = window;
    // The last aggregate may have more.
    let resume = if found == limit { last_found.map(|aggregate| aggregate - 1) } else { last.filter(|_| looked_at == limit) };
    Ok(swept(deleted, resume))
}

/// Deletion locks rows individually and blocks no other writer.
fn swept(deleted: i64, resume: Option<i64>) -> SweepResult {
    SweepResult { deleted: usize::try_from(deleted).unwrap_or(0), resume, shut: Duration::ZERO }
}
