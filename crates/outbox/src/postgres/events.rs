//! The events of aggregates, and how they are collected.
//!
//! Large payloads are read by a separate statement, so that none is read that does not fit. Small payloads beyond the limit are read and
//! dropped; together they are not larger than the limit.

use std::collections::{HashMap, HashSet};

use futures::TryStreamExt as _;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, Row};

use crate::store::rows::{EventBody, RowHead, RunCollector};
use crate::store::{EventRun, HeadTrouble, Hold};
use crate::{AggregateId, Payload};

/// The events of an aggregate `$of` behind its `done_seq`, in order, at most `$limit`.
#[rustfmt::skip]
macro_rules! pending_events {
    ($of:literal, $limit:literal) => {
        concat!(
            "(SELECT o.seq, o.position, o.id, o.aggregatetype, o.aggregateid, o.type, o.payload, o.payload_bytes, o.headers, o.created_at, o.replayed,
                coalesce(octet_length(o.payload), octet_length(o.payload_bytes), 0) + coalesce(octet_length(o.headers), 0) AS bytes
              FROM outbox AS o WHERE o.aggregate = ", $of, ".aggregate AND o.seq > ", $of, ".done_seq ORDER BY o.seq LIMIT ", $limit, ")"
        )
    };
}
pub(super) use pending_events;

/// Of an event `e` the columns that `RunCollector` expects, then its size, its position if it is larger than `$bytes`, and otherwise its
/// payload and headers.
#[rustfmt::skip]
macro_rules! event_columns {
    ($bytes:literal) => {
        concat!(
            "e.seq, e.id, e.aggregatetype, e.aggregateid, e.type, (date_part('epoch', e.created_at) * 1000)::bigint, e.replayed, e.bytes,
             CASE WHEN e.bytes > ", $bytes, "::bigint THEN e.position END, CASE WHEN e.bytes <= ", $bytes, " THEN e.payload END,
             CASE WHEN e.bytes <= ", $bytes, " THEN e.payload_bytes END, CASE WHEN e.bytes <= ", $bytes, " THEN e.headers END"
        )
    };
}
pub(super) use event_columns;

/// The places of some of these columns behind the first one.
const BYTES: usize = 7;
const POSITION: usize = 8;
const BODY: usize = 9;
/// How many they are.
const EVENT_COLUMNS: usize = 12;

/// $1 positions. Public for the test that reads the plan.
pub const LARGE: &str = "SELECT position, payload, payload_bytes, headers FROM outbox WHERE position = ANY ($1)";

/// What one statement brought.
pub(super) struct Collected {
    /// The rows, with those without an event.
    pub(super) rows: i64,
    /// Those of retries.
    pub(super) due: i64,
    /// The last aggregate for which there was room.
    pub(super) last: Option<AggregateId>,
    /// Whether all large events still exist.
    pub(super) is_whole: bool,
}

/// The aggregates whose events a statement reads.
#[derive(Clone, Copy)]
pub(super) enum RowHeads<'a> {
    /// They are in the rows: the head's columns, then the event's, then whether the row is a retry's.
    Selected,
    /// They were given; a row begins with the place of its aggregate among them, from 1, and then has the event's columns.
    Given(&'a [ListedAggregate]),
}

/// An aggregate of the writers' list that is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListedAggregate {
    pub(super) aggregate: AggregateId,
    /// The sequence up to which it is delivered.
    pub(super) done: i64,
    pub(super) hold: Hold,
}

/// The columns of a selected head.
const HEAD_COLUMNS: usize = 10;

/// Adds the rows of a statement, whose events have the columns of `event_columns`.
pub(super) async fn collect(
    conn: &mut PgConnection,
    query: Query<'_, Postgres, PgArguments>,
    heads: RowHeads<'_>,
    reading: &mut RunCollector,
) -> Result<Collected, sqlx::Error> {
    reading.next_statement();
    let mut collected = Collected { rows: 0, due: 0, last: None, is_whole: true };
    let (mut rows, mut large) = (query.fetch(&mut *conn), Vec::new());
    while let Some(row) = rows.try_next().await? {
        let had_room = reading.bytes_left > 0;
        let (event, aggregate, is_added) = match heads {
            RowHeads::Selected => {
                let is_due = row.try_get_unchecked(HEAD_COLUMNS + EVENT_COLUMNS)?;
                collected.due += i64::from(is_due);
                let is_added = reading.add_with_head::<String, _>(&row, is_due, None, |row| body(row, HEAD_COLUMNS + BODY))?;
                (HEAD_COLUMNS, row.try_get_unchecked(2)?, is_added)
            }
            RowHeads::Given(given) => {
                let place: i64 = row.try_get_unchecked(0)?;
                let one = usize::try_from(place - 1).ok().and_then(|place| given.get(place));
                let one =
                    one.ok_or_else(|| sqlx::Error::Protocol(format!("an event of aggregate {place} of {} given ones", given.len())))?;
                let head = RowHead { aggregate: one.aggregate, done: one.done, last: None, further: None, is_due: false };
                let rest = || Ok((one.hold, HeadTrouble::default()));
                (1, one.aggregate, reading.add::<String, _>(&row, head, rest, 1, |row| body(row, 1 + BODY))?)
            }
        };
        collected.rows += 1;
        if had_room {
            collected.last = Some(aggregate);
        }
        if is_added && let Some(position) = row.try_get_unchecked(event + POSITION)? {
            let bytes: i32 = row.try_get_unchecked(event + BYTES)?;
            reading.bytes_left = reading.bytes_left.saturating_sub(usize::try_from(bytes).unwrap_or(0));
            let run = reading.runs.len() - 1;
            large.push(LargeEvent { position, run, event: reading.runs[run].events.len() - 1 });
        }
    }
    drop(rows);
    collected.is_whole = fill(conn, &mut reading.runs, &large).await?;
    Ok(collected)
}

