//! Recording the outcomes of events under the fence: one transaction for a whole batch.

use sqlx::SqliteConnection;

use super::fence::pairs;
use super::{SqliteStore, unix_ms};
use crate::Result;
use crate::store::sql::{ErrorContext, changes, done_through, holds, holds_of, millis, shortened};
use crate::store::{HeadUpdate, Hold, Outcome, PublisherRegistration};

/// ?1 outcomes as JSON lists of aggregate, slot, epoch and sequence; ?2 incarnation. Updates one row for each aggregate, not for each
/// event. An outcome that was already applied changes nothing, so a late or repeated call is harmless. Each other outcome of a current
/// hold changes exactly one row, so their number shows whether any was fenced.
const MARK: &str = "UPDATE outbox_aggregate
    SET done_seq = m.through, attempts = 0, failures = 0, failing_since = NULL, attempted_at = NULL, retry_at = NULL, last_error = NULL
    FROM (SELECT value ->> 0 AS aggregate, value ->> 1 AS slot, value ->> 2 AS epoch, value ->> 3 AS through FROM json_each(?1)) AS m
    CROSS JOIN outbox_slot AS s
    WHERE s.slot = m.slot AND s.epoch = m.epoch AND s.incarnation = ?2
      AND outbox_aggregate.id = m.aggregate AND outbox_aggregate.done_seq < m.through";

/// The same list; deletes the events just marked.
const DELETE: &str = "DELETE FROM outbox WHERE position IN (
    SELECT o.position
    FROM (SELECT value ->> 0 AS aggregate, value ->> 3 AS through FROM json_each(?1)) AS m
    CROSS JOIN outbox_aggregate AS a
    CROSS JOIN outbox AS o INDEXED BY outbox_in_order
    WHERE a.id = m.aggregate AND a.done_seq >= m.through AND o.aggregate = m.aggregate AND o.seq <= m.through AND o.parked_at IS NULL)";

/// ?1 holds as JSON pairs, ?2 incarnation: returns those that are not current.
const FENCED: &str = "SELECT h.slot, h.epoch FROM (SELECT value ->> 0 AS slot, value ->> 1 AS epoch FROM json_each(?1)) AS h
    LEFT JOIN outbox_slot s ON s.slot = h.slot AND s.epoch = h.epoch AND s.incarnation = ?2
    WHERE s.slot IS NULL";

/// ?1 aggregate, ?2 slot, ?3 epoch, ?4 incarnation.
macro_rules! under_the_fence {
    () => {
        "EXISTS (SELECT 1 FROM outbox_slot s WHERE s.slot = ?2 AND s.epoch = ?3 AND s.incarnation = ?4)"
    };
}

/// ?5 attempts, ?6 failures, ?7 now, ?8 retry at or NULL, ?9 blocked at or NULL, ?10 error, ?11 sequence. If the head has moved on
/// meanwhile (an operator discarded it, for example), a repeated call writes nothing, because the next event has not failed. A late retry
/// does not replace a newer one. A retry without another failure is an event that was put off and not tried; its failure time begins when
/// it fails.
const FAIL: &str = concat!(
    "UPDATE outbox_aggregate SET attempts = ?5, failures = ?6, failing_since = iif(?6 > 0, coalesce(failing_since, ?7), NULL),
         attempted_at = iif(?6 > failures, ?7, attempted_at),
         retry_at = ?8, blocked_at = ?9, last_error = ?10
     WHERE id = ?1 AND done_seq < ?11 AND (?9 IS NOT NULL OR failures <= ?6) AND ",
    under_the_fence!()
);

/// ?5 sequence, ?6 now, ?7 error.
const PARK: &str =
    concat!("UPDATE outbox SET parked_at = ?6, parked_error = ?7 WHERE aggregate = ?1 AND seq = ?5 AND ", under_the_fence!());

/// ?1 aggregate, ?2 slot, ?3 epoch, ?4 incarnation, ?5 sequence, ?6 now, ?7 error, ?8 who. The event is marked afterwards and deleted with
/// the delivered ones. A repeated call writes nothing.
const DISCARD: &str = concat!(
    "INSERT INTO outbox_audit (at, who, action, event, key, seq, why)
     SELECT ?6, ?8, 'discard', o.id, o.aggregatetype || '/' || o.aggregateid, o.seq, ?7
     FROM outbox AS o CROSS JOIN outbox_aggregate AS a
     WHERE o.aggregate = ?1 AND o.seq = ?5 AND a.id = ?1 AND a.done_seq < ?5 AND ",
    under_the_fence!()
);

