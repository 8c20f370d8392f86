//! Reads a group, over and over, and evicts members that have been silent for their TTL.
//!
//! A reading is a *poll*: one statement that answers whether anything has changed, and the beats of the members that this process guards.
//! Only then the changes are read. Polls are as frequent as a takeover needs: a beat is seen at most [`POLL_EVERY`] after it was written,
//! so a silent member is evicted within its TTL and that time. What is decided when is in [`shardwise_discovery::silence`].

use std::sync::Arc;
use std::time::Duration;

use shardwise_core::{Backoff, InstanceId, Moment, View};
use shardwise_discovery::feeds::{ObserverNeeds, ReadingEnd};
use shardwise_discovery::silence::{Eviction, Silence, SilenceInput};
use shardwise_discovery::{RecordId, jittered};
use tokio::time::timeout;

use crate::client::{CallTurn, Client};
use crate::error::{Failure, PgResult};
use crate::mirror::GroupMirror;
use crate::shared::{FollowedGroup, Shared, expect_changes};
use crate::sql::members;
use crate::sql::reads::{self, GroupChanges, Head, KnownNumbers, NOTHING_KNOWN};

/// The longest time between two looks at a group, and the share of the shortest TTL in it that they are apart.
pub(crate) const POLL_EVERY: Duration = Duration::from_millis(750);
const POLLS_PER_TTL: u32 = 4;
/// The shortest time between two looks for which nothing has asked.
const POLL_MIN: Duration = Duration::from_millis(50);
/// How often everything is read anew, so that a row that was edited by hand stays unnoticed for no longer.
const RELIST_EVERY: Duration = Duration::from_mins(1);
/// First and longest pause after failures.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LONGEST: Duration = Duration::from_secs(1);
/// The most members that one statement evicts.
const EVICTIONS_MAX: usize = 1_024;
/// How often a reading is repeated at once where what it needs was deleted meanwhile.
const READ_TRIES: usize = 3;

/// Reads the group in a task for as long as it is needed.
pub(crate) fn start(shared: &Arc<Shared>, group: Arc<FollowedGroup>) {
    let shared = Arc::downgrade(shared);
    tokio::spawn(async move {
        let _end = ReadingEnd::of(&shared, &group);
        let mut observer = GroupObserver::default();
        // Without it nothing reads the group, nor ever will.
        while let Some(present) = shared.upgrade().filter(|present| !present.groups.end_unneeded(&group)) {
            let pause = observer.round(&present.client, &group).await;
            drop(present);
            // Woken or not, it looks again.
            let _ = timeout(pause, group.woken()).await;
        }
    });
}

struct GroupObserver {
    silence: Silence,
    mirror: GroupMirror,
    /// What [`Silence`] knows of the needs.
    known_needs: ObserverNeeds<i64>,
    /// The members of this process that had registered before the present reading began.
    registered: Vec<RecordId>,
    known_waits: Vec<(RecordId, Duration)>,
    /// The start of the last write, and the number of interruptions, that it knows.
    written: Moment,
    interrupted: u64,
    era: u64,
    /// The view as it was shown last, with the revision that its numbers have.
    view: Option<Arc<View>>,
    listed: Moment,
    /// Whether this process may write; an observer with fewer rights evicts none.
    may_evict: bool,
    backoff: Backoff,
}

impl Default for GroupObserver {
    fn default() -> Self {
        Self {
            silence: Silence::default(),
            mirror: GroupMirror::default(),
            known_needs: ObserverNeeds::default(),
            registered: Vec::new(),
            known_waits: Vec::new(),
            written: Moment::ZERO,
            interrupted: 0,
            era: 0,
            view: None,
            listed: Moment::ZERO,
            may_evict: true,
            backoff: Backoff::new(RETRY_FIRST, RETRY_LONGEST),
        }
    }
}

impl GroupObserver {
    /// One reading, with what follows from it. Answers how long to wait for the next.
    async fn round(&mut self, client: &Client, group: &FollowedGroup) -> Duration {
        let begun = client.clock.now();
        match self.try_round(client, group, begun).await {
            Ok(()) => {
                self.backoff.reset();
                self.pause(client.clock.now())
            }
            Err(failure) => {
                self.silence.step(client.clock.now(), SilenceInput::Interrupted);
                // What was expected may not have been read.
                group.extra.take();
                self.mirror.forget();
                tracing::debug!(group = %group.name, %failure, "a group could not be read");
                group.shown.send_modify(|shown| shown.failure = Some((failure, begun)));
                jittered(self.backoff.fail())
            }
        }
    }

