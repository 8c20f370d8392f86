//! Publishers and slots: which publishers are alive, and which publisher holds which slot under which epoch.
//!
//! One clause decides whether a publisher is alive, here and in `status`: it was seen in the same boot, and within its TTL or after the
//! time it is compared with. Without a boot id a publisher seen more than its TTL in the future is dead: that is how another boot looks.

use serde_json::json;
use shardwise::SlotSet;
use sqlx::SqliteConnection;

use super::SqliteStore;
use crate::Result;
use crate::store::sql::{ErrorContext, StatementError, arcs, holds, other_slots};
use crate::store::{Hold, PublisherRegistration, TouchReply};

/// Whether the publisher `$p` is alive, by the boot id, the present time and the number of TTLs within which it must have been seen.
#[rustfmt::skip]
macro_rules! alive {
    ($p:literal, $boot_id:literal, $now:literal, $ttls:literal) => {
        concat!(
            $p, ".boot_id = ", $boot_id, " AND ", $now, " - ", $p, ".seen_at <= ", $ttls, " * ", $p, ".ttl AND (",
            $p, ".boot_id <> 'unknown' OR ", $p, ".seen_at - ", $now, " <= ", $p, ".ttl)"
        )
    };
    ($p:literal, $boot_id:literal, $now:literal) => {
        alive!($p, $boot_id, $now, 1)
    };
}
pub(super) use alive;

/// ?1 incarnation, ?2 name, ?3 boot id, ?4 now, ?5 TTL.
const ANNOUNCE: &str = "INSERT INTO outbox_publisher (incarnation, publisher, boot_id, seen_at, ttl) VALUES (?1, ?2, ?3, ?4, ?5)
    ON CONFLICT (incarnation) DO UPDATE SET seen_at = excluded.seen_at, boot_id = excluded.boot_id, ttl = excluded.ttl";

/// ?1 boot id, ?2 now, ?3 this publisher's incarnation.
const OTHERS_ALIVE: &str =
    concat!("SELECT publisher FROM outbox_publisher p WHERE p.incarnation <> ?3 AND ", alive!("p", "?1", "?2"), " LIMIT 1");

/// ?1 boot id, ?2 now. Deletes dead publishers that hold nothing; the others are kept until their slots are taken.
const FORGET: &str = concat!(
    "DELETE FROM outbox_publisher AS p WHERE NOT (",
    alive!("p", "?1", "?2", 10),
    ") AND NOT EXISTS (SELECT 1 FROM outbox_slot s WHERE s.incarnation = p.incarnation)"
);

/// ?1 incarnation, ?2 now, ?3 boot id, ?4 slots. With another number of slots the publisher counts as unknown, because its slots are
/// different ranges.
const TOUCH: &str = "UPDATE outbox_publisher SET seen_at = max(seen_at, ?2)
    WHERE incarnation = ?1 AND boot_id = ?3 AND (SELECT slots FROM outbox_meta) = ?4";

const HELD: &str = "SELECT slot, epoch FROM outbox_slot INDEXED BY outbox_slot_of WHERE incarnation = ?1 ORDER BY slot";

