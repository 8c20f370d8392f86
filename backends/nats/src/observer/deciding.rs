//! What follows from the messages that were taken: what is shown, what is proven, and what is written.

use std::sync::Arc;
use std::time::Duration;

use shardwise_core::Moment;
use shardwise_discovery::silence::{Eviction, SilenceInput};
use shardwise_discovery::{RecordId, jittered, one_line};

use super::{BucketObserver, FinishedCall};
use crate::client::{Client, bounded};
use crate::error::{Failure, NatsResult};
use crate::evictions::{self, EvictionOutcome};
use crate::handle::{BucketGroup, BucketHandle, wrote};
use crate::messages::StoredBeat;
use crate::status::ForeignFollower;

/// The share of the shortest TTL after which a process writes that has not written, where nothing says when.
const WRITES_PER_TTL: u32 = 3;
/// How long after a probe that failed another one begins.
const PROBE_PAUSE: Duration = Duration::from_millis(250);
/// How long an answered write may take to come back before another one is written.
const RETURN_LIMIT: Duration = Duration::from_millis(500);
/// The most evictions at a time.
const EVICTIONS_MAX: usize = 64;
/// How long a record may stand without a life before another process than the one that ended it deletes it.
const HALF_EVICTED_LASTS: Duration = Duration::from_secs(2);
/// How often old markers are looked for, and the most that are forgotten at a time.
const SWEEP_EVERY: Duration = Duration::from_mins(10);
const SWEPT_MAX: usize = 64;
/// The TTL that is reckoned with where no member has one.
const TTL_ASSUMED: Duration = Duration::from_secs(3);

impl BucketObserver {
    /// Everything that does not wait.
    pub(super) fn decide(&mut self, handle: &Arc<BucketHandle>, group: &Arc<BucketGroup>) -> NatsResult<()> {
        let client = &handle.client;
        if client.history.now().era != self.era {
            return Err(Failure::Replaced);
        }
        let now = client.clock.now();
        self.report_own_members(group, now);
        self.take_foreign();
        let is_proven = self.catch_up(group);
        if self.is_caught_up {
            self.report_seen(handle, group, now);
            self.report_waits(now);
            self.show(client, group, is_proven, now)?;
            self.report_writes(handle, group, now);
            self.finish_half_evicted(handle, group, now);
            self.sweep(handle, now);
        }
        if self.may_write(group, now) {
            self.probe(handle, group, now);
        }
        Ok(())
    }

    fn report_own_members(&mut self, group: &BucketGroup, now: Moment) {
        let needs = group.needed();
        if needs.mine != self.known_needs.mine {
            self.silence.step(now, SilenceInput::Mine(needs.mine.clone()));
        }
        self.known_needs = needs;
    }

    fn take_foreign(&mut self) {
        let Some(reading) = self.foreign.as_mut().map(ForeignFollower::latest) else { return };
        self.changed.members |= reading.differs(&self.foreign_reading);
        self.foreign_reading = reading;
    }

    /// Takes note of the writes that have come back. Answers whether one has.
    fn catch_up(&mut self, group: &BucketGroup) -> bool {
        let Some(returned) = group.extra.returned(self.mirror.delivered()) else { return false };
        self.proven = self.proven.max(returned);
        if !self.is_caught_up && returned >= self.listed {
            self.is_caught_up = true;
            self.backoff.reset();
        }
        true
    }

    /// Hands on what was seen of records and beats.
    fn report_seen(&mut self, handle: &BucketHandle, group: &BucketGroup, now: Moment) {
        let beats = std::mem::take(&mut self.beats);
        let has_ended = beats.iter().any(|id| self.mirror.seen(&group.name, id).is_none());
        if self.changed.members || has_ended {
            self.silence.step(now, SilenceInput::Listed(self.mirror.all_seen(&group.name)));
            self.forget_ended(handle, group);
            return;
        }
        for id in &beats {
            if let Some(seen) = self.mirror.seen(&group.name, id) {
                self.silence.step(now, SilenceInput::Seen(seen));
            }
        }
    }

    /// The members of this process whose lives have ended without its doing.
    fn forget_ended(&self, handle: &BucketHandle, group: &BucketGroup) {
        for record_id in group.mine() {
            if self.mirror.beat(&record_id.instance_id).is_some_and(|there| handle.is_over(&record_id, there)) {
                handle.forget(&record_id);
            }
        }
    }

    /// The records for whose end this process waits; without those whose end was seen.
    fn report_waits(&mut self, now: Moment) {
        let waits = self.known_needs.waits.iter().filter(|awaited| !self.mirror.has_ended(&awaited.record.instance_id, awaited.life));
        let waits: Vec<(RecordId, Duration)> = waits.map(|awaited| (awaited.record.clone(), awaited.ttl)).collect();
        if waits != self.known_waits {
            self.silence.step(now, SilenceInput::Waits(waits.clone()));
            self.known_waits = waits;
        }
    }