pub(super) async fn record(store: &SqliteStore, me: &PublisherRegistration, outcomes: &[Outcome], delete: bool) -> Result<Vec<Hold>> {
    let (incarnation, marks) = (me.incarnation.to_string(), marks(outcomes));
    let written = if !delete && outcomes.iter().all(|outcome| outcome.then == HeadUpdate::Next) {
        let mark = || sqlx::query(MARK).bind(&marks).bind(&incarnation).execute(&store.writer);
        store.when_free(mark).await.at(store)?.rows_affected()
    } else {
        let mut tx = store.begin().await?;
        // Parking first: the mark after it may delete delivered events and must see which are parked.
        for outcome in outcomes {
            put_away(&mut tx, me, outcome).await.at(store)?;
        }
        let mut written = sqlx::query(MARK).bind(&marks).bind(&incarnation).execute(&mut *tx).await.at(store)?.rows_affected();
        for outcome in outcomes {
            written += write_failure(&mut tx, &incarnation, outcome).await.at(store)?;
        }
        if delete {
            sqlx::query(DELETE).bind(&marks).execute(&mut *tx).await.at(store)?;
        }
        tx.commit().await.at(store)?;
        written
    };
    if written == changes(outcomes) {
        return Ok(Vec::new());
    }
    let asked = pairs(&holds_of(outcomes));
    Ok(holds(sqlx::query_as(FENCED).bind(asked).bind(incarnation).fetch_all(&store.writer).await.at(store)?))
}

fn marks(outcomes: &[Outcome]) -> String {
    let mark = |outcome: &Outcome| Some((outcome.aggregate, outcome.hold.slot, outcome.hold.epoch, done_through(outcome)?));
    // Numbers can always be written.
    serde_json::to_string(&outcomes.iter().filter_map(mark).collect::<Vec<_>>()).unwrap_or_default()
}

/// Writes an event that is parked or discarded.
async fn put_away(conn: &mut SqliteConnection, me: &PublisherRegistration, outcome: &Outcome) -> Result<(), sqlx::Error> {
    let (sql, sequence, error) = match &outcome.then {
        HeadUpdate::Park { sequence, error } => (PARK, sequence, error),
        HeadUpdate::Discard { sequence, error } => (DISCARD, sequence, error),
        HeadUpdate::Next | HeadUpdate::Retry { .. } | HeadUpdate::Block { .. } => return Ok(()),
    };
    let hold = outcome.hold;
    let query = sqlx::query(sql).bind(outcome.aggregate).bind(hold.slot).bind(hold.epoch.cast_signed()).bind(me.incarnation.to_string());
    let query = query.bind(sequence.cast_signed()).bind(unix_ms()).bind(shortened(error));
    let query = if sql == DISCARD { query.bind(format!("publisher {}", me.publisher)) } else { query };
    query.execute(conn).await.map(drop)
}

async fn write_failure(conn: &mut SqliteConnection, incarnation: &str, outcome: &Outcome) -> Result<u64, sqlx::Error> {
    let now = unix_ms();
    let (sequence, attempts, failures, retry_at, blocked_at, error) = match &outcome.then {
        HeadUpdate::Retry { sequence, attempts, failures, retry_in, error } => {
            (*sequence, *attempts, *failures, Some(now + millis(*retry_in)), None, error)
        }
        HeadUpdate::Block { sequence, attempts, error } => (*sequence, *attempts, *attempts, None, Some(now), error),
        HeadUpdate::Next | HeadUpdate::Park { .. } | HeadUpdate::Discard { .. } => return Ok(0),
    };
    let hold = outcome.hold;
    let fail = sqlx::query(FAIL).bind(outcome.aggregate).bind(hold.slot).bind(hold.epoch.cast_signed()).bind(incarnation);
    let fail = fail.bind(attempts).bind(failures).bind(now).bind(retry_at).bind(blocked_at);
    Ok(fail.bind(shortened(error)).bind(sequence.cast_signed()).execute(conn).await?.rows_affected())
}
