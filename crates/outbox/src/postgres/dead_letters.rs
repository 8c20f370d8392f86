//! An operator's actions on dead letters: each is one transaction with its audit entry.
//!
//! Locks are taken in the same order as by writers and publishers: the aggregate's row, the slot, the head, the events.

use async_trait::async_trait;
use shardwise::ShardKey;
use sqlx::{Connection, PgConnection};

use super::writers_list::delivered;
use super::{PostgresStore, call};
use crate::Result;
use crate::store::rows::FoundEvent;
use crate::store::sql::{ErrorContext, StatementError, signed, to_ordered, unsigned};
use crate::store::{AuditEntry, DeadLetter, DeadLetters, LIST_MAX, ReplayResult, ResendResult, Signature, too_many};

/// $1 key or NULL, $2 how many.
const LIST: &str = "
    (SELECT e.id, a.key, e.type, e.seq, true, (extract(epoch FROM now() - h.blocked_at) * 1000)::bigint, coalesce(h.last_error, ''),
            e.bytes::bigint, e.replayed
     FROM outbox_head AS h JOIN outbox_aggregate AS a ON a.id = h.aggregate
     CROSS JOIN LATERAL (
         SELECT o.id, o.type, o.seq, o.replayed, coalesce(octet_length(o.payload), octet_length(o.payload_bytes), 0) AS bytes
         FROM outbox AS o WHERE o.aggregate = h.aggregate AND o.seq > h.done_seq ORDER BY o.seq LIMIT 1
     ) AS e
     WHERE h.blocked_at IS NOT NULL AND ($1::text IS NULL OR a.key = $1) ORDER BY h.blocked_at LIMIT $2)
    UNION ALL
    (SELECT o.id, a.key, o.type, o.seq, false, (extract(epoch FROM now() - o.parked_at) * 1000)::bigint, coalesce(o.parked_error, ''),
            coalesce(octet_length(o.payload), octet_length(o.payload_bytes), 0)::bigint, o.replayed
     FROM outbox AS o JOIN outbox_aggregate AS a ON a.id = o.aggregate
     WHERE o.parked_at IS NOT NULL AND ($1::text IS NULL OR a.key = $1) ORDER BY o.parked_at, o.position LIMIT $2)";

/// Moves events to the end of their aggregate: they are inserted again and get new sequences, like a writer's events.
#[rustfmt::skip]
macro_rules! moved {
    ($which:literal, $replayed:literal) => {
        concat!(
            "WITH gone AS (DELETE FROM outbox WHERE ", $which, " RETURNING *)
             INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, payload_bytes, headers, created_at, replayed)
             SELECT id, aggregatetype, aggregateid, type, payload, payload_bytes, headers, created_at, ", $replayed,
            " FROM gone ORDER BY seq RETURNING seq"
        )
    };
}

/// $1 id.
const APPEND: &str = moved!("id = $1 AND parked_at IS NOT NULL", "coalesce(replayed, seq)");
/// $1 aggregate, $2 from this sequence on, $3 the last delivered sequence.
const APPEND_ALL: &str = moved!("aggregate = $1 AND seq >= $2", "CASE WHEN seq <= $3 THEN coalesce(replayed, seq) ELSE replayed END");

/// $1 id. Finds the event and its aggregate; the lock on the aggregate's row excludes writers and other operators.
const FIND: &str = "SELECT o.aggregate, a.key, o.seq, o.parked_at IS NOT NULL
    FROM outbox AS o JOIN outbox_aggregate AS a ON a.id = o.aggregate WHERE o.id = $1 FOR UPDATE OF a";

/// $1 aggregate, $2 sequence, $3 the sequence through which it is done from now on. Applies only if that event is the blocked head.
const RELEASE_HEAD: &str = "UPDATE outbox_head AS h
    SET blocked_at = NULL, retry_at = NULL, attempts = 0, failures = 0, failing_since = NULL, attempted_at = NULL, done_seq = $3
    WHERE h.aggregate = $1 AND h.blocked_at IS NOT NULL
      AND $2 = (SELECT min(o.seq) FROM outbox AS o WHERE o.aggregate = h.aggregate AND o.seq > h.done_seq)";

