//! Reading pending events by the publisher's slots: each slot is a range of the index of pending aggregates.
//!
//! Rows of other slots are outside the ranges, and aggregates with a blocked head are not in the index, so neither is visited. Heads that
//! wait for a retry are in an index by retry time. `CROSS JOIN` fixes the nesting of the loops and the index is named, so that statistics
//! cannot change the plan; a test reads the plan.

use futures::TryStreamExt;
use serde_json::json;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::{LossyText, SqliteStore, unix_ms};
use crate::store::rows::{EventBody, RunCollector};
use crate::store::sql::{ErrorContext, around, from_ordered, retry_ahead_max_ms, signed};
use crate::store::{FetchRequest, FetchResult, PublisherRegistration};
use crate::{Payload, Result};

/// The columns of a reading, from a slot `s`, an aggregate `a` and an event `o`: those of [`RunCollector`], the sequence of the next event
/// if the window behind the mark is empty, and the event's payload and headers.
#[rustfmt::skip]
macro_rules! columns {
    () => {
        "SELECT s.slot, s.epoch, a.id, a.hash, a.done_seq, a.last_seq, a.attempts, a.failures, ?7 - a.failing_since, ?7 - a.attempted_at,
           o.seq, o.id, o.aggregatetype, o.aggregateid, o.type, CAST(o.created_at AS INTEGER), o.replayed,
           iif(o.seq IS NULL, (SELECT min(n.seq) FROM outbox AS n INDEXED BY outbox_in_order
                               WHERE n.aggregate = a.id AND n.seq > a.done_seq AND n.seq <= a.last_seq), NULL),
           o.payload, typeof(o.payload), o.headers "
    };
}

/// ?1 incarnation, ?2 and ?3 first and last hash, ?4 slots and ?5 aggregates to leave out, ?6 events at most, ?7 now (ms).
/// Public for the test that reads the plan.
pub const FETCH: &str = concat!(
    columns!(),
    "FROM outbox_slot AS s INDEXED BY outbox_slot_of
    CROSS JOIN outbox_aggregate AS a INDEXED BY outbox_aggregate_pending
    LEFT JOIN outbox AS o INDEXED BY outbox_in_order
           ON o.aggregate = a.id AND o.seq > a.done_seq AND o.seq <= a.done_seq + ?6
    WHERE s.incarnation = ?1 AND s.hash_to >= ?2 AND s.hash_from <= ?3
      AND s.slot NOT IN (SELECT value FROM json_each(?4))
      AND a.hash BETWEEN max(s.hash_from, ?2) AND min(s.hash_to, ?3)
      AND a.done_seq < a.last_seq AND a.blocked_at IS NULL AND a.retry_at IS NULL
      AND a.id NOT IN (SELECT value FROM json_each(?5))
    ORDER BY s.slot, a.hash, a.id, o.seq
    LIMIT ?6"
);

/// The heads whose retry is due, without the events behind them: ?2 and ?3 first and last retry time (ms), the others as for [`FETCH`].
pub const DUE: &str = concat!(
    columns!(),
    "FROM outbox_aggregate AS a INDEXED BY outbox_aggregate_waiting
    CROSS JOIN outbox_slot AS s
    LEFT JOIN outbox AS o INDEXED BY outbox_in_order ON o.aggregate = a.id AND o.seq = a.done_seq + 1
    WHERE a.retry_at BETWEEN ?2 AND ?3 AND a.done_seq < a.last_seq AND a.blocked_at IS NULL AND a.retry_at IS NOT NULL
      AND s.slot = (SELECT b.slot FROM outbox_slot AS b INDEXED BY outbox_slot_at WHERE b.hash_from <= a.hash ORDER BY b.hash_from DESC LIMIT 1)
      AND s.incarnation = ?1
      AND s.slot NOT IN (SELECT value FROM json_each(?4))
      AND a.id NOT IN (SELECT value FROM json_each(?5))
    ORDER BY a.retry_at
    LIMIT ?6"
);

pub(super) async fn fetch(store: &SqliteStore, me: &PublisherRegistration, request: &FetchRequest) -> Result<FetchResult> {
    let events_max = request.events_max.max(1);
    let mut reading = RunCollector::new(request.events_max, request.bytes_max);
    let now = unix_ms();
    // A retry further in the future than possible means that the wall clock was set back. Retries leave room for other events.
    for due in [(i64::MIN, now), (now.saturating_add(retry_ahead_max_ms() + 1), i64::MAX)] {
        let room = events_max.div_ceil(2).min(reading.events_left);
        read(store, DUE, me, request, due, room, &mut reading).await?;
    }
    let retries_left = events_max - reading.events_left >= events_max.div_ceil(2);
    // If only retries were read, the cursor stays where it was.
    let resume = |last: Option<i64>| Some(last.map(from_ordered).or(request.after).unwrap_or(u64::MAX));
    for range in around(request.after) {
        let room = reading.events_left;
        if room == 0 || reading.bytes_left == 0 || !read(store, FETCH, me, request, range, room, &mut reading).await? {
            return Ok(FetchResult { resume: resume(reading.last_hash), runs: reading.runs, more: false });
        }
    }
    Ok(FetchResult { resume: retries_left.then(|| resume(reading.last_hash)).flatten(), runs: reading.runs, more: false })
}

/// Reads one range of hashes or times; returns whether it was read to its end.
async fn read(
    store: &SqliteStore,
    statement: &'static str,
    me: &PublisherRegistration,
    request: &FetchRequest,
    range: (i64, i64),
    room: usize,
    reading: &mut RunCollector,
) -> Result<bool> {
    let query = sqlx::query(statement)
        .bind(me.incarnation.to_string())
        .bind(range.0)
        .bind(range.1)
        .bind(json!(request.except_slots).to_string())
        .bind(json!(request.except_aggregates).to_string())
        .bind(signed(room))
        .bind(unix_ms());
    let is_due = statement == DUE;
    reading.next_statement();
    let mut rows = query.fetch(&store.readers);
    while let Some(row) = rows.try_next().await.at(store)? {
        let further = row.try_get_unchecked(17).at(store)?;
        reading.add_with_head::<LossyText, _>(&row, is_due, further, body).at(store)?;
        if reading.events_left == 0 || reading.bytes_left == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

fn body(row: &SqliteRow) -> Result<EventBody, sqlx::Error> {
    let headers: Option<LossyText> = row.try_get(20)?;
    Ok((payload(row)?, headers.map(String::from)))
}

fn payload(row: &SqliteRow) -> Result<Payload, sqlx::Error> {
    let kind: &str = row.try_get(19)?;
    if kind == "null" {
        return Ok(Payload::None);
    }
    let bytes: Vec<u8> = row.try_get(18)?;
    if kind == "blob" {
        return Ok(Payload::Binary(bytes));
    }
    Ok(String::from_utf8(bytes).map_or_else(|error| Payload::Binary(error.into_bytes()), Payload::Text))
}
