//! What one member holds by claims (exclusive ownership), as a state machine: what happened in, what to do out, time as an argument.
//!
//! The placement says who should hold a resource, the claim says who does. This machine brings one member's claims in line with what it
//! should hold: it asks for what is free, waits for what others hold, and gives back what it should not hold once nothing is in flight on it.
//!
//! Rules kept here (`docs/internals/design.md`): a resource serves only from the grant on and only until the member lets go of it; letting go is drain, then
//! release, then nothing. A fenced member serves nothing at once. What it held before the fence may still be its own in the backend; that is
//! given back before it is asked for again, so that every time of serving has an epoch of its own.

mod answers;
mod draining;
mod io;
mod news;
mod pending_call;
mod store;
#[cfg(test)]
mod tests;

pub use io::{CallFailure, ClaimAction, HoldingRules, OnDrainTimeout};
pub use store::StoreRefusal;

use std::collections::{BTreeMap, BTreeSet};

use crate::mistakes::{Mistake, made};
use crate::{Claim, Epoch, Holder, Incarnation, Moment, Resource, SlotSet};
use pending_call::PendingCall;

/// One resource as it concerns this member.
#[derive(Debug, Default)]
struct ResourceEntry {
    wanted: bool,
    /// The call under way asks for it.
    asked: bool,
    hold: Option<HeldResource>,
    /// What the watch shows as this member's.
    shown: Option<Epoch>,
    /// Not to be asked for before.
    not_before: Option<Moment>,
}

impl ResourceEntry {
    /// What this member uses or is letting go of; nothing of an orphan.
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
    /// No new work; what is in flight has until then.
    Draining {
        until: Moment,
        /// Nothing is in flight any more.
        idle: bool,
        /// The time is over, and the work was told to stop.
        cancelled: bool,
    },
    /// Asked to be given back.
    Releasing,
    /// Held before a fence, or granted in an answer that never came: not used, to be given back.
    Orphan,
}

impl Phase {
    /// Whether it goes on being held if that is wanted.
    const fn may_stay(self) -> bool {
        matches!(self, Self::Serving | Self::Draining { cancelled: false, .. })
    }
}

/// The claims of one member of one group.
#[derive(Debug)]
pub struct Holdings {
    rules: HoldingRules,
    me: Holder,
    /// The record is there.
    entered: bool,
    store: store::StoreState,
    /// The record is there and the store of claims is known.
    open: bool,
    /// What this member wants, holds or has asked for.
    entries: BTreeMap<Resource, ResourceEntry>,
    /// Under which epoch each resource served last.
    served: BTreeMap<Resource, Epoch>,
    /// What others hold, by the watch.
    others: BTreeMap<Resource, Claim>,
    /// What others hold is known at all.
    claims_known: bool,
    acquiring: PendingCall,
    releasing: PendingCall,
    /// What the release under way gives back.
    sent: Vec<(Resource, Epoch)>,
    attempt: u64,
    /// Counts the changes of what serves.
    changes: u64,
    /// What has got another holder, or none, since somebody looked; `None` unless that is asked for.
    moves: Option<BTreeSet<Resource>>,
}

