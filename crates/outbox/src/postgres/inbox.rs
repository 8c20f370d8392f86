//! The inbox: aggregates that a writer has listed since they were last struck off. A publisher reads them by number and computes their
//! hashes itself; only what fails, or has more behind it, gets a row of the publishers' (docs/adr/0056-inbox.md).
//!
//! An aggregate with such a row is delivered as far as `done_seq` there says, one without as far as `drained_seq` says. While the row is
//! listed, the aggregate is read by its hash, and nothing of it is read here.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use shardwise::ShardKey;
use sqlx::PgConnection;

use super::error::gave_way;
use super::events::{collect, with_events};
use super::record::short_of_a_deadlock;
use crate::AggregateId;
use crate::store::rows::RunCollector;
use crate::store::sql::{from_ordered, signed, to_ordered};
use crate::store::{FetchRequest, PublisherRegistration};

/// The keys of one statement, and the statements of one reading: what is behind them is read next.
const KEYS: usize = 1_000;
const PAGES: usize = 10;
/// The interval between attempts to take aggregates out of the inbox that are on the publishers' list as well, unless there are as many as
/// one statement reads. Each of them costs its next writer an update.
const HAND_OVER_EVERY: Duration = Duration::from_secs(5);

/// How far the aggregate `$of` is delivered, one lookup in each table.
#[rustfmt::skip]
macro_rules! delivered {
    ($of:literal) => {
        concat!(
            "(SELECT coalesce(h.done_seq, a.drained_seq) AS done_seq FROM outbox_aggregate AS a LEFT JOIN outbox_head AS h ON h.aggregate = a.id
              WHERE a.id = ", $of, " OFFSET 0)"
        )
    };
}
pub(super) use delivered;

/// The first `$limit` aggregates of the inbox. On schema 5 there is no inbox, and no index to read it by.
#[rustfmt::skip]
macro_rules! listed_by_writers {
    ($limit:literal) => {
        concat!(
            "SELECT id, key, last_seq, drained_seq FROM outbox_aggregate
             WHERE last_seq <> drained_seq AND (SELECT schema_version FROM outbox_meta) >= 6 ORDER BY last_seq, id LIMIT ", $limit
        )
    };
}
pub(super) use listed_by_writers;

/// Those of the first `$limit` aggregates of the inbox that are on no other list.
#[rustfmt::skip]
macro_rules! inbox {
    ($limit:literal) => {
        concat!(
            "SELECT a.id AS aggregate, a.key, coalesce(h.done_seq, a.drained_seq) AS done_seq FROM (", listed_by_writers!($limit), ") AS a
             LEFT JOIN outbox_head AS h ON h.aggregate = a.id WHERE h.listed IS NOT TRUE"
        )
    };
}
pub(super) use inbox;

/// $1 number and $2 aggregate to begin behind, $3 how many. Returns also whether the aggregate is on the publishers' list. Public for the
/// test that reads the plan.
pub const INBOX: &str = "
    SELECT a.id, a.key, a.last_seq, l.listed FROM (
        SELECT id, key, last_seq FROM outbox_aggregate
        WHERE last_seq <> drained_seq AND (last_seq, id) > ($1, $2) AND (SELECT schema_version FROM outbox_meta) >= 6
        ORDER BY last_seq, id LIMIT $3
    ) AS a CROSS JOIN LATERAL (SELECT EXISTS (SELECT 1 FROM outbox_head AS h WHERE h.aggregate = a.id AND h.listed) AS listed OFFSET 0) AS l";

