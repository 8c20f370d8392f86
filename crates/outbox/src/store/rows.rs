//! From the rows of the SQL stores to the types of this module. `T` is a text column's type.

use std::collections::HashSet;

use sqlx::{ColumnIndex, Decode, Row};

use super::sql::{ago, small, unsigned};
use super::{
    AuditEntry, Backlog, BlockedAggregate, DeadLetter, DeadState, ERROR_CHARS_MAX, EventRun, HeadTrouble, Hold, PublisherStatus, Retrying,
    Status,
};
use crate::{AggregateId, Delivery, Payload, one_line};

/// A sink's message in the form for people.
fn shown(error: impl Into<String>) -> String {
    one_line(&error.into(), ERROR_CHARS_MAX)
}

impl DeadLetter {
    pub(crate) fn from_row<T: Into<String>>(row: (T, T, T, i64, bool, i64, T, i64, Option<i64>)) -> Self {
        let (id, key, event_type, sequence, is_blocked, dead_ms, error, payload_bytes, replayed) = row;
        Self {
            id: id.into(),
            key: key.into(),
            event_type: event_type.into(),
            sequence: unsigned(sequence),
            state: if is_blocked { DeadState::Blocked } else { DeadState::Parked },
            dead_for: ago(dead_ms),
            error: shown(error),
            payload_bytes: unsigned(payload_bytes),
            replayed: replayed.map(unsigned),
        }
    }
}

/// An event as an operator identifies it.
pub(crate) struct FoundEvent {
    pub(crate) aggregate: i64,
    pub(crate) key: String,
    pub(crate) seq: i64,
    pub(crate) parked: bool,
}

impl FoundEvent {
    pub(crate) fn from_row<T: Into<String>>((aggregate, key, seq, parked): (i64, T, i64, bool)) -> Self {
        Self { aggregate, key: key.into(), seq, parked }
    }
}

impl AuditEntry {
    pub(crate) fn from_row<T: Into<String>>(row: (i64, T, String, T, T, i64, i64, T)) -> Self {
        let (ms, who, action, event, key, sequence, events, why) = row;
        Self {
            ago: ago(ms),
            who: who.into(),
            action,
            event: event.into(),
            key: key.into(),
            sequence: unsigned(sequence),
            events: unsigned(events),
            why: why.into(),
        }
    }
}

impl BlockedAggregate {
    pub(crate) fn from_row<T: Into<String>>((key, pending, blocked_ms, error): (T, i64, i64, T)) -> Self {
        Self { key: key.into(), pending: unsigned(pending), blocked_for: ago(blocked_ms), error: shown(error) }
    }
}

impl Retrying {
    /// From the sums over all aggregates, and the latest failure.
    pub(crate) fn from_rows<T: Into<String>>(sums: (i64, i64, i64, i64), latest: (T, i64, T)) -> Self {
        let ((aggregates, pending, failing_ms, next_ms), (key, failed_ms, error)) = (sums, latest);
        Self {
            aggregates: unsigned(aggregates),
            pending: unsigned(pending),
            failing_for: ago(failing_ms),
            next_attempt_in: ago(next_ms),
            key: key.into(),
            failed_ago: ago(failed_ms),
            error: shown(error),
        }
    }
}

impl PublisherStatus {
    pub(crate) fn from_row((publisher, incarnation, alive, seen_ms, slots): (String, String, bool, Option<i64>, i64)) -> Self {
        Self { publisher, incarnation, alive, seen_ago: seen_ms.map(ago), slots: small(slots) }
    }
}

impl From<Backlog> for Status {
    /// From a whole count.
    fn from(counted: Backlog) -> Self {
        Self {
            pending: counted.pending,
            oldest_pending_age: counted.oldest_pending_age,
            blocked_aggregates: counted.blocked_aggregates,
            parked: counted.parked,
            free_slots: counted.free_slots,
            unpublished: counted.unpublished,
            ..Self::default()
        }
    }
}

/// An event's payload and headers.
pub(crate) type EventBody = (Payload, Option<String>);

/// The aggregate of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowHead {
    pub(crate) aggregate: AggregateId,
    /// The sequence up to which it is done.
    pub(crate) done: i64,
    /// Its newest sequence; `None` if the store does not know it.
    pub(crate) last: Option<i64>,
    /// The sequence at which its events continue if the row has none.
    pub(crate) further: Option<i64>,
    /// Whether the row is that of a retry: the events behind it are not read.
    pub(crate) is_due: bool,
}

/// Collects the rows of a fetch into runs, within the limits of the reading.
///
/// An event has these columns, next to each other: sequence, id, aggregate type and id, type, time of writing and original sequence. A row
/// of [`RunCollector::add_with_head`] has ten columns before them: slot, epoch, aggregate, hash, the sequence up to which it is done, its
/// newest sequence (NULL if the store does not know it), attempts, failures, milliseconds since the first and the last failure. All are
/// read unchecked, because checking each value costs as much as reading it: PostgreSQL's types are those of our statement, and SQLite's
/// schema checks the texts. A number of another type, which only a hand can write, is read as SQLite converts it.
pub(crate) struct RunCollector {
    pub(crate) events_left: usize,
    pub(crate) bytes_left: usize,
    pub(crate) runs: Vec<EventRun>,
    /// The hash of the last row in the order of hashes.
    pub(crate) last_hash: Option<i64>,
    /// Aggregates that have nothing to send.
    pub(crate) drained: Vec<AggregateId>,
    /// Aggregates of earlier statements. Events written between two statements are left for the next reading; otherwise an event would
    /// come twice.
    former: HashSet<AggregateId>,
}

