//! Recording the outcomes of events under the fence: one conditional statement for each kind, and one transaction for a whole batch.

use std::time::{Duration, Instant};

use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{Connection, PgConnection, Postgres, Row};

use super::error::gave_way;
use super::fence::columns;
use super::history::CommitHistory;
use super::writers_list::delivered;
use crate::store::sql::{changes, done_through, holds, holds_of, millis, shortened, unsigned};
use crate::store::{HeadUpdate, Hold, Outcome, PublisherRegistration};

/// The outcomes whose holds are current, looked up in a hash (IS TRUE prevents a nested loop); the slots stay locked until the transaction
/// ends, also for other calls of this publisher: a call that was given up may still be running. $1 aggregates, $2 slots and $3 epochs as
/// parallel arrays, $4 incarnation; `$what` are the other columns. The slots are given as an array, which the index looks up one by one:
/// without statistics the server would compare each held slot with each outcome.
#[rustfmt::skip]
macro_rules! under_the_fence {
    ($columns:literal, $arrays:literal) => {
        concat!(
            "WITH given AS MATERIALIZED (
                SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], ", $arrays, ") AS g (aggregate, slot, epoch, ", $columns, ")
            ), fence AS MATERIALIZED (
                SELECT t.slot, t.epoch FROM outbox_slot AS t
                WHERE t.slot = ANY (ARRAY(SELECT DISTINCT slot FROM given)) AND t.incarnation = $4 ORDER BY t.slot FOR NO KEY UPDATE
            ), allowed AS MATERIALIZED (
                SELECT g.* FROM given AS g WHERE ((g.slot, g.epoch) IN (SELECT slot, epoch FROM fence)) IS TRUE
            )"
        )
    };
}

/// How long the rest of a transaction waits for a lock, as an expression: a quarter of the time after which the server looks for
/// deadlocks, at most 200 ms.
///
/// SKIP LOCKED sometimes waits: if a row was updated by a transaction that has just committed and another update is under way, PostgreSQL
/// follows the row's versions and waits for the newest one's transaction (`heap_lock_updated_tuple`). If this transaction holds rows of
/// other aggregates meanwhile, it can deadlock with a writer that locks in the right order. The writer must not be the victim, so this
/// side gives up before the server chooses one.
macro_rules! short_of_a_deadlock {
    () => {
        "set_config('lock_timeout', greatest(least(extract(epoch FROM current_setting('deadlock_timeout')::interval) * 250, 200), 1)::bigint::text, true)"
    };
}
pub(super) use short_of_a_deadlock;

/// $5 sequences, $6 hashes or NULL, $7 whether no later event was read. Returns how many aggregates it changed. One with everything
/// delivered is struck off, unless a writer holds its row: then more events may follow. `outbox_strike` looks for later events behind the
/// lock in a new snapshot, because a writer that came and went meanwhile has left no new version of its row. Each other one is put on the
/// publishers' list, or its row there is moved on. A late or repeated call is harmless: it strikes off again what has nothing pending, and
/// `outbox_place` looks, behind the fence, at what was already applied. Each outcome of a current hold changes at most one aggregate, so
/// their number shows whether any was fenced. LATERAL forces one lookup for each aggregate. Public for the test that reads the plan.
pub const MARK: &str = concat!(
    under_the_fence!("through, hash, is_last", "$5::bigint[], $6::bigint[], $7::boolean[]"),
    ", patience AS MATERIALIZED (SELECT ",
    short_of_a_deadlock!(),
    " FROM (SELECT count(*) FROM allowed) AS behind_the_fence), idle AS MATERIALIZED (
        SELECT array_agg(m.aggregate) AS aggregates, array_agg(m.through) AS through FROM patience CROSS JOIN allowed AS m WHERE m.is_last
    ), struck AS MATERIALIZED (
        SELECT s.aggregate FROM idle AS i CROSS JOIN LATERAL outbox_strike(i.aggregates, i.through) AS s (aggregate)
        WHERE i.aggregates IS NOT NULL
    )
    SELECT (SELECT count(*) FROM struck) + coalesce((
        SELECT outbox_place(array_agg(m.aggregate), array_agg(m.hash), array_agg(m.through), true)
        FROM allowed AS m WHERE m.aggregate NOT IN (SELECT aggregate FROM struck) HAVING count(*) > 0), 0)"
);

/// $5 sequences, $6 hashes or NULL. Puts aggregates on the publishers' list, which has the retries, if they are on the writers' list alone.
const PLACE: &str = concat!(
    under_the_fence!("seq, hash", "$5::bigint[], $6::bigint[]"),
    " SELECT outbox_place(array_agg(f.aggregate), array_agg(f.hash), array_agg(f.seq), false) FROM allowed AS f HAVING count(*) > 0"
);

/// $1 aggregates and $2 sequences; deletes the events just marked.
const DELETE: &str = concat!(
    "DELETE FROM outbox AS o
    USING unnest($1::bigint[], $2::bigint[]) AS m (aggregate, through) CROSS JOIN LATERAL ",
    delivered!("m.aggregate"),
    " AS d WHERE d.done_seq >= m.through AND o.aggregate = m.aggregate AND o.seq <= m.through AND o.parked_at IS NULL"
);