/// $1 hash. Raises the slot's epoch, so that its holder can no longer mark the events it has in memory.
const FENCE: &str = "UPDATE outbox_slot AS s SET epoch = s.epoch + 1, incarnation = NULL WHERE $1 BETWEEN s.hash_from AND s.hash_to";

/// $1 aggregate.
const DONE: &str = concat!("SELECT d.done_seq FROM ", delivered!("$1"), " AS d");

/// $1 aggregate, $2 the sequence through which it is done from now on, $3 hash.
const PLACE: &str = "INSERT INTO outbox_head (aggregate, done_seq, hash) VALUES ($1, $2, $3)
    ON CONFLICT (aggregate) DO UPDATE SET done_seq = excluded.done_seq, listed = true, blocked_at = NULL, retry_at = NULL, attempts = 0,
        failures = 0, failing_since = NULL, attempted_at = NULL, last_error = NULL";

/// $1 who, $2 action, $3 event, $4 key, $5 sequence, $6 events, $7 why.
const NOTE: &str = "INSERT INTO outbox_audit (who, action, event, key, seq, events, why) VALUES ($1, $2, $3, $4, $5, $6, $7)";

#[async_trait]
impl DeadLetters for PostgresStore {
    async fn dead_letters(&self, key: Option<&str>, limit: usize) -> Result<Vec<DeadLetter>> {
        let limit = limit.clamp(1, LIST_MAX);
        let rows = call!(self, conn => sqlx::query_as(LIST).bind(key).bind(signed(limit)).fetch_all(conn))?;
        Ok(rows.into_iter().take(limit).map(DeadLetter::from_row::<String>).collect())
    }

    async fn replay(&self, id: &str, by: &Signature) -> Result<Option<ReplayResult>> {
        call!(self, conn => replay(conn, id, by))
    }

    async fn replay_aggregate(&self, key: &str, from: Option<&str>, events_max: usize, by: &Signature) -> Result<Option<ResendResult>> {
        call!(self, conn => replay_aggregate(conn, key, from, events_max, by))
    }

    async fn discard(&self, id: &str, by: &Signature) -> Result<bool> {
        call!(self, conn => discard(conn, id, by))
    }

    async fn audit(&self, limit: usize) -> Result<Vec<AuditEntry>> {
        let sql = "SELECT (extract(epoch FROM now() - at) * 1000)::bigint, who, action, event, key, seq, events, why
            FROM outbox_audit ORDER BY id DESC LIMIT $1";
        let rows = call!(self, conn => sqlx::query_as(sql).bind(signed(limit.clamp(1, LIST_MAX))).fetch_all(conn))?;
        Ok(rows.into_iter().map(AuditEntry::from_row::<String>).collect())
    }
}

async fn find(conn: &mut PgConnection, id: &str) -> Result<Option<FoundEvent>, sqlx::Error> {
    Ok(sqlx::query_as(FIND).bind(id).fetch_optional(conn).await?.map(FoundEvent::from_row::<String>))
}

async fn note(conn: &mut PgConnection, by: &Signature, action: &str, id: &str, about: (&str, i64, i64)) -> Result<(), sqlx::Error> {
    let (key, seq, events) = about;
    let note = sqlx::query(NOTE).bind(by.who()).bind(action).bind(id).bind(key).bind(seq).bind(events).bind(by.why());
    note.execute(conn).await.map(drop)
}

/// Returns whether the event was the blocked head; if so, its aggregate continues behind `done`.
async fn release(conn: &mut PgConnection, found: &FoundEvent, done: i64) -> Result<bool, sqlx::Error> {
    let released = sqlx::query(RELEASE_HEAD).bind(found.aggregate).bind(found.seq).bind(done).execute(conn).await?;
    Ok(released.rows_affected() > 0)
}

