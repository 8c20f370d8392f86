//! Checks whether the commits that the database confirmed to this process's publishers still exist.
//!
//! A failover to a standby that lagged, or a restored copy, loses commits: epochs, sequences and marks fall, and consumers refuse or drop
//! later events because they have seen their numbers. The write-ahead log has one order, so if the last confirmed changes exist, all
//! earlier ones do. The process therefore remembers the last touch, the highest epoch of each slot, the last recording, and the events
//! read since then. The first call on a connection that leads elsewhere compares them before it does anything else: to another server,
//! timeline or database, or to a server that has restarted (which loses commits too, with `synchronous_commit = off` or a copy of its
//! disk).
//!
//! What was confirmed before the last touch that is still there is not looked up: the touch proves it. So only what was read or recorded
//! since then needs a row, and rows that were deleted by hand look like a loss for no longer than one interval between touches.
//!
//! Sequences jump, so no number says that an event was there. An event that was read exists if its row does. If the row does not, the event
//! was delivered and deleted: then its aggregate is done up to it or beyond, by a mark of this publisher whose answer was lost or of the
//! slot's next holder. If the aggregate does not exist, it was forgotten, as it is when all is delivered: then numbers were drawn up to the
//! event's, and either this publisher had asked to mark the event, or the slot has another holder or epoch, because only its holder can
//! have delivered the event.
//!
//! The number alone proves little: the log has a sequence object up to 32 numbers ahead, so a standby that lagged may have "drawn" the
//! number of an event that it never received. Therefore the row of an event that was marked and has to be kept must be there, while its
//! slot is held and half of its retention is left.
//!
//! Not detected, all within one interval between touches:
//! - the loss of a writer's transaction that no publisher has read;
//! - the loss of an event with its mark, if nothing else of its aggregate was pending, its number is among the up to 32, and delivered
//!   events are not kept (`retention` 0, or over by half) or the slot has another holder. No later event has the lost number, so consumers
//!   refuse nothing;
//! - the loss of an event behind whose number the next holder of its slot has marked others of the same aggregate before this publisher
//!   compares, which takes a TTL.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use shardwise::{Incarnation, ShardKey};
use sqlx::PgConnection;

use super::confirmed::{ConfirmedEvent, missing_event};
use crate::store::sql::{StatementError, done_through, signed, to_ordered};
use crate::store::{EventRun, HeadUpdate, Hold, Outcome, PublisherRegistration};
use crate::{AggregateId, Error, ErrorKind};

/// Of aggregates that were read and not recorded, at least this many are remembered, and at most twice as many.
const READ_MAX: usize = 10_000;
/// After this many TTLs without being seen, other publishers may have deleted the row (`FORGET` in `fence` waits for 10 TTLs).
const FORGOTTEN_AFTER: u32 = 9;

/// Identifies the history that a connection leads to: whether it is a standby, the server and its timeline, when it started, the database,
/// and the outbox (without `to_regclass`, because its session would remember a missing table while another process creates it).
const WHERE: &str = "SELECT pg_is_in_recovery(),
        (SELECT system_identifier FROM pg_control_system())
            || '/' || CASE WHEN NOT pg_is_in_recovery() THEN ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint END,
        concat_ws('/', pg_postmaster_start_time(), (SELECT oid FROM pg_database WHERE datname = current_database()),
            (SELECT oid FROM pg_class WHERE relname = 'outbox_meta' AND pg_table_is_visible(oid)))";
/// The same for a user who may not read the server's identifier and timeline.
const WHERE_WITHOUT_TIMELINE: &str = "SELECT pg_is_in_recovery(), NULL,
        concat_ws('/', pg_postmaster_start_time(), (SELECT oid FROM pg_database WHERE datname = current_database()),
            (SELECT oid FROM pg_class WHERE relname = 'outbox_meta' AND pg_table_is_visible(oid)))";

/// $1 incarnation. Returns when it was seen, by the server's clock in microseconds.
const SEEN: &str = "SELECT (extract(epoch FROM seen_at) * 1000000)::bigint FROM outbox_publisher WHERE incarnation = $1";

/// $1 slots, $2 epochs, $3 incarnations. Counts the holds that were never granted, or granted to another; and the slots with a higher
/// epoch.
const HOLDS: &str = "SELECT
        count(*) FILTER (WHERE coalesce(s.epoch, m.epoch, 0) < g.epoch OR s.epoch = g.epoch AND s.incarnation <> g.incarnation),
        count(*) FILTER (WHERE coalesce(s.epoch, m.epoch, 0) > g.epoch)
    FROM unnest($1::bigint[], $2::bigint[], $3::text[]) AS g (slot, epoch, incarnation)
    CROSS JOIN (SELECT max(epoch) AS epoch FROM outbox_slot) AS m
    LEFT JOIN outbox_slot AS s ON s.slot = g.slot";

