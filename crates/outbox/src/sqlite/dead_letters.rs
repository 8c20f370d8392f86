//! An operator's actions on dead letters: each is one transaction under the write lock, with its audit entry.

use std::time::Duration;

use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};

use super::error::SqliteErrorContext;
use super::{SqliteStore, unix_ms, unsigned};
use crate::store::{AuditEntry, DeadLetter, DeadState, ERROR_CHARS_MAX, LIST_MAX, ReplayResult, ResendResult, Signature, too_many};
use crate::{Result, one_line};

/// ?1 key or NULL, ?2 how many.
const BLOCKED: &str = "SELECT CAST(o.id AS BLOB), CAST(a.key AS BLOB), CAST(o.type AS BLOB), o.seq, 1, a.blocked_at,
        CAST(coalesce(a.last_error, '') AS BLOB), coalesce(length(CAST(o.payload AS BLOB)), 0), o.replayed
    FROM outbox_aggregate AS a INDEXED BY outbox_aggregate_blocked CROSS JOIN outbox AS o INDEXED BY outbox_in_order
    WHERE a.blocked_at IS NOT NULL AND (?1 IS NULL OR a.key = ?1) AND o.aggregate = a.id
      AND o.seq = (SELECT min(n.seq) FROM outbox AS n INDEXED BY outbox_in_order WHERE n.aggregate = a.id AND n.seq > a.done_seq)
    ORDER BY a.blocked_at LIMIT ?2";
const PARKED: &str = "SELECT CAST(o.id AS BLOB), CAST(a.key AS BLOB), CAST(o.type AS BLOB), o.seq, 0, o.parked_at,
        CAST(coalesce(o.parked_error, '') AS BLOB), coalesce(length(CAST(o.payload AS BLOB)), 0), o.replayed
    FROM outbox AS o INDEXED BY outbox_parked CROSS JOIN outbox_aggregate AS a
    WHERE o.parked_at IS NOT NULL AND a.id = o.aggregate AND (?1 IS NULL OR a.key = ?1)
    ORDER BY o.parked_at, o.position LIMIT ?2";

/// ?1 id.
const FIND: &str = "SELECT o.position, o.aggregate, CAST(a.key AS BLOB), o.seq, o.parked_at IS NOT NULL
    FROM outbox AS o CROSS JOIN outbox_aggregate AS a WHERE o.id = ?1 AND a.id = o.aggregate";

/// ?1 aggregate, ?2 sequence, ?3 the sequence through which the aggregate is done from now on. Applies only if that event is at the head
/// and blocked.
const RELEASE_HEAD: &str = "UPDATE outbox_aggregate
    SET blocked_at = NULL, retry_at = NULL, attempts = 0, failures = 0, failing_since = NULL, attempted_at = NULL, done_seq = ?3
    WHERE id = ?1 AND blocked_at IS NOT NULL
      AND ?2 = (SELECT min(o.seq) FROM outbox AS o WHERE o.aggregate = ?1 AND o.seq > outbox_aggregate.done_seq)";

/// ?1 aggregate. Raises the slot's epoch, so that its holder can no longer mark the events it has in memory.
const FENCE: &str = "UPDATE outbox_slot SET epoch = epoch + 1, incarnation = NULL
    WHERE (SELECT hash FROM outbox_aggregate WHERE id = ?1) BETWEEN hash_from AND hash_to";

/// ?1 aggregate, ?2 from this sequence on, ?3 the last delivered sequence, ?4 by how much the sequences rise.
const MOVE: &str = "UPDATE outbox
    SET replayed = iif(seq <= ?3, coalesce(replayed, seq), replayed), parked_at = NULL, parked_error = NULL, seq = seq + ?4
    WHERE aggregate = ?1 AND seq >= ?2";

/// ?1 aggregate, ?2 the sequence through which it is done, ?3 its newest sequence.
const REWIND: &str = "UPDATE outbox_aggregate
    SET done_seq = ?2, last_seq = ?3, blocked_at = NULL, retry_at = NULL, attempts = 0, failures = 0, failing_since = NULL,
        attempted_at = NULL, last_error = NULL
    WHERE id = ?1";

/// ?1 now, ?2 who, ?3 action, ?4 event, ?5 key, ?6 sequence, ?7 events, ?8 why.
const NOTE: &str = "INSERT INTO outbox_audit (at, who, action, event, key, seq, events, why) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";

