//! Which members have been silent for a granted TTL, by the observer's own clock. For backends whose server does not end leases safely.
//!
//! Each renewal changes a number in the store, the record's *beat*: a renewal count in PostgreSQL, the sequence of a subject in NATS. An
//! observer that sees one beat for a whole TTL evicts the record: it deletes it on the condition that the beat has not changed.
//! [`Silence`] decides that for one process and one group, without clock and I/O. The backend hands in what it saw and how its own writes
//! went, carries out each [`Eviction`], and writes no later than at [`Silence::next_write`].
//!
//! **No eviction hits a valid lease.** Let `s` be the latest start of a renewal that the store carried out, by the member's own clock. The
//! member's deadline is at most `s` plus 0.99 of the TTL. The observer received the present beat after `s` and decides when its own clock
//! has advanced by the TTL since. The rates of two clocks differ by at most 1 %, so by then the member's clock has passed the deadline. A
//! renewal that is carried out later changes the beat, and the condition fails.
//!
//! **An outage evicts no living member.** Silence ends at the *start* of the observer's last answered write, because until then the store
//! took writes. An observer whose write failed, whose link broke, or whose writes were more than two thirds of a TTL apart begins all
//! timers anew at its next answered write. By then the others can write too, and they renew within a TTL.
//!
//! What the backend must keep to:
//!
//! - A beat never repeats for a record, not even if the same incarnation registers again after its eviction. A late eviction would delete
//!   it.
//! - `now` is the time at which the backend handles the input: neither the start of the read, nor any time of the server.
//! - [`SilenceInput::Written`] comes after all inputs about what the store carried out before that write.
//! - If the store refuses an eviction, the backend reads the record and hands in the result. A store that lost a beat reports no deletion.

mod guards;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use shardwise_core::mistakes::{counts_silence_in_outages, takes_absence_for_eviction};
use shardwise_core::{Incarnation, InstanceId, Moment};

use crate::RecordId;

pub use guards::GUARDS;

/// What a list or a watch shows of one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenRecord {
    /// The record.
    pub record: RecordId,
    /// The TTL that was granted to it.
    pub ttl: Duration,
    /// The number that its last renewal left; `None` if only the rest of the record was seen.
    pub beat: Option<u64>,
}

/// What the observer learns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SilenceInput {
    /// The whole group. Members that are missing here are gone.
    Listed(Vec<SeenRecord>),
    /// One record, or its beat.
    Seen(SeenRecord),
    /// A record was deleted: its member left or was evicted.
    Gone(RecordId),
    /// The store answered a write of this process that began at `started`: a renewal, a registration (even a refused one), a probe.
    Written {
        /// When the request began.
        started: Moment,
    },
    /// A write of this process failed or was given up, or the link to the store broke, so that inputs may be missing.
    Interrupted,
    /// The members of this process in the group, registered or about to register. Replaces the former ones. Without any it guards all.
    Mine(BTreeSet<InstanceId>),
    /// The records for whose end this process waits, each with its TTL: holders of claims that it wants, and the record that has its id in
    /// use. Replaces the former ones. Those whose eviction was seen do not belong here.
    Waits(Vec<(RecordId, Duration)>),
}

/// A record to delete, and the condition of the deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eviction {
    /// The record.
    pub record: RecordId,
    /// The record must still have this beat. `None`: there must still be no beat, and the eviction is a tombstone that says so.
    pub seen: Option<u64>,
}

/// How long something has stayed as it is.
#[derive(Debug, Clone, Copy)]
struct SilenceTimer {
    ttl: Duration,
    since: Moment,
}

impl SilenceTimer {
    fn ends(self) -> Moment {
        self.since.plus(self.ttl)
    }

    /// When a write must begin: at the end, and half a TTL after the last one, so that no gap comes between.
    fn next_write(self, proven: Moment) -> Moment {
        let next = proven.plus(self.ttl / 2);
        if self.ends() > proven { next.min(self.ends()) } else { next }
    }
}

/// A record that is there.
#[derive(Debug)]
struct ObservedRecord {
    record: RecordId,
    beat: Option<u64>,
    timer: SilenceTimer,
    id_hash: u64,
    guarded: bool,
}

/// A record for whose end this process waits.
#[derive(Debug)]
struct AwaitedEnd {
    record: RecordId,
    ttl: Duration,
    /// While no record of that member is there. Absence alone proves nothing: it must last as long as an unchanged beat.
    absent: Option<SilenceTimer>,
}

/// The observer of one group in one process.
#[derive(Debug, Default)]
pub struct Silence {
    observed: BTreeMap<InstanceId, ObservedRecord>,
    mine: BTreeSet<InstanceId>,
    waits: BTreeMap<(InstanceId, Incarnation), AwaitedEnd>,
    /// The start of the last answered write; `None` at the beginning and after an interruption.
    proven: Option<Moment>,
}

impl Silence {
    /// Handles one input at `now`, and returns the records to evict: only after [`SilenceInput::Written`], and again after each
    /// later one as long as the records are there.
    pub fn step(&mut self, now: Moment, input: SilenceInput) -> Vec<Eviction> {
        let changed = match input {
            SilenceInput::Listed(records) => self.list(now, records),
            SilenceInput::Seen(seen) => self.see(now, seen),
            SilenceInput::Gone(record) => {
                let is_there = self.observed.get(&record.instance_id).is_some_and(|observed| observed.record == record);
                is_there && self.observed.remove(&record.instance_id).is_some()
            }
            SilenceInput::Written { started } => {
                self.prove(now, started);
                return self.silent();
            }
            SilenceInput::Interrupted => {
                self.proven = None;
                false
            }
            SilenceInput::Mine(mine) => {
                self.mine = mine;
                true
            }
            SilenceInput::Waits(waits) => {
                self.wait_for(waits);
                true
            }
        };
        if changed {
            self.assign(now);
        }
        Vec::new()
    }