    async fn try_round(&mut self, client: &Client, group: &FollowedGroup, begun: Moment) -> PgResult<()> {
        self.registered = group.mine();
        self.report_own_members(group.needed(), begun);
        if self.must_write(client, begun) {
            self.probe(client).await?;
        }
        // Writes that began later may have been carried out after the reading.
        let (written, interrupted) = (client.writes.answered(), client.writes.interrupted());
        let head = self.read(client, group).await?;
        self.show(client, group, &head, begun)?;
        let now = client.clock.now();
        self.report_waits(group, now);
        if interrupted != self.interrupted {
            self.interrupted = interrupted;
            self.silence.step(now, SilenceInput::Interrupted);
        }
        if written <= self.written || !self.may_evict {
            return Ok(());
        }
        self.written = written;
        let evictions = self.silence.step(now, SilenceInput::Written { started: written });
        self.evict(client, group, evictions).await
    }

    fn report_own_members(&mut self, needs: ObserverNeeds<i64>, now: Moment) {
        if needs.mine != self.known_needs.mine {
            self.silence.step(now, SilenceInput::Mine(needs.mine.clone()));
            // With the first member its rights matter, and the log says so.
            self.may_evict |= self.known_needs.mine.is_empty();
        }
        self.mirror.read_claims(needs.reads_claims);
        self.known_needs = needs;
    }

    /// The records for whose end this process waits. One that is not there has ended.
    fn report_waits(&mut self, group: &FollowedGroup, now: Moment) {
        let records = self.known_needs.waits.iter().filter_map(|life| self.mirror.record_of_life(&group.name, *life));
        let waits: Vec<_> = records.map(|seen| (seen.record, seen.ttl)).collect();
        if waits != self.known_waits {
            self.silence.step(now, SilenceInput::Waits(waits.clone()));
            self.known_waits = waits;
        }
    }

    /// Whether a write must begin now, because no renewal of this process has.
    fn must_write(&self, client: &Client, now: Moment) -> bool {
        if !self.may_evict || self.silence.guarded().next().is_none() {
            return false;
        }
        let written = client.writes.answered();
        match self.silence.next_write() {
            Some(at) => at <= now && written < at,
            None => now >= written.plus(self.least_ttl() / 3),
        }
    }

    async fn probe(&mut self, client: &Client) -> PgResult<()> {
        match client.probe().await {
            Err(failure @ Failure::Forbidden { .. }) => {
                self.may_evict = false;
                if self.known_needs.mine.is_empty() {
                    tracing::debug!(%failure, "this process may not write, so it evicts no silent member");
                } else {
                    tracing::warn!(
                        %failure,
                        "this process has no right to evict silent members; if no process has it, dead members stay in the group"
                    );
                }
                Ok(())
            }
            answer => answer,
        }
    }

    /// Polls, and reads what has changed.
    async fn read(&mut self, client: &Client, group: &FollowedGroup) -> PgResult<Head> {
        let now = client.clock.now();
        let is_list_due = now >= self.listed.plus(RELIST_EVERY);
        if is_list_due {
            self.mirror.forget();
        }
        if !group.extra.take() && !is_list_due {
            let head = self.poll(client, group).await?;
            if !self.mirror.is_behind(head.revision, head.claimed) {
                return Ok(head);
            }
        }
        for _ in 0..READ_TRIES {
            let (known, before) = (self.mirror.known(), client.history.now());
            let answers = client.run(CallTurn::Quick, reads::changes(&client.schema, &group.name, known)).await?;
            let changes = GroupChanges::read(&answers, known)?;
            let era = client.history.arrive(before, &changes.head.position)?;
            // Of another era the numbers mean nothing.
            let is_other = self.take_era(client, era) && known.members != NOTHING_KNOWN;
            let head = changes.head.clone();
            if !is_other && self.take(client, group, known, changes) {
                return Ok(head);
            }
            self.mirror.forget();
        }
        Err(Failure::Replaced)
    }

    /// Whether the era is another one. Its history may lack renewals that were answered, so what was silent before has time to renew again.
    fn take_era(&mut self, client: &Client, era: u64) -> bool {
        let is_other = era != self.era;
        if is_other {
            self.era = era;
            self.silence.step(client.clock.now(), SilenceInput::Interrupted);
        }
        is_other
    }

