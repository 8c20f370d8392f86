//! Exclusive ownership: the member claims what the placement gives it, and owns only what it has claimed.
//!
//! A new snapshot is published before any action on claims, so that no reader gets a slot that is being released.

mod stand_in;

use std::collections::BTreeSet;
use std::iter;
use std::sync::Arc;

use super::reclaim::Reclaims;
use super::rolling::RollingUpgrade;
use super::takeover::Unclaimed;
use super::{Action, ClaimInput, Machine, MemberRefusal};
use crate::grants::Grants;
use crate::holdings::{ClaimAction, HoldingRules, Holdings, StoreRefusal};
use crate::ownership::HeldShare;
use crate::{
    Cause, ClaimName, ClaimStore, Epoch, Fingerprint, Holder, Incarnation, InstanceId, Moment, Ownership, OwnershipMode, Placer, Policy,
    Resource, ServiceState, SlotSet, VersionRule, View,
};

/// Whether a member can claim.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ClaimReadiness {
    Ready,
    /// The store of claims was not read yet.
    NotYet,
    /// It cannot until the cause is fixed.
    Refused(MemberRefusal),
}

/// The claims of a member, and what readers see of them.
#[derive(Debug)]
pub(super) struct ClaimState {
    holdings: Holdings,
    /// The slots that the placement gives, as last wanted, and why.
    wanted: Arc<SlotSet>,
    cause: Cause,
    /// The names that this worker can serve, and those that the placement gives it.
    names: BTreeSet<ClaimName>,
    wanted_names: BTreeSet<ClaimName>,
    /// Slots and names held in place of an owner that did not claim them, until the placement changes or the owner asks for them.
    stood_in: BTreeSet<Resource>,
    unclaimed: Unclaimed,
    /// The other way round: what others hold in this member's place.
    reclaims: Reclaims,
    /// The wanted set has changed since it was last passed to `holdings`.
    wanted_changed: bool,
    /// The version rule, and the assignments that follow from it in the present group.
    version_rule: VersionRule,
    rolling: Option<RollingUpgrade>,
    /// How often those were computed.
    successions: u64,
    /// The group for which names were placed and absent owners got their time.
    placed_at: Option<(Arc<View>, Fingerprint)>,
    /// What serves, as of `changes`.
    held: HeldShare,
    changes: u64,
    /// Carried out once the new snapshot has been published.
    pending: Vec<ClaimAction>,
}

impl ClaimState {
    /// `None` unless the policy's ownership is exclusive.
    pub(super) fn new(policy: &Policy, me: Holder) -> Option<Self> {
        let rules = HoldingRules { drain_timeout: policy.drain_timeout, on_drain_timeout: policy.on_drain_timeout };
        let slots = policy.placement.ring_slots();
        (policy.ownership == OwnershipMode::Exclusive).then(|| Self {
            holdings: if policy.version_rule == VersionRule::None {
                Holdings::new(rules, me)
            } else {
                Holdings::recording_moves(rules, me)
            },
            wanted: Arc::new(SlotSet::empty(slots)),
            cause: Cause::Joined,
            names: BTreeSet::new(),
            wanted_names: BTreeSet::new(),
            stood_in: BTreeSet::new(),
            unclaimed: Unclaimed::default(),
            reclaims: Reclaims::default(),
            wanted_changed: false,
            version_rule: policy.version_rule,
            rolling: None,
            successions: 0,
            placed_at: None,
            held: serving(slots, iter::empty()),
            changes: 0,
            pending: Vec::new(),
        })
    }

    pub(super) fn enter(&mut self, now: Moment) {
        self.holdings.enter(now, &mut self.pending);
    }

    pub(super) fn begin_life(&mut self, incarnation: Incarnation) {
        self.holdings.begin_life(incarnation);
    }

    pub(super) fn fence(&mut self) {
        self.holdings.fence();
        self.pending.clear();
        // The next view decides what should be held.
        self.wanted = Arc::new(SlotSet::empty(self.wanted.slots()));
        self.wanted_names.clear();
        (self.stood_in, self.unclaimed, self.placed_at, self.rolling) = (BTreeSet::new(), Unclaimed::default(), None, None);
        self.reclaims.start_over();
        self.holdings.want(Moment::ZERO, BTreeSet::new(), &mut self.pending);
    }

    /// Sets what should be held: what the placement gives or, under a version rule, what follows from it. Returns what is held.
    pub(super) fn want(&mut self, now: Moment, placed: &Arc<SlotSet>, cause: Cause) -> HeldShare {
        let slots = self.rolling.as_ref().map_or_else(|| Arc::clone(placed), |rolling| Arc::new(rolling.slots()));
        if self.wanted != slots || std::mem::take(&mut self.wanted_changed) {
            (self.wanted, self.cause) = (slots, cause);
            self.want_all(now);
        }
        self.held()
    }

