//! Reading pending events by the publisher's slots: each slot is a range of the index of aggregates with something to send.
//!
//! Rows of other slots are outside the ranges, and aggregates with a blocked head are not in the index, so neither is visited; a test
//! reads the plan. Large payloads are read by a separate statement, so that none is read that does not fit. Small payloads beyond the
//! limit are read and dropped; together they are not larger than the limit.
//!
//! This file: the statements. `reading`: from rows to runs.

mod reading;

pub use reading::LARGE;

use futures::TryStreamExt as _;
use sqlx::{PgConnection, Row};

use self::reading::PgRunCollector;
use super::error::{PgErrorContext, StatementError};
use super::{PostgresStore, call, retry_ahead_max_ms, upkeep};
use crate::store::sql::{around, from_ordered};
use crate::store::{FetchRequest, FetchResult, PublisherRegistration};

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

/// $1 incarnation, $2 and $3 first and last hash, $4 slots and $5 aggregates to leave out, $6 events at most, $7 the longest wait a retry
/// can have in milliseconds (a longer one means that the clock was set back), $8 the size in bytes above which an event comes without its
/// payload and headers, $9 the most aggregates whose retry is due, $10 the number of slots. An aggregate with nothing to send yields a row
/// without an event. Public for the test that reads the plan.
///
/// Heads that wait for a retry are in a separate index by retry time, so that they cost nothing before. Rows come in the order of the
/// nested loops, without a sort (excluded aggregates are looked up in a hash, which an array would not allow): a LATERAL with a LIMIT can
/// only be the inner side of a nested loop, and so an aggregate's events come in order. There is no window to number the events or to sum
/// up their sizes: each window would copy every row, for a sixth and a third of the time (docs/adr/0037-large-payloads-apart.md).
pub const FETCH: &str = "
    SELECT h.slot, h.epoch, h.aggregate, h.hash, h.done_seq, a.last_seq, h.attempts, h.failures,
           (date_part('epoch', statement_timestamp() - h.failing_since) * 1000)::bigint,
           (date_part('epoch', statement_timestamp() - h.attempted_at) * 1000)::bigint,
           h.due, e.seq, e.id, e.aggregatetype, e.aggregateid, e.type, (date_part('epoch', e.created_at) * 1000)::bigint, e.replayed,
           e.bytes, CASE WHEN e.bytes > $8::bigint THEN e.position END,
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
    JOIN outbox_aggregate AS a ON a.id = h.aggregate
    LEFT JOIN LATERAL (
        SELECT o.seq, o.position, o.id, o.aggregatetype, o.aggregateid, o.type, o.payload, o.payload_bytes, o.headers, o.created_at, o.replayed,
               coalesce(octet_length(o.payload), octet_length(o.payload_bytes), 0) + coalesce(octet_length(o.headers), 0) AS bytes
        FROM outbox AS o WHERE o.aggregate = h.aggregate AND o.seq > h.done_seq AND o.seq <= a.last_seq
        ORDER BY o.seq LIMIT CASE WHEN h.due THEN 1 ELSE $6 END
    ) AS e ON true
    LIMIT $6";

pub(super) async fn fetch(store: &PostgresStore, me: &PublisherRegistration, request: &FetchRequest) -> crate::Result<FetchResult> {
    let mut reading = PgRunCollector::new(request.events_max, request.bytes_max);
    let end = call!(store, conn => read_all(conn, me, request, &mut reading))?;
    if !reading.drained.is_empty() && store.may_strike() {
        call!(store, conn => upkeep::strike_off(conn, &reading.drained))?;
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
    reading: &mut PgRunCollector,
) -> Result<ReadEnd, StatementError> {
    if me.slots > SLOTS_MAX && !sqlx::query_scalar::<_, bool>(ANY).bind(retry_ahead_max_ms()).fetch_one(&mut *conn).await? {
        return Ok(ReadEnd::All);
    }
    // Retries that are due come first, but leave room for other events.
    let mut due = i64::try_from(reading.events_left.div_ceil(2)).unwrap_or(i64::MAX);
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
async fn last_of_turn(conn: &mut PgConnection, me: &PublisherRegistration, from: i64) -> Result<Option<i64>, StatementError> {
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
    reading: &mut PgRunCollector,
) -> Result<bool, StatementError> {
    let limit = i64::try_from(reading.events_left).unwrap_or(i64::MAX);
    let except_slots: Vec<i64> = request.except_slots.iter().copied().map(i64::from).collect();
    let query = sqlx::query(FETCH)
        .bind(me.incarnation.to_string())
        .bind(range.0)
        .bind(range.1)
        .bind(except_slots)
        .bind(&request.except_aggregates)
        .bind(limit)
        .bind(retry_ahead_max_ms())
        .bind(i64::try_from(reading.bytes_each()).unwrap_or(i64::MAX))
        .bind(due)
        .bind(i64::from(me.slots));
    reading.next_statement();
    let (mut rows, mut read, mut read_due) = (query.fetch(&mut *conn), 0, 0);
    while let Some(row) = rows.try_next().await? {
        read += 1;
        let is_due = row.try_get(reading::DUE)?;
        read_due += i64::from(is_due);
        reading.add(&row, is_due)?;
    }
    drop(rows);
    let whole = reading.fill(conn).await?;
    Ok(whole && read < limit && reading.bytes_left > 0 && (due == 0 || read_due < due))
}