impl Holdings {
    /// Nothing held, nothing wanted.
    pub const fn new(rules: HoldingRules, me: Holder) -> Self {
        Self {
            rules,
            me,
            entered: false,
            store: store::StoreState::NONE,
            open: false,
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

    /// The same, and [`Holdings::take_moves`] tells what has changed hands.
    pub(crate) fn that_tell_moves(rules: HoldingRules, me: Holder) -> Self {
        Self { moves: Some(BTreeSet::new()), ..Self::new(rules, me) }
    }

    /// What may have got another holder, or none, since the last call.
    pub(crate) fn take_moves(&mut self) -> BTreeSet<Resource> {
        self.moves.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn note_move(&mut self, resource: &Resource) {
        if let Some(moves) = &mut self.moves {
            moves.insert(resource.clone());
        }
    }

    /// Whether it is known who holds what.
    pub(crate) const fn is_told(&self) -> bool {
        self.claims_known
    }

    /// Who holds a resource and will as long as that is wanted, as far as is known; what this member is giving back for good is nobody's.
    pub(crate) fn holder_of(&self, resource: &Resource) -> Option<&Holder> {
        match self.entries.get(resource).and_then(ResourceEntry::mine) {
            Some(hold) => hold.phase.may_stay().then_some(&self.me),
            None => self.others.get(resource).map(|claim| &claim.holder),
        }
    }

    /// Everything that has a holder, with it: see [`Holdings::holder_of`].
    pub(crate) fn holders(&self) -> impl Iterator<Item = (&Resource, &Holder)> {
        let mine = self.mine().map(|(resource, _)| resource);
        let theirs = self.others.keys().filter(|resource| self.entries.get(*resource).is_none_or(|entry| entry.mine().is_none()));
        theirs.chain(mine).filter_map(|resource| Some((resource, self.holder_of(resource)?)))
    }

    fn mine(&self) -> impl Iterator<Item = (&Resource, &HeldResource)> {
        self.entries.iter().filter_map(|(resource, entry)| Some((resource, entry.mine()?)))
    }

    /// What serves now, with its epoch: new work may be taken on for it.
    pub fn serving(&self) -> impl Iterator<Item = (&Resource, Epoch)> {
        let members_own = made(Mistake::EpochPerMember).then(|| self.served.values().min().copied()).flatten();
        let serving = self.mine().filter(|(_, hold)| hold.phase == Phase::Serving);
        serving.map(move |(resource, hold)| (resource, members_own.unwrap_or(hold.epoch)))
    }

    /// What is held now, with its epoch: what serves, and what drains and is not being given back yet.
    pub fn held(&self) -> impl Iterator<Item = (&Resource, Epoch)> {
        self.mine().filter(|(_, hold)| hold.phase != Phase::Releasing).map(|(resource, hold)| (resource, hold.epoch))
    }

    /// Whether nothing is held or being given back, so that the record may go.
    pub fn is_empty(&self) -> bool {
        self.entries.values().all(|entry| entry.mine().is_none() && !entry.asked)
    }

    /// The slots of a circle of so many that nobody holds, as far as is known; none before anything is.
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

    /// Whether nobody holds it, as far as is known.
    pub fn is_free(&self, resource: &Resource) -> bool {
        self.claims_known && !self.others.contains_key(resource) && self.entries.get(resource).is_none_or(|entry| entry.hold.is_none())
    }

    /// A number that changes whenever what serves does.
    pub const fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether the record is there and the store of claims is known and accepted.
    pub const fn is_open(&self) -> bool {
        self.store.accepted
    }

    /// The member's record is in the backend: the store of claims is asked for, and then what is wanted.
    pub fn enter(&mut self, now: Moment, actions: &mut Vec<ClaimAction>) {
        self.entered = true;
        self.keep_up(now, actions);
    }

    /// From here on it may ask.
    fn open(&mut self, now: Moment, actions: &mut Vec<ClaimAction>) {
        self.open = true;
        self.keep_up(now, actions);
    }

    /// The lease is over: nothing serves any more, and calls under way count no longer.
    pub fn fence(&mut self) {
        (self.entered, self.open, self.store.accepted, self.store.refused) = (false, false, false, None);
        self.changes += 1;
        self.orphan_all();
        (self.acquiring, self.releasing, self.store.call) = (PendingCall::IDLE, PendingCall::IDLE, PendingCall::IDLE);
    }

    /// From here on this is another life of the member: what the former one held ends with its record.
    pub(crate) fn begin_life(&mut self, incarnation: Incarnation) {
        self.fence();
        self.me.incarnation = incarnation;
        for entry in self.entries.values_mut() {
            (entry.hold, entry.shown) = (None, None);
        }
    }

    /// Nothing is used any more, and no answer counts.
    fn orphan_all(&mut self) {
        for entry in self.entries.values_mut() {
            entry.asked = false;
            if let Some(hold) = &mut entry.hold {
                hold.phase = Phase::Orphan;
            }
        }
    }

    /// Nothing serves any more. What was held may still be there, if only the store's own record is another: it is given back.
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

    /// What this member should hold from now on.
    pub fn want(&mut self, now: Moment, wanted: BTreeSet<Resource>, actions: &mut Vec<ClaimAction>) {
        for entry in self.entries.values_mut() {
            entry.wanted = false;
        }
        for resource in wanted {
            self.entries.entry(resource).or_default().wanted = true;
        }
        self.let_go(now, actions);
        self.keep_up(now, actions);
    }

    /// The time of [`Holdings::wake_at`] has come.
    pub fn woken(&mut self, now: Moment, actions: &mut Vec<ClaimAction>) {
        self.keep_up(now, actions);
    }

    /// When to call [`Holdings::woken`] if nothing happens before.
    pub fn wake_at(&self) -> Option<Moment> {
        let drains = self.mine().filter_map(|(_, hold)| match hold.phase {
            Phase::Draining { until, idle: false, cancelled: false } => Some(until),
            _ => None,
        });
        let again = (self.open && self.acquiring.in_flight.is_none()).then(|| {
            let due = self.acquirable().map(|(_, entry)| entry.not_before.unwrap_or(Moment::ZERO)).min();
            due.map(|due| due.max(self.acquiring.not_before))
        });
        let gives = self.open && self.releasing.in_flight.is_none() && self.has_to_release();
        let opens = (self.entered && !self.open && self.store.call.in_flight.is_none()).then_some(self.store.call.not_before);
        drains.min().into_iter().chain(opens).chain(again.flatten()).chain(gives.then_some(self.releasing.not_before)).min()
    }

    /// What should be asked for, now or after a pause.
    fn acquirable(&self) -> impl Iterator<Item = (&Resource, &ResourceEntry)> {
        let wanted = self.entries.iter().filter(|(_, entry)| self.claims_known && entry.wanted && entry.hold.is_none());
        wanted.filter(|(resource, _)| !self.others.contains_key(*resource))
    }

    /// Sends what is due.
    fn keep_up(&mut self, now: Moment, actions: &mut Vec<ClaimAction>) {
        self.entries.retain(|_, entry| !entry.is_blank());
        self.end_drains(now, actions);
        self.ask_for_store(now, actions);
        if !self.open {
            return;
        }
        self.find_orphans();
        self.give_back(now, actions);
        if self.acquiring.is_free(now) {
            let due = self.acquirable().filter(|(_, entry)| entry.not_before.is_none_or(|at| now >= at));
            let wanted: Vec<_> = due.map(|(resource, _)| resource.clone()).collect();
            if !wanted.is_empty() {
                for resource in &wanted {
                    self.entries.entry(resource.clone()).or_default().asked = true;
                }
                for entry in self.entries.values_mut() {
                    entry.not_before.take_if(|at| now >= *at);
                }
                let attempt = self.next_attempt();
                self.acquiring.in_flight = Some(attempt);
                actions.push(ClaimAction::Acquire { attempt, wanted });
            }
        }
    }

    const fn next_attempt(&mut self) -> u64 {
        self.attempt += 1;
        self.attempt
    }
}
