//! Converts rows to runs, within the limits of the reading.
//!
//! Columns are read unchecked: our own statement determines their types, and checking each value costs as much as reading it.

use std::collections::{HashMap, HashSet};

use futures::TryStreamExt as _;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use super::super::error::StatementError;
use super::super::{ago, small};
use crate::store::sql::unsigned;
use crate::store::{EventRun, HeadTrouble, Hold};
use crate::{Delivery, Payload};

/// The column of [`super::FETCH`] that is true for a retry that is due.
pub(super) const DUE: usize = 10;
/// $1 positions. Public for the test that reads the plan.
pub const LARGE: &str = "SELECT position, payload, payload_bytes, headers FROM outbox WHERE position = ANY ($1)";

/// An event that was read without its payload and headers.
struct LargeEvent {
    position: i64,
    run: usize,
    event: usize,
}

type EventBody = (Payload, Option<String>);

pub(super) struct PgRunCollector {
    pub(super) events_left: usize,
    pub(super) bytes_left: usize,
    pub(super) runs: Vec<EventRun>,
    pub(super) last_hash: Option<i64>,
    /// Aggregates on the list that have nothing to send.
    pub(super) drained: Vec<i64>,
    /// Aggregates of earlier statements. Events written between two statements are left for the next reading; otherwise an event would
    /// come twice.
    former: HashSet<i64>,
    large: Vec<LargeEvent>,
}

impl PgRunCollector {
    pub(super) fn new(events_max: usize, bytes_max: usize) -> Self {
        let (events_left, bytes_left) = (events_max.max(1), bytes_max.max(1));
        Self { events_left, bytes_left, runs: Vec::new(), last_hash: None, drained: Vec::new(), former: HashSet::new(), large: Vec::new() }
    }

    /// The bytes that each remaining event may have if all are to fit.
    pub(super) fn bytes_each(&self) -> usize {
        self.bytes_left / self.events_left.max(1)
    }

    /// The following rows come from another statement, with another snapshot.
    pub(super) fn next_statement(&mut self) {
        self.former.extend(self.runs.iter().map(|run| run.aggregate));
    }

    pub(super) fn add(&mut self, row: &PgRow, is_due: bool) -> Result<(), sqlx::Error> {
        // Rows deleted by hand leave an empty row in place of an event; it counts against the limit too.
        self.events_left = self.events_left.saturating_sub(1);
        if self.bytes_left == 0 {
            return Ok(());
        }
        let aggregate: i64 = row.try_get_unchecked(2)?;
        let (done, last): (i64, i64) = (row.try_get_unchecked(4)?, row.try_get_unchecked(5)?);
        if !is_due {
            self.last_hash = Some(row.try_get_unchecked(3)?);
        }
        if self.former.contains(&aggregate) {
            return Ok(());
        }
        if done >= last {
            self.drained.push(aggregate);
            return Ok(());
        }
        let sequence: Option<i64> = row.try_get_unchecked(11)?;
        if self.runs.last().is_none_or(|run| run.aggregate != aggregate) {
            self.runs.push(new_run(row, aggregate, sequence)?);
        }
        let place = self.runs.len() - 1;
        let (Some(sequence), Some(run)) = (sequence, self.runs.last_mut()) else { return Ok(()) };
        let delivery = delivery(row, run.hold, aggregate, unsigned(sequence))?;
        if delivery.sequence <= run.through {
            // The statement makes this impossible; if it happens nevertheless, nothing is sent.
            let text = format!("of aggregate {aggregate}, event {sequence} came behind {}: not in its order, and not sent", run.through);
            return Err(sqlx::Error::Protocol(text));
        }
        let mut bytes = delivery.bytes();
        if let Some(position) = row.try_get_unchecked(19)? {
            bytes += usize::try_from(row.try_get_unchecked::<i32, _>(18)?).unwrap_or(0);
            self.large.push(LargeEvent { position, run: place, event: run.events.len() });
        }
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
        run.through = delivery.sequence;
        run.events.push(delivery);
        Ok(())
    }

    /// Reads the payloads and headers of large events that all fit. Returns whether all of them still exist.
    pub(super) async fn fill(&mut self, conn: &mut PgConnection) -> Result<bool, StatementError> {
        if self.large.is_empty() {
            return Ok(true);
        }
        let positions: Vec<i64> = self.large.iter().map(|large| large.position).collect();
        // One by one, so that only the payload being read is in memory twice.
        let (mut rest, mut rows) = (HashMap::new(), sqlx::query(LARGE).bind(positions).fetch(conn));
        while let Some(row) = rows.try_next().await? {
            rest.insert(row.try_get_unchecked(0)?, (payload(&row, 1)?, row.try_get_unchecked(3)?));
        }
        Ok(self.filled(rest))
    }