    /// Handles a view. If the group has changed, absent owners get their full time again. The next [`ClaimState::want`] releases what was
    /// held in their place, unless it wants it; if the group is the same, only what its owner asks for.
    pub(super) fn on_view(&mut self, view: &Arc<View>, placer: &Arc<Placer>, me: &InstanceId) {
        if self.placed_at.as_ref().is_some_and(|(known, _)| Arc::ptr_eq(known, view)) {
            return;
        }
        let group = view.fingerprint();
        match self.placed_at.replace((Arc::clone(view), group)) {
            Some((before, known)) if known == group => self.give_back(&view.reclaiming_since(&before)),
            _ => self.place_anew(view, placer, me),
        }
    }

    fn place_anew(&mut self, view: &Arc<View>, placer: &Arc<Placer>, me: &InstanceId) {
        self.unclaimed.start_over();
        self.reclaims.start_over();
        self.wanted_changed |= !self.stood_in.is_empty();
        self.stood_in.clear();
        self.rolling = RollingUpgrade::of(self.version_rule, view, placer, me, &self.names);
        self.recompute_succession();
        if self.rolling.is_none() {
            let owners = placer.place_names(view, &self.names);
            self.want_names(owners.into_iter().filter(|(_, owner)| owner == me).map(|(name, _)| name).collect());
        }
    }

    /// Under a version rule: recomputes the assignments from the present holders.
    fn recompute_succession(&mut self) {
        // The recomputation includes all moves so far.
        self.holdings.take_moves();
        if let Some(rolling) = &mut self.rolling {
            self.successions += 1;
            rolling.place(&self.holdings);
            let names = rolling.names();
            self.want_names(names);
        }
    }

    /// Under a version rule: checks the moves, and recomputes the assignments unless all went as assigned, which costs almost nothing.
    fn follow(&mut self, now: Moment) {
        let moves = self.holdings.take_moves();
        let Some(rolling) = &mut self.rolling else { return };
        if rolling.follows(&moves, &self.holdings) {
            return;
        }
        self.recompute_succession();
        let slots = self.rolling.as_ref().map(RollingUpgrade::slots);
        if let Some(slots) = slots.filter(|slots| *self.wanted != *slots) {
            (self.wanted, self.wanted_changed) = (Arc::new(slots), true);
        }
        if std::mem::take(&mut self.wanted_changed) {
            self.want_all(now);
        }
    }

    fn want_names(&mut self, names: BTreeSet<ClaimName>) {
        self.wanted_changed |= names != self.wanted_names;
        self.wanted_names = names;
    }

    pub(super) const fn successions(&self) -> u64 {
        self.successions
    }

    /// This member has no names until it is in the group again.
    pub(super) fn suspend_names(&mut self) {
        self.wanted_changed |= !self.wanted_names.is_empty() || !self.stood_in.is_empty();
        self.wanted_names.clear();
        self.stood_in.clear();
        (self.placed_at, self.rolling) = (None, None);
    }

    /// Sets the names that this worker can serve.
    pub(super) fn offer(&mut self, names: BTreeSet<ClaimName>) {
        self.names = names;
        // Forces a new placement of names.
        self.placed_at = None;
    }

    fn want_all(&mut self, now: Moment) {
        let wanted = self.all_wanted();
        self.holdings.want(now, wanted, &mut self.pending);
    }

    fn all_wanted(&self) -> BTreeSet<Resource> {
        let slots = self.wanted.iter().map(Resource::Slot);
        slots.chain(self.wanted_names.iter().cloned().map(Resource::Name)).chain(self.stood_in.iter().cloned()).collect()
    }

    pub(super) fn want_nothing(&mut self, now: Moment, cause: Cause) {
        let nothing = Arc::new(SlotSet::empty(self.wanted.slots()));
        self.suspend_names();
        self.want(now, &nothing, cause);
    }

    fn take(&mut self, now: Moment, input: ClaimInput) {
        let (holdings, pending) = (&mut self.holdings, &mut self.pending);
        match input {
            ClaimInput::Opened { attempt, store } => holdings.opened(now, attempt, store, pending),
            ClaimInput::Acquired { attempt, answers } => holdings.acquired(now, attempt, answers, pending),
            ClaimInput::Released { attempt } => holdings.released(now, attempt, pending),
            ClaimInput::Failed { attempt, failure } => holdings.failed(now, attempt, failure, pending),
            ClaimInput::All(claims) => holdings.on_all_claims(now, claims, pending),
            ClaimInput::Changed(changes) => holdings.on_claim_changes(now, changes, pending),
            ClaimInput::Idle(resources) => holdings.idle(now, &resources, pending),
        }
    }