/// How many numbers the sequence object `$order` has given. With `outbox_floor` it is the highest sequence of any event.
#[rustfmt::skip]
macro_rules! drawn {
    ($order:literal) => {
        concat!("(", $order, ".last_value - CASE WHEN ", $order, ".is_called THEN 0 ELSE 1 END)")
    };
}
pub(super) use drawn;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DatabaseIdentity {
    /// `system identifier/timeline`; `None` if the server does not show it.
    pub(super) timeline: Option<String>,
    /// The other properties that distinguish two histories.
    rest: String,
}

#[derive(Debug, Clone, Copy)]
struct LastTouch {
    micros: i64,
    ttl: Duration,
    /// Whatever was confirmed before this moment is earlier in the log than this touch.
    begun: Instant,
    confirmed: Instant,
}

#[derive(Debug, Default)]
struct ConfirmedState {
    /// Where the connections led at the last comparison.
    place: Option<DatabaseIdentity>,
    /// A connection leads elsewhere, or to a standby, and nothing has been compared since.
    suspect: bool,
    /// Connections made before this moment are no longer used.
    since: Option<Instant>,
    seen: HashMap<Incarnation, LastTouch>,
    /// Slot to the highest epoch that was granted, and the incarnation that received it.
    holds: BTreeMap<u32, (u64, Incarnation)>,
    marked: Vec<ConfirmedEvent>,
    /// The last event read of each aggregate, while it is not recorded.
    read: HashMap<AggregateId, ConfirmedEvent>,
    read_before: HashMap<AggregateId, ConfirmedEvent>,
    highest_sequence: u64,
    /// How long this process keeps delivered events; `None` if it has deleted none yet.
    retention: Option<Duration>,
}

/// The changes that the database confirmed. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct CommitHistory(Arc<Mutex<ConfirmedState>>);

