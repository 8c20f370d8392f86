//! Reading what is pending: by the publisher's slots, each a range of the index of pending aggregates.
//!
//! Neither other slots' rows nor rows behind a blocked head are looked at: the first are outside the ranges, the second not in the
//! index. The loops are nested by `CROSS JOIN` and the index is named, so that no statistics can turn them around; a test reads the plan.

use std::time::Duration;

use futures::TryStreamExt;
use serde_json::json;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::error::Context;
use super::{SqliteStore, from_ordered, retry_ahead_max_ms, to_ordered, unix_ms, unsigned};
use crate::store::{FetchRequest, Fetched, HeadTrouble, Hold, Registration, Run};
use crate::{Delivery, Payload, Result};

/// ?1 incarnation, ?2 and ?3 first and last hash, ?4 slots and ?5 aggregates to leave out, ?6 events at most, ?7 now (ms), ?8 the longest
/// wait a retry can have (a longer one means that the wall clock was set back). Public for the test that reads the plan.
pub const FETCH: &str = "
    SELECT s.slot, s.epoch, a.id, a.hash, a.done_seq, a.last_seq, a.attempts, a.failures, a.failing_since, a.attempted_at,
           o.seq, o.id, o.aggregatetype, o.aggregateid, o.type, o.payload, typeof(o.payload), o.headers,
           CAST(o.created_at AS INTEGER),
           iif(o.seq IS NULL, (SELECT min(n.seq) FROM outbox AS n INDEXED BY outbox_in_order
                               WHERE n.aggregate = a.id AND n.seq > a.done_seq AND n.seq <= a.last_seq), NULL)
    FROM outbox_slot AS s INDEXED BY outbox_slot_of
    CROSS JOIN outbox_aggregate AS a INDEXED BY outbox_aggregate_pending
    LEFT JOIN outbox AS o INDEXED BY outbox_in_order
           ON o.aggregate = a.id AND o.seq > a.done_seq AND o.seq <= a.done_seq + ?6
    WHERE s.incarnation = ?1 AND s.hash_to >= ?2 AND s.hash_from <= ?3
      AND s.slot NOT IN (SELECT value FROM json_each(?4))
      AND a.hash BETWEEN max(s.hash_from, ?2) AND min(s.hash_to, ?3)
      AND a.done_seq < a.last_seq AND a.blocked_at IS NULL
      AND (a.retry_at IS NULL OR a.retry_at <= ?7 OR a.retry_at > ?7 + ?8)
      AND a.id NOT IN (SELECT value FROM json_each(?5))
    ORDER BY s.slot, a.hash, a.id, o.seq
    LIMIT ?6";

pub(super) async fn fetch(store: &SqliteStore, me: &Registration, request: &FetchRequest) -> Result<Fetched> {
    let mut reading = Reading { events_left: request.events_max.max(1), bytes_left: request.bytes_max, runs: Vec::new(), last_hash: None };
    let ranges = match request.after {
        None => vec![(i64::MIN, i64::MAX)],
        Some(after) => {
            let after = to_ordered(after);
            // Behind the cursor first, then around to it again; the cursor's own aggregate comes last.
            after.checked_add(1).map(|from| (from, i64::MAX)).into_iter().chain([(i64::MIN, after)]).collect()
        }
    };
    for range in ranges {
        if !read(store, me, request, range, &mut reading).await? {
            let resume = reading.last_hash.map(from_ordered);
            return Ok(Fetched { runs: reading.runs, resume });
        }
    }
    Ok(Fetched { runs: reading.runs, resume: None })
}