    fn held(&mut self) -> HeldShare {
        if self.changes != self.holdings.changes() {
            self.changes = self.holdings.changes();
            self.held = serving(self.held.slots.slots(), self.holdings.serving());
        }
        self.held.clone()
    }

    /// Whether this member can claim, as far as the store of claims is known.
    pub(super) fn readiness(&self) -> ClaimReadiness {
        match self.holdings.refusal() {
            Some(StoreRefusal::Denied(message)) => ClaimReadiness::Refused(MemberRefusal::Backend { message: Arc::clone(message) }),
            Some(other) => ClaimReadiness::Refused(MemberRefusal::Store(other.clone())),
            None if self.holdings.is_store_accepted() => ClaimReadiness::Ready,
            None => ClaimReadiness::NotYet,
        }
    }

    /// Whether the record may be deleted without ending a claim that work in flight uses.
    pub(super) fn is_empty(&self) -> bool {
        self.holdings.is_empty()
    }

    pub(super) const fn store(&self) -> Option<ClaimStore> {
        self.holdings.store()
    }
}

fn serving<'a>(slots: u32, held: impl Iterator<Item = (&'a Resource, Epoch)>) -> HeldShare {
    let (slots, grants) = Grants::of(slots, held);
    HeldShare { slots: Arc::new(slots), keys: None, grants: Some(Arc::new(grants)) }
}

impl Machine {
    /// The store for a [`ClaimAction::Acquire`]; `None` unless ownership is exclusive and the store is known.
    pub fn claim_store(&self) -> Option<ClaimStore> {
        self.claiming.as_ref().and_then(ClaimState::store)
    }

    /// The slots that the placement gives to this member, and that it holds once claimed; `None` unless ownership is exclusive.
    pub fn wanted_slots(&self) -> Option<&SlotSet> {
        self.claiming.as_ref().map(|claiming| &*claiming.wanted)
    }

    /// Whether this member's record holds no claim on which work might be in flight.
    pub(super) fn has_let_go(&self) -> bool {
        !self.lease.is_held() || self.claiming.as_ref().is_none_or(ClaimState::is_empty)
    }

    pub(super) fn claims_wake_at(&self) -> Option<Moment> {
        let claiming = self.claiming.as_ref()?;
        let takes_over = self.takes_over() && claiming.holdings.is_store_accepted();
        let scan = takes_over.then(|| claiming.unclaimed.next_scan(self.lease.ttl()));
        claiming.holdings.wake_at().into_iter().chain(scan).min()
    }

    fn takes_over(&self) -> bool {
        let ownership = &self.ownership;
        ownership.state == ServiceState::Active
            && !ownership.rebalancing_frozen
            && ownership.view.active() >= self.policy.min_members as usize
    }

    pub(super) fn claims(&mut self, now: Moment, input: ClaimInput, actions: &mut Vec<Action>) {
        let Some(claiming) = &mut self.claiming else { return };
        let readiness = claiming.readiness();
        claiming.take(now, input);
        if claiming.readiness() != readiness {
            self.reconsider(now, actions);
        }
    }

    /// Publishes what serves and until when, then emits the actions that follow. The last part of each step.
    pub(super) fn settle_claims(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let takes_over = self.takes_over();
        let Some(claiming) = &mut self.claiming else { return };
        claiming.follow(now);
        if takes_over {
            let view = &self.ownership.view;
            let params = self.policy.serving(view.group_fingerprint()).unwrap_or(self.policy.placement);
            actions.extend(claiming.scan(now, self.lease.ttl(), view, params, &self.me.instance_id).map(Action::Reclaim));
        }
        claiming.holdings.woken(now, &mut claiming.pending);
        let (claims_end, pending) = (self.lease.deadline(), std::mem::take(&mut claiming.pending));
        let held = if self.ownership.state == ServiceState::Active { claiming.held() } else { self.ownership.held.clone() };
        if held != self.ownership.held || claims_end != self.ownership.claims_end {
            let lost = pending.iter().any(|action| matches!(action, ClaimAction::Lost(_)));
            let cause = if lost { Cause::ClaimLost } else { claiming.cause };
            let next = Ownership { held, claims_end, ..(*self.ownership).clone() };
            self.publish(now, next, cause, actions);
        }
        actions.extend(pending.into_iter().map(Action::Claim));
    }
}