impl CommitHistory {
    fn memory(&self) -> MutexGuard<'_, ConfirmedState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn connected(&self, conn: &mut PgConnection) -> Result<(), sqlx::Error> {
        let found = place(conn).await?;
        let mut memory = self.memory();
        match (&memory.place, found) {
            (Some(place), Some(found)) if *place == found => {}
            // Before anything is confirmed there is nothing to compare: tables may be under creation, and a standby may be read.
            (_, found) if memory.seen.is_empty() => memory.place = found,
            _ => memory.suspect = true,
        }
        Ok(())
    }

    pub(super) fn may_use(&self, age: Duration) -> bool {
        self.memory().since.is_none_or(|since| age <= since.elapsed())
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.memory().suspect
    }

    /// Compares the remembered state with the database's, after a connection led elsewhere. [`ErrorKind::LostCommits`] if something is
    /// missing; `Unavailable` on a standby.
    pub(super) async fn compare(&self, conn: &mut PgConnection) -> Result<(), StatementError> {
        let begun = Instant::now();
        let Some(found) = place(conn).await? else {
            return Err(Error::new(ErrorKind::Unavailable, "the server takes no writes at present; it is a standby: try again").into());
        };
        let missing = self.missing(conn).await?;
        let mut memory = self.memory();
        let before = memory.place.as_ref().and_then(|place| place.timeline.clone());
        let other = before.filter(|before| found.timeline.as_ref() != Some(before));
        if let Some(missing) = missing {
            let epoch = memory.holds.values().map(|(epoch, _)| *epoch).max().unwrap_or(0);
            let now = found.timeline.as_ref().map_or("an unknown timeline".to_owned(), |timeline| format!("timeline {timeline}"));
            let from = other.map_or(String::new(), |before| format!(" (it is on {now} now, was on timeline {before})"));
            let text = format!(
                "commits that were confirmed to this publisher are missing: {missing}{from}. A standby that lagged has taken over, or an older copy was restored. {ADVICE} \
                 (this publisher knows of epoch {epoch} and sequence {})",
                memory.highest_sequence
            );
            return Err(Error::new(ErrorKind::LostCommits, text).into());
        }
        if let Some(before) = other {
            tracing::info!(
                before,
                now = found.timeline,
                "the outbox's database has another timeline; nothing that was confirmed to this publisher is missing"
            );
        }
        memory.place = Some(found);
        memory.suspect = false;
        memory.since = Some(begun);
        Ok(())
    }

    async fn missing(&self, conn: &mut PgConnection) -> Result<Option<String>, StatementError> {
        let (seen, holds, events) = {
            let memory = self.memory();
            let read = memory.read.values().chain(memory.read_before.values()).map(|event| (event.clone(), false));
            let events: Vec<_> = memory.marked.iter().map(|event| (event.clone(), true)).chain(read).collect();
            (memory.seen.clone(), memory.holds.clone(), events)
        };
        let (slots, (epochs, takers)): (Vec<i64>, (Vec<i64>, Vec<String>)) =
            holds.iter().map(|(slot, (epoch, taker))| (i64::from(*slot), (epoch.cast_signed(), taker.to_string()))).unzip();
        let (fewer, more): (i64, i64) = sqlx::query_as(HOLDS).bind(slots).bind(epochs).bind(takers).fetch_one(&mut *conn).await?;
        if fewer > 0 {
            return Ok(Some(format!("the epochs of {fewer} slots that it took")));
        }
        let mut proven: Option<Instant> = None;
        for (incarnation, seen) in &seen {
            let found: Option<i64> = sqlx::query_scalar(SEEN).bind(incarnation.to_string()).fetch_optional(&mut *conn).await?;
            let is_missing = match found {
                Some(found) => found < seen.micros,
                // It was deleted long ago, or every number was raised above those that are known here.
                None => seen.confirmed.elapsed() < seen.ttl * FORGOTTEN_AFTER && !(more > 0 && more == signed(holds.len())),
            };
            if is_missing {
                return Ok(Some("its last renewal".into()));
            }
            // A later time than the known one may be another touch, by a clock that was set back.
            proven = proven.max(found.filter(|found| *found == seen.micros).map(|_| seen.begun));
        }
        let unproven = events.into_iter().filter(|(event, _)| proven.is_none_or(|proven| event.confirmed >= proven));
        missing_event(conn, unproven.collect()).await
    }

    /// The publisher was seen, by a call that began then.
    pub(super) fn registered(&self, me: &PublisherRegistration, micros: i64, begun: Instant) {
        self.memory().seen.insert(me.incarnation, LastTouch { micros, ttl: me.ttl, begun, confirmed: Instant::now() });
    }

    /// Delivered events are kept for this long.
    pub(super) fn keeps(&self, retention: Duration) {
        self.memory().retention = Some(retention);
    }

    /// The publisher has left: its row is no longer expected.
    pub(super) fn left(&self, me: &PublisherRegistration) {
        self.memory().seen.remove(&me.incarnation);
    }

    pub(super) fn held(&self, me: &PublisherRegistration, holds: &[Hold]) {
        let mut memory = self.memory();
        for hold in holds {
            let known = memory.holds.entry(hold.slot).or_insert((hold.epoch, me.incarnation));
            if hold.epoch >= known.0 {
                *known = (hold.epoch, me.incarnation);
            }
        }
    }

    /// Remembers the events that were read: they may be sent from now on.
    pub(super) fn read(&self, runs: &[EventRun]) {
        let mut memory = self.memory();
        for run in runs {
            let older = memory.read_before.remove(&run.aggregate);
            let Some(event) = run.events.last() else {
                // What was read of it has been deleted since, and not by a mark.
                memory.read.remove(&run.aggregate);
                continue;
            };
            memory.highest_sequence = memory.highest_sequence.max(event.sequence);
            let before = memory.read.get(&run.aggregate).or(older.as_ref());
            let same = before.filter(|before| before.sequence == event.sequence);
            let known = ConfirmedEvent {
                aggregate: run.aggregate,
                key: event.key(),
                sequence: event.sequence,
                id: Some(event.id.clone()),
                hold: run.hold,
                created_ms: event.created_at_unix_ms,
                // A call that was given up may still be carried out.
                asked_through: same.map_or(0, |before| before.asked_through),
                kept_until_ms: same.and_then(|before| before.kept_until_ms),
                confirmed: Instant::now(),
            };
            memory.read.insert(run.aggregate, known);
        }
        if memory.read.len() > READ_MAX {
            memory.read_before = std::mem::take(&mut memory.read);
        }
    }

    /// Remembers the outcomes that the database is about to be asked to record, behind any comparison. If its answer is lost, they may be
    /// recorded nevertheless, and their aggregates forgotten. `delete`: delivered events are deleted with their mark.
    pub(super) fn asked(&self, outcomes: &[Outcome], delete: bool) {
        let mut memory = self.memory();
        let ConfirmedState { read, read_before, retention, .. } = &mut *memory;
        let retention = retention.filter(|_| !delete);
        for outcome in outcomes {
            if let Some(known) = read.get_mut(&outcome.aggregate).or_else(|| read_before.get_mut(&outcome.aggregate)) {
                known.ask(outcome, retention);
            }
        }
    }

    /// The hashes of these aggregates' keys, as they are stored; `None` where the key is no longer remembered.
    pub(super) fn hashes(&self, outcomes: &[&Outcome]) -> Vec<Option<i64>> {
        let memory = self.memory();
        let known = |outcome: &&Outcome| memory.read.get(&outcome.aggregate).or_else(|| memory.read_before.get(&outcome.aggregate));
        outcomes.iter().map(|outcome| Some(to_ordered(known(outcome)?.key.as_str().key_hash()))).collect()
    }

    /// Whether no event of the aggregate behind that sequence was read, as far as is remembered.
    pub(super) fn is_last_read(&self, aggregate: AggregateId, through: i64) -> bool {
        let memory = self.memory();
        let known = memory.read.get(&aggregate).or_else(|| memory.read_before.get(&aggregate));
        known.is_none_or(|known| known.sequence <= through.cast_unsigned())
    }

    /// Remembers the outcomes that were recorded, except those of fenced holds.
    pub(super) fn recorded(&self, outcomes: &[Outcome], fenced: &[Hold]) {
        let mut memory = self.memory();
        let mut marked = Vec::with_capacity(outcomes.len());
        for outcome in outcomes {
            let newer = memory.read.remove(&outcome.aggregate);
            let Some(known) = newer.or_else(|| memory.read_before.remove(&outcome.aggregate)) else { continue };
            let through = done_through(outcome).filter(|_| !fenced.contains(&outcome.hold));
            // Events behind that sequence may have been sent. A blocked one is the operator's, who may discard it.
            let is_blocked = matches!(outcome.then, HeadUpdate::Block { .. });
            if !is_blocked && through.is_none_or(|through| through < known.sequence) {
                memory.read.insert(outcome.aggregate, known.clone());
            }
            if let Some(through) = through {
                let is_last = through == known.sequence;
                marked.push(ConfirmedEvent {
                    sequence: through,
                    id: known.id.filter(|_| is_last),
                    asked_through: through,
                    kept_until_ms: known.kept_until_ms.filter(|_| is_last),
                    confirmed: Instant::now(),
                    ..known
                });
            }
        }
        if !marked.is_empty() {
            memory.marked = marked;
        }
    }

    /// Whether this process has come to this timeline without losing anything it knew.
    pub(super) fn has_followed_to(&self, timeline: &str) -> bool {
        let memory = self.memory();
        memory.since.is_some() && memory.place.as_ref().and_then(|place| place.timeline.as_deref()) == Some(timeline)
    }
}

