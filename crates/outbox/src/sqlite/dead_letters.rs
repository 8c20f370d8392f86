//! An operator's actions on dead letters: each is one transaction under the write lock, with its audit entry.

use async_trait::async_trait;
use sqlx::SqliteConnection;

use super::{LossyText, SqliteStore, unix_ms};
use crate::Result;
use crate::store::rows::FoundEvent;
use crate::store::sql::{ErrorContext, signed, unsigned};
use crate::store::{AuditEntry, DeadLetter, DeadLetters, LIST_MAX, ReplayResult, ResendResult, Signature, too_many};

/// ?1 key or NULL, ?2 how many, ?3 now.
const BLOCKED: &str = "SELECT CAST(o.id AS BLOB), CAST(a.key AS BLOB), CAST(o.type AS BLOB), o.seq, 1, ?3 - a.blocked_at,
        CAST(coalesce(a.last_error, '') AS BLOB), coalesce(length(CAST(o.payload AS BLOB)), 0), o.replayed
    FROM outbox_aggregate AS a INDEXED BY outbox_aggregate_blocked CROSS JOIN outbox AS o INDEXED BY outbox_in_order
    WHERE a.blocked_at IS NOT NULL AND (?1 IS NULL OR a.key = ?1) AND o.aggregate = a.id
      AND o.seq = (SELECT min(n.seq) FROM outbox AS n INDEXED BY outbox_in_order WHERE n.aggregate = a.id AND n.seq > a.done_seq)
    ORDER BY a.blocked_at LIMIT ?2";
const PARKED: &str = "SELECT CAST(o.id AS BLOB), CAST(a.key AS BLOB), CAST(o.type AS BLOB), o.seq, 0, ?3 - o.parked_at,
        CAST(coalesce(o.parked_error, '') AS BLOB), coalesce(length(CAST(o.payload AS BLOB)), 0), o.replayed
    FROM outbox AS o INDEXED BY outbox_parked CROSS JOIN outbox_aggregate AS a
    WHERE o.parked_at IS NOT NULL AND a.id = o.aggregate AND (?1 IS NULL OR a.key = ?1)
    ORDER BY o.parked_at, o.position LIMIT ?2";

/// ?1 id.
const FIND: &str = "SELECT o.aggregate, CAST(a.key AS BLOB), o.seq, o.parked_at IS NOT NULL
    FROM outbox AS o CROSS JOIN outbox_aggregate AS a WHERE o.id = ?1 AND a.id = o.aggregate";

/// ?1 aggregate, ?2 sequence, ?3 the sequence through which it is done from now on. Applies only if that event is the blocked head.
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

async fn find(conn: &mut SqliteConnection, id: &str) -> Result<Option<FoundEvent>, sqlx::Error> {
    Ok(sqlx::query_as(FIND).bind(id).fetch_optional(conn).await?.map(FoundEvent::from_row::<LossyText>))
}

async fn note(conn: &mut SqliteConnection, by: &Signature, action: &str, id: &str, about: (&str, i64, i64)) -> Result<(), sqlx::Error> {
    let (key, seq, events) = about;
    let note = sqlx::query(NOTE).bind(unix_ms()).bind(by.who()).bind(action).bind(id).bind(key).bind(seq).bind(events);
    note.bind(by.why()).execute(conn).await.map(drop)
}

/// Returns whether the event was the blocked head; if so, its aggregate continues behind `done`.
async fn release(conn: &mut SqliteConnection, found: &FoundEvent, done: i64) -> Result<bool, sqlx::Error> {
    let released = sqlx::query(RELEASE_HEAD).bind(found.aggregate).bind(found.seq).bind(done).execute(conn).await?;
    Ok(released.rows_affected() > 0)
}

async fn append(conn: &mut SqliteConnection, id: &str, found: &FoundEvent) -> Result<u64, sqlx::Error> {
    let next = "UPDATE outbox_aggregate SET last_seq = last_seq + 1 WHERE id = ?1 RETURNING last_seq";
    let next: i64 = sqlx::query_scalar(next).bind(found.aggregate).fetch_one(&mut *conn).await?;
    let update = "UPDATE outbox SET replayed = coalesce(replayed, seq), parked_at = NULL, parked_error = NULL, seq = ?2 WHERE id = ?1";
    sqlx::query(update).bind(id).bind(next).execute(conn).await?;
    Ok(unsigned(next))
}

