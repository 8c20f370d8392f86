//! The lease of the local worker on one policy, and what was granted under it. No clock and no I/O: the time is an argument.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::time::Duration;

use shardwise::core::Resource;
use shardwise::{Epoch, Moment, Ownership, Period, SlotSet};
use tokio_util::sync::CancellationToken;

/// The most changes that are kept for streams; a stream that is further behind gets the whole table again.
const CHANGES_MAX: usize = 65_536;
/// From so many names on, those that the leases before the latest ones were granted are forgotten.
const FORMER_NAMES_MAX: usize = 4_096;
const FORMER_LEASES: u64 = 16;

/// The id of a lease: a random number, shown as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeaseId(u128);

impl LeaseId {
    pub(crate) const fn new(number: u128) -> Self {
        Self(number)
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_shown = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_shown.then(|| u128::from_str_radix(text, 16).ok().map(Self)).flatten()
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A lease that is or was live.
#[derive(Clone, Copy)]
struct LiveLease {
    id: LeaseId,
    /// Which lease of this sidecar it is, from 1.
    number: u64,
    opened: Moment,
    ends: Moment,
    ttl: Duration,
}

/// Why a call about a lease is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseRefusal {
    /// Another lease is live: for how long already, and for how long still.
    Taken { age: Duration, left: Duration },
    /// The lease is not live, and why.
    Ended(&'static str),
}

/// Why a lease has ended.
const EXPIRED: &str = "it was not renewed in time";
pub(crate) const CLOSED: &str = "it was ended by a request";
pub(crate) const BAD_ID: &str = "its id is not valid: it has 32 hexadecimal digits";
const UNREAD: &str = "its grants were not read: a renewal says with seen which version of them the worker has processed";
const UNKNOWN: &str = "this sidecar has no such lease: it has ended, or the sidecar has started again since";

/// How far the handover of a grant is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GrantPhase {
    /// Work may start.
    Granted,
    /// It must be handed over: work in flight may finish, and no new work may start.
    Finish,
    /// It is gone, or its time for finishing has passed. Kept until the worker confirms that its work has stopped.
    Lost,
}

/// A slot or a name that the worker was granted.
#[derive(Clone)]
pub(crate) struct WorkerGrant {
    /// No other grant has this number.
    pub(crate) number: u64,
    pub(crate) resource: Resource,
    pub(crate) epoch: Epoch,
    /// The period that a timer fired.
    pub(crate) period: Option<Period>,
    pub(crate) phase: GrantPhase,
    /// Cancelled when this member has lost it, or its time for finishing has passed.
    lost: CancellationToken,
    /// Cancelled when no work is in flight under it any more.
    released: CancellationToken,
}

/// One change of the table.
#[derive(Clone)]
pub(crate) struct GrantChange {
    pub(crate) version: u64,
    at: Moment,
    /// The grant as it was after the change.
    pub(crate) grant: WorkerGrant,
}

/// The lease and the grants of one policy.
pub(crate) struct LeaseState {
    lease: Option<LiveLease>,
    opened: u64,
    /// The lease that ended last, and why.
    ended: Option<(LiveLease, &'static str)>,
    grants: BTreeMap<u64, WorkerGrant>,
    /// The latest grant of each slot.
    of_slot: HashMap<u32, u64>,
    /// The slots in which work may start.
    slots: SlotSet,
    /// The latest grant of each slot and name: its epoch, and the lease that it was granted to.
    former: BTreeMap<Resource, (Epoch, u64)>,
    numbers: u64,
    version: u64,
    changes: VecDeque<GrantChange>,
    /// The version that the worker has processed, as far as it has said so.
    seen: u64,
}

impl LeaseState {
    /// No lease, for a ring of that many slots.
    pub(crate) fn new(slots: u32) -> Self {
        Self {
            lease: None,
            opened: 0,
            ended: None,
            grants: BTreeMap::new(),
            of_slot: HashMap::new(),
            slots: SlotSet::empty(slots),
            former: BTreeMap::new(),
            numbers: 0,
            version: 0,
            changes: VecDeque::new(),
            seen: 0,
        }
    }

    /// Opens a lease; refused while another one is live.
    pub(crate) fn open(&mut self, now: Moment, id: LeaseId, ttl: Duration) -> Result<(), LeaseRefusal> {
        self.expire(now);
        if let Some(lease) = &self.lease {
            return Err(LeaseRefusal::Taken { age: now.since(lease.opened), left: lease.ends.since(now) });
        }
        self.opened += 1;
        if self.former.len() > self.slots.slots() as usize + FORMER_NAMES_MAX {
            // Grants of leases older than FORMER_LEASES have been released.
            self.former.retain(|resource, (_, lease)| matches!(resource, Resource::Slot(_)) || *lease + FORMER_LEASES > self.opened);
        }
        self.lease = Some(LiveLease { id, number: self.opened, opened: now, ends: now.plus(ttl), ttl });
        self.version += 1;
        self.seen = self.version;
        Ok(())
    }