/// Advice to the operator after commits were lost.
pub(super) const ADVICE: &str = "Stop all publishers, run `shardwise outbox restored --epoch-above N --sequence-above N` with the highest shardepoch and sequence that \
     any consumer has seen, and start them again";

/// Where this connection leads; `None` for a standby.
pub(super) async fn place(conn: &mut PgConnection) -> Result<Option<DatabaseIdentity>, sqlx::Error> {
    let (is_standby, timeline, rest) = match sqlx::query_as(WHERE).fetch_one(&mut *conn).await {
        Err(sqlx::Error::Database(_)) => sqlx::query_as(WHERE_WITHOUT_TIMELINE).fetch_one(conn).await?,
        found => found?,
    };
    Ok(if is_standby { None } else { Some(DatabaseIdentity { timeline, rest }) })
}

/// Records the timeline in the outbox if none is recorded. Reports another recorded timeline, unless this process has followed to it. Fails
/// if a later comparison would lack a right.
pub(super) async fn note(conn: &mut PgConnection, history: &CommitHistory) -> Result<(), StatementError> {
    // A comparison reads these, and a failover is no time to find a right missing.
    sqlx::query("SELECT 1 FROM outbox_floor, outbox_order").execute(&mut *conn).await?;
    let Some(now) = place(conn).await?.and_then(|place| place.timeline) else { return Ok(()) };
    let before: Option<String> = sqlx::query_scalar("SELECT timeline FROM outbox_meta").fetch_one(&mut *conn).await?;
    match before {
        None => {
            sqlx::query("UPDATE outbox_meta SET timeline = $1 WHERE timeline IS NULL").bind(now).execute(conn).await?;
        }
        Some(before) if before != now && !history.has_followed_to(&now) => tracing::warn!(
            before,
            now,
            "the outbox's database has another timeline than when its publishers came first. If a standby that lagged has taken over, or an older copy was restored, commits are \
             lost, and consumers may refuse or drop what comes now. {ADVICE}. If nothing was lost, run it with 0 and 0, and this warning ends"
        ),
        Some(_) => {}
    }
    Ok(())
}