impl RunCollector {
    pub(crate) fn new(events_max: usize, bytes_max: usize) -> Self {
        let (events_left, bytes_left) = (events_max.max(1), bytes_max.max(1));
        Self { events_left, bytes_left, runs: Vec::new(), last_hash: None, drained: Vec::new(), former: HashSet::new() }
    }

    /// Whether there is no room for another event.
    #[cfg(feature = "postgres")]
    pub(crate) fn is_full(&self) -> bool {
        self.events_left == 0 || self.bytes_left == 0
    }

    /// The following rows come from another statement, with another snapshot.
    pub(crate) fn next_statement(&mut self) {
        self.former.extend(self.runs.iter().map(|run| run.aggregate));
    }

    /// Adds a row that begins with the columns of a head. Returns whether an event was added.
    pub(crate) fn add_with_head<'r, T, R>(
        &mut self,
        row: &'r R,
        is_due: bool,
        further: Option<i64>,
        body: impl FnOnce(&'r R) -> Result<EventBody, sqlx::Error>,
    ) -> Result<bool, sqlx::Error>
    where
        R: Row,
        usize: ColumnIndex<R>,
        i64: Decode<'r, R::Database>,
        T: Decode<'r, R::Database> + Into<String>,
    {
        let (aggregate, done, last) = (row.try_get_unchecked(2)?, row.try_get_unchecked(4)?, row.try_get_unchecked(5)?);
        if !is_due && self.bytes_left > 0 {
            self.last_hash = Some(row.try_get_unchecked(3)?);
        }
        let rest = || {
            let hold = Hold { slot: small(row.try_get_unchecked(0)?), epoch: unsigned(row.try_get_unchecked(1)?) };
            let trouble = HeadTrouble {
                attempts: small(row.try_get_unchecked(6)?),
                failures: small(row.try_get_unchecked(7)?),
                failing_for: row.try_get_unchecked::<Option<i64>, _>(8)?.map(ago),
                attempted_ago: row.try_get_unchecked::<Option<i64>, _>(9)?.map(ago),
            };
            Ok((hold, trouble))
        };
        self.add::<T, R>(row, RowHead { aggregate, done, last, further, is_due }, rest, 10, body)
    }

    /// Adds a row whose event begins at the column `event`; `rest` are the hold and the failures of a run that begins with it. Returns
    /// whether an event was added.
    pub(crate) fn add<'r, T, R>(
        &mut self,
        row: &'r R,
        RowHead { aggregate, done, last, further, is_due }: RowHead,
        rest: impl FnOnce() -> Result<(Hold, HeadTrouble), sqlx::Error>,
        event: usize,
        body: impl FnOnce(&'r R) -> Result<EventBody, sqlx::Error>,
    ) -> Result<bool, sqlx::Error>
    where
        R: Row,
        usize: ColumnIndex<R>,
        i64: Decode<'r, R::Database>,
        T: Decode<'r, R::Database> + Into<String>,
    {
        // Rows deleted by hand leave an empty row in place of an event; it counts against the limit too.
        self.events_left = self.events_left.saturating_sub(1);
        if self.bytes_left == 0 {
            // A large event counts only after it was added.
            if let Some(run) = self.runs.last_mut().filter(|run| run.aggregate == aggregate) {
                run.more = true;
            }
            return Ok(false);
        }
        if self.former.contains(&aggregate) {
            return Ok(false);
        }
        let sequence: Option<i64> = row.try_get_unchecked(event)?;
        // Without a newest sequence, the row shows whether there is an event.
        let newest = last.or(sequence).unwrap_or(done);
        if done >= newest {
            self.drained.push(aggregate);
            return Ok(false);
        }
        if self.runs.last().is_none_or(|run| run.aggregate != aggregate) {
            let (hold, trouble) = rest()?;
            self.runs.push(EventRun {
                aggregate,
                hold,
                trouble,
                // Missing events were deleted by hand.
                through: unsigned(if sequence.is_some() { done } else { further.map_or(newest, |further| further - 1) }),
                more: sequence.is_none() && further.is_some(),
                events: Vec::new(),
            });
        }
        let (Some(sequence), Some(run)) = (sequence.map(unsigned), self.runs.last_mut()) else { return Ok(false) };
        if sequence <= run.through {
            // The statement makes this impossible; if it happens nevertheless, nothing is sent.
            let text = format!("of aggregate {aggregate}, event {sequence} came behind {}: not in its order, and not sent", run.through);
            return Err(sqlx::Error::Protocol(text));
        }
        let text = |column: usize| row.try_get_unchecked::<T, _>(column).map(Into::into);
        let (payload, headers) = body(row)?;
        let delivery = Delivery {
            id: text(event + 1)?,
            aggregate_type: text(event + 2)?,
            aggregate_id: text(event + 3)?,
            event_type: text(event + 4)?,
            payload,
            headers,
            created_at_unix_ms: row.try_get_unchecked(event + 5)?,
            sequence,
            replayed: row.try_get_unchecked::<Option<i64>, _>(event + 6)?.map(unsigned),
            slot: run.hold.slot,
            epoch: run.hold.epoch,
            aggregate,
        };
        self.bytes_left = self.bytes_left.saturating_sub(delivery.bytes());
        run.through = sequence;
        // Of a head that is retried, and where a limit is reached, the events behind are not read.
        let is_cut = is_due || self.events_left == 0 || self.bytes_left == 0;
        run.more = last.map_or(is_cut, |last| sequence < unsigned(last));
        run.events.push(delivery);
        Ok(true)
    }
}