#[async_trait]
impl DeadLetters for SqliteStore {
    async fn dead_letters(&self, key: Option<&str>, limit: usize) -> Result<Vec<DeadLetter>> {
        let limit = limit.clamp(1, LIST_MAX);
        let mut letters = Vec::new();
        for sql in [BLOCKED, PARKED] {
            let left = signed(limit - letters.len());
            let rows = sqlx::query_as(sql).bind(key).bind(left).bind(unix_ms()).fetch_all(&self.readers).await.at(self)?;
            letters.extend(rows.into_iter().map(DeadLetter::from_row::<LossyText>));
        }
        Ok(letters)
    }

    async fn replay(&self, id: &str, by: &Signature) -> Result<Option<ReplayResult>> {
        let mut tx = self.begin().await?;
        let Some(found) = find(&mut tx, id).await.at(self)? else { return Ok(None) };
        let (replayed, action) = if found.parked {
            (ReplayResult::Appended { sequence: append(&mut tx, id, &found).await.at(self)? }, "replay")
        } else if release(&mut tx, &found, found.seq - 1).await.at(self)? {
            (ReplayResult::Unblocked, "unblock")
        } else {
            return Ok(None);
        };
        note(&mut tx, by, action, id, (&found.key, found.seq, 1)).await.at(self)?;
        tx.commit().await.at(self)?;
        Ok(Some(replayed))
    }

    async fn replay_aggregate(&self, key: &str, from: Option<&str>, events_max: usize, by: &Signature) -> Result<Option<ResendResult>> {
        let mut tx = self.begin().await?;
        let aggregate = "SELECT id, last_seq, done_seq FROM outbox_aggregate WHERE key = ?1";
        let aggregate: Option<(i64, i64, i64)> = sqlx::query_as(aggregate).bind(key).fetch_optional(&mut *tx).await.at(self)?;
        let Some((aggregate, last, done)) = aggregate else { return Ok(None) };
        let first = "SELECT CAST(o.id AS BLOB), o.seq, (SELECT count(*) FROM outbox AS n WHERE n.aggregate = ?1 AND n.seq >= o.seq)
            FROM outbox AS o INDEXED BY outbox_in_order
            WHERE o.aggregate = ?1 AND o.parked_at IS NOT NULL AND (?2 IS NULL OR o.id = ?2) ORDER BY o.seq LIMIT 1";
        let first: Option<(LossyText, i64, i64)> =
            sqlx::query_as(first).bind(aggregate).bind(from).fetch_optional(&mut *tx).await.at(self)?;
        let Some((LossyText(id), seq, events)) = first else { return Ok(None) };
        if usize::try_from(events).unwrap_or(usize::MAX) > events_max {
            return Err(too_many(key, unsigned(events), events_max));
        }
        sqlx::query(FENCE).bind(aggregate).execute(&mut *tx).await.at(self)?;
        let shift = last - seq + 1;
        sqlx::query(MOVE).bind(aggregate).bind(seq).bind(done).bind(shift).execute(&mut *tx).await.at(self)?;
        sqlx::query(REWIND).bind(aggregate).bind(last).bind(last + shift).execute(&mut *tx).await.at(self)?;
        note(&mut tx, by, "replay-aggregate", &id, (key, seq, events)).await.at(self)?;
        tx.commit().await.at(self)?;
        Ok(Some(ResendResult { events: unsigned(events), gone: Some(unsigned(shift - events)), from: unsigned(last + 1) }))
    }

    async fn discard(&self, id: &str, by: &Signature) -> Result<bool> {
        let mut tx = self.begin().await?;
        let Some(found) = find(&mut tx, id).await.at(self)? else { return Ok(false) };
        if !found.parked && !release(&mut tx, &found, found.seq).await.at(self)? {
            return Ok(false);
        }
        sqlx::query("DELETE FROM outbox WHERE id = ?1").bind(id).execute(&mut *tx).await.at(self)?;
        note(&mut tx, by, "discard", id, (&found.key, found.seq, 1)).await.at(self)?;
        tx.commit().await.at(self)?;
        Ok(true)
    }

    async fn audit(&self, limit: usize) -> Result<Vec<AuditEntry>> {
        let sql = "SELECT ?2 - at, CAST(who AS BLOB), action, CAST(event AS BLOB), CAST(key AS BLOB), seq, events, CAST(why AS BLOB)
            FROM outbox_audit ORDER BY id DESC LIMIT ?1";
        let query = sqlx::query_as(sql).bind(signed(limit.clamp(1, LIST_MAX))).bind(unix_ms());
        let rows = query.fetch_all(&self.readers).await.at(self)?;
        Ok(rows.into_iter().map(AuditEntry::from_row::<LossyText>).collect())
    }
}