    /// Shows what was read to the watches.
    fn show(&mut self, client: &Client, group: &BucketGroup, is_proven: bool, now: Moment) -> NatsResult<()> {
        let changed = std::mem::take(&mut self.changed);
        if !is_proven && changed == super::BucketChange::default() {
            return Ok(());
        }
        let unreadable = |(subject, why): (&str, &str)| Failure::Unreadable { subject: subject.to_owned(), why: one_line(why) };
        let foreign = match self.mirror.unreadable().map(unreadable) {
            Some(failure) => Err(failure),
            None => self.foreign_reading.present(now),
        };
        let foreign = match foreign {
            Ok(Some(ids)) => Arc::clone(ids),
            Ok(None) if self.foreign.is_none() => Arc::default(),
            Ok(None) => {
                self.changed = changed;
                return Ok(());
            }
            Err(failure) => {
                self.changed = changed;
                group.shown.send_modify(|shown| shown.failure = Some((failure, now)));
                return Ok(());
            }
        };
        self.revision = self.revision.max(self.mirror.revision());
        let revision = client.history.show(self.era, self.revision)?;
        let view = match self.view.take().filter(|view| !changed.members && view.revision() == revision) {
            Some(view) => view,
            None => self.mirror.view(revision, &foreign),
        };
        self.view = Some(Arc::clone(&view));
        let reads_claims = self.reads_claims;
        group.shown.send_modify(|shown| {
            if changed.claims || shown.claims.is_none() {
                shown.claims = reads_claims.then(|| self.mirror.claim_table());
            }
            if changed.notes || shown.notes.is_none() {
                shown.notes = Some(self.mirror.notes());
            }
            (shown.view, shown.proven) = (Some(view), self.proven);
            if is_proven {
                shown.failure = None;
            }
        });
        Ok(())
    }

    /// Hands on how this process's writes went, and begins the evictions that follow.
    fn report_writes(&mut self, handle: &Arc<BucketHandle>, group: &BucketGroup, now: Moment) {
        let interrupted = group.extra.interrupted();
        if interrupted != self.interrupted {
            self.interrupted = interrupted;
            self.silence.step(now, SilenceInput::Interrupted);
        }
        if self.proven <= self.written || !self.rights.may_evict {
            return;
        }
        self.written = self.proven;
        let evictions = self.silence.step(now, SilenceInput::Written { started: self.proven });
        for eviction in evictions {
            if self.evicting.len() < EVICTIONS_MAX && self.evicting.insert(eviction.record.instance_id.clone()) {
                self.evict(handle, eviction);
            }
        }
    }

    fn evict(&self, handle: &Arc<BucketHandle>, eviction: Eviction) {
        let handle = Arc::clone(handle);
        self.calls.push(Box::pin(async move {
            let (record, seen) = (eviction.record.clone(), eviction.seen);
            FinishedCall::Eviction { record, seen, answer: evictions::evict(handle, eviction).await }
        }));
    }

    /// When a write must begin, because no renewal of this process has; `None` while it guards no member.
    pub(super) fn write_due(&self, group: &BucketGroup) -> Option<Moment> {
        if !self.rights.may_evict || !self.is_caught_up || self.silence.guarded().next().is_none() {
            return None;
        }
        let written = group.extra.answered();
        let pace = self.least_ttl().unwrap_or(TTL_ASSUMED) / WRITES_PER_TTL;
        match self.silence.next_write() {
            // One that began since will come back, or fail.
            Some(at) if written >= at => Some(written.plus(pace)),
            Some(at) => Some(at),
            None => Some(written.plus(pace)),
        }
    }

    /// Whether a reader waits for a proof that no write on its way can give.
    pub(super) fn wants_proof(&self, group: &BucketGroup, now: Moment) -> bool {
        let listed = if self.is_caught_up { Moment::ZERO } else { self.listed };
        let (wanted, answered) = (self.known_needs.proof.max(listed), group.extra.answered());
        // The beats of a member that has just joined a large group are not followed yet, and do not come back.
        let is_on_its_way = wanted <= answered && now < answered.plus(RETURN_LIMIT);
        wanted > self.proven && !is_on_its_way
    }

    fn may_write(&self, group: &BucketGroup, now: Moment) -> bool {
        let is_due = self.wants_proof(group, now) || self.write_due(group).is_some_and(|at| at <= now);
        is_due && self.probing.is_none() && now >= self.probe_after
    }

    fn probe(&mut self, handle: &Arc<BucketHandle>, group: &BucketGroup, now: Moment) {
        let (handle, subject) = (Arc::clone(handle), self.subjects.probe(handle.client.process));
        tracing::trace!(group = %group.name, "a probe");
        self.probing = Some(now);
        self.calls.push(Box::pin(async move {
            let started = handle.client.clock.now();
            FinishedCall::Probe { started, answer: bounded(handle.client.probe(subject)).await }
        }));
    }

