//! The events of aggregates, and how they are collected.
//!
//! Large payloads are read by a separate statement, so that none is read that does not fit. Small payloads beyond the limit are read and
//! dropped; together they are not larger than the limit.

use std::collections::{HashMap, HashSet};

use futures::TryStreamExt as _;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, Row};

use crate::store::EventRun;
use crate::store::rows::{EventBody, RunCollector};
use crate::{AggregateId, Payload};

/// The events of the aggregates in `$heads`, at most `$limit`. The columns of `RunCollector`, whether the row is a retry's, the event's size,
/// its position if it is larger than `$bytes`, payload and headers.
#[rustfmt::skip]
macro_rules! with_events {
    ($heads:literal, $limit:literal, $bytes:literal) => {
        concat!(
    "SELECT h.slot, h.epoch, h.aggregate, h.hash, h.done_seq, NULL::bigint, h.attempts, h.failures,
           (date_part('epoch', statement_timestamp() - h.failing_since) * 1000)::bigint,
           (date_part('epoch', statement_timestamp() - h.attempted_at) * 1000)::bigint,
           e.seq, e.id, e.aggregatetype, e.aggregateid, e.type, (date_part('epoch', e.created_at) * 1000)::bigint, e.replayed,
           h.due, e.bytes, CASE WHEN e.bytes > ", $bytes, "::bigint THEN e.position END, CASE WHEN e.bytes <= ", $bytes, " THEN e.payload END,
           CASE WHEN e.bytes <= ", $bytes, " THEN e.payload_bytes END, CASE WHEN e.bytes <= ", $bytes, " THEN e.headers END
    FROM (", $heads, ") AS h
    LEFT JOIN LATERAL (
        SELECT o.seq, o.position, o.id, o.aggregatetype, o.aggregateid, o.type, o.payload, o.payload_bytes, o.headers, o.created_at, o.replayed,
               coalesce(octet_length(o.payload), octet_length(o.payload_bytes), 0) + coalesce(octet_length(o.headers), 0) AS bytes
        FROM outbox AS o WHERE o.aggregate = h.aggregate AND o.seq > h.done_seq
        ORDER BY o.seq LIMIT CASE WHEN h.due THEN 1 ELSE ", $limit, "::bigint END
    ) AS e ON true
    LIMIT ", $limit)
    };
}
pub(super) use with_events;

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

/// Adds the rows of a statement that is made by `with_events`.
pub(super) async fn collect(
    conn: &mut PgConnection,
    query: Query<'_, Postgres, PgArguments>,
    reading: &mut RunCollector,
) -> Result<Collected, sqlx::Error> {
    reading.next_statement();
    let mut collected = Collected { rows: 0, due: 0, last: None, is_whole: true };
    let (mut rows, mut large) = (query.fetch(&mut *conn), Vec::new());
    while let Some(row) = rows.try_next().await? {
        let is_due = row.try_get(17)?;
        collected.rows += 1;
        collected.due += i64::from(is_due);
        if reading.bytes_left > 0 {
            collected.last = Some(row.try_get_unchecked(2)?);
        }
        if reading.add::<String, _>(&row, is_due, None, |row| body(row, 20))?
            && let Some(position) = row.try_get_unchecked(19)?
        {
            let bytes: i32 = row.try_get_unchecked(18)?;
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
    use crate::store::{HeadTrouble, Hold};

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