/// The columns of `FETCH`. $1 incarnation, $2 aggregates with their $3 hashes and $4 slots, $5 events at most, $6 the size in bytes above
/// which an event comes without its payload and headers. Where each is delivered is read with its events, because it may have been struck
/// off since the inbox was read. Public for the test that reads the plan.
pub const DIRECT: &str = with_events!(
    "SELECT s.slot, s.epoch, false AS due, g.aggregate, g.hash, d.done_seq, 0::bigint AS attempts, 0::bigint AS failures,
            NULL::timestamptz AS failing_since, NULL::timestamptz AS attempted_at
     FROM unnest($2::bigint[], $3::bigint[], $4::bigint[]) AS g (aggregate, hash, slot)
     CROSS JOIN LATERAL (SELECT t.* FROM outbox_slot AS t WHERE t.slot = g.slot OFFSET 0) AS s
     CROSS JOIN LATERAL (
        SELECT coalesce(h.done_seq, a.drained_seq) AS done_seq FROM outbox_aggregate AS a LEFT JOIN outbox_head AS h ON h.aggregate = a.id
        WHERE a.id = g.aggregate AND h.listed IS NOT TRUE OFFSET 0
     ) AS d
     WHERE s.incarnation = $1",
    "$5",
    "$6"
);

/// $1 aggregates. Those on the publishers' list leave the inbox, unless a writer or another publisher holds a row of them. Both rows are
/// locked and looked at again: a writer that comes afterwards puts its aggregate into the inbox. The trigger of schema 6 looks at statements
/// that do not name themselves.
const HAND_OVER: &str = concat!(
    "WITH patience AS MATERIALIZED (SELECT ",
    short_of_a_deadlock!(),
    ", set_config('shardwise.strike', 'on', true)), free AS MATERIALIZED (
        SELECT a.id, greatest(a.last_seq, h.done_seq) AS seq
        FROM patience CROSS JOIN outbox_aggregate AS a JOIN outbox_head AS h ON h.aggregate = a.id
        WHERE a.id = ANY ($1::bigint[]) AND a.last_seq <> a.drained_seq AND h.listed
        FOR NO KEY UPDATE OF a, h SKIP LOCKED
    )
    UPDATE outbox_aggregate AS a SET last_seq = f.seq, drained_seq = f.seq FROM free AS f WHERE a.id = f.id"
);

/// The number and the aggregate at which a reading of the inbox stopped.
type InboxPlace = (i64, AggregateId);

const BEGINNING: InboxPlace = (i64::MIN, i64::MIN);

/// Where the next reading continues. A number may be visible later than a higher one of another aggregate, so the place is good for one lap:
/// each begins at the beginning.
#[derive(Debug, Clone)]
pub(super) struct InboxCursor(Arc<Mutex<CursorState>>);

#[derive(Debug)]
struct CursorState {
    after: InboxPlace,
    goes_first: bool,
    handed_over_at: Option<Instant>,
}

impl Default for InboxCursor {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(CursorState { after: BEGINNING, goes_first: false, handed_over_at: None })))
    }
}

impl InboxCursor {
    fn state(&self) -> MutexGuard<'_, CursorState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the inbox is read before the publishers' list: every other time, so that neither fills all readings.
    pub(super) fn goes_first(&self) -> bool {
        let mut state = self.state();
        let first = state.goes_first;
        state.goes_first = !first;
        first
    }

    pub(super) fn may_hand_over(&self, placed: usize) -> bool {
        let mut state = self.state();
        let due = placed >= KEYS || placed > 0 && state.handed_over_at.is_none_or(|at| at.elapsed() >= HAND_OVER_EVERY);
        if due {
            state.handed_over_at = Some(Instant::now());
        }
        due
    }
}

/// What a reading of the inbox found besides events.
pub(super) struct InboxReading {
    /// Whether it went once around without being cut short.
    pub(super) is_whole: bool,
    /// Aggregates that are on the publishers' list as well.
    pub(super) placed: Vec<AggregateId>,
}