    /// Renews the lease, unless the worker has not processed a change for a whole ttl. Returns its ttl.
    pub(crate) fn renew(&mut self, now: Moment, id: LeaseId, seen: Option<u64>) -> Result<Duration, LeaseRefusal> {
        self.check(now, id)?;
        self.saw(seen);
        let unseen = self.changes.get(self.changes.partition_point(|change| change.version <= self.seen)).map(|change| change.at);
        let Some(lease) = &mut self.lease else { return Err(LeaseRefusal::Ended(UNKNOWN)) };
        if unseen.is_some_and(|since| now.since(since) > lease.ttl) {
            // What was granted stays held until the end that the latest renewal has named, because the worker may work until then.
            return Err(LeaseRefusal::Ended(UNREAD));
        }
        lease.ends = now.plus(lease.ttl);
        Ok(lease.ttl)
    }

    /// The worker has processed that version.
    pub(crate) fn saw(&mut self, version: Option<u64>) {
        self.seen = self.seen.max(version.unwrap_or_default().min(self.version));
    }

    /// The ttl of that lease; an error unless it is live.
    pub(crate) fn check(&mut self, now: Moment, id: LeaseId) -> Result<Duration, LeaseRefusal> {
        self.expire(now);
        match (&self.lease, &self.ended) {
            (Some(lease), _) if lease.id == id => Ok(lease.ttl),
            (_, Some((ended, why))) if ended.id == id => Err(LeaseRefusal::Ended(why)),
            _ => Err(LeaseRefusal::Ended(UNKNOWN)),
        }
    }

    /// Ends the lease if it has expired.
    pub(crate) fn expire(&mut self, now: Moment) {
        if self.lease.is_some_and(|lease| lease.ends <= now) {
            self.end(EXPIRED);
        }
    }

    /// Ends the lease, and releases all that was granted under it at once.
    pub(crate) fn end(&mut self, why: &'static str) {
        let Some(lease) = self.lease.take() else { return };
        self.ended = Some((lease, why));
        for grant in std::mem::take(&mut self.grants).into_values() {
            grant.released.cancel();
        }
        self.of_slot.clear();
        self.changes.clear();
        self.slots = SlotSet::empty(self.slots.slots());
        self.version += 1;
    }

    /// Why the latest lease has ended, for the log; `None` before the first end.
    pub(crate) fn end_cause(&self) -> Option<String> {
        let (ended, why) = self.ended.as_ref()?;
        Some(if *why == EXPIRED { format!("it was not renewed for {:?}", ended.ttl) } else { (*why).to_owned() })
    }

    /// The number of the live lease; `None` without one.
    pub(crate) fn live(&self) -> Option<u64> {
        self.lease.map(|lease| lease.number)
    }

    /// Since when there is a lease, and until when; `None` without one.
    pub(crate) fn span(&self) -> Option<(Moment, Moment)> {
        self.lease.map(|lease| (lease.opened, lease.ends))
    }

    /// Whether any lease was ever opened.
    pub(crate) const fn was_opened(&self) -> bool {
        self.opened > 0
    }

    /// Whether this member still holds anything under an epoch that it granted to an earlier lease. It has to be released first: if the
    /// next worker had the same epoch, no database could tell the two apart.
    pub(crate) fn is_stale(&self, ownership: &Ownership) -> bool {
        let mut slots = ownership.fences().map(|fence| (Resource::Slot(fence.slot), fence.epoch));
        let mut names = ownership.names().map(|(name, epoch)| (Resource::Name(name.clone()), epoch));
        !self.former.is_empty()
            && (slots.any(|(slot, epoch)| self.was_others(&slot, epoch)) || names.any(|(name, epoch)| self.was_others(&name, epoch)))
    }

    fn was_others(&self, resource: &Resource, epoch: Epoch) -> bool {
        self.former.get(resource).is_some_and(|(granted, lease)| *granted >= epoch && Some(*lease) != self.live())
    }

    /// Whether the slot is granted under that epoch, also while it is being handed over.
    pub(crate) fn has_slot(&self, slot: u32, epoch: Epoch) -> bool {
        let grant = self.of_slot.get(&slot).and_then(|number| self.grants.get(number));
        grant.is_some_and(|grant| grant.epoch == epoch && grant.phase != GrantPhase::Lost)
    }