    /// Takes the changes since those numbers; `false` if everything must be read.
    fn take(&mut self, client: &Client, group: &FollowedGroup, known: KnownNumbers, changes: GroupChanges) -> bool {
        let now = client.clock.now();
        let Some(change) = self.mirror.take(known, changes) else { return false };
        if known.members == NOTHING_KNOWN {
            self.listed = now;
        }
        if change.members {
            self.view = None;
            self.silence.step(now, SilenceInput::Listed(self.mirror.all_seen(&group.name)));
            self.forget_ended(group);
        }
        if change.claims {
            let claims = self.mirror.claim_table();
            group.shown.send_if_modified(|shown| {
                shown.claims = claims;
                // It is shown with its proof.
                false
            });
        }
        true
    }

    /// The members of this process whose records have ended. One that registers during the reading may be missing from it.
    fn forget_ended(&self, group: &FollowedGroup) {
        for record_id in &self.registered {
            let there = self.mirror.seen(&group.name, &record_id.instance_id);
            if there.is_none_or(|there| there.record != *record_id) {
                group.forget(record_id);
            }
        }
    }

    async fn poll(&mut self, client: &Client, group: &FollowedGroup) -> PgResult<Head> {
        let lives: Vec<i64> = self.silence.guarded().filter_map(|id| self.mirror.life(id)).collect();
        let before = client.history.now();
        let answers = client.run(CallTurn::Quick, reads::poll(&client.schema, &group.name, &lives)).await?;
        let (head, beats) = reads::read_poll(&answers)?;
        let era = client.history.arrive(before, &head.position)?;
        if self.take_era(client, era) {
            self.mirror.forget();
            return Ok(head);
        }
        let is_behind = self.mirror.is_behind(head.revision, head.claimed);
        match self.mirror.take_beats(&lives, &beats) {
            Some(changed) => self.see(group, &changed, client.clock.now()),
            // Those that have left are in the changes.
            None if is_behind => {}
            None => self.mirror.forget(),
        }
        Ok(head)
    }

    fn see(&mut self, group: &FollowedGroup, changed: &[InstanceId], now: Moment) {
        for id in changed {
            if let Some(seen) = self.mirror.seen(&group.name, id) {
                self.silence.step(now, SilenceInput::Seen(seen));
            }
        }
    }

    /// Shows what was read to the watches, with its proof.
    fn show(&mut self, client: &Client, group: &FollowedGroup, head: &Head, begun: Moment) -> PgResult<()> {
        let revision = client.history.show(self.era, head.revision.unsigned_abs())?;
        let view = match self.view.take().filter(|view| view.revision() == revision) {
            Some(view) => view,
            None => self.mirror.view(revision),
        };
        self.view = Some(Arc::clone(&view));
        let reads_claims = self.known_needs.reads_claims;
        group.shown.send_modify(|shown| {
            shown.claims = shown.claims.take().filter(|_| reads_claims);
            (shown.view, shown.proven, shown.failure) = (Some(view), begun, None);
        });
        Ok(())
    }

    async fn evict(&self, client: &Client, group: &FollowedGroup, evictions: Vec<Eviction>) -> PgResult<()> {
        // A record that is not there has ended: the database does not lag behind itself.
        let seen: Vec<_> = evictions.into_iter().filter_map(|eviction| Some((eviction.record, eviction.seen?))).collect();
        for some in seen.chunks(EVICTIONS_MAX) {
            let Some(sql) = members::evict(&client.schema, some) else { continue };
            match client.run(CallTurn::MayWait, sql).await {
                Ok(answers) if answers.last().is_empty() => {}
                Ok(answers) => {
                    let evicted = answers.last().len();
                    tracing::info!(group = %group.name, members = evicted, "evicted members whose heartbeats stopped for their TTL");
                }
                Err(failure) if failure.is_outage() => return Err(failure),
                // The group can be read all the same, and the next write tries again.
                Err(failure) => tracing::warn!(group = %group.name, %failure, "silent members are not evicted yet"),
            }
            // Refused or not: what is there now says which.
            expect_changes(group);
        }
        Ok(())
    }

    fn least_ttl(&self) -> Duration {
        self.mirror.least_ttl().unwrap_or(POLL_EVERY * POLLS_PER_TTL)
    }

    /// Until the next look for which nothing has to ask.
    fn pause(&self, now: Moment) -> Duration {
        let every = (self.least_ttl() / POLLS_PER_TTL).clamp(POLL_MIN, POLL_EVERY);
        // A write that is due a moment later than this poll must not wait for the next one.
        let due = self.silence.next_write().filter(|_| self.may_evict).map_or(every, |at| at.since(now).max(Duration::from_millis(1)));
        every.min(due)
    }
}