/// Reads the inbox once around, as far as there is room.
pub(super) async fn read(
    cursor: &InboxCursor,
    conn: &mut PgConnection,
    me: &PublisherRegistration,
    request: &FetchRequest,
    reading: &mut RunCollector,
) -> Result<InboxReading, sqlx::Error> {
    let begun = if request.after.is_none() { BEGINNING } else { cursor.state().after };
    let except: HashSet<AggregateId> = request.except_aggregates.iter().copied().collect();
    let (mut at, mut has_wrapped, mut placed) = (begun, begun == BEGINNING, Vec::new());
    for _ in 0..PAGES {
        if reading.is_full() {
            break;
        }
        let page: Vec<(AggregateId, String, i64, bool)> =
            sqlx::query_as(INBOX).bind(at.0).bind(at.1).bind(signed(KEYS)).fetch_all(&mut *conn).await?;
        let (is_last, end) = (page.len() < KEYS, page.last().map_or(at, |(id, _, number, _)| (*number, *id)));
        let positions: HashMap<AggregateId, InboxPlace> = page.iter().map(|(id, _, number, _)| (*id, (*number, *id))).collect();
        let mut new = NewAggregates::default();
        for (id, key, number, is_listed) in page {
            if has_wrapped && begun != BEGINNING && (number, id) > begun {
                break;
            }
            if is_listed {
                placed.push(id);
            } else if !except.contains(&id) {
                new.add(id, &key, me.slots, &request.except_slots);
            }
        }
        if let Some(stopped) = read_events(conn, me, new, reading).await? {
            at = positions.get(&stopped).copied().unwrap_or(at);
            break;
        }
        at = end;
        if is_last && !has_wrapped {
            (at, has_wrapped) = (BEGINNING, true);
        } else if is_last || has_wrapped && begun != BEGINNING && at >= begun {
            cursor.state().after = BEGINNING;
            return Ok(InboxReading { is_whole: true, placed });
        }
    }
    cursor.state().after = at;
    Ok(InboxReading { is_whole: false, placed })
}

/// Aggregates with their hashes and slots, as a statement's arrays.
#[derive(Default)]
struct NewAggregates {
    aggregates: Vec<AggregateId>,
    hashes: Vec<i64>,
    slots: Vec<i64>,
}

impl NewAggregates {
    fn add(&mut self, aggregate: AggregateId, key: &str, slots: u32, except: &[u32]) {
        let hash = to_ordered(key.key_hash());
        let slot = (u128::from(from_ordered(hash)) * u128::from(slots)) >> 64;
        let slot = u32::try_from(slot).unwrap_or(u32::MAX);
        if !except.contains(&slot) {
            self.aggregates.push(aggregate);
            self.hashes.push(hash);
            self.slots.push(i64::from(slot));
        }
    }
}

/// Reads the events of those whose slots this publisher holds. Returns the last aggregate read if a limit cut it short.
async fn read_events(
    conn: &mut PgConnection,
    me: &PublisherRegistration,
    new: NewAggregates,
    reading: &mut RunCollector,
) -> Result<Option<AggregateId>, sqlx::Error> {
    if new.aggregates.is_empty() {
        return Ok(None);
    }
    let limit = signed(reading.events_left);
    let query = sqlx::query(DIRECT)
        .bind(me.incarnation.to_string())
        .bind(new.aggregates)
        .bind(new.hashes)
        .bind(new.slots)
        .bind(limit)
        .bind(signed(reading.bytes_left / reading.events_left.max(1)));
    // The place among the hashes is not moved by what is read here.
    let last_hash = reading.last_hash;
    let collected = collect(conn, query, reading).await?;
    reading.last_hash = last_hash;
    let is_cut = !collected.is_whole || collected.rows >= limit || reading.bytes_left == 0;
    Ok(collected.last.filter(|_| is_cut))
}

pub(super) async fn hand_over(conn: &mut PgConnection, aggregates: &[AggregateId]) -> Result<(), sqlx::Error> {
    match sqlx::query(HAND_OVER).bind(aggregates).execute(conn).await {
        // They stay in the inbox until the next attempt.
        Err(error) if !gave_way(&error) => Err(error),
        _ => Ok(()),
    }
}
