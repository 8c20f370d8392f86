//! The writers' list: aggregates that a writer has listed since they were last struck off. A publisher reads them by number and computes
//! their hashes itself; only what fails, or has more behind it, gets a row of the publishers' (docs/adr/0056-writers-list.md).
//!
//! An aggregate with such a row is delivered as far as `done_seq` there says, one without as far as `drained_seq` says. While the row is
//! listed, the aggregate is read by its hash, and nothing of it is read here.

use std::collections::{HashMap, HashSet};

use shardwise::{ShardKey, slot_of};
use sqlx::PgConnection;

use super::error::gave_way;
use super::events::{ListedAggregate, RowHeads, collect, event_columns, pending_events};
use super::list_cursor::{BEGINNING, ListCursor, ListPlace};
use super::record::short_of_a_deadlock;
use crate::AggregateId;
use crate::store::rows::RunCollector;
use crate::store::sql::{from_ordered, signed, small, to_ordered, unsigned};
use crate::store::{FetchRequest, Hold, PublisherRegistration};

/// The most keys of one statement, and the statements of one reading: what is behind them is read next.
pub(super) const KEYS: usize = 1_000;
const PAGES: usize = 10;

/// How far the aggregate `$of` is delivered, one lookup in each table. One without a row is forgotten, and all of its events are delivered;
/// but not where rows have come without their aggregates, as by logical replication: then the floor is not set.
#[rustfmt::skip]
macro_rules! delivered {
    ($of:literal) => {
        concat!(
            "(SELECT coalesce(
                (SELECT coalesce(h.done_seq, a.drained_seq) FROM outbox_aggregate AS a LEFT JOIN outbox_head AS h ON h.aggregate = a.id
                 WHERE a.id = ", $of, " OFFSET 0),
                CASE WHEN (SELECT is_called FROM outbox_floor) THEN 9223372036854775807 END) AS done_seq)"
        )
    };
}
pub(super) use delivered;

/// The first `$limit` aggregates of the writers' list. On schema 5 there is no writers' list, and no index to read it by.
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

/// Those of the first `$limit` aggregates of the writers' list that are on no other list.
#[rustfmt::skip]
macro_rules! writers_list {
    ($limit:literal) => {
        concat!(
            "SELECT a.id AS aggregate, a.key, coalesce(h.done_seq, a.drained_seq) AS done_seq FROM (", listed_by_writers!($limit), ") AS a
             LEFT JOIN LATERAL (SELECT h.listed, h.done_seq FROM outbox_head AS h WHERE h.aggregate = a.id OFFSET 0) AS h ON true
             WHERE h.listed IS NOT TRUE"
        )
    };
}
pub(super) use writers_list;

/// $1 incarnation.
const HELD: &str = "SELECT coalesce(array_agg(slot), '{}'), coalesce(array_agg(epoch), '{}') FROM outbox_slot WHERE incarnation = $1";

/// $1 number and $2 aggregate to begin behind, $3 how many. Returns also whether the aggregate is on the publishers' list, and how far it
/// is delivered. LATERAL forces one lookup for each aggregate: a plan that was made while the publishers' list was empty would compare each
/// aggregate with each row of it. Public for the test that reads the plan.
pub const LISTED: &str = "
    SELECT a.id, a.key, a.last_seq, h.listed IS TRUE, coalesce(h.done_seq, a.drained_seq) FROM (
        SELECT id, key, last_seq, drained_seq FROM outbox_aggregate
        WHERE last_seq <> drained_seq AND (last_seq, id) > ($1, $2) AND (SELECT schema_version FROM outbox_meta) >= 6
        ORDER BY last_seq, id LIMIT $3
    ) AS a LEFT JOIN LATERAL (SELECT h.listed, h.done_seq FROM outbox_head AS h WHERE h.aggregate = a.id OFFSET 0) AS h ON true";

/// The events of listed aggregates. $1 aggregates and $2 the sequences up to which they are delivered, $3 events at most, $4 the size in
/// bytes above which an event comes without its payload and headers. Public for the test that reads the plan.
pub const DIRECT: &str = concat!(
    "SELECT g.place, ",
    event_columns!("$4"),
    " FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS g (aggregate, done_seq, place) LEFT JOIN LATERAL ",
    pending_events!("g", "$3::bigint"),
    " AS e ON true LIMIT $3"
);

