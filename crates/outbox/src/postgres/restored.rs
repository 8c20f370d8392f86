//! Raising epochs and sequences after commits were lost, in one transaction: all slots, and the floor. Every number that is drawn from then
//! on is above the floor, of keys with an aggregate and of others. A repetition changes only epochs.
//!
//! The same for a copy by logical replication, whose floor is unset while rows come. Pending events keep their numbers: each is above its
//! aggregate's `done_seq` and is sent in its place. An event at or below `done_seq` counts as delivered; a copy has none that is not,
//! because its writers are refused from the first copied row until this has run behind the last one.

use sqlx::{Connection, PgConnection};

use super::fence::alive;
use super::history::{self, drawn};
use super::status::AT_LENGTH;
use super::writers_list::{listed_by_writers, writers_list};
use super::{PostgresStore, call};
use crate::store::RestoreResult;
use crate::store::sql::{ErrorContext, StatementError, checked, unsigned};
use crate::{Error, ErrorKind, Result};

const ALIVE: &str = concat!("SELECT count(*) FROM outbox_publisher AS p WHERE ", alive!("p"));
/// A row that carries the epoch until the first publisher creates the real rows.
const CARRIER: &str =
    "INSERT INTO outbox_slot (slot, epoch, hash_from, hash_to) SELECT 0, 0, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM outbox_slot)";
/// $1 epoch.
const LIFT_SLOTS: &str = "UPDATE outbox_slot SET incarnation = NULL, epoch = 1 + greatest(epoch, $1)";

/// The highest sequence in the outbox: of its events, and of what writers and publishers noted (a column that schema 6 lacks). In a copy
/// without the values of sequence objects the next number would not be above it, and the trigger refuses such numbers.
const HIGHEST: &str = "SELECT greatest(
        (SELECT max(last_seq) FROM outbox_aggregate),
        (SELECT max(done_seq) FROM outbox_head),
        (SELECT max(seq) FROM outbox),
        (SELECT (to_jsonb(m) ->> 'highest')::bigint FROM outbox_meta AS m),
        0)";

/// $1 sequence. The next number is the one above it, unless the next number is above it already: then no row is returned. Numbers that
/// are drawn meanwhile only make the next one higher. A floor that is not set is set in any case, because the trigger refuses writers until
/// then: it is that of a copy without the values of sequence objects.
const LIFT_FLOOR: &str = concat!(
    "SELECT setval('outbox_floor', greatest(f.last_value, $1 - ",
    drawn!("o"),
    ")) FROM outbox_floor AS f, outbox_order AS o WHERE NOT f.is_called OR f.last_value + ",
    drawn!("o"),
    " < $1"
);

/// The subscriptions that bring rows into the outbox: those that are enabled, and those that still apply a transaction, whose rows
/// `HIGHEST` would not see. Of `pg_subscription` everyone may read these columns, but on PostgreSQL 13 not its `oid`.
const SUBSCRIPTIONS: &str = "SELECT string_agg(DISTINCT p.subname::text, ', ')
    FROM pg_subscription_rel AS r
    JOIN pg_stat_subscription AS s ON s.subid = r.srsubid
    JOIN pg_subscription AS p ON p.subname = s.subname AND p.subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())
    WHERE (p.subenabled OR s.pid IS NOT NULL) AND r.srrelid IN ('outbox'::regclass, 'outbox_aggregate'::regclass)";

/// $1 sequence. Counted before anything is raised.
const WAITING: &str = concat!(
    "SELECT count(*) FROM (
        SELECT aggregate, done_seq FROM outbox_head WHERE ready
        UNION ALL SELECT aggregate, done_seq FROM outbox_head WHERE waiting
        UNION ALL SELECT aggregate, done_seq FROM outbox_head WHERE blocked_at IS NOT NULL
        UNION ALL SELECT i.aggregate, i.done_seq FROM (",
    writers_list!("ALL"),
    ") AS i
    ) AS h CROSS JOIN LATERAL (SELECT 1 FROM outbox AS o WHERE o.aggregate = h.aggregate AND o.seq > h.done_seq AND o.seq <= $1 OFFSET 0) AS e"
);

pub(super) async fn restored(store: &PostgresStore, epoch_above: u64, sequence_above: u64) -> Result<RestoreResult> {
    let (epoch, sequence) = checked(epoch_above, sequence_above)?;
    call!(store, conn => lift(conn, epoch, sequence))
}

async fn lift(conn: &mut PgConnection, epoch: i64, sequence: i64) -> Result<RestoreResult, StatementError> {
    let timeline = history::place(conn).await?.and_then(|place| place.timeline);
    let mut tx = conn.begin().await?;
    sqlx::raw_sql(AT_LENGTH).execute(&mut *tx).await?;
    sqlx::query("SELECT 1 FROM outbox_meta FOR UPDATE").execute(&mut *tx).await?;
    refuse_subscriptions(sqlx::query_scalar(SUBSCRIPTIONS).fetch_one(&mut *tx).await?)?;
    let publishers: i64 = sqlx::query_scalar(ALIVE).fetch_one(&mut *tx).await?;
    let waiting: i64 = sqlx::query_scalar(WAITING).bind(sequence).fetch_one(&mut *tx).await?;
    // Before the slots are locked, because these may take long.
    let highest: i64 = sqlx::query_scalar(HIGHEST).fetch_one(&mut *tx).await?;
    let all: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox_aggregate").fetch_one(&mut *tx).await?;
    sqlx::query("SELECT slot FROM outbox_slot ORDER BY slot FOR UPDATE").execute(&mut *tx).await?;
    sqlx::query(CARRIER).execute(&mut *tx).await?;
    sqlx::query(LIFT_SLOTS).bind(epoch).execute(&mut *tx).await?;
    sqlx::query("DELETE FROM outbox_publisher").execute(&mut *tx).await?;
    // Numbers are above it from here on, even if the rest fails.
    let raised: Option<i64> = sqlx::query_scalar(LIFT_FLOOR).bind(sequence.max(highest)).fetch_optional(&mut *tx).await?;
    sqlx::query("UPDATE outbox_meta SET timeline = $1").bind(timeline).execute(&mut *tx).await?;
    let top: i64 = sqlx::query_scalar("SELECT max(epoch) FROM outbox_slot").fetch_one(&mut *tx).await?;
    tx.commit().await?;
    let aggregates = if raised.is_some() { unsigned(all) } else { 0 };
    Ok(RestoreResult { epoch: unsigned(top), aggregates, waiting: unsigned(waiting), publishers: unsigned(publishers) })
}

/// The next row that came would have a number that writers may have got here meanwhile.
fn refuse_subscriptions(names: Option<String>) -> Result<(), Error> {
    let Some(names) = names else { return Ok(()) };
    let text = format!(
        "rows come into it by logical replication ({names}): stop the writers and publishers of the source, wait until all its rows are here, run ALTER \
         SUBSCRIPTION … DISABLE, and when its worker has ended, after a moment, run this again"
    );
    Err(Error::new(ErrorKind::Schema, text))
}
