//! The member's status in a view: shown or not, accepted or refused, and its slots.

use std::sync::Arc;

use super::claiming::{ClaimReadiness, ClaimState};
use super::{Action, Machine, MemberRefusal, OtherWork};
use crate::ownership::HeldShare;
use crate::{Cause, Fingerprint, Member, MemberState, Moment, Ownership, Placer, ServiceState, TooManyPoints, View};

enum Standing {
    /// The view is not known yet, or shows no record of this incarnation.
    Unknown,
    Refused(MemberRefusal),
    /// The group does other work.
    Stranger(MemberRefusal),
    /// A member of a group with this fingerprint, whose keys this placer places.
    Active(Fingerprint, Arc<Placer>),
}

/// This member's share by the placements of the latest view.
#[derive(Debug)]
pub(super) struct MemberPlacement {
    /// The fingerprint that the group served.
    group: Option<Fingerprint>,
    /// The placement in force: of the view as it is.
    pub(super) shown: crate::ViewPlacement,
    /// The placement to come: of the view with this member's mark. Equal to `shown` once the view contains the mark.
    wanted: crate::ViewPlacement,
    /// What both placements give it.
    held: HeldShare,
}

impl Machine {
    /// Updates state, slots and deadline from the lease and the latest view.
    pub(super) fn reconsider(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let Some(view) = self.view.clone() else { return };
        let joined = matches!(self.state(), ServiceState::Joining | ServiceState::Active | ServiceState::Stale | ServiceState::Refused);
        if !joined || !self.lease.is_held() {
            return;
        }
        if let Some(missing) = self.losses.changed_mark() {
            actions.push(Action::MarkLoss(missing));
        }
        let group = view.group_fingerprint();
        let wanted = self.losses.with_mark(&view, &self.me.instance_id);
        let mut policy_fingerprint = self.ownership.policy_fingerprint;
        let (state, held, placer, refusal) = match self.standing(&view, group) {
            Standing::Stranger(refusal) => return self.refuse_work(now, refusal, actions),
            // A member that has lost the backend keeps its share until lease and view are both good again.
            Standing::Unknown if self.state() == ServiceState::Stale => return,
            Standing::Active(..) if self.state() == ServiceState::Stale && self.deadline().is_none_or(|deadline| now >= deadline) => return,
            Standing::Unknown => (ServiceState::Joining, self.none(), None, None),
            Standing::Refused(refusal) => (ServiceState::Refused, self.none(), None, Some(refusal)),
            Standing::Active(served, placer) => match self.share(&view, &wanted, group, &placer) {
                Ok(held) => {
                    policy_fingerprint = Some(served);
                    (ServiceState::Active, held, Some(placer), None)
                }
                Err(too_many) => (ServiceState::Refused, self.none(), None, Some(MemberRefusal::TooManyPoints(too_many))),
            },
        };
        let cause = self.cause(state, &view, group);
        let held = match &mut self.claiming {
            Some(claiming) => {
                // Without slots a member has no names either.
                let gated = view.active() < self.policy.min_members as usize;
                match placer.filter(|_| !gated) {
                    Some(placer) => claiming.on_view(&wanted, &placer, &self.me.instance_id),
                    None => claiming.suspend_names(),
                }
                let held = if state == ServiceState::Active { held } else { HeldShare::nothing(&self.policy.placement) };
                let serving = claiming.want(now, &held.slots, cause);
                if state == ServiceState::Active { serving } else { self.none() }
            }
            None => held,
        };
        let since = if state == self.state() { self.ownership.since } else { now };
        let deadline = self.deadline().filter(|_| state == ServiceState::Active);
        let claims_end = self.deadline().filter(|_| self.claiming.is_some());
        let rebalancing_frozen = !view.missing().is_empty() || !wanted.missing().is_empty();
        let before = (*self.ownership).clone();
        let next = Ownership { state, since, held, deadline, claims_end, view, policy_fingerprint, rebalancing_frozen, refusal, ..before };
        self.publish(now, next, cause, actions);
    }