/// Reads one range of hashes; answers whether it was read to its end.
async fn read(store: &SqliteStore, me: &Registration, request: &FetchRequest, range: (i64, i64), reading: &mut Reading) -> Result<bool> {
    let limit = i64::try_from(reading.events_left).unwrap_or(i64::MAX);
    let now = unix_ms();
    let query = sqlx::query(FETCH)
        .bind(me.incarnation.to_string())
        .bind(range.0)
        .bind(range.1)
        .bind(json!(request.except_slots).to_string())
        .bind(json!(request.except_aggregates).to_string())
        .bind(limit)
        .bind(now)
        .bind(retry_ahead_max_ms());
    let mut rows = query.fetch(&store.readers);
    while let Some(row) = rows.try_next().await.at(store)? {
        reading.add(&row, now).at(store)?;
        if reading.events_left == 0 || reading.bytes_left == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

struct Reading {
    events_left: usize,
    bytes_left: usize,
    runs: Vec<Run>,
    last_hash: Option<i64>,
}

impl Reading {
    fn add(&mut self, row: &SqliteRow, now: i64) -> Result<(), sqlx::Error> {
        let aggregate: i64 = row.try_get(2)?;
        if self.runs.last().is_none_or(|run| run.aggregate != aggregate) {
            self.runs.push(new_run(row, aggregate, now)?);
            self.last_hash = Some(row.try_get(3)?);
        }
        // Rows deleted by hand leave the place of an event empty, and then even the row counts against the limit.
        self.events_left -= 1;
        let Some(sequence) = row.try_get::<Option<i64>, _>(10)? else { return Ok(()) };
        if let Some(run) = self.runs.last_mut() {
            let delivery = delivery(row, run.hold, aggregate, unsigned(sequence))?;
            self.bytes_left = self.bytes_left.saturating_sub(delivery.bytes());
            run.through = delivery.sequence;
            run.events.push(delivery);
        }
        Ok(())
    }
}

fn new_run(row: &SqliteRow, aggregate: i64, now: i64) -> Result<Run, sqlx::Error> {
    let ago = |since: Option<i64>| since.map(|since| Duration::from_millis(unsigned(now - since)));
    let last = unsigned(row.try_get(5)?);
    // Where the window behind the mark is empty, the first event further on: what is missing before it was deleted by hand.
    let further: Option<i64> = row.try_get(19)?;
    let through = match (row.try_get::<Option<i64>, _>(10)?, further) {
        (Some(_), _) => unsigned(row.try_get(4)?),
        (None, Some(further)) => unsigned(further).saturating_sub(1),
        (None, None) => last,
    };
    Ok(Run {
        aggregate,
        hold: Hold { slot: row.try_get(0)?, epoch: unsigned(row.try_get(1)?) },
        trouble: HeadTrouble {
            attempts: row.try_get(6)?,
            failures: row.try_get(7)?,
            failing_for: ago(row.try_get(8)?),
            attempted_ago: ago(row.try_get(9)?),
        },
        through,
        last,
        events: Vec::new(),
    })
}

fn delivery(row: &SqliteRow, hold: Hold, aggregate: i64, sequence: u64) -> Result<Delivery, sqlx::Error> {
    Ok(Delivery {
        id: text(row, 11)?,
        aggregate_type: text(row, 12)?,
        aggregate_id: text(row, 13)?,
        event_type: text(row, 14)?,
        payload: payload(row)?,
        headers: row.try_get::<Option<&[u8]>, _>(17)?.map(|bytes| String::from_utf8_lossy(bytes).into_owned()),
        created_at_unix_ms: row.try_get(18)?,
        sequence,
        slot: hold.slot,
        epoch: hold.epoch,
        aggregate,
    })
}

/// SQLite does not check that text is UTF-8; what is not becomes replacement characters rather than an error that would stop everything.
fn text(row: &SqliteRow, column: usize) -> Result<String, sqlx::Error> {
    let bytes: &[u8] = row.try_get(column)?;
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

fn payload(row: &SqliteRow) -> Result<Payload, sqlx::Error> {
    let kind: &str = row.try_get(16)?;
    if kind == "null" {
        return Ok(Payload::None);
    }
    let bytes: Vec<u8> = row.try_get(15)?;
    if kind == "blob" {
        return Ok(Payload::Binary(bytes));
    }
    Ok(String::from_utf8(bytes).map_or_else(|error| Payload::Binary(error.into_bytes()), Payload::Text))
}
