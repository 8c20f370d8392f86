//! Reading pending events by the publisher's slots: each slot is a range of the index of aggregates with something to send.
//!
//! Rows of other slots are outside the ranges, and aggregates with a blocked head are not in the index, so neither is visited; a test
//! reads the plan. Large payloads are read by a separate statement, so that none is read that does not fit. Small payloads beyond the
//! limit are read and dropped; together they are not larger than the limit.

use std::collections::{HashMap, HashSet};

use futures::TryStreamExt as _;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use super::{PostgresStore, call, clean};
use crate::Payload;
use crate::store::rows::{EventBody, RunCollector};
use crate::store::sql::{ErrorContext, around, from_ordered, retry_ahead_max_ms, signed};
use crate::store::{EventRun, FetchRequest, FetchResult, PublisherRegistration};

/// The most held slots that one statement visits, each with an index seek; more slots are visited in turns.
const SLOTS_MAX: u32 = 1_024;
/// $1 incarnation, $2 first hash, $3 its slot, $4 how many slots to skip: returns where the slot after them begins.
const BEYOND: &str = "
    SELECT hash_from FROM outbox_slot WHERE incarnation = $1 AND slot >= $3 AND hash_to >= $2 ORDER BY slot OFFSET $4 LIMIT 1";

/// Whether any publisher has anything to read; $1 the longest wait a retry can have, in milliseconds. Without it an idle publisher with
/// many slots would visit each of them at every poll, turn by turn.
const ANY: &str = "
    SELECT EXISTS (SELECT 1 FROM outbox_head WHERE ready ORDER BY hash LIMIT 1)
        OR EXISTS (SELECT 1 FROM outbox_head WHERE waiting AND retry_at <= statement_timestamp() ORDER BY retry_at LIMIT 1)
        OR EXISTS (SELECT 1 FROM outbox_head WHERE waiting AND retry_at > statement_timestamp() + $1::bigint * interval '1 millisecond' LIMIT 1)";

/// The columns of `RunCollector`, whether the row is a retry's, the event's size, its position if it is large, payload and headers.
///
/// $1 incarnation, $2 and $3 first and last hash, $4 slots and $5 aggregates to leave out, $6 events at most, $7 the longest wait a retry
/// can have in milliseconds (a longer one means that the clock was set back), $8 the size in bytes above which an event comes without its
/// payload and headers, $9 the most aggregates whose retry is due, $10 the number of slots. An aggregate with nothing to send yields a row
/// without an event. The writers' rows are not read: an aggregate's newest number is in none of them, and no reading needs it. Public for
/// the test that reads the plan.
///
/// Heads that wait for a retry are in a separate index by retry time, so that they cost nothing before. Rows come in the order of the
/// nested loops, without a sort (excluded aggregates are looked up in a hash, which an array would not allow): a LATERAL with a LIMIT can
/// only be the inner side of a nested loop, and so an aggregate's events come in order. There is no window to number the events or to sum
/// up their sizes: each window would copy every row, for a sixth and a third of the time (docs/adr/0037-large-payloads-apart.md).
pub const FETCH: &str = "
    SELECT h.slot, h.epoch, h.aggregate, h.hash, h.done_seq, NULL::bigint, h.attempts, h.failures,
           (date_part('epoch', statement_timestamp() - h.failing_since) * 1000)::bigint,
           (date_part('epoch', statement_timestamp() - h.attempted_at) * 1000)::bigint,
           e.seq, e.id, e.aggregatetype, e.aggregateid, e.type, (date_part('epoch', e.created_at) * 1000)::bigint, e.replayed,
           h.due, e.bytes, CASE WHEN e.bytes > $8::bigint THEN e.position END,
           CASE WHEN e.bytes <= $8 THEN e.payload END, CASE WHEN e.bytes <= $8 THEN e.payload_bytes END, CASE WHEN e.bytes <= $8 THEN e.headers END
    FROM (
        (SELECT s.slot, s.epoch, true AS due, r.*
         FROM (
            (SELECT h.aggregate, h.hash, h.done_seq, h.attempts, h.failures, h.failing_since, h.attempted_at FROM outbox_head AS h
             WHERE h.waiting AND h.retry_at <= statement_timestamp() ORDER BY h.retry_at)
            UNION ALL
            (SELECT h.aggregate, h.hash, h.done_seq, h.attempts, h.failures, h.failing_since, h.attempted_at FROM outbox_head AS h
             WHERE h.waiting AND h.retry_at > statement_timestamp() + $7::bigint * interval '1 millisecond')
         ) AS r
         CROSS JOIN LATERAL (
            SELECT t.* FROM outbox_slot AS t
            WHERE t.slot = div((r.hash::numeric + 9223372036854775808) * $10::bigint, 18446744073709551616)::bigint OFFSET 0
         ) AS s
         WHERE s.incarnation = $1 AND s.slot NOT IN (SELECT unnest($4::bigint[])) AND r.aggregate NOT IN (SELECT unnest($5::bigint[])) LIMIT $9)
        UNION ALL
        (SELECT s.slot, s.epoch, false AS due, r.*
         FROM (
            SELECT slot, epoch, greatest(hash_from, $2) AS low, least(hash_to, $3) AS high FROM outbox_slot
            WHERE incarnation = $1 AND hash_to >= $2 AND hash_from <= $3
              AND slot BETWEEN div(($2::numeric + 9223372036854775808) * $10::bigint, 18446744073709551616)::bigint
                           AND div(($3::numeric + 9223372036854775808) * $10::bigint, 18446744073709551616)::bigint
              AND slot NOT IN (SELECT unnest($4::bigint[])) ORDER BY slot
         ) AS s
         CROSS JOIN LATERAL (
            SELECT h.aggregate, h.hash, h.done_seq, h.attempts, h.failures, h.failing_since, h.attempted_at FROM outbox_head AS h
            WHERE h.ready AND h.hash BETWEEN s.low AND s.high AND h.aggregate NOT IN (SELECT unnest($5::bigint[]))
            ORDER BY h.hash, h.aggregate LIMIT $6
         ) AS r)
    ) AS h
    LEFT JOIN LATERAL (
        SELECT o.seq, o.position, o.id, o.aggregatetype, o.aggregateid, o.type, o.payload, o.payload_bytes, o.headers, o.created_at, o.replayed,
               coalesce(octet_length(o.payload), octet_length(o.payload_bytes), 0) + coalesce(octet_length(o.headers), 0) AS bytes
        FROM outbox AS o WHERE o.aggregate = h.aggregate AND o.seq > h.done_seq
        ORDER BY o.seq LIMIT CASE WHEN h.due THEN 1 ELSE $6 END
    ) AS e ON true
    LIMIT $6";