/// $1 slots and $2 epochs, $3 incarnation: returns those that are not current.
const FENCED: &str = "SELECT h.slot, h.epoch FROM unnest($1::bigint[], $2::bigint[]) AS h (slot, epoch)
    WHERE NOT EXISTS (SELECT 1 FROM outbox_slot AS s WHERE s.slot = h.slot AND s.epoch = h.epoch AND s.incarnation = $3)";

/// $5 attempts, $6 failures, $7 milliseconds until the next attempt or NULL, $8 blocked, $9 errors, $10 sequences. If the head has moved
/// on meanwhile (an operator discarded it, for example), a repeated call writes nothing, because the next event has not failed. A late
/// retry does not replace a newer one. A retry without another failure is an event that was put off and not tried; its failure time begins
/// when it fails.
const FAIL: &str = concat!(
    under_the_fence!(
        "attempts, failures, retry_in, blocked, error, seq",
        "$5::bigint[], $6::bigint[], $7::bigint[], $8::boolean[], $9::text[], $10::bigint[]"
    ),
    "UPDATE outbox_head AS h
     SET attempts = f.attempts, failures = f.failures, failing_since = CASE WHEN f.failures > 0 THEN coalesce(h.failing_since, statement_timestamp()) END,
         attempted_at = CASE WHEN f.failures > h.failures THEN statement_timestamp() ELSE h.attempted_at END, retry_at = statement_timestamp() + f.retry_in * interval '1 millisecond',
         blocked_at = CASE WHEN f.blocked THEN statement_timestamp() END, last_error = f.error
     FROM allowed AS f WHERE h.aggregate = f.aggregate AND h.listed AND h.done_seq < f.seq AND (f.blocked OR h.failures <= f.failures)"
);

/// $5 sequences, $6 errors.
const PARK: &str = concat!(
    under_the_fence!("seq, error", "$5::bigint[], $6::text[]"),
    "UPDATE outbox AS o SET parked_at = statement_timestamp(), parked_error = p.error
     FROM allowed AS p WHERE o.aggregate = p.aggregate AND o.seq = p.seq"
);

/// $5 sequences, $6 errors, $7 who. The event is marked afterwards and deleted with the delivered ones. A repeated call writes nothing.
const DISCARD: &str = concat!(
    under_the_fence!("seq, error", "$5::bigint[], $6::text[]"),
    "INSERT INTO outbox_audit (who, action, event, key, seq, why)
     SELECT $7, 'discard', o.id, o.aggregatetype || '/' || o.aggregateid, o.seq, d.error
     FROM allowed AS d JOIN outbox AS o ON o.aggregate = d.aggregate AND o.seq = d.seq CROSS JOIN LATERAL ",
    delivered!("d.aggregate"),
    " AS n WHERE n.done_seq < d.seq"
);

/// How often a recording that gave way is tried in one call, if it gave way quickly: not if it has waited for a slot's row, which may take
/// the session's 5 s.
const TRIES: usize = 3;
const GAVE_WAY_WITHIN: Duration = Duration::from_secs(1);