/// ?1 slots as a JSON list, ?2 incarnation, ?3 boot id, ?4 now, ?5 number of slots. Selects slots that are free, already held by this
/// publisher, or whose holder is dead.
macro_rules! takeable {
    () => {
        concat!(
            "slot IN (SELECT value FROM json_each(?1))
             AND (incarnation IS NULL OR incarnation = ?2 OR NOT EXISTS (
                 SELECT 1 FROM outbox_publisher p WHERE p.incarnation = outbox_slot.incarnation AND ",
            alive!("p", "?3", "?4"),
            ")) AND EXISTS (SELECT 1 FROM outbox_publisher me WHERE me.incarnation = ?2 AND ",
            alive!("me", "?3", "?4"),
            ") AND (SELECT slots FROM outbox_meta) = ?5"
        )
    };
}

const ANY_TAKEABLE: &str = concat!("SELECT 1 FROM outbox_slot WHERE ", takeable!(), " LIMIT 1");
const TAKE: &str = concat!("UPDATE outbox_slot SET epoch = epoch + 1, incarnation = ?2 WHERE ", takeable!(), " RETURNING slot, epoch");

/// ?1 holds as JSON pairs, ?2 incarnation. `CROSS JOIN` makes the list the outer loop, and the row to write is found by its key.
/// Otherwise, without statistics, SQLite scans the list once for each slot of the publisher.
const RELEASE: &str = "UPDATE outbox_slot NOT INDEXED SET incarnation = NULL WHERE slot IN (
        SELECT s.slot FROM json_each(?1) AS h CROSS JOIN outbox_slot AS s NOT INDEXED
        WHERE s.slot = h.value ->> 0 AND s.epoch = h.value ->> 1 AND s.incarnation = ?2)";

pub(super) async fn register(store: &SqliteStore, me: &PublisherRegistration) -> Result<()> {
    let mut tx = store.begin().await?;
    let now = store.boot_nanos();
    agree_on_slots(&mut tx, store, me, now).await.at(store)?;
    sqlx::query(FORGET).bind(&store.config.boot_id).bind(now).execute(&mut *tx).await.at(store)?;
    let announce = sqlx::query(ANNOUNCE).bind(me.incarnation.to_string()).bind(&me.publisher);
    announce
        .bind(&store.config.boot_id)
        .bind(now)
        .bind(i64::try_from(me.ttl.as_nanos()).unwrap_or(i64::MAX))
        .execute(&mut *tx)
        .await
        .at(store)?;
    tx.commit().await.at(store)
}

/// Keeps the recorded number of slots, or changes it if no other publisher is alive.
async fn agree_on_slots(
    conn: &mut SqliteConnection,
    store: &SqliteStore,
    me: &PublisherRegistration,
    now: i64,
) -> Result<(), StatementError> {
    let recorded: Option<i64> = sqlx::query_scalar("SELECT slots FROM outbox_meta").fetch_one(&mut *conn).await?;
    if recorded == Some(i64::from(me.slots)) {
        return Ok(());
    }
    let alive = sqlx::query_scalar(OTHERS_ALIVE).bind(&store.config.boot_id).bind(now).bind(me.incarnation.to_string());
    let alive: Option<String> = alive.fetch_optional(&mut *conn).await?;
    if let (Some(recorded), Some(other)) = (recorded, alive) {
        return Err(other_slots(recorded, &other, me.slots).into());
    }
    Ok(lay_out(conn, me.slots).await?)
}

/// Creates a row for every slot. Each epoch is set above every earlier epoch, so that no former holder's fence matches.
async fn lay_out(conn: &mut SqliteConnection, slots: u32) -> Result<(), sqlx::Error> {
    let highest: i64 = sqlx::query_scalar("SELECT coalesce(max(epoch), 0) FROM outbox_slot").fetch_one(&mut *conn).await?;
    sqlx::query("DELETE FROM outbox_slot").execute(&mut *conn).await?;
    let insert = "INSERT INTO outbox_slot (slot, epoch, hash_from, hash_to)
        SELECT value ->> 0, ?2 + 1, value ->> 1, value ->> 2 FROM json_each(?1)";
    sqlx::query(insert).bind(json!(arcs(slots).collect::<Vec<_>>()).to_string()).bind(highest).execute(&mut *conn).await?;
    sqlx::query("UPDATE outbox_meta SET slots = ?1").bind(slots).execute(conn).await?;
    Ok(())
}

pub(super) async fn touch(store: &SqliteStore, me: &PublisherRegistration) -> Result<TouchReply> {
    // The touch counts from its beginning, however long it waits for the lock.
    let now = store.boot_nanos();
    let touch = || {
        let touch = sqlx::query(TOUCH).bind(me.incarnation.to_string()).bind(now);
        touch.bind(&store.config.boot_id).bind(me.slots).execute(&store.writer)
    };
    let seen = store.when_free(touch).await.at(store)?;
    if seen.rows_affected() == 0 {
        return Ok(TouchReply::Unknown);
    }
    let rows = sqlx::query_as(HELD).bind(me.incarnation.to_string()).fetch_all(&store.writer).await.at(store)?;
    Ok(TouchReply::Seen(holds(rows)))
}

pub(super) async fn take(store: &SqliteStore, me: &PublisherRegistration, slots: &SlotSet) -> Result<Vec<Hold>> {
    let (wanted, incarnation) = (json!(slots.iter().collect::<Vec<_>>()).to_string(), me.incarnation.to_string());
    let boot_id = &store.config.boot_id;
    // Check without the write lock first: this runs every few milliseconds while the former holder finishes.
    let takeable = sqlx::query(ANY_TAKEABLE).bind(&wanted).bind(&incarnation).bind(boot_id).bind(store.boot_nanos()).bind(me.slots);
    if takeable.fetch_optional(&store.readers).await.at(store)?.is_none() {
        return Ok(Vec::new());
    }
    // Each attempt to get the lock reads the clock again.
    let take = || {
        let take = sqlx::query_as(TAKE).bind(&wanted).bind(&incarnation).bind(boot_id).bind(store.boot_nanos());
        take.bind(me.slots).fetch_all(&store.writer)
    };
    Ok(holds(store.when_free(take).await.at(store)?))
}

/// Holds as JSON pairs of slot and epoch.
pub(super) fn pairs(holds: &[Hold]) -> String {
    json!(holds.iter().map(|hold| (hold.slot, hold.epoch)).collect::<Vec<_>>()).to_string()
}

pub(super) async fn release(store: &SqliteStore, me: &PublisherRegistration, holds: &[Hold]) -> Result<()> {
    let (holds, incarnation) = (pairs(holds), me.incarnation.to_string());
    store.when_free(|| sqlx::query(RELEASE).bind(&holds).bind(&incarnation).execute(&store.writer)).await.at(store)?;
    Ok(())
}

pub(super) async fn leave(store: &SqliteStore, me: &PublisherRegistration) -> Result<()> {
    let mut tx = store.begin().await?;
    for sql in ["UPDATE outbox_slot SET incarnation = NULL WHERE incarnation = ?1", "DELETE FROM outbox_publisher WHERE incarnation = ?1"] {
        sqlx::query(sql).bind(me.incarnation.to_string()).execute(&mut *tx).await.at(store)?;
    }
    tx.commit().await.at(store)
}

/// One row of the fence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotHolder {
    /// The slot.
    pub slot: u32,
    /// The holder's incarnation in hexadecimal; `None` if the slot was released.
    pub incarnation: Option<String>,
    /// The holder's name, as long as the store knows the publisher, which may be dead.
    pub publisher: Option<String>,
}

impl SqliteStore {
    /// Every slot that was ever taken and its present holder, in the order of the slots.
    pub async fn holders(&self) -> Result<Vec<SlotHolder>> {
        let sql = "SELECT s.slot, s.incarnation, p.publisher
            FROM outbox_slot AS s LEFT JOIN outbox_publisher AS p ON p.incarnation = s.incarnation ORDER BY s.slot";
        let rows = sqlx::query_as(sql).fetch_all(&self.readers).await.at(self)?;
        Ok(rows.into_iter().map(|(slot, incarnation, publisher)| SlotHolder { slot, incarnation, publisher }).collect())
    }
}
