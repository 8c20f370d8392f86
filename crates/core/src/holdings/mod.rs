//! State machine of the claims that one member holds (exclusive ownership). It takes events and the time as arguments and returns actions.
//!
//! The placement says which member should hold a resource; the claim says which member does. This machine brings the claims of one member
//! in line with the placement: it acquires what is free, waits for what others hold, and releases what it should not hold as soon as no
//! work is in flight on it.
//!
//! Rules (`docs/internals/design.md`): a resource serves from the grant until the member gives it up. Giving up means drain, then
//! release. A fenced member stops serving at once. The backend may still list its earlier claims; the member releases them before it
//! acquires them again, so that each period of serving has its own epoch.

mod answers;
mod draining;
mod io;
mod missed;
mod pending_call;
mod reports;
mod store;
#[cfg(test)]
mod tests;

pub use crate::policy::OnDrainTimeout;
pub use io::{CallFailure, ClaimAction, HoldingRules};
pub use store::StoreRefusal;

use std::collections::{BTreeMap, BTreeSet};

use crate::mistakes::{Mistake, made};
use crate::{Claim, Epoch, Holder, Incarnation, Moment, Resource, SlotSet};
use pending_call::PendingCall;

/// The state of one resource in this member.
#[derive(Debug, Default)]
struct ResourceEntry {
    wanted: bool,
    /// The acquire call under way includes it.
    asked: bool,
    hold: Option<HeldResource>,
    /// The epoch under which the watch shows it as held by this member.
    shown: Option<Epoch>,
    /// Do not ask for it before this moment.
    not_before: Option<Moment>,
}

impl ResourceEntry {
    /// The claim, if this member uses or drains it; `None` for an orphan.
    fn mine(&self) -> Option<&HeldResource> {
        self.hold.as_ref().filter(|hold| hold.phase != Phase::Orphan)
    }

    const fn is_blank(&self) -> bool {
        !self.wanted && !self.asked && self.hold.is_none() && self.shown.is_none() && self.not_before.is_none()
    }
}

/// A claim that this member has in the backend, as far as it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HeldResource {
    epoch: Epoch,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Serving,
    /// Takes no new work; work in flight may continue until then.
    Draining {
        until: Moment,
        /// No work is in flight any more.
        idle: bool,
        /// The drain timeout has passed and the work was cancelled.
        cancelled: bool,
    },
    /// A release is under way.
    Releasing,
    /// Held before a fence, or granted in an answer that was lost: not used, and released later.
    Orphan,
}

impl Phase {
    /// Whether the member keeps it if it is wanted again.
    const fn may_stay(self) -> bool {
        matches!(self, Self::Serving | Self::Draining { cancelled: false, .. })
    }
}

/// The claims of one member of one group.
#[derive(Debug)]
pub struct Holdings {
    rules: HoldingRules,
    me: Holder,
    entered: bool,
    store: store::StoreState,
    /// Whether calls may acquire and release: the record is in the backend, and the store of claims was read since. False again while the
    /// store must be read anew; it stays accepted meanwhile.
    is_store_open: bool,
    /// What this member wants, holds or has asked for.
    entries: BTreeMap<Resource, ResourceEntry>,
    /// The last epoch under which each resource served. It outlives the resource's entry, or else an epoch could serve twice.
    served: BTreeMap<Resource, Epoch>,
    /// What other members hold, by the watch: most of it has no entry, since this member neither wants nor holds it.
    others: BTreeMap<Resource, Claim>,
    /// Whether the watch has reported the claims of others.
    claims_known: bool,
    acquiring: PendingCall,
    releasing: PendingCall,
    /// What the release call under way releases.
    sent: Vec<(Resource, Epoch)>,
    attempt: u64,
    /// Counts the changes to what serves.
    changes: u64,
    /// Resources whose holder changed since the last `take_moves`; `None` if moves are not recorded.
    moves: Option<BTreeSet<Resource>>,
}

impl Holdings {
    /// A machine that holds and wants nothing.
    pub const fn new(rules: HoldingRules, me: Holder) -> Self {
        Self {
            rules,
            me,
            entered: false,
            store: store::StoreState::NONE,
            is_store_open: false,
            entries: BTreeMap::new(),
            served: BTreeMap::new(),
            others: BTreeMap::new(),
            claims_known: false,
            acquiring: PendingCall::IDLE,
            releasing: PendingCall::IDLE,
            sent: Vec::new(),
            attempt: 0,
            changes: 0,
            moves: None,
        }
    }