async fn replay(conn: &mut PgConnection, id: &str, by: &Signature) -> Result<Option<ReplayResult>, sqlx::Error> {
    let mut tx = conn.begin().await?;
    let Some(found) = find(&mut tx, id).await? else { return Ok(None) };
    let (replayed, action) = if found.parked {
        let Some(sequence) = sqlx::query_scalar(APPEND).bind(id).fetch_optional(&mut *tx).await? else { return Ok(None) };
        (ReplayResult::Appended { sequence: unsigned(sequence) }, "replay")
    } else if release(&mut tx, &found, found.seq - 1).await? {
        (ReplayResult::Unblocked, "unblock")
    } else {
        return Ok(None);
    };
    note(&mut tx, by, action, id, (&found.key, found.seq, 1)).await?;
    tx.commit().await?;
    Ok(Some(replayed))
}

async fn discard(conn: &mut PgConnection, id: &str, by: &Signature) -> Result<bool, sqlx::Error> {
    let mut tx = conn.begin().await?;
    let Some(found) = find(&mut tx, id).await? else { return Ok(false) };
    if !found.parked && !release(&mut tx, &found, found.seq).await? {
        return Ok(false);
    }
    // The event was found before the wait for the aggregate's row: meanwhile it may have been replayed under another sequence.
    let delete = "DELETE FROM outbox WHERE id = $1 AND seq = $2 AND (parked_at IS NOT NULL) = $3";
    let delete = sqlx::query(delete).bind(id).bind(found.seq).bind(found.parked).execute(&mut *tx).await?;
    if delete.rows_affected() == 0 {
        return Ok(false);
    }
    note(&mut tx, by, "discard", id, (&found.key, found.seq, 1)).await?;
    tx.commit().await?;
    Ok(true)
}

async fn replay_aggregate(
    conn: &mut PgConnection,
    key: &str,
    from: Option<&str>,
    events_max: usize,
    by: &Signature,
) -> Result<Option<ResendResult>, StatementError> {
    let mut tx = conn.begin().await?;
    let aggregate = "SELECT id FROM outbox_aggregate WHERE key = $1 FOR UPDATE";
    let aggregate: Option<i64> = sqlx::query_scalar(aggregate).bind(key).fetch_optional(&mut *tx).await?;
    let Some(aggregate) = aggregate else { return Ok(None) };
    let first = "SELECT o.id, o.seq, (SELECT count(*) FROM outbox AS n WHERE n.aggregate = $1 AND n.seq >= o.seq)
        FROM outbox AS o WHERE o.aggregate = $1 AND o.parked_at IS NOT NULL AND ($2::text IS NULL OR o.id = $2) ORDER BY o.seq LIMIT 1";
    let first: Option<(String, i64, i64)> = sqlx::query_as(first).bind(aggregate).bind(from).fetch_optional(&mut *tx).await?;
    let Some((id, seq, events)) = first else { return Ok(None) };
    if usize::try_from(events).unwrap_or(usize::MAX) > events_max {
        return Err(too_many(key, unsigned(events), events_max).into());
    }
    let hash = to_ordered(key.key_hash());
    sqlx::query(FENCE).bind(hash).execute(&mut *tx).await?;
    // Read after the fence was raised, and so after every mark.
    let done: i64 = sqlx::query_scalar(DONE).bind(aggregate).fetch_one(&mut *tx).await?;
    let moved: Vec<i64> = sqlx::query_scalar(APPEND_ALL).bind(aggregate).bind(seq).bind(done).fetch_all(&mut *tx).await?;
    // The writers' lock is held, so nothing was numbered between the former events and these.
    let Some(first) = moved.iter().min().copied() else { return Ok(None) };
    sqlx::query(PLACE).bind(aggregate).bind(first - 1).bind(hash).execute(&mut *tx).await?;
    let events = signed(moved.len());
    note(&mut tx, by, "replay-aggregate", &id, (key, seq, events)).await?;
    tx.commit().await?;
    Ok(Some(ResendResult { events: unsigned(events), gone: None, from: unsigned(first) }))
}
