//! Publishers and slots: which publishers are alive, and which publisher holds which slot under which epoch.
//!
//! One clause decides whether a publisher is alive, here and in `status`: it was seen within its TTL, and not more than its TTL in the
//! future, which is how a server clock that was set back looks. The fence holds in both cases: a slot that is taken too early costs its
//! former holder the slot, and nothing else.

use shardwise::SlotSet;
use sqlx::{Connection, PgConnection};

use super::history::drawn;
use super::schema::{NOTES_NUMBERS, SCHEMA_VERSION};
use crate::store::sql::{StatementError, arcs, holds, other_slots};
use crate::store::{Hold, PublisherRegistration};
use crate::{Error, ErrorKind};

/// Whether the publisher `$p` is alive: seen within `$ttls` TTLs, one unless given.
#[rustfmt::skip]
macro_rules! alive {
    ($p:literal, $ttls:literal) => {
        concat!("outbox_now() - ", $p, ".seen_at <= ", $ttls, " * ", $p, ".ttl AND ", $p, ".seen_at - outbox_now() <= ", $p, ".ttl")
    };
    ($p:literal) => {
        alive!($p, 1)
    };
}
pub(super) use alive;

/// Whether the next numbers are above those of all rows. `outbox_floor` is unset by the trigger `outbox_copied` when rows come by
/// replication, and by the writers' trigger when a number is too low; from then on every event is refused until `outbox restored`. On
/// schema 5 an unset floor means nothing.
#[rustfmt::skip]
macro_rules! is_numbered {
    () => {
        "SELECT f.is_called OR m.schema_version < 6 FROM outbox_floor AS f, outbox_meta AS m"
    };
}
pub(super) const IS_NUMBERED: &str = is_numbered!();

/// $1 incarnation, $2 name, $3 TTL in microseconds, $4 the newest schema that this publisher knows: by that an upgrade sees who is in its
/// way.
const ANNOUNCE: &str = "INSERT INTO outbox_publisher (incarnation, publisher, seen_at, ttl, schema)
    VALUES ($1, $2, outbox_now(), $3::bigint * interval '1 microsecond', $4)
    ON CONFLICT (incarnation) DO UPDATE SET seen_at = excluded.seen_at, ttl = excluded.ttl, schema = excluded.schema
    RETURNING (extract(epoch FROM seen_at) * 1000000)::bigint";

/// $1 this publisher's incarnation.
const OTHERS_ALIVE: &str = concat!("SELECT publisher FROM outbox_publisher AS p WHERE p.incarnation <> $1 AND ", alive!("p"), " LIMIT 1");

/// Deletes dead publishers that hold nothing; the others are kept until their slots are taken.
const FORGET: &str = concat!(
    "DELETE FROM outbox_publisher AS p WHERE NOT (",
    alive!("p", 10),
    ") AND NOT EXISTS (SELECT 1 FROM outbox_slot AS s WHERE s.incarnation = p.incarnation)"
);

/// $1 incarnation, $2 slots. With another number of slots the publisher counts as unknown, because its slots are different ranges.
const TOUCH: &str = concat!(
    "UPDATE outbox_publisher SET seen_at = outbox_now()
    WHERE incarnation = $1 AND (SELECT slots FROM outbox_meta) = $2 RETURNING (extract(epoch FROM seen_at) * 1000000)::bigint, (",
    is_numbered!(),
    "), (SELECT schema_version FROM outbox_meta)"
);

/// From schema 7 on: notes a number that was drawn. Returns whether the next number is not above a noted one, as in a copy without the
/// values of sequence objects; then the floor is unset, and every event refused. A number is read behind the snapshot, so it is not below
/// what others have noted.
const NOTE_NUMBER: &str = concat!(
    "WITH drawn AS MATERIALIZED (
        SELECT f.last_value + ",
    drawn!("o"),
    " AS number, f.is_called FROM outbox_floor AS f, outbox_order AS o
    ), fell AS MATERIALIZED (
        SELECT setval('outbox_floor', f.last_value, false) FROM outbox_floor AS f, drawn AS d, outbox_meta AS m
        WHERE d.is_called AND d.number < m.highest
    ), free AS MATERIALIZED (
        SELECT m.one, d.number FROM outbox_meta AS m, drawn AS d WHERE m.highest < d.number FOR NO KEY UPDATE OF m SKIP LOCKED
    ), noted AS (
        UPDATE outbox_meta AS m SET highest = f.number FROM free AS f WHERE m.one = f.one
    )
    SELECT EXISTS (SELECT 1 FROM fell)"
);