    /// Inserts payloads and headers into their events. A run ends before an event that has disappeared meanwhile; a run without any event
    /// left is read again later. Returns whether all events still exist.
    fn filled(&mut self, mut rest: HashMap<i64, EventBody>) -> bool {
        let mut ended = HashSet::new();
        for LargeEvent { position, run: place, event } in self.large.drain(..) {
            let Some(run) = self.runs.get_mut(place).filter(|_| !ended.contains(&place)) else { continue };
            if let (Some(event), Some(rest)) = (run.events.get_mut(event), rest.remove(&position)) {
                (event.payload, event.headers) = rest;
            } else {
                run.events.truncate(event);
                run.through = run.events.last().map_or(run.through, |event| event.sequence);
                ended.insert(place);
            }
        }
        let mut places = 0..;
        self.runs.retain(|run| {
            let is_ended = places.next().is_some_and(|place| ended.contains(&place));
            !(is_ended && run.events.is_empty())
        });
        ended.is_empty()
    }
}

fn new_run(row: &PgRow, aggregate: i64, first: Option<i64>) -> Result<EventRun, sqlx::Error> {
    let last = unsigned(row.try_get_unchecked(5)?);
    let (attempts, failures): (i64, i64) = (row.try_get_unchecked(6)?, row.try_get_unchecked(7)?);
    Ok(EventRun {
        aggregate,
        hold: Hold { slot: small(row.try_get_unchecked(0)?), epoch: unsigned(row.try_get_unchecked(1)?) },
        trouble: HeadTrouble {
            attempts: small(attempts),
            failures: small(failures),
            failing_for: row.try_get_unchecked::<Option<i64>, _>(8)?.map(ago),
            attempted_ago: row.try_get_unchecked::<Option<i64>, _>(9)?.map(ago),
        },
        // Without any event, all up to the last were deleted by hand.
        through: if first.is_some() { unsigned(row.try_get_unchecked(4)?) } else { last },
        last,
        events: Vec::new(),
    })
}

/// One event; a large one without its payload and headers.
fn delivery(row: &PgRow, hold: Hold, aggregate: i64, sequence: u64) -> Result<Delivery, sqlx::Error> {
    Ok(Delivery {
        id: row.try_get_unchecked(12)?,
        aggregate_type: row.try_get_unchecked(13)?,
        aggregate_id: row.try_get_unchecked(14)?,
        event_type: row.try_get_unchecked(15)?,
        created_at_unix_ms: row.try_get_unchecked(16)?,
        replayed: row.try_get_unchecked::<Option<i64>, _>(17)?.map(unsigned),
        payload: payload(row, 20)?,
        headers: row.try_get_unchecked(22)?,
        sequence,
        slot: hold.slot,
        epoch: hold.epoch,
        aggregate,
    })
}

/// The payload from two columns, text and bytes.
fn payload(row: &PgRow, column: usize) -> Result<Payload, sqlx::Error> {
    if let Some(text) = row.try_get_unchecked::<Option<String>, _>(column)? {
        return Ok(Payload::Text(text));
    }
    Ok(row.try_get_unchecked::<Option<Vec<u8>>, _>(column + 1)?.map_or(Payload::None, Payload::Binary))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        EventRun { aggregate: 1, hold, trouble: HeadTrouble::default(), through, last: through, events: events.map(event).collect() }
    }

    fn large(position: i64, run: usize, event: usize) -> LargeEvent {
        LargeEvent { position, run, event }
    }

    #[test]
    fn behind_a_large_event_that_is_gone_its_run_ends_and_none_of_the_others_does() {
        let mut reading = PgRunCollector::new(100, 1_000);
        let all_deleted = EventRun { events: Vec::new(), ..run(1..=9) };
        reading.runs = vec![run(1..=3), run(4..=6), all_deleted.clone(), run(7..=8)];
        reading.large = vec![large(1, 0, 0), large(2, 0, 2), large(5, 1, 1), large(6, 1, 2), large(7, 3, 0), large(8, 3, 1)];
        let rest = |text: &str| (Payload::Text(text.into()), Some("{}".to_owned()));
        // The second run lacks its middle event, the fourth its first.
        let all_there = reading.filled(HashMap::from([(1, rest("one")), (2, rest("three")), (6, rest("six")), (8, rest("eight"))]));
        assert!(!all_there);
        let left: Vec<_> = reading.runs.iter().map(|run| (run.through, run.events.len())).collect();
        assert_eq!(left, [(3, 3), (4, 1), (9, 0)]);
        let texts: Vec<_> = reading.runs.iter().flat_map(|run| &run.events).map(|event| event.payload.clone()).collect();
        assert_eq!(texts, [rest("one").0, Payload::None, rest("three").0, Payload::None]);
        assert_eq!(reading.runs[2], all_deleted);
    }
}