/// An event that was read without its payload and headers.
struct LargeEvent {
    position: i64,
    run: usize,
    event: usize,
}

/// Reads the payloads and headers of large events that all fit. Returns whether all of them still exist.
async fn fill(conn: &mut PgConnection, runs: &mut Vec<EventRun>, large: &[LargeEvent]) -> Result<bool, sqlx::Error> {
    if large.is_empty() {
        return Ok(true);
    }
    let positions: Vec<i64> = large.iter().map(|large| large.position).collect();
    // One by one, so that only the payload being read is in memory twice.
    let (mut rest, mut rows) = (HashMap::new(), sqlx::query(LARGE).bind(positions).fetch(conn));
    while let Some(row) = rows.try_next().await? {
        rest.insert(row.try_get_unchecked(0)?, body(&row, 1)?);
    }
    Ok(filled(runs, large, rest))
}

/// Inserts payloads and headers into their events. A run ends before an event that has disappeared meanwhile; a run without any event left
/// is read again later. Returns whether all events still exist.
fn filled(runs: &mut Vec<EventRun>, large: &[LargeEvent], mut rest: HashMap<i64, EventBody>) -> bool {
    let mut ended = HashSet::new();
    for LargeEvent { position, run: place, event } in large {
        let Some(run) = runs.get_mut(*place).filter(|_| !ended.contains(place)) else { continue };
        if let (Some(event), Some(rest)) = (run.events.get_mut(*event), rest.remove(position)) {
            (event.payload, event.headers) = rest;
        } else {
            run.events.truncate(*event);
            run.through = run.events.last().map_or(run.through, |event| event.sequence);
            run.more = true;
            ended.insert(*place);
        }
    }
    let mut places = 0..;
    runs.retain(|run| {
        let is_ended = places.next().is_some_and(|place| ended.contains(&place));
        !(is_ended && run.events.is_empty())
    });
    ended.is_empty()
}

/// From three columns: the payload as text and as bytes, and the headers.
fn body(row: &PgRow, column: usize) -> Result<EventBody, sqlx::Error> {
    let payload = match row.try_get_unchecked::<Option<String>, _>(column)? {
        Some(text) => Payload::Text(text),
        None => row.try_get_unchecked::<Option<Vec<u8>>, _>(column + 1)?.map_or(Payload::None, Payload::Binary),
    };
    Ok((payload, row.try_get_unchecked(column + 2)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Delivery;

    fn event(sequence: u64) -> Delivery {
        Delivery {
            id: format!("e-{sequence}"),
            aggregate_type: "order".into(),
            aggregate_id: "a".into(),
            event_type: "t".into(),
            payload: Payload::None,
            headers: None,
            created_at_unix_ms: 0,
            sequence,
            replayed: None,
            slot: 0,
            epoch: 1,
            aggregate: 1,
        }
    }

    fn run(events: std::ops::RangeInclusive<u64>) -> EventRun {
        let (through, hold) = (*events.end(), Hold { slot: 0, epoch: 1 });
        EventRun { aggregate: 1, hold, trouble: HeadTrouble::default(), through, more: false, events: events.map(event).collect() }
    }

    fn large(position: i64, run: usize, event: usize) -> LargeEvent {
        LargeEvent { position, run, event }
    }

    #[test]
    fn behind_a_large_event_that_is_gone_its_run_ends_and_none_of_the_others_does() {
        let all_deleted = EventRun { events: Vec::new(), ..run(1..=9) };
        let mut runs = vec![run(1..=3), run(4..=6), all_deleted.clone(), run(7..=8)];
        let larges = [large(1, 0, 0), large(2, 0, 2), large(5, 1, 1), large(6, 1, 2), large(7, 3, 0), large(8, 3, 1)];
        let rest = |text: &str| (Payload::Text(text.into()), Some("{}".to_owned()));
        // The second run lacks its middle event, the fourth its first.
        let all_there =
            filled(&mut runs, &larges, HashMap::from([(1, rest("one")), (2, rest("three")), (6, rest("six")), (8, rest("eight"))]));
        assert!(!all_there);
        let left: Vec<_> = runs.iter().map(|run| (run.through, run.events.len(), run.more)).collect();
        assert_eq!(left, [(3, 3, false), (4, 1, true), (9, 0, false)]);
        let texts: Vec<_> = runs.iter().flat_map(|run| &run.events).map(|event| event.payload.clone()).collect();
        assert_eq!(texts, [rest("one").0, Payload::None, rest("three").0, Payload::None]);
        assert_eq!(runs[2], all_deleted);
    }
}
