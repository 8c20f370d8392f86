//! Reading pending events by the publisher's slots: each slot is a range of the index of aggregates with something to send.
//!
//! Rows of other slots are outside the ranges, and aggregates with a blocked head are not in the index, so neither is visited; a test
//! reads the plan. What writers have listed since is on the writers' list.

use sqlx::PgConnection;

use super::events::{RowHeads, collect, event_columns, pending_events};
use super::list_cursor::ListCursor;
use super::writers_list::{self, ListReading};
use super::{PostgresStore, call, clean};
use crate::store::rows::RunCollector;
use crate::store::sql::{ErrorContext, around, from_ordered, retry_ahead_max_ms, signed};
use crate::store::{FetchRequest, FetchResult, PublisherRegistration};

/// The most held slots that one statement visits, each with an index seek; more slots are visited in turns.
const SLOTS_MAX: u32 = 1_024;
/// $1 incarnation, $2 first hash, $3 its slot, $4 how many slots to skip: returns where the slot after them begins.
const BEYOND: &str = "
    SELECT hash_from FROM outbox_slot WHERE incarnation = $1 AND slot >= $3 AND hash_to >= $2 ORDER BY slot OFFSET $4 LIMIT 1";

/// Whether any publisher has anything to read; $1 the longest wait a retry can have, in milliseconds. Without it a publisher would visit
/// each of its slots at every poll, and usually everything is on the writers' list.
const ANY: &str = "
    SELECT EXISTS (SELECT 1 FROM outbox_head WHERE ready ORDER BY hash LIMIT 1)
        OR EXISTS (SELECT 1 FROM outbox_head WHERE waiting AND retry_at <= statement_timestamp() ORDER BY retry_at LIMIT 1)
        OR EXISTS (SELECT 1 FROM outbox_head WHERE waiting AND retry_at > statement_timestamp() + $1::bigint * interval '1 millisecond' LIMIT 1)";

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
pub const FETCH: &str = concat!(
    "SELECT h.slot, h.epoch, h.aggregate, h.hash, h.done_seq, NULL::bigint, h.attempts, h.failures,
        (date_part('epoch', statement_timestamp() - h.failing_since) * 1000)::bigint,
        (date_part('epoch', statement_timestamp() - h.attempted_at) * 1000)::bigint, ",
    event_columns!("$8"),
    ", h.due FROM (
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
    ) AS h LEFT JOIN LATERAL ",
    pending_events!("h", "CASE WHEN h.due THEN 1 ELSE $6::bigint END"),
    " AS e ON true LIMIT $6"
);

pub(super) async fn fetch(store: &PostgresStore, me: &PublisherRegistration, request: &FetchRequest) -> crate::Result<FetchResult> {
    let mut reading = RunCollector::new(request.events_max, request.bytes_max);
    let (end, list) = call!(store, conn => read_both(conn, &store.writers_list, me, request, &mut reading))?;
    if !reading.drained.is_empty() && store.may_strike() {
        call!(store, conn => clean::strike_off(conn, &reading.drained))?;
    }
    if store.writers_list.may_hand_over(list.leaving()) {
        call!(store, conn => writers_list::hand_over(&store.writers_list, conn, &list))?;
    }
    let resume = match end {
        ReadEnd::All if list.is_whole => None,
        ReadEnd::Slots(through) => Some(from_ordered(through)),
        // If only retries or the writers' list were read, the cursor stays where it was.
        ReadEnd::All => Some(request.after.unwrap_or(u64::MAX)),
        ReadEnd::Full => Some(reading.last_hash.map(from_ordered).or(request.after).unwrap_or(u64::MAX)),
    };
    Ok(FetchResult { runs: reading.runs, resume, more: list.goes_on })
}

/// Reads the publishers' list and the writers' list, in turns which is first.
async fn read_both(
    conn: &mut PgConnection,
    cursor: &ListCursor,
    me: &PublisherRegistration,
    request: &FetchRequest,
    reading: &mut RunCollector,
) -> Result<(ReadEnd, ListReading), sqlx::Error> {
    if cursor.goes_first() {
        let list = writers_list::read(cursor, conn, me, request, reading).await?;
        return Ok((read_all(conn, me, request, reading).await?, list));
    }
    let end = read_all(conn, me, request, reading).await?;
    Ok((end, writers_list::read(cursor, conn, me, request, reading).await?))
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
    if reading.is_full() {
        return Ok(ReadEnd::Full);
    }
    if !sqlx::query_scalar::<_, bool>(ANY).bind(retry_ahead_max_ms()).fetch_one(&mut *conn).await? {
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
    let collected = collect(conn, query, RowHeads::Selected, reading).await?;
    Ok(collected.is_whole && collected.rows < limit && reading.bytes_left > 0 && (due == 0 || collected.due < due))
}