    /// Like [`Holdings::new`], and records moves for [`Holdings::take_moves`].
    pub(crate) fn recording_moves(rules: HoldingRules, me: Holder) -> Self {
        Self { moves: Some(BTreeSet::new()), ..Self::new(rules, me) }
    }

    /// The resources whose holder may have changed since the last call.
    pub(crate) fn take_moves(&mut self) -> BTreeSet<Resource> {
        self.moves.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn note_move(&mut self, resource: &Resource) {
        if let Some(moves) = &mut self.moves {
            moves.insert(resource.clone());
        }
    }

    /// Whether the holders of all resources are known.
    pub(crate) const fn are_claims_known(&self) -> bool {
        self.claims_known
    }

    /// The holder of a resource, as far as is known. A resource that this member is giving up for good has no holder.
    pub(crate) fn holder_of(&self, resource: &Resource) -> Option<&Holder> {
        match self.entries.get(resource).and_then(ResourceEntry::mine) {
            Some(hold) => hold.phase.may_stay().then_some(&self.me),
            None => self.others.get(resource).map(|claim| &claim.holder),
        }
    }

    /// Every resource that has a holder, with its holder: see [`Holdings::holder_of`].
    pub(crate) fn holders(&self) -> impl Iterator<Item = (&Resource, &Holder)> {
        let mine = self.mine().map(|(resource, _)| resource);
        let theirs = self.others.keys().filter(|resource| self.entries.get(*resource).is_none_or(|entry| entry.mine().is_none()));
        theirs.chain(mine).filter_map(|resource| Some((resource, self.holder_of(resource)?)))
    }

    fn mine(&self) -> impl Iterator<Item = (&Resource, &HeldResource)> {
        self.entries.iter().filter_map(|(resource, entry)| Some((resource, entry.mine()?)))
    }

    /// What serves now, with its epoch: new work may start on it.
    pub fn serving(&self) -> impl Iterator<Item = (&Resource, Epoch)> {
        let members_own = made(Mistake::EpochPerMember).then(|| self.served.values().min().copied()).flatten();
        let serving = self.mine().filter(|(_, hold)| hold.phase == Phase::Serving);
        serving.map(move |(resource, hold)| (resource, members_own.unwrap_or(hold.epoch)))
    }

    /// What is held now, with its epoch: what serves, and what drains and is not being released yet.
    pub fn held(&self) -> impl Iterator<Item = (&Resource, Epoch)> {
        self.mine().filter(|(_, hold)| hold.phase != Phase::Releasing).map(|(resource, hold)| (resource, hold.epoch))
    }

    /// Whether nothing is held or being released, so that the record may be deleted.
    pub fn is_empty(&self) -> bool {
        self.entries.values().all(|entry| entry.mine().is_none() && !entry.asked)
    }

    /// The slots, of a ring of `slots`, that no member holds, as far as is known; empty until the claims are known.
    pub fn free_slots(&self, slots: u32) -> SlotSet {
        let mut free = if self.claims_known { SlotSet::full(slots) } else { SlotSet::empty(slots) };
        let own = self.entries.iter().filter(|(_, entry)| entry.hold.is_some()).map(|(resource, _)| resource);
        for resource in self.others.keys().chain(own) {
            if let Resource::Slot(slot) = resource {
                free.remove(*slot);
            }
        }
        free
    }

    /// Whether no member holds it, as far as is known.
    pub fn is_free(&self, resource: &Resource) -> bool {
        self.claims_known && !self.others.contains_key(resource) && self.entries.get(resource).is_none_or(|entry| entry.hold.is_none())
    }

    /// A number that changes whenever the set that serves changes.
    pub const fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether the store of claims was accepted since the record was created.
    pub const fn is_store_accepted(&self) -> bool {
        self.store.accepted
    }

    /// The member's record is in the backend: opens the store of claims, then acquires what is wanted.
    pub fn enter(&mut self, now: Moment, actions: &mut Vec<ClaimAction>) {
        self.entered = true;
        self.keep_up(now, actions);
    }

    /// The store was accepted: calls may acquire and release.
    fn open(&mut self, now: Moment, actions: &mut Vec<ClaimAction>) {
        self.is_store_open = true;
        self.keep_up(now, actions);
    }

    /// The lease has expired: nothing serves any more, and answers to calls under way are ignored.
    pub fn fence(&mut self) {
        (self.entered, self.is_store_open, self.store.accepted, self.store.refused) = (false, false, false, None);
        self.changes += 1;
        self.orphan_all();
        (self.acquiring, self.releasing, self.store.call) = (PendingCall::IDLE, PendingCall::IDLE, PendingCall::IDLE);
    }

    /// Starts another incarnation of the member: claims of the former one end with its record.
    pub(crate) fn begin_life(&mut self, incarnation: Incarnation) {
        self.fence();
        self.me.incarnation = incarnation;
        for entry in self.entries.values_mut() {
            (entry.hold, entry.shown) = (None, None);
        }
    }

    /// Turns every claim into an orphan and ignores all answers to come.
    fn orphan_all(&mut self) {
        for entry in self.entries.values_mut() {
            entry.asked = false;
            if let Some(hold) = &mut entry.hold {
                hold.phase = Phase::Orphan;
            }
        }
    }

    /// Stops serving everything. If only the store's record was replaced, the claims may still exist, so they are released.
    fn drop_all(&mut self, actions: &mut Vec<ClaimAction>) {
        let lost: Vec<_> = self.mine().map(|(resource, _)| resource.clone()).collect();
        self.orphan_all();
        (self.acquiring, self.releasing) = (PendingCall::IDLE, PendingCall::IDLE);
        self.sent.clear();
        self.changes += 1;
        if !lost.is_empty() {
            actions.push(ClaimAction::Lost(lost));
        }
    }

    /// Sets what this member should hold from now on.
    pub fn want(&mut self, now: Moment, wanted: BTreeSet<Resource>, actions: &mut Vec<ClaimAction>) {
        for entry in self.entries.values_mut() {
            entry.wanted = false;
        }
        for resource in wanted {
            self.entries.entry(resource).or_default().wanted = true;
        }
        self.drain_or_resume(now, actions);
        self.keep_up(now, actions);
    }

    /// Handles the moment of [`Holdings::wake_at`].
    pub fn woken(&mut self, now: Moment, actions: &mut Vec<ClaimAction>) {
        self.keep_up(now, actions);
    }

    /// When to call [`Holdings::woken`] if no other input comes first.
    pub fn wake_at(&self) -> Option<Moment> {
        let drains = self.mine().filter_map(|(_, hold)| match hold.phase {
            Phase::Draining { until, idle: false, cancelled: false } => Some(until),
            _ => None,
        });
        let again = (self.is_store_open && self.acquiring.in_flight.is_none()).then(|| {
            let due = self.acquirable().map(|(_, entry)| entry.not_before.unwrap_or(Moment::ZERO)).min();
            due.map(|due| due.max(self.acquiring.not_before))
        });
        let gives = self.is_store_open && self.releasing.in_flight.is_none() && self.has_to_release();
        let opens = (self.entered && !self.is_store_open && self.store.call.in_flight.is_none()).then_some(self.store.call.not_before);
        drains.min().into_iter().chain(opens).chain(again.flatten()).chain(gives.then_some(self.releasing.not_before)).min()
    }

    /// What should be acquired, now or after a pause.
    fn acquirable(&self) -> impl Iterator<Item = (&Resource, &ResourceEntry)> {
        let wanted = self.entries.iter().filter(|(_, entry)| self.claims_known && entry.wanted && entry.hold.is_none());
        wanted.filter(|(resource, _)| !self.others.contains_key(*resource))
    }

    /// Starts everything that is due: cancels work past its drain timeout, opens the store, releases what has drained, and acquires what is
    /// wanted and free. It changes nothing if nothing is due, so every input ends with it.
    fn keep_up(&mut self, now: Moment, actions: &mut Vec<ClaimAction>) {
        self.entries.retain(|_, entry| !entry.is_blank());
        self.end_drains(now, actions);
        self.ask_for_store(now, actions);
        if !self.is_store_open {
            return;
        }
        self.find_orphans();
        self.give_back(now, actions);
        if self.acquiring.is_free(now) {
            let due = self.acquirable().filter(|(_, entry)| entry.not_before.is_none_or(|at| now >= at));
            let wanted: Vec<_> = due.map(|(resource, _)| resource.clone()).collect();
            if !wanted.is_empty() {
                for entry in self.entries.values_mut() {
                    entry.not_before.take_if(|at| now >= *at);
                }
                self.acquire(wanted, actions);
            }
        }
    }

    fn acquire(&mut self, wanted: Vec<Resource>, actions: &mut Vec<ClaimAction>) {
        for resource in &wanted {
            self.entries.entry(resource.clone()).or_default().asked = true;
        }
        let attempt = self.next_attempt();
        self.acquiring.in_flight = Some(attempt);
        actions.push(ClaimAction::Acquire { attempt, wanted });
    }

    const fn next_attempt(&mut self) -> u64 {
        self.attempt += 1;
        self.attempt
    }
}