/// $1 aggregates and $2 their hashes. They move to the publishers' list, unless a writer or another publisher holds a row of them: a
/// reading by hash passes over none of the others' aggregates. The writers' row is locked and looked at again, because the aggregate may
/// have been delivered and struck off meanwhile; without a publishers' row, `drained_seq` there is how far it is delivered. A writer that
/// comes afterwards puts it on the writers' list. The trigger of schema 6 looks at statements that do not name themselves.
const HAND_OVER: &str = concat!(
    "WITH patience AS MATERIALIZED (SELECT ",
    short_of_a_deadlock!(),
    ", set_config('shardwise.strike', 'on', true)), free AS MATERIALIZED (
        SELECT a.id, a.last_seq, a.drained_seq, g.hash
        FROM patience CROSS JOIN unnest($1::bigint[], $2::bigint[]) AS g (id, hash) CROSS JOIN LATERAL (
            SELECT w.id, w.last_seq, w.drained_seq FROM outbox_aggregate AS w WHERE w.id = g.id AND w.last_seq <> w.drained_seq
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS a
    ), placed AS (
        INSERT INTO outbox_head AS h (aggregate, hash, done_seq) SELECT f.id, f.hash, f.drained_seq FROM free AS f
        ON CONFLICT (aggregate) DO UPDATE SET hash = excluded.hash, listed = true RETURNING h.aggregate, h.done_seq
    )
    UPDATE outbox_aggregate AS a SET last_seq = greatest(f.last_seq, p.done_seq), drained_seq = greatest(f.last_seq, p.done_seq)
    FROM placed AS p JOIN free AS f ON f.id = p.aggregate WHERE a.id = f.id"
);

/// What a reading of the writers' list found besides events.
pub(super) struct ListReading {
    /// Whether it went once around without being cut short.
    pub(super) is_whole: bool,
    /// Whether it was cut short, and the next reading follows at once.
    pub(super) goes_on: bool,
    /// Aggregates that need not be on this list: those that are on the publishers' list as well, and old ones that were not read.
    leaving: HashedAggregates,
    /// The aggregates in it.
    known: HashSet<AggregateId>,
}

impl ListReading {
    /// How many aggregates need not be on this list.
    pub(super) fn leaving(&self) -> usize {
        self.leaving.aggregates.len()
    }

    /// A writer may list an aggregate again during the reading, behind the place where it was.
    fn leaves(&mut self, aggregate: AggregateId, hash: i64) {
        if self.known.insert(aggregate) {
            self.leaving.aggregates.push(aggregate);
            self.leaving.hashes.push(hash);
        }
    }
}

/// Reads the writers' list once around, as far as there is room.
///
/// The holds are read first, and then the list with how far each aggregate is delivered. So what is read of the list is later than any mark
/// of a former holder of the slot, and only this publisher can have marked more since: it leaves out what it has in flight.
pub(super) async fn read(
    cursor: &ListCursor,
    conn: &mut PgConnection,
    me: &PublisherRegistration,
    request: &FetchRequest,
    reading: &mut RunCollector,
) -> Result<ListReading, sqlx::Error> {
    let (begun, old_through) = cursor.begin(request.after.is_none());
    let held = held(conn, me, &request.except_slots).await?;
    let except: HashSet<AggregateId> = request.except_aggregates.iter().copied().collect();
    let (mut at, mut has_wrapped, mut highest, mut passed_end) = (begun, begun == BEGINNING, i64::MIN, false);
    let mut list = ListReading { is_whole: false, goes_on: false, leaving: HashedAggregates::default(), known: HashSet::new() };
    for turn in 0..PAGES {
        if reading.is_full() {
            break;
        }
        let most = if turn == 0 { cursor.first_page() } else { KEYS };
        let page: Vec<(AggregateId, String, i64, bool, i64)> =
            sqlx::query_as(LISTED).bind(at.0).bind(at.1).bind(signed(most)).fetch_all(&mut *conn).await?;
        let (is_last, end) = (page.len() < most, page.last().map_or(at, |(id, _, number, ..)| (*number, *id)));
        highest = highest.max(end.0);
        let places: Vec<ListPlace> = page.iter().map(|(id, _, number, ..)| (*number, *id)).collect();
        let (mut new, mut old) = (Vec::new(), Vec::new());
        for (id, key, number, is_listed, done) in page {
            if has_wrapped && begun != BEGINNING && (number, id) > begun {
                break;
            }
            let hash = to_ordered(key.key_hash());
            if is_listed {
                list.leaves(id, hash);
            } else if !except.contains(&id) {
                let slot = slot_of(from_ordered(hash), me.slots);
                if let Some(epoch) = held.get(&slot) {
                    new.push(ListedAggregate { aggregate: id, done, hold: Hold { slot, epoch: *epoch } });
                }
                if number <= old_through {
                    old.push((id, hash, (number, id)));
                }
            }
        }
        let stopped = read_events(conn, &new, reading).await?.map(|stopped| places.iter().position(|(_, id)| *id == stopped));
        if turn == 0 && (stopped.is_some() || !is_last) {
            cursor.paged(stopped.flatten());
        }
        let cut = stopped.map(|stopped| stopped.and_then(|index| places.get(index)).copied().unwrap_or(at));
        let came: HashSet<AggregateId> = reading.runs.iter().map(|run| run.aggregate).collect();
        old.retain(|(id, _, place)| !came.contains(id) && cut.is_none_or(|cut| *place <= cut));
        old.into_iter().take(KEYS).for_each(|(id, hash, _)| list.leaves(id, hash));
        if let Some(stopped) = cut {
            at = stopped;
            break;
        }
        at = end;
        passed_end |= is_last;
        if is_last && !has_wrapped {
            (at, has_wrapped) = (BEGINNING, true);
        } else if is_last || has_wrapped && begun != BEGINNING && at >= begun {
            (at, list.is_whole) = (BEGINNING, true);
            break;
        }
    }
    let may_go_on = cursor.end(at, highest, !reading.runs.is_empty(), passed_end);
    list.goes_on = may_go_on && !list.is_whole && at != begun;
    Ok(list)
}