fn text(row: &SqliteRow, column: usize) -> Result<String, sqlx::Error> {
    Ok(String::from_utf8_lossy(row.try_get(column)?).into_owned())
}

fn since(at: i64) -> Duration {
    Duration::from_millis(unsigned(unix_ms().saturating_sub(at)))
}

pub(super) async fn list(store: &SqliteStore, key: Option<&str>, limit: usize) -> Result<Vec<DeadLetter>> {
    let limit = limit.clamp(1, LIST_MAX);
    let letter = |row: &SqliteRow| -> Result<DeadLetter, sqlx::Error> {
        Ok(DeadLetter {
            id: text(row, 0)?,
            key: text(row, 1)?,
            event_type: text(row, 2)?,
            sequence: unsigned(row.try_get(3)?),
            state: if row.try_get(4)? { DeadState::Blocked } else { DeadState::Parked },
            dead_for: since(row.try_get(5)?),
            error: one_line(&text(row, 6)?, ERROR_CHARS_MAX),
            payload_bytes: unsigned(row.try_get(7)?),
            replayed: row.try_get::<Option<i64>, _>(8)?.map(unsigned),
        })
    };
    let mut letters = Vec::new();
    for sql in [BLOCKED, PARKED] {
        let left = i64::try_from(limit - letters.len()).unwrap_or(i64::MAX);
        let rows = sqlx::query(sql).bind(key).bind(left).fetch_all(&store.readers).await.at(store)?;
        for row in &rows {
            letters.push(letter(row).at(store)?);
        }
    }
    Ok(letters)
}

/// An event as an operator identifies it.
struct SqliteEventRow {
    position: i64,
    aggregate: i64,
    key: String,
    seq: i64,
    parked: bool,
}

async fn find(conn: &mut SqliteConnection, id: &str) -> Result<Option<SqliteEventRow>, sqlx::Error> {
    let Some(row) = sqlx::query(FIND).bind(id).fetch_optional(conn).await? else { return Ok(None) };
    Ok(Some(SqliteEventRow {
        position: row.try_get(0)?,
        aggregate: row.try_get(1)?,
        key: text(&row, 2)?,
        seq: row.try_get(3)?,
        parked: row.try_get(4)?,
    }))
}

async fn note(conn: &mut SqliteConnection, by: &Signature, action: &str, id: &str, about: (&str, i64, i64)) -> Result<(), sqlx::Error> {
    let (key, seq, events) = about;
    let note = sqlx::query(NOTE).bind(unix_ms()).bind(by.who()).bind(action).bind(id).bind(key).bind(seq).bind(events);
    note.bind(by.why()).execute(conn).await.map(drop)
}

/// Returns whether the event was the blocked head; if so, its aggregate continues behind `done`.
async fn release(conn: &mut SqliteConnection, found: &SqliteEventRow, done: i64) -> Result<bool, sqlx::Error> {
    let released = sqlx::query(RELEASE_HEAD).bind(found.aggregate).bind(found.seq).bind(done).execute(conn).await?;
    Ok(released.rows_affected() > 0)
}

pub(super) async fn replay(store: &SqliteStore, id: &str, by: &Signature) -> Result<Option<ReplayResult>> {
    let mut tx = store.begin().await?;
    let Some(found) = find(&mut tx, id).await.at(store)? else { return Ok(None) };
    let (replayed, action) = if found.parked {
        (ReplayResult::Appended { sequence: append(&mut tx, &found).await.at(store)? }, "replay")
    } else if release(&mut tx, &found, found.seq - 1).await.at(store)? {
        (ReplayResult::Unblocked, "unblock")
    } else {
        return Ok(None);
    };
    note(&mut tx, by, action, id, (&found.key, found.seq, 1)).await.at(store)?;
    tx.commit().await.at(store)?;
    Ok(Some(replayed))
}