const HELD: &str = "SELECT slot, epoch FROM outbox_slot WHERE incarnation = $1 ORDER BY slot";

/// $1 slots, $2 incarnation, $3 number of slots. Takes slots that are free, already held by this publisher, or whose holder is dead. A
/// slot that changed after the reading, or whose row is locked, is left for the next attempt: the reading says nothing about its present
/// holder.
const TAKE: &str = concat!(
    "WITH takeable AS MATERIALIZED (
        SELECT s.slot, s.epoch FROM outbox_slot AS s
        WHERE s.slot = ANY ($1)
          AND (s.incarnation IS NULL OR s.incarnation = $2 OR NOT EXISTS (
              SELECT 1 FROM outbox_publisher AS p WHERE p.incarnation = s.incarnation AND ",
    alive!("p"),
    "))
          AND EXISTS (SELECT 1 FROM outbox_publisher AS me WHERE me.incarnation = $2 AND ",
    alive!("me"),
    ")
          AND (SELECT slots FROM outbox_meta) = $3
    ), locked AS MATERIALIZED (
        SELECT s.slot FROM takeable AS t JOIN outbox_slot AS s ON s.slot = t.slot AND s.epoch = t.epoch
        ORDER BY s.slot FOR UPDATE OF s SKIP LOCKED
    )
    UPDATE outbox_slot AS s SET epoch = s.epoch + 1, incarnation = $2 FROM locked AS l WHERE s.slot = l.slot RETURNING s.slot, s.epoch"
);

/// $1 slots and $2 epochs as parallel arrays, $3 incarnation. LATERAL forces one lookup for each slot, whatever the table's statistics
/// are. Public for the test that reads the plan.
pub const RELEASE: &str = "WITH mine AS MATERIALIZED (
        SELECT s.slot FROM (SELECT * FROM unnest($1::bigint[], $2::bigint[]) AS g (slot, epoch) ORDER BY slot) AS h
        CROSS JOIN LATERAL (
            SELECT t.slot FROM outbox_slot AS t WHERE t.slot = h.slot AND t.epoch = h.epoch AND t.incarnation = $3 FOR UPDATE
        ) AS s
    )
    UPDATE outbox_slot AS s SET incarnation = NULL FROM mine AS m WHERE s.slot = m.slot";

/// $1 incarnation.
const LEAVE: [&str; 2] = [
    "WITH mine AS MATERIALIZED (SELECT slot FROM outbox_slot WHERE incarnation = $1 ORDER BY slot FOR UPDATE)
     UPDATE outbox_slot AS s SET incarnation = NULL FROM mine AS m WHERE s.slot = m.slot",
    "DELETE FROM outbox_publisher WHERE incarnation = $1",
];

/// Returns when the publisher was seen, by the server's clock in microseconds; so does [`touch`].
pub(super) async fn register(conn: &mut PgConnection, me: &PublisherRegistration) -> Result<i64, StatementError> {
    let mut tx = conn.begin().await?;
    // One process at a time from here on; the next statements read the state after the wait.
    let meta = sqlx::query_as("SELECT slots, schema_version FROM outbox_meta FOR UPDATE").fetch_one(&mut *tx).await?;
    let (recorded, schema): (Option<i64>, i64) = meta;
    note_number(&mut tx, schema).await?;
    require_numbers(sqlx::query_scalar(IS_NUMBERED).fetch_one(&mut *tx).await?)?;
    agree_on_slots(&mut tx, me, recorded).await?;
    sqlx::query(FORGET).execute(&mut *tx).await?;
    let ttl = i64::try_from(me.ttl.as_micros()).unwrap_or(i64::MAX);
    let announce = sqlx::query_scalar(ANNOUNCE).bind(me.incarnation.to_string()).bind(&me.publisher).bind(ttl).bind(SCHEMA_VERSION);
    let seen = announce.fetch_one(&mut *tx).await?;
    tx.commit().await?;
    Ok(seen)
}

/// Fails if the numbers have fallen, and lets every event be refused from then on.
async fn note_number(conn: &mut PgConnection, schema: i64) -> Result<(), StatementError> {
    let has_fallen = schema >= NOTES_NUMBERS && sqlx::query_scalar(NOTE_NUMBER).fetch_one(conn).await?;
    Ok(require_numbers(!has_fallen)?)
}

/// Fails before anything is taken, read or marked. No event is accepted in this state, so none is written below the delivered ones.
fn require_numbers(is_numbered: bool) -> Result<(), Error> {
    if is_numbered {
        return Ok(());
    }
    let text = "every event is refused and none is published, because rows came without the values of sequences, as by logical replication, or a number was \
                too low (outbox_floor is not set). When all rows are here, stop the writers of the source, disable the subscription, run `shardwise outbox \
                restored` with --epoch-above 0 and, for --sequence-above, the highest sequence that the source has ever given, and start again";
    Err(Error::new(ErrorKind::Schema, text))
}

/// Keeps the recorded number of slots, or changes it if no other publisher is alive.
async fn agree_on_slots(conn: &mut PgConnection, me: &PublisherRegistration, recorded: Option<i64>) -> Result<(), StatementError> {
    if recorded == Some(i64::from(me.slots)) {
        return Ok(());
    }
    let alive: Option<String> = sqlx::query_scalar(OTHERS_ALIVE).bind(me.incarnation.to_string()).fetch_optional(&mut *conn).await?;
    if let (Some(recorded), Some(other)) = (recorded, alive) {
        return Err(other_slots(recorded, &other, me.slots).into());
    }
    Ok(lay_out(conn, me.slots).await?)
}

/// Creates a row for every slot. Each epoch is set above every earlier epoch, so that no former holder's fence matches.
async fn lay_out(conn: &mut PgConnection, slots: u32) -> Result<(), sqlx::Error> {
    let (numbers, (from, to)): (Vec<i64>, (Vec<i64>, Vec<i64>)) = arcs(slots).map(|(slot, from, to)| (i64::from(slot), (from, to))).unzip();
    // Waits for concurrent marks, so that the highest epoch is final.
    sqlx::query("SELECT slot FROM outbox_slot ORDER BY slot FOR UPDATE").fetch_all(&mut *conn).await?;
    let highest: i64 = sqlx::query_scalar("SELECT coalesce(max(epoch), 0) FROM outbox_slot").fetch_one(&mut *conn).await?;
    sqlx::query("DELETE FROM outbox_slot").execute(&mut *conn).await?;
    let insert = "INSERT INTO outbox_slot (slot, epoch, hash_from, hash_to)
        SELECT s.slot, $4 + 1, s.hash_from, s.hash_to FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS s (slot, hash_from, hash_to)";
    sqlx::query(insert).bind(numbers).bind(from).bind(to).bind(highest).execute(&mut *conn).await?;
    sqlx::query("UPDATE outbox_meta SET slots = $1").bind(i64::from(slots)).execute(conn).await?;
    Ok(())
}

pub(super) async fn touch(conn: &mut PgConnection, me: &PublisherRegistration) -> Result<Option<(i64, Vec<Hold>)>, StatementError> {
    let touch = sqlx::query_as(TOUCH).bind(me.incarnation.to_string()).bind(i64::from(me.slots));
    let touched: Option<(i64, bool, i64)> = touch.fetch_optional(&mut *conn).await?;
    let Some((seen, is_numbered, schema)) = touched else { return Ok(None) };
    require_numbers(is_numbered)?;
    note_number(conn, schema).await?;
    let held = sqlx::query_as(HELD).bind(me.incarnation.to_string()).fetch_all(conn).await?;
    Ok(Some((seen, holds(held))))
}

pub(super) async fn take(conn: &mut PgConnection, me: &PublisherRegistration, slots: &SlotSet) -> Result<Vec<Hold>, sqlx::Error> {
    let wanted: Vec<i64> = slots.iter().map(i64::from).collect();
    let take = sqlx::query_as(TAKE).bind(wanted).bind(me.incarnation.to_string()).bind(i64::from(me.slots));
    take.fetch_all(conn).await.map(holds)
}

/// Slots and epochs as parallel arrays.
pub(super) fn columns(holds: impl IntoIterator<Item = Hold>) -> (Vec<i64>, Vec<i64>) {
    holds.into_iter().map(|hold| (i64::from(hold.slot), hold.epoch.cast_signed())).unzip()
}

pub(super) async fn release(conn: &mut PgConnection, me: &PublisherRegistration, holds: &[Hold]) -> Result<(), sqlx::Error> {
    let (slots, epochs) = columns(holds.iter().copied());
    sqlx::query(RELEASE).bind(slots).bind(epochs).bind(me.incarnation.to_string()).execute(conn).await.map(drop)
}

pub(super) async fn leave(conn: &mut PgConnection, me: &PublisherRegistration) -> Result<(), sqlx::Error> {
    let mut tx = conn.begin().await?;
    for sql in LEAVE {
        sqlx::query(sql).bind(me.incarnation.to_string()).execute(&mut *tx).await?;
    }
    tx.commit().await
}
