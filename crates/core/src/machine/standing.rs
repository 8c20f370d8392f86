//! Where the member stands in a view: shown or not, accepted or refused, and with which slots.

use std::sync::Arc;

use super::{Action, Machine, Refusal};
use crate::{Cause, Fingerprint, Moment, Ownership, Placer, ServiceState, SlotSet, View};

enum Standing {
    /// The view does not tell yet, or shows no record of this incarnation.
    Unknown,
    Refused(Refusal),
    /// A member, in a group that places keys as this placer does.
    Active(Arc<Placer>),
}

impl Machine {
    /// Brings state, slots and deadline in line with the lease and the latest view.
    pub(super) fn reconsider(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let Some(view) = self.view.as_ref().map(|view| self.losses.as_told(view, &self.me.instance_id)) else { return };
        let joined = matches!(self.state(), ServiceState::Joining | ServiceState::Active | ServiceState::Stale | ServiceState::Refused);
        if !joined || !self.lease.is_held() {
            return;
        }
        if let Some(missing) = self.losses.news() {
            actions.push(Action::MarkLoss(missing));
        }
        let group = view.group_fingerprint();
        let (state, slots, refusal) = match self.standing(&view, group) {
            // What it has while the backend is out of reach it keeps until lease and view are both good again.
            Standing::Unknown if self.state() == ServiceState::Stale => return,
            Standing::Active(_) if self.state() == ServiceState::Stale && self.deadline().is_none_or(|deadline| now >= deadline) => return,
            Standing::Unknown => (ServiceState::Joining, self.none(), None),
            Standing::Refused(refusal) => (ServiceState::Refused, self.none(), Some(refusal)),
            Standing::Active(placer) => (ServiceState::Active, self.share(&view, group, &placer), None),
        };
        let since = if state == self.state() { self.ownership.since } else { now };
        let deadline = self.deadline().filter(|_| state == ServiceState::Active);
        let cause = self.cause(state, &view, group);
        let min_members = self.policy.min_members;
        self.publish(now, Ownership { state, since, slots, deadline, view, min_members, refusal }, cause, actions);
    }

    fn standing(&self, view: &View, group: Option<Fingerprint>) -> Standing {
        let mine = |other: &crate::Member| other.incarnation == self.me.incarnation;
        match view.member(&self.me.instance_id) {
            _ if !self.lease.is_seen() => Standing::Unknown,
            Some(me) if mine(me) => self.serve(group),
            Some(other) => Standing::Refused(Refusal::InUse { instance_id: other.instance_id.clone(), address: other.address.clone() }),
            None => Standing::Unknown,
        }
    }

    /// By which placer the group goes, if this member can serve that.
    fn serve(&self, group: Option<Fingerprint>) -> Standing {
        let known = self.placers.iter().find(|(fingerprint, _)| group.is_none_or(|group| group == *fingerprint));
        match (known, group) {
            (Some((_, placer)), _) => Standing::Active(Arc::clone(placer)),
            (None, Some(group)) => Standing::Refused(Refusal::other_policy(&self.policy, group)),
            (None, None) => Standing::Unknown,
        }
    }

    /// No slot, of the circle that the last snapshot was on.
    pub(super) fn none(&self) -> Arc<SlotSet> {
        Arc::new(SlotSet::empty(self.ownership.slots.slots()))
    }

    /// This member's slots in `view`; the placement is computed again only if what it depends on has changed.
    fn share(&mut self, view: &View, group: Option<Fingerprint>, placer: &Placer) -> Arc<SlotSet> {
        if view.active() < self.policy.min_members as usize {
            return self.none();
        }
        let known = self.placement.as_ref().is_some_and(|(served, placement)| *served == group && placement.is_of(view));
        if known && self.state() == ServiceState::Active && !self.ownership.slots.is_empty() {
            return Arc::clone(&self.ownership.slots);
        }
        let placement = if let Some((_, placement)) = self.placement.take().filter(|_| known) {
            placement
        } else {
            self.placements_computed += 1;
            placer.place(view)
        };
        let slots = Arc::new(placement.slots_of(&self.me.instance_id));
        self.placement = Some((group, placement));
        slots
    }

    fn cause(&self, next: ServiceState, view: &View, group: Option<Fingerprint>) -> Cause {
        let gate = |view: &View| view.active() >= self.policy.min_members as usize;
        match (self.state(), next) {
            (ServiceState::Active, ServiceState::Active) if gate(view) != gate(&self.ownership.view) => Cause::MemberGate,
            (ServiceState::Active | ServiceState::Stale, ServiceState::Active) if self.ownership.view.group_fingerprint() != group => {
                Cause::PolicyChanged
            }
            (ServiceState::Active | ServiceState::Stale, ServiceState::Active) => Cause::MembersChanged,
            (_, ServiceState::Active) => Cause::Joined,
            (_, ServiceState::Refused) => Cause::Refused,
            _ => Cause::Fenced,
        }
    }
}