async fn append(conn: &mut SqliteConnection, found: &SqliteEventRow) -> Result<u64, sqlx::Error> {
    let next = "UPDATE outbox_aggregate SET last_seq = last_seq + 1 WHERE id = ?1 RETURNING last_seq";
    let next: i64 = sqlx::query_scalar(next).bind(found.aggregate).fetch_one(&mut *conn).await?;
    let update =
        "UPDATE outbox SET replayed = coalesce(replayed, seq), parked_at = NULL, parked_error = NULL, seq = ?2 WHERE position = ?1";
    sqlx::query(update).bind(found.position).bind(next).execute(conn).await?;
    Ok(unsigned(next))
}

pub(super) async fn discard(store: &SqliteStore, id: &str, by: &Signature) -> Result<bool> {
    let mut tx = store.begin().await?;
    let Some(found) = find(&mut tx, id).await.at(store)? else { return Ok(false) };
    if !found.parked && !release(&mut tx, &found, found.seq).await.at(store)? {
        return Ok(false);
    }
    sqlx::query("DELETE FROM outbox WHERE position = ?1").bind(found.position).execute(&mut *tx).await.at(store)?;
    note(&mut tx, by, "discard", id, (&found.key, found.seq, 1)).await.at(store)?;
    tx.commit().await.at(store)?;
    Ok(true)
}

pub(super) async fn replay_aggregate(
    store: &SqliteStore,
    key: &str,
    from: Option<&str>,
    events_max: usize,
    by: &Signature,
) -> Result<Option<ResendResult>> {
    let mut tx = store.begin().await?;
    let aggregate = "SELECT id, last_seq, done_seq FROM outbox_aggregate WHERE key = ?1";
    let aggregate: Option<(i64, i64, i64)> = sqlx::query_as(aggregate).bind(key).fetch_optional(&mut *tx).await.at(store)?;
    let Some((aggregate, last, done)) = aggregate else { return Ok(None) };
    let first = "SELECT CAST(o.id AS BLOB), o.seq, (SELECT count(*) FROM outbox AS n WHERE n.aggregate = ?1 AND n.seq >= o.seq)
        FROM outbox AS o INDEXED BY outbox_in_order
        WHERE o.aggregate = ?1 AND o.parked_at IS NOT NULL AND (?2 IS NULL OR o.id = ?2) ORDER BY o.seq LIMIT 1";
    let Some(first) = sqlx::query(first).bind(aggregate).bind(from).fetch_optional(&mut *tx).await.at(store)? else { return Ok(None) };
    let (id, seq, events): (String, i64, i64) = (text(&first, 0).at(store)?, first.try_get(1).at(store)?, first.try_get(2).at(store)?);
    if usize::try_from(events).unwrap_or(usize::MAX) > events_max {
        return Err(too_many(key, unsigned(events), events_max));
    }
    sqlx::query(FENCE).bind(aggregate).execute(&mut *tx).await.at(store)?;
    let shift = last - seq + 1;
    sqlx::query(MOVE).bind(aggregate).bind(seq).bind(done).bind(shift).execute(&mut *tx).await.at(store)?;
    sqlx::query(REWIND).bind(aggregate).bind(last).bind(last + shift).execute(&mut *tx).await.at(store)?;
    note(&mut tx, by, "replay-aggregate", &id, (key, seq, events)).await.at(store)?;
    tx.commit().await.at(store)?;
    Ok(Some(ResendResult { events: unsigned(events), gone: unsigned(shift - events), from: unsigned(last + 1) }))
}

pub(super) async fn audit(store: &SqliteStore, limit: usize) -> Result<Vec<AuditEntry>> {
    let sql = "SELECT at, CAST(who AS BLOB), action, CAST(event AS BLOB), CAST(key AS BLOB), seq, events, CAST(why AS BLOB)
        FROM outbox_audit ORDER BY id DESC LIMIT ?1";
    let limit = i64::try_from(limit.clamp(1, LIST_MAX)).unwrap_or(i64::MAX);
    let entry = |row: &SqliteRow| {
        Ok(AuditEntry {
            ago: since(row.try_get(0)?),
            who: text(row, 1)?,
            action: row.try_get(2)?,
            event: text(row, 3)?,
            key: text(row, 4)?,
            sequence: unsigned(row.try_get(5)?),
            events: unsigned(row.try_get(6)?),
            why: text(row, 7)?,
        })
    };
    let rows = sqlx::query(sql).bind(limit).fetch_all(&store.readers).await.at(store)?;
    rows.iter().map(entry).collect::<Result<_, sqlx::Error>>().at(store)
}