    /// A record without a life: the process that ended that life would have deleted it by now.
    fn finish_half_evicted(&mut self, handle: &Arc<BucketHandle>, group: &BucketGroup, now: Moment) {
        let there = self.mirror.half_evicted();
        self.half_evicted.retain(|id, _| there.iter().any(|(half, _)| half == id));
        if !self.rights.may_evict {
            return;
        }
        for (id, tombstone) in there {
            let since = *self.half_evicted.entry(id.clone()).or_insert(now);
            if now.since(since) < HALF_EVICTED_LASTS || self.evicting.len() >= EVICTIONS_MAX || !self.evicting.insert(id.clone()) {
                continue;
            }
            let (handle, name) = (Arc::clone(handle), group.name.clone());
            self.calls.push(Box::pin(async move {
                if let Err(failure) = evictions::finish(handle, name.clone(), id.clone(), tombstone).await {
                    tracing::debug!(group = %name, %failure, "a record without a life is not deleted yet");
                }
                FinishedCall::Rest { id }
            }));
        }
    }

    /// Of all processes, that of the first member tidies up.
    fn sweep(&mut self, handle: &Arc<BucketHandle>, now: Moment) {
        let is_mine = self.mirror.first_member().is_some_and(|first| self.known_needs.mine.contains(first));
        if !is_mine || !self.rights.may_sweep || now < self.swept.plus(SWEEP_EVERY) {
            return;
        }
        self.swept = now;
        let markers = self.mirror.old_markers(SWEPT_MAX);
        if !markers.is_empty() {
            let handle = Arc::clone(handle);
            self.calls.push(Box::pin(async move { FinishedCall::Sweep { answer: evictions::sweep(handle, markers).await } }));
        }
    }

    /// Takes what ran beside the consumer.
    pub(super) fn finish(&mut self, handle: &BucketHandle, group: &BucketGroup, finished: FinishedCall) -> NatsResult<()> {
        match finished {
            FinishedCall::Probe { started, answer } => self.finish_probe(handle, group, started, answer),
            FinishedCall::Eviction { record, seen, answer } => {
                self.evicting.remove(&record.instance_id);
                self.finish_eviction(handle, group, &record, seen, answer);
                Ok(())
            }
            FinishedCall::Rest { id } => {
                self.evicting.remove(&id);
                // If it is still there, its time begins anew.
                self.half_evicted.remove(&id);
                Ok(())
            }
            FinishedCall::Sweep { answer } => {
                match answer {
                    Ok(markers) => markers.iter().for_each(|marker| self.mirror.forget_marker(marker)),
                    Err(failure) => {
                        self.rights.may_sweep = failure.is_passing();
                        tracing::debug!(group = %group.name, %failure, "old markers are not forgotten");
                    }
                }
                Ok(())
            }
        }
    }

    fn finish_probe(&mut self, handle: &BucketHandle, group: &BucketGroup, started: Moment, answer: NatsResult<u64>) -> NatsResult<()> {
        self.probing = None;
        match answer {
            Ok(sequence) => {
                wrote(group, started, sequence);
                Ok(())
            }
            Err(failure) => {
                group.extra.interrupt();
                let now = handle.client.clock.now();
                self.probe_after = now.plus(jittered(PROBE_PAUSE));
                // Nothing can be proven meanwhile, and the watches have to know why.
                if failure.is_passing() && !matches!(failure, Failure::Broken | Failure::Replaced) {
                    group.shown.send_modify(|shown| shown.failure = Some((failure, now)));
                    return Ok(());
                }
                Err(failure)
            }
        }
    }

    fn finish_eviction(
        &mut self,
        handle: &BucketHandle,
        group: &BucketGroup,
        record: &RecordId,
        seen: Option<u64>,
        answer: NatsResult<EvictionOutcome>,
    ) {
        let id = &record.instance_id;
        match answer {
            Ok(EvictionOutcome { is_evicted, beat }) => {
                // A beat that is gone without a tombstone was lost by the store. One that came meanwhile is newer than that answer.
                let is_unchanged = self.mirror.beat(id).map(StoredBeat::sequence) == seen;
                if beat.is_none() && is_unchanged && seen.is_some() {
                    // Else the observer would go on naming the beat that was lost.
                    self.silence.step(handle.client.clock.now(), SilenceInput::Gone(record.clone()));
                    self.changed.members = true;
                }
                if beat.is_some() || is_unchanged {
                    self.mirror.put_beat(id, beat);
                    self.beats.insert(id.clone());
                }
                if is_evicted {
                    tracing::info!(group = %group.name, member = %id, "evicted a member whose heartbeats stopped for its TTL");
                }
            }
            Err(Failure::Forbidden { why }) => {
                self.rights.may_evict = false;
                tracing::debug!(why, "this process may not write there, so it evicts no silent member");
            }
            // The next write tries again.
            Err(failure) => tracing::debug!(group = %group.name, member = %id, %failure, "a silent member is not evicted yet"),
        }
    }
}
