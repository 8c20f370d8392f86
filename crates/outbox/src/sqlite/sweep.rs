//! Retention: deleting delivered events, a few rows at a time.
//!
//! SQLite reads columns behind `payload` through all pages of the payload. Rows that stay are therefore read as little as possible and
//! never under the write lock: the rows to delete are looked up first, and nothing is written if there are none.

use std::time::{Duration, Instant};

use serde_json::json;
use sqlx::Row;

use super::{SqliteStore, unix_ms};
use crate::Result;
use crate::store::SweepResult;
use crate::store::sql::{ErrorContext, millis, signed};

/// ?1 position, ?2 rows to visit. A value that is not a number counts as oldest.
const WINDOW: &str = "SELECT count(*), max(position), min(created_at)
    FROM (SELECT position, CAST(created_at AS INTEGER) AS created_at FROM outbox WHERE position > ?1 ORDER BY position LIMIT ?2)";

/// ?1 and ?2 first (excluded) and last position, ?3 the oldest time to keep (ms).
const OLD: &str = "SELECT o.position FROM outbox AS o CROSS JOIN outbox_aggregate AS a
    WHERE o.position > ?1 AND o.position <= ?2 AND CAST(o.created_at AS INTEGER) < ?3 AND o.parked_at IS NULL
      AND a.id = o.aggregate AND o.seq <= a.done_seq";

/// How many rows to sample behind a window without old rows: old rows are found if they are at least one in this many.
const SAMPLES: i64 = 32;

/// ?1 position, ?2 how many rows to sample evenly among those behind that position: returns the oldest of them.
const OLDEST_BEYOND: &str = "SELECT min((SELECT CAST(o.created_at AS INTEGER) FROM outbox AS o
        WHERE o.position > ?1 + (l.last - ?1) / ?2 * s.value + (l.last - ?1) % ?2 * s.value / ?2 ORDER BY o.position LIMIT 1))
    FROM (SELECT max(position) AS last FROM outbox) AS l CROSS JOIN json_each(?3) AS s";

/// ?1 aggregate, ?2 aggregates to visit.
const AGGREGATES: &str = "SELECT count(*), max(id) FROM (SELECT id FROM outbox_aggregate WHERE id > ?1 ORDER BY id LIMIT ?2)";

/// ?1 and ?2 first (excluded) and last aggregate, ?3 rows at most. Pending rows are not visited, however many there are. Public for the
/// test that reads the plan.
pub const DELIVERED: &str = "SELECT o.position, a.id FROM outbox_aggregate AS a CROSS JOIN outbox AS o INDEXED BY outbox_in_order
    WHERE a.id > ?1 AND a.id <= ?2 AND o.aggregate = a.id AND o.seq <= a.done_seq AND o.parked_at IS NULL
    ORDER BY a.id LIMIT ?3";

/// ?1 positions as a JSON list. A position may belong to another row by now, so the row must still be delivered.
const DELETE: &str = "DELETE FROM outbox WHERE position IN (SELECT value FROM json_each(?1)) AND parked_at IS NULL
    AND seq <= (SELECT a.done_seq FROM outbox_aggregate AS a WHERE a.id = outbox.aggregate)";

pub(super) async fn sweep(store: &SqliteStore, retention: Duration, position: i64, limit: usize) -> Result<SweepResult> {
    let limit = signed(limit);
    if retention.is_zero() { all_delivered(store, position, limit).await } else { old(store, retention, position, limit).await }
}

/// Deletes by row, from the oldest on; the position is a row's.
async fn old(store: &SqliteStore, retention: Duration, position: i64, limit: i64) -> Result<SweepResult> {
    let oldest_kept = unix_ms().saturating_sub(millis(retention));
    let window = sqlx::query_as(WINDOW).bind(position).bind(limit).fetch_one(&store.readers).await.at(store)?;
    let (visited, last, oldest): (i64, Option<i64>, Option<i64>) = window;
    let (Some(last), Some(oldest)) = (last, oldest) else { return Ok(SweepResult::default()) };
    // Positions rise with time, except for writers whose clock is ahead. If rows behind a window without old rows are old, the sample is
    // likely to contain some.
    if oldest >= oldest_kept {
        let goes_on = visited == limit && oldest_beyond(store, last).await?.is_some_and(|oldest| oldest < oldest_kept);
        return Ok(SweepResult { resume: goes_on.then_some(last), ..SweepResult::default() });
    }
    let old = sqlx::query_scalar(OLD).bind(position).bind(last).bind(oldest_kept).fetch_all(&store.readers).await.at(store)?;
    Ok(SweepResult { resume: (visited == limit).then_some(last), ..delete(store, &old).await? })
}

async fn oldest_beyond(store: &SqliteStore, position: i64) -> Result<Option<i64>> {
    let samples = json!((0..SAMPLES).collect::<Vec<_>>()).to_string();
    let oldest = sqlx::query_scalar(OLDEST_BEYOND).bind(position).bind(SAMPLES).bind(samples);
    oldest.fetch_one(&store.readers).await.at(store)
}

/// Deletes by aggregate; the position is an aggregate's. Publishers delete on delivery, so this finds only what another retention left.
async fn all_delivered(store: &SqliteStore, position: i64, limit: i64) -> Result<SweepResult> {
    let window = sqlx::query_as(AGGREGATES).bind(position).bind(limit).fetch_one(&store.readers).await.at(store)?;
    let (visited, Some(last)): (i64, Option<i64>) = window else { return Ok(SweepResult::default()) };
    let rows = sqlx::query(DELIVERED).bind(position).bind(last).bind(limit).fetch_all(&store.readers).await.at(store)?;
    let positions = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i64>, _>>().at(store)?;
    let swept = delete(store, &positions).await?;
    let resume = match rows.last() {
        // The last aggregate may have more.
        Some(row) if i64::try_from(rows.len()).is_ok_and(|found| found == limit) => Some(row.try_get::<i64, _>(1).at(store)? - 1),
        _ => (visited == limit).then_some(last),
    };
    Ok(SweepResult { resume, ..swept })
}

/// Deletes under the write lock, which excludes other writers.
async fn delete(store: &SqliteStore, positions: &[i64]) -> Result<SweepResult> {
    if positions.is_empty() {
        return Ok(SweepResult::default());
    }
    let positions = json!(positions).to_string();
    // Only the last attempt counts: before it others had the lock.
    let delete = || async {
        let begun = Instant::now();
        let done = sqlx::query(DELETE).bind(&positions).execute(&store.writer).await?;
        Ok((done.rows_affected(), begun.elapsed()))
    };
    let (deleted, shut) = store.when_free(delete).await.at(store)?;
    Ok(SweepResult { deleted: usize::try_from(deleted).unwrap_or(usize::MAX), resume: None, shut })
}