    /// Grants a slot or a name to the live lease, in place of an earlier grant of the same slot. Returns the grant's number, and the token
    /// that is cancelled when no work is in flight under it any more. `None` without a lease, or if an earlier lease had that epoch.
    pub(crate) fn grant(
        &mut self,
        now: Moment,
        resource: Resource,
        epoch: Epoch,
        period: Option<Period>,
        lost: &CancellationToken,
    ) -> Option<(u64, CancellationToken)> {
        let lease = self.live()?;
        if self.was_others(&resource, epoch) {
            return None;
        }
        self.numbers += 1;
        let (number, released) = (self.numbers, CancellationToken::new());
        if let Resource::Slot(slot) = resource {
            if let Some(earlier) = self.of_slot.get(&slot).copied() {
                self.advance(now, earlier, GrantPhase::Lost);
                if let Some(earlier) = self.grants.remove(&earlier) {
                    earlier.released.cancel();
                }
            }
            self.slots.insert(slot);
            self.of_slot.insert(slot, number);
        }
        self.former.insert(resource.clone(), (epoch, lease));
        let grant =
            WorkerGrant { number, resource, epoch, period, phase: GrantPhase::Granted, lost: lost.clone(), released: released.clone() };
        self.grants.insert(number, grant.clone());
        self.changed(now, grant);
        Some((number, released))
    }

    /// Marks as lost what this member has lost, for readers that must not see it as granted for even a moment longer.
    pub(crate) fn sweep(&mut self, now: Moment) {
        let lost = self.grants.values().filter(|grant| grant.phase != GrantPhase::Lost && grant.lost.is_cancelled());
        for number in lost.map(|grant| grant.number).collect::<Vec<_>>() {
            self.advance(now, number, GrantPhase::Lost);
        }
    }

    /// Moves a grant on in its handover, if it is not there yet.
    pub(crate) fn advance(&mut self, now: Moment, number: u64, phase: GrantPhase) {
        let Some(grant) = self.grants.get_mut(&number) else { return };
        let is_further = matches!((grant.phase, phase), (GrantPhase::Granted, _) | (GrantPhase::Finish, GrantPhase::Lost));
        if !is_further || phase == GrantPhase::Granted {
            return;
        }
        grant.phase = phase;
        let grant = grant.clone();
        if let Resource::Slot(slot) = grant.resource
            && self.of_slot.get(&slot) == Some(&number)
        {
            self.slots.remove(slot);
        }
        self.changed(now, grant);
    }

    /// The worker says that no work is in flight under these grants any more. A slot that was not asked to finish stays granted, because
    /// no other member would take it. Returns how many were released.
    pub(crate) fn finished(&mut self, numbers: &[u64]) -> usize {
        let mut released = 0;
        for number in numbers {
            let may_end = |grant: &WorkerGrant| grant.phase != GrantPhase::Granted || matches!(grant.resource, Resource::Name(_));
            if !self.grants.get(number).is_some_and(may_end) {
                continue;
            }
            let Some(grant) = self.grants.remove(number) else { continue };
            grant.released.cancel();
            if let Resource::Slot(slot) = grant.resource
                && self.of_slot.get(&slot) == Some(number)
            {
                self.of_slot.remove(&slot);
            }
            released += 1;
        }
        // No version of its own: the worker knows what it has finished.
        released
    }

    fn changed(&mut self, at: Moment, grant: WorkerGrant) {
        self.version += 1;
        if self.changes.len() == CHANGES_MAX {
            self.changes.pop_front();
        }
        self.changes.push_back(GrantChange { version: self.version, at, grant });
    }

    /// Rises with each change of the lease and the grants.
    pub(crate) const fn version(&self) -> u64 {
        self.version
    }

    /// The slots in which work may start.
    pub(crate) const fn slots(&self) -> &SlotSet {
        &self.slots
    }

    /// The grant of that slot, if work may start in it and this member has not lost it.
    pub(crate) fn open_slot(&self, slot: u32) -> Option<&WorkerGrant> {
        let grant = self.of_slot.get(&slot).and_then(|number| self.grants.get(number));
        grant.filter(|grant| grant.phase == GrantPhase::Granted && !grant.lost.is_cancelled())
    }

    /// All grants under which the worker may still work, by their numbers.
    pub(crate) fn grants(&self) -> impl Iterator<Item = &WorkerGrant> {
        self.grants.values().filter(|grant| grant.phase != GrantPhase::Lost)
    }

    /// The numbers of grants that are lost, and of which the worker has not confirmed yet that its work has stopped.
    pub(crate) fn lost(&self) -> impl Iterator<Item = u64> {
        self.grants.values().filter(|grant| grant.phase == GrantPhase::Lost).map(|grant| grant.number)
    }

    /// The changes after that version, the oldest first; `None` if they are not all kept.
    pub(crate) fn changes_after(&self, version: u64) -> Option<impl Iterator<Item = &GrantChange>> {
        let is_complete = self.changes.len() < CHANGES_MAX || self.changes.front().is_some_and(|oldest| oldest.version <= version + 1);
        let after = self.changes.partition_point(|change| change.version <= version);
        is_complete.then(|| self.changes.range(after..))
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