/// Aggregates with their hashes, as a statement's arrays.
#[derive(Default)]
struct HashedAggregates {
    aggregates: Vec<AggregateId>,
    hashes: Vec<i64>,
}

/// The slots that this publisher holds, but for `except`, with their epochs.
async fn held(conn: &mut PgConnection, me: &PublisherRegistration, except: &[u32]) -> Result<HashMap<u32, u64>, sqlx::Error> {
    let (slots, epochs): (Vec<i64>, Vec<i64>) = sqlx::query_as(HELD).bind(me.incarnation.to_string()).fetch_one(conn).await?;
    let mut held: HashMap<u32, u64> = slots.into_iter().map(small).zip(epochs.into_iter().map(unsigned)).collect();
    for slot in except {
        held.remove(slot);
    }
    Ok(held)
}

/// Reads the events of these. Returns the last aggregate read if a limit cut it short.
async fn read_events(
    conn: &mut PgConnection,
    new: &[ListedAggregate],
    reading: &mut RunCollector,
) -> Result<Option<AggregateId>, sqlx::Error> {
    if new.is_empty() {
        return Ok(None);
    }
    let limit = signed(reading.events_left);
    let (aggregates, done): (Vec<i64>, Vec<i64>) = new.iter().map(|one| (one.aggregate, one.done)).unzip();
    let bytes = signed(reading.bytes_left / reading.events_left.max(1));
    let query = sqlx::query(DIRECT).bind(aggregates).bind(done).bind(limit).bind(bytes);
    let collected = collect(conn, query, RowHeads::Given(new), reading).await?;
    let is_cut = !collected.is_whole || collected.rows >= limit || reading.bytes_left == 0;
    Ok(collected.last.filter(|_| is_cut))
}

/// Moves aggregates to the publishers' list, at most as many as one statement reads.
pub(super) async fn hand_over(cursor: &ListCursor, conn: &mut PgConnection, reading: &ListReading) -> Result<(), sqlx::Error> {
    let HashedAggregates { aggregates, hashes } = &reading.leaving;
    let (some, turn) = (aggregates.len().min(KEYS), cursor.turn(aggregates.len()));
    let these = |list: &[i64]| list.iter().cycle().skip(turn).take(some).copied().collect::<Vec<_>>();
    match sqlx::query(HAND_OVER).bind(these(aggregates)).bind(these(hashes)).execute(conn).await {
        Ok(done) => cursor.handed_over(done.rows_affected() > 0),
        // They stay on the writers' list until the next attempt.
        Err(error) if gave_way(&error) => cursor.handed_over(false),
        Err(error) => return Err(error),
    }
    Ok(())
}
