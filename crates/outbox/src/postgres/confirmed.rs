//! The events of which the database confirmed something to this process, and the statement that looks for them: see the head of `history`.

use std::time::{Duration, Instant};

use sqlx::PgConnection;

use super::fence::columns;
use super::history::drawn;
use crate::AggregateId;
use crate::store::sql::{StatementError, done_through, millis};
use crate::store::{HeadUpdate, Hold, Outcome};

/// $1 aggregates, $2 sequences, $3 ids (or NULL), $4 whether it was marked, $5 slots and $6 epochs under which it was read, $7 whether it
/// was to be marked, $8 until when its row is kept, in milliseconds since 1970 (or NULL), $9 keys. Returns the events that are missing,
/// different, or not marked; the head of `history` says how deleted ones are accounted for.
const EVENTS: &str = concat!(
    "SELECT g.key, g.seq
    FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::boolean[], $5::bigint[], $6::bigint[], $7::boolean[], $8::bigint[], $9::text[])
        AS g (aggregate, seq, id, marked, slot, epoch, asked, kept_until, key)
    CROSS JOIN outbox_floor AS f CROSS JOIN outbox_order AS n
    LEFT JOIN outbox_aggregate AS a ON a.id = g.aggregate
    LEFT JOIN outbox_head AS h ON h.aggregate = a.id
    LEFT JOIN outbox AS o ON o.aggregate = g.aggregate AND o.seq = g.seq
    LEFT JOIN outbox_slot AS s ON s.slot = g.slot AND s.epoch = g.epoch
    WHERE CASE WHEN a.id IS NULL THEN f.last_value + ",
    drawn!("n"),
    " < g.seq OR NOT g.asked AND s.slot IS NOT NULL
               ELSE coalesce(h.done_seq, a.drained_seq) < g.seq AND (g.marked OR o.id IS NULL) OR a.key <> g.key END
       OR o.id <> g.id OR o.aggregatetype || '/' || o.aggregateid <> g.key
       OR o.id IS NULL AND s.slot IS NOT NULL AND g.kept_until > extract(epoch FROM statement_timestamp()) * 1000
    LIMIT 1"
);

#[derive(Debug, Clone)]
pub(super) struct ConfirmedEvent {
    pub(super) aggregate: AggregateId,
    pub(super) key: String,
    pub(super) sequence: u64,
    pub(super) id: Option<String>,
    /// Under which it was read.
    pub(super) hold: Hold,
    /// By the writer's clock, in milliseconds since 1970, as the retention counts it.
    pub(super) created_ms: i64,
    /// The highest sequence that the database was asked to mark, whether or not it has answered; 0 if none.
    pub(super) asked_through: u64,
    /// Until when its row is kept if it is marked, in milliseconds since 1970; `None` if it may be gone.
    pub(super) kept_until_ms: Option<i64>,
    pub(super) confirmed: Instant,
}

impl ConfirmedEvent {
    fn is_asked(&self) -> bool {
        self.asked_through >= self.sequence
    }

    /// The database is asked to record this outcome; delivered events are kept for `retention`, if that is known.
    pub(super) fn ask(&mut self, outcome: &Outcome, retention: Option<Duration>) {
        let Some(through) = done_through(outcome) else { return };
        // An operator deletes a parked event at any time, or sends it again from another row.
        let is_delivered = through >= self.sequence && !matches!(outcome.then, HeadUpdate::Park { .. } | HeadUpdate::Discard { .. });
        // Half of it, so that no two clocks need to agree.
        let kept_until = retention.filter(|_| is_delivered).map(|kept| self.created_ms.saturating_add(millis(kept / 2)));
        // What an earlier call may have done away with stays away.
        self.kept_until_ms = if self.is_asked() { self.kept_until_ms.and(kept_until) } else { kept_until };
        self.asked_through = self.asked_through.max(through);
    }
}

/// One of these events, with whether it was marked, that the database lacks.
pub(super) async fn missing_event(conn: &mut PgConnection, events: Vec<(ConfirmedEvent, bool)>) -> Result<Option<String>, StatementError> {
    let (slots, epochs) = columns(events.iter().map(|(event, _)| event.hold));
    let asked: Vec<bool> = events.iter().map(|(event, _)| event.is_asked()).collect();
    let kept_until: Vec<Option<i64>> = events.iter().map(|(event, _)| event.kept_until_ms).collect();
    let aggregates: Vec<AggregateId> = events.iter().map(|(event, _)| event.aggregate).collect();
    let others = events.into_iter().map(|(event, is_marked)| (event.key, (event.sequence.cast_signed(), (event.id, is_marked))));
    let (keys, (sequences, (ids, marked))): (Vec<_>, (Vec<_>, (Vec<_>, Vec<_>))) = others.unzip();
    let query = sqlx::query_as(EVENTS).bind(aggregates).bind(sequences).bind(ids).bind(marked).bind(slots).bind(epochs);
    let event = query.bind(asked).bind(kept_until).bind(keys).fetch_optional(conn).await?;
    Ok(event.map(|(key, sequence): (String, i64)| format!("event {sequence} of {}, or its mark", crate::one_line(&key, 200))))
}