/// A statement under the fence with its first four arguments.
fn fenced_query(sql: &'static str, outcomes: &[&Outcome], me: &PublisherRegistration) -> Query<'static, Postgres, PgArguments> {
    let aggregates: Vec<i64> = outcomes.iter().map(|outcome| outcome.aggregate).collect();
    let (slots, epochs) = columns(outcomes.iter().map(|outcome| outcome.hold));
    sqlx::query(sql).bind(aggregates).bind(slots).bind(epochs).bind(me.incarnation.to_string())
}

/// Retries immediately after giving way to a writer, because the writer has then finished.
pub(super) async fn record(
    conn: &mut PgConnection,
    me: &PublisherRegistration,
    history: &CommitHistory,
    outcomes: &[Outcome],
    delete: bool,
) -> Result<Vec<Hold>, sqlx::Error> {
    for _ in 1..TRIES {
        let begun = Instant::now();
        match record_once(conn, me, history, outcomes, delete).await {
            Err(error) if gave_way(&error) && begun.elapsed() < GAVE_WAY_WITHIN => {}
            other => return other,
        }
    }
    record_once(conn, me, history, outcomes, delete).await
}

async fn record_once(
    conn: &mut PgConnection,
    me: &PublisherRegistration,
    history: &CommitHistory,
    outcomes: &[Outcome],
    delete: bool,
) -> Result<Vec<Hold>, sqlx::Error> {
    let written = if !delete && outcomes.iter().all(|outcome| outcome.then == HeadUpdate::Next) {
        mark(conn, me, history, outcomes, false).await?
    } else {
        let mut tx = conn.begin().await?;
        place(&mut tx, me, history, outcomes).await?;
        // Parking first: the mark after it may delete delivered events and must see which are parked.
        for discard in [false, true] {
            put_away(&mut tx, me, outcomes, discard).await?;
        }
        let written = mark(&mut tx, me, history, outcomes, delete).await? + fail(&mut tx, me, outcomes).await?;
        tx.commit().await?;
        written
    };
    if written == changes(outcomes) {
        return Ok(Vec::new());
    }
    let (slots, epochs) = columns(holds_of(outcomes));
    let fenced = sqlx::query_as(FENCED).bind(slots).bind(epochs).bind(me.incarnation.to_string()).fetch_all(conn).await?;
    Ok(holds(fenced))
}

async fn mark(
    conn: &mut PgConnection,
    me: &PublisherRegistration,
    history: &CommitHistory,
    outcomes: &[Outcome],
    delete: bool,
) -> Result<u64, sqlx::Error> {
    let through = |outcome| Some((outcome, done_through(outcome)?.cast_signed()));
    let (moved, through): (Vec<&Outcome>, Vec<i64>) = outcomes.iter().filter_map(through).unzip();
    if moved.is_empty() {
        return Ok(0);
    }
    let is_last: Vec<bool> =
        moved.iter().zip(&through).map(|(outcome, through)| history.is_last_read(outcome.aggregate, *through)).collect();
    let mark = fenced_query(MARK, &moved, me).bind(&through).bind(history.hashes(&moved)).bind(is_last);
    let marked: i64 = mark.fetch_one(&mut *conn).await?.try_get(0)?;
    if delete {
        let aggregates: Vec<i64> = moved.iter().map(|outcome| outcome.aggregate).collect();
        sqlx::query(DELETE).bind(aggregates).bind(through).execute(conn).await?;
    }
    Ok(unsigned(marked))
}

/// Puts the aggregates of failed and parked events on the publishers' list. That has the retries, and an aggregate with a row there is not
/// forgotten, so that a parked event can be sent again with those behind it.
async fn place(
    conn: &mut PgConnection,
    me: &PublisherRegistration,
    history: &CommitHistory,
    outcomes: &[Outcome],
) -> Result<(), sqlx::Error> {
    let kept = |outcome: &'_ Outcome| match outcome.then {
        HeadUpdate::Retry { sequence, .. } | HeadUpdate::Block { sequence, .. } | HeadUpdate::Park { sequence, .. } => {
            Some(sequence.cast_signed())
        }
        HeadUpdate::Next | HeadUpdate::Discard { .. } => None,
    };
    let (placed, sequences): (Vec<&Outcome>, Vec<i64>) = outcomes.iter().filter_map(|outcome| Some((outcome, kept(outcome)?))).unzip();
    if placed.is_empty() {
        return Ok(());
    }
    fenced_query(PLACE, &placed, me).bind(sequences).bind(history.hashes(&placed)).execute(conn).await.map(drop)
}

/// Writes the events that are discarded, or those that are parked.
async fn put_away(conn: &mut PgConnection, me: &PublisherRegistration, outcomes: &[Outcome], discard: bool) -> Result<(), sqlx::Error> {
    let (mut away, mut sequences, mut errors) = (Vec::new(), Vec::new(), Vec::new());
    for outcome in outcomes {
        let ((HeadUpdate::Park { sequence, error }, false) | (HeadUpdate::Discard { sequence, error }, true)) = (&outcome.then, discard)
        else {
            continue;
        };
        away.push(outcome);
        sequences.push(sequence.cast_signed());
        errors.push(storable(error));
    }
    if away.is_empty() {
        return Ok(());
    }
    let query = fenced_query(if discard { DISCARD } else { PARK }, &away, me).bind(sequences).bind(errors);
    let query = if discard { query.bind(format!("publisher {}", me.publisher)) } else { query };
    query.execute(conn).await.map(drop)
}

async fn fail(conn: &mut PgConnection, me: &PublisherRegistration, outcomes: &[Outcome]) -> Result<u64, sqlx::Error> {
    let (mut failed, mut attempts, mut failures, mut retry_in, mut blocked, mut errors, mut sequences) =
        (vec![], vec![], vec![], vec![], vec![], vec![], vec![]);
    for outcome in outcomes {
        let (sequence, charged, in_a_row, wait, error) = match &outcome.then {
            HeadUpdate::Retry { sequence, attempts, failures, retry_in, error } => {
                (*sequence, *attempts, *failures, Some(millis(*retry_in)), error)
            }
            HeadUpdate::Block { sequence, attempts, error } => (*sequence, *attempts, *attempts, None, error),
            HeadUpdate::Next | HeadUpdate::Park { .. } | HeadUpdate::Discard { .. } => continue,
        };
        failed.push(outcome);
        sequences.push(sequence.cast_signed());
        attempts.push(i64::from(charged));
        failures.push(i64::from(in_a_row));
        retry_in.push(wait);
        blocked.push(wait.is_none());
        errors.push(storable(error));
    }
    if failed.is_empty() {
        return Ok(0);
    }
    let fail = fenced_query(FAIL, &failed, me).bind(attempts).bind(failures).bind(retry_in);
    Ok(fail.bind(blocked).bind(errors).bind(sequences).execute(conn).await?.rows_affected())
}

/// The sink's message, shortened and without NUL, which PostgreSQL's text cannot hold.
fn storable(error: &str) -> String {
    shortened(error).replace('\0', "\u{fffd}")
}