/// $1 positions. Public for the test that reads the plan.
pub const LARGE: &str = "SELECT position, payload, payload_bytes, headers FROM outbox WHERE position = ANY ($1)";

pub(super) async fn fetch(store: &PostgresStore, me: &PublisherRegistration, request: &FetchRequest) -> crate::Result<FetchResult> {
    let mut reading = RunCollector::new(request.events_max, request.bytes_max);
    let end = call!(store, conn => read_all(conn, me, request, &mut reading))?;
    if !reading.drained.is_empty() && store.may_strike() {
        call!(store, conn => clean::strike_off(conn, &reading.drained))?;
    }
    let resume = match end {
        ReadEnd::All => None,
        ReadEnd::Slots(through) => Some(from_ordered(through)),
        // If only retries were read, the cursor stays where it was.
        ReadEnd::Full => Some(reading.last_hash.map(from_ordered).or(request.after).unwrap_or(u64::MAX)),
    };
    Ok(FetchResult { runs: reading.runs, resume })
}

enum ReadEnd {
    /// All ranges were read to their ends.
    All,
    /// All slots up to this hash were read; the next slots follow in the next turn.
    Slots(i64),
    /// A limit cut it short.
    Full,
}

async fn read_all(
    conn: &mut PgConnection,
    me: &PublisherRegistration,
    request: &FetchRequest,
    reading: &mut RunCollector,
) -> Result<ReadEnd, sqlx::Error> {
    if me.slots > SLOTS_MAX && !sqlx::query_scalar::<_, bool>(ANY).bind(retry_ahead_max_ms()).fetch_one(&mut *conn).await? {
        return Ok(ReadEnd::All);
    }
    // Retries that are due come first, but leave room for other events.
    let mut due = signed(reading.events_left.div_ceil(2));
    for (from, to) in around(request.after) {
        let beyond = last_of_turn(conn, me, from).await?.filter(|through| *through < to);
        // With many slots, the first ones are visited after the last ones, in a separate turn.
        let through = beyond.or((me.slots > SLOTS_MAX && from > i64::MIN && to == i64::MAX).then_some(to));
        if !read(conn, me, request, (from, through.unwrap_or(to)), due, reading).await? {
            return Ok(ReadEnd::Full);
        }
        if let Some(through) = through {
            return Ok(ReadEnd::Slots(through));
        }
        due = 0;
    }
    Ok(ReadEnd::All)
}

/// The last hash of the slots that one statement visits from here on; `None` if all remaining slots fit into one statement.
async fn last_of_turn(conn: &mut PgConnection, me: &PublisherRegistration, from: i64) -> Result<Option<i64>, sqlx::Error> {
    if me.slots <= SLOTS_MAX {
        return Ok(None);
    }
    let slot = (u128::from(from_ordered(from)) * u128::from(me.slots)) >> 64;
    let query = sqlx::query_scalar::<_, i64>(BEYOND)
        .bind(me.incarnation.to_string())
        .bind(from)
        .bind(i64::try_from(slot).unwrap_or(i64::MAX))
        .bind(i64::from(SLOTS_MAX));
    Ok(query.fetch_optional(conn).await?.map(|beyond| beyond.saturating_sub(1)))
}

async fn read(
    conn: &mut PgConnection,
    me: &PublisherRegistration,
    request: &FetchRequest,
    range: (i64, i64),
    due: i64,
    reading: &mut RunCollector,
) -> Result<bool, sqlx::Error> {
    let limit = signed(reading.events_left);
    let except_slots: Vec<i64> = request.except_slots.iter().copied().map(i64::from).collect();
    let query = sqlx::query(FETCH)
        .bind(me.incarnation.to_string())
        .bind(range.0)
        .bind(range.1)
        .bind(except_slots)
        .bind(&request.except_aggregates)
        .bind(limit)
        .bind(retry_ahead_max_ms())
        .bind(signed(reading.bytes_left / reading.events_left.max(1)))
        .bind(due)
        .bind(i64::from(me.slots));
    reading.next_statement();
    let (mut rows, mut read, mut read_due, mut large) = (query.fetch(&mut *conn), 0, 0, Vec::new());
    while let Some(row) = rows.try_next().await? {
        read += 1;
        let is_due = row.try_get(17)?;
        read_due += i64::from(is_due);
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
    let whole = fill(conn, &mut reading.runs, &large).await?;
    Ok(whole && read < limit && reading.bytes_left > 0 && (due == 0 || read_due < due))
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
