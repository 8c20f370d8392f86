//! Reading pending events by the publisher's slots: each slot is a range of the index of pending aggregates.
//!
//! Rows of other slots are outside the ranges, and aggregates with a blocked head are not in the index, so neither is visited. Heads that
//! wait for a retry are in an index by retry time. `CROSS JOIN` fixes the nesting of the loops and the index is named, so that statistics
//! cannot change the plan; a test reads the plan.

use std::collections::HashSet;
use std::time::Duration;

use futures::TryStreamExt;
use serde_json::json;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::error::SqliteErrorContext;
use super::{SqliteStore, retry_ahead_max_ms, unix_ms};
use crate::store::sql::{around, from_ordered, unsigned};
use crate::store::{EventRun, FetchRequest, FetchResult, HeadTrouble, Hold, PublisherRegistration};
use crate::{Delivery, Payload, Result};

/// The columns of a reading, from a slot `s`, an aggregate `a` and an event `o`.
#[rustfmt::skip]
macro_rules! columns {
    () => {
        "SELECT s.slot, s.epoch, a.id, a.hash, a.done_seq, a.last_seq, a.attempts, a.failures, a.failing_since, a.attempted_at,
           o.seq, o.id, o.aggregatetype, o.aggregateid, o.type, o.payload, typeof(o.payload), o.headers,
           CAST(o.created_at AS INTEGER),
           iif(o.seq IS NULL, (SELECT min(n.seq) FROM outbox AS n INDEXED BY outbox_in_order
                               WHERE n.aggregate = a.id AND n.seq > a.done_seq AND n.seq <= a.last_seq), NULL),
           o.replayed "
    };
}

/// ?1 incarnation, ?2 and ?3 first and last hash, ?4 slots and ?5 aggregates to leave out, ?6 events at most. Public for the test that reads
/// the plan.
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
    let mut reading = SqliteRunCollector {
        events_left: events_max,
        bytes_left: request.bytes_max,
        runs: Vec::new(),
        last_hash: None,
        former: HashSet::new(),
    };
    let now = unix_ms();
    // A retry further in the future than possible means that the wall clock was set back. Retries leave room for other events.
    for due in [(i64::MIN, now), (now.saturating_add(retry_ahead_max_ms() + 1), i64::MAX)] {
        let room = events_max.div_ceil(2).min(reading.events_left);
        read(store, DUE, me, request, due, room, &mut reading).await?;
    }
    let retries_left = events_max - reading.events_left >= events_max.div_ceil(2);
    // If only retries were read, the cursor stays where it was.
    reading.last_hash = None;
    let resume = |last: Option<i64>| Some(last.map(from_ordered).or(request.after).unwrap_or(u64::MAX));
    for range in around(request.after) {
        let room = reading.events_left;
        if room == 0 || reading.bytes_left == 0 || !read(store, FETCH, me, request, range, room, &mut reading).await? {
            return Ok(FetchResult { resume: resume(reading.last_hash), runs: reading.runs });
        }
    }
    Ok(FetchResult { resume: retries_left.then(|| resume(reading.last_hash)).flatten(), runs: reading.runs })
}

/// Reads one range of hashes or times; returns whether it was read to its end.
async fn read(
    store: &SqliteStore,
    statement: &'static str,
    me: &PublisherRegistration,
    request: &FetchRequest,
    range: (i64, i64),
    room: usize,
    reading: &mut SqliteRunCollector,
) -> Result<bool> {
    let now = unix_ms();
    let query = sqlx::query(statement)
        .bind(me.incarnation.to_string())
        .bind(range.0)
        .bind(range.1)
        .bind(json!(request.except_slots).to_string())
        .bind(json!(request.except_aggregates).to_string())
        .bind(i64::try_from(room).unwrap_or(i64::MAX));
    reading.former.extend(reading.runs.iter().map(|run| run.aggregate));
    let mut rows = query.fetch(&store.readers);
    while let Some(row) = rows.try_next().await.at(store)? {
        reading.add(&row, now).at(store)?;
        if reading.events_left == 0 || reading.bytes_left == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

struct SqliteRunCollector {
    events_left: usize,
    bytes_left: usize,
    runs: Vec<EventRun>,
    last_hash: Option<i64>,
    /// Aggregates of earlier statements. Events written between two statements are left for the next reading; otherwise an event would
    /// come twice.
    former: HashSet<i64>,
}

impl SqliteRunCollector {
    fn add(&mut self, row: &SqliteRow, now: i64) -> Result<(), sqlx::Error> {
        let aggregate: i64 = row.try_get(2)?;
        if self.former.contains(&aggregate) {
            self.events_left -= 1;
            return Ok(());
        }
        if self.runs.last().is_none_or(|run| run.aggregate != aggregate) {
            self.runs.push(new_run(row, aggregate, now)?);
            self.last_hash = Some(row.try_get(3)?);
        }
        // Rows deleted by hand leave an empty row in place of an event; it counts against the limit too.
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

fn new_run(row: &SqliteRow, aggregate: i64, now: i64) -> Result<EventRun, sqlx::Error> {
    let ago = |since: Option<i64>| since.map(|since| Duration::from_millis(unsigned(now - since)));
    let last = unsigned(row.try_get(5)?);
    // If the window behind the mark is empty, the next event further on: those missing before it were deleted by hand.
    let further: Option<i64> = row.try_get(19)?;
    let through = match (row.try_get::<Option<i64>, _>(10)?, further) {
        (Some(_), _) => unsigned(row.try_get(4)?),
        (None, Some(further)) => unsigned(further).saturating_sub(1),
        (None, None) => last,
    };
    Ok(EventRun {
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
        replayed: row.try_get::<Option<i64>, _>(20)?.map(unsigned),
        slot: hold.slot,
        epoch: hold.epoch,
        aggregate,
    })
}

/// SQLite does not check that text is UTF-8; invalid bytes become replacement characters instead of an error, which would stop the whole
/// outbox.
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