    fn standing(&self, view: &View, group: Option<Fingerprint>) -> Standing {
        let mine = |other: &crate::Member| other.incarnation == self.me.incarnation;
        match view.member(&self.me.instance_id) {
            _ if !self.lease.is_seen() => Standing::Unknown,
            Some(me) if mine(me) && !view.belongs(me) => self.stranger(view, me),
            Some(me) if mine(me) => match self.claiming.as_ref().map(ClaimState::readiness) {
                None | Some(ClaimReadiness::Ready) => self.serve(group),
                Some(ClaimReadiness::NotYet) => Standing::Unknown,
                Some(ClaimReadiness::Refused(refusal)) => Standing::Refused(refusal),
            },
            // The view is older than the registration, which takes the former incarnation's place.
            Some(former) if former.state == MemberState::Away => Standing::Unknown,
            Some(other) => {
                Standing::Refused(MemberRefusal::InUse { instance_id: other.instance_id.clone(), address: other.address.clone() })
            }
            None => Standing::Unknown,
        }
    }

    fn stranger(&self, view: &View, me: &Member) -> Standing {
        let group = view.serves();
        let doing = view.members().iter().find(|member| member.serves.as_ref() == group);
        let Some(((mine, group), doing)) = me.serves.as_ref().zip(group).zip(doing) else { return Standing::Unknown };
        let (mine, group, group_name) = (mine.clone(), group.clone(), self.policy.group.clone());
        Standing::Stranger(Box::new(OtherWork { mine, group_name, group, member: doing.instance_id.clone() }).into())
    }

    /// The placer for the group's fingerprint, if this member can serve it.
    fn serve(&self, group: Option<Fingerprint>) -> Standing {
        let known = self.placers.iter().find(|(fingerprint, _)| group.is_none_or(|group| group == *fingerprint));
        match (known, group) {
            (Some((served, placer)), _) => Standing::Active(*served, Arc::clone(placer)),
            (None, Some(group)) => Standing::Refused(MemberRefusal::other_policy(&self.policy, group)),
            (None, None) => Standing::Unknown,
        }
    }

    /// An empty share under the placement of the last snapshot.
    pub(super) fn none(&self) -> HeldShare {
        self.ownership.held.emptied()
    }

    /// This member's slots: those that it owns by the view as it is and also with its own mark in it. So no member takes over from the
    /// missing while the mark is being written. At one view no slot has two owners, whatever marks are being written: the shares by the
    /// view as it is are disjoint, and each member stays within its own. Placements are recomputed only if their inputs have changed.
    ///
    /// A key placement does not count missing members, so there both views are the same.
    fn share(
        &mut self,
        view: &Arc<View>,
        wanted: &Arc<View>,
        group: Option<Fingerprint>,
        placer: &Placer,
    ) -> Result<HeldShare, TooManyPoints> {
        if view.active() < self.policy.min_members as usize {
            return Ok(HeldShare::nothing(placer.params()));
        }
        let known = self.placed.take().filter(|placed| placed.group == group && placed.shown.is_of(view));
        if let Some(placed) = known.as_ref().filter(|placed| placed.wanted.is_of(wanted)) {
            let held = placed.held.clone();
            self.placed = known;
            return Ok(held);
        }
        let shown = if let Some(placed) = known { placed.shown } else { self.place(view, placer)? };
        let mine = shown.held_by(&self.me.instance_id);
        let (wanted, held) = if shown.is_of(wanted) {
            (shown.clone(), mine)
        } else {
            let wanted = self.place(wanted, placer)?;
            let slots = mine.slots.intersection(&wanted.held_by(&self.me.instance_id).slots);
            (wanted, HeldShare { slots: Arc::new(slots), ..mine })
        };
        self.placed = Some(MemberPlacement { group, shown, wanted, held: held.clone() });
        Ok(held)
    }

    fn place(&mut self, view: &View, placer: &Placer) -> Result<crate::ViewPlacement, TooManyPoints> {
        self.placements_computed += 1;
        placer.place(view)
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