    /// When the next write must begin, if none does before: a renewal or a probe. `None` while there is nothing to observe. Also `None`
    /// before the first answered write and after an interruption: then the backend writes at its own pace.
    pub fn next_write(&self) -> Option<Moment> {
        let proven = self.proven?;
        let observed = self.observed.values().filter(|observed| observed.guarded).map(|observed| observed.timer);
        let absent = self.waits.values().filter_map(|awaited| awaited.absent);
        observed.chain(absent).map(|timer| timer.next_write(proven)).min()
    }

    /// The members whose beats this process needs: those that it guards, and those for whose end it waits.
    pub fn guarded(&self) -> impl Iterator<Item = &InstanceId> {
        let observed = self.observed.iter().filter(|(_, observed)| observed.guarded).map(|(id, _)| id);
        let absent = self.waits.values().filter(|awaited| awaited.absent.is_some()).map(|awaited| &awaited.record.instance_id);
        observed.chain(absent)
    }

    /// Whether the group has another member now, or another life of one.
    fn list(&mut self, now: Moment, records: Vec<SeenRecord>) -> bool {
        let listed: BTreeSet<InstanceId> = records.iter().map(|seen| seen.record.instance_id.clone()).collect();
        let before = self.observed.len();
        self.observed.retain(|id, _| listed.contains(id));
        let mut changed = self.observed.len() != before;
        for seen in records {
            changed |= self.see(now, seen);
        }
        changed
    }

    /// Whether it is another member, or another life of one.
    fn see(&mut self, now: Moment, seen: SeenRecord) -> bool {
        let SeenRecord { record, ttl, beat } = seen;
        let id = record.instance_id.clone();
        if let Some(observed) = self.observed.get_mut(&id).filter(|observed| observed.record == record) {
            let beat = beat.or(observed.beat);
            // Any other beat is a change, also a lower one: a store that was restored begins below.
            if (beat, ttl) != (observed.beat, observed.timer.ttl) {
                observed.beat = beat;
                observed.timer = SilenceTimer { ttl, since: now };
            }
            return false;
        }
        let id_hash = guards::id_hash(&id);
        self.observed.insert(id, ObservedRecord { record, beat, timer: SilenceTimer { ttl, since: now }, id_hash, guarded: false });
        true
    }

    fn prove(&mut self, now: Moment, started: Moment) {
        let last = self.proven;
        let absent = self.waits.values_mut().filter_map(|awaited| awaited.absent.as_mut());
        for timer in self.observed.values_mut().map(|observed| &mut observed.timer).chain(absent) {
            // A process that was stopped sees no failure: for it only the time between its writes shows an outage.
            let is_gap = last.is_none_or(|last| now.since(last) > timer.ttl / 3 * 2);
            if is_gap && !counts_silence_in_outages() {
                timer.since = now;
            }
        }
        self.proven = last.max(Some(started));
    }

    fn silent(&self) -> Vec<Eviction> {
        let Some(proven) = self.proven else { return Vec::new() };
        let is_over = |timer: SilenceTimer, seen: Option<u64>| timer.ends() <= proven || (seen.is_none() && takes_absence_for_eviction());
        let observed = self.observed.values().filter(|observed| observed.guarded && is_over(observed.timer, observed.beat));
        let observed = observed.map(|observed| Eviction { record: observed.record.clone(), seen: observed.beat });
        let absent = self.waits.values().filter(|awaited| awaited.absent.is_some_and(|timer| is_over(timer, None)));
        let absent = absent.map(|awaited| Eviction { record: awaited.record.clone(), seen: None });
        observed.chain(absent).collect()
    }

    fn wait_for(&mut self, waits: Vec<(RecordId, Duration)>) {
        let mut former = std::mem::take(&mut self.waits);
        for (record, ttl) in waits {
            let key = (record.instance_id.clone(), record.incarnation);
            let absent = former.remove(&key).and_then(|awaited| awaited.absent).map(|timer| SilenceTimer { ttl, ..timer });
            self.waits.insert(key, AwaitedEnd { record, ttl, absent });
        }
    }

    /// Decides again which members are guarded and which are absent. Timers of new ones begin now: before, their beats were not followed.
    fn assign(&mut self, now: Moment) {
        let guarded: Vec<bool> = self.observed.iter().map(|(id, observed)| self.guards(id, observed)).collect();
        for (observed, guarded) in self.observed.values_mut().zip(guarded) {
            if guarded && !observed.guarded {
                observed.timer.since = now;
            }
            observed.guarded = guarded;
        }
        for awaited in self.waits.values_mut() {
            // Another life of the member in its place is no absence: the claims of the former one ended with that registration.
            let is_there = self.observed.contains_key(&awaited.record.instance_id);
            let begun = awaited.absent.unwrap_or(SilenceTimer { ttl: awaited.ttl, since: now });
            awaited.absent = (!is_there).then_some(begun);
        }
    }

    fn guards(&self, id: &InstanceId, observed: &ObservedRecord) -> bool {
        let is_small = self.observed.len() <= GUARDS + 1;
        if is_small || self.mine.is_empty() || self.waits.contains_key(&(id.clone(), observed.record.incarnation)) {
            return true;
        }
        let others = || self.observed.iter().filter(|(other, _)| *other != id).map(|(other, observed)| (other, observed.id_hash));
        self.mine.iter().any(|me| me != id && guards::is_chosen(me, observed.id_hash, others()))
    }
}
