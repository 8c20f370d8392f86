//! Leaving in good order: the member waits for work in flight, and the others get time to see it drain.
//!
//! A reader sees only the newest view. One that does not look between the mark and the deletion of the record sees an active member and
//! then none; that is reported as a death, and counts as one under `max_loss`. So the record stays for a while after this member has seen
//! itself drain. Letting it expire would show the mark even longer and let the process end at once, but the id would be taken for up to a
//! TTL: a worker restarted under its own id would wait for it, and on Consul a normal stop would leave a failing check behind.
//!
//! The handover does not wait for that: slots move with the mark, and claims with the end of the work. Under a key placement keys move
//! only when the record is deleted, and have no owner until then; there the record stays for a tenth of a second.
//!
//! With `rejoin_grace` the member steps away: it stays in the placement while its work ends, and then a record that keeps its
//! place replaces its own. A member that had no place, or has lost its record by then, leaves for good.

use std::time::Duration;

use super::{Action, Machine};
use crate::{Cause, Member, MemberState, Moment, PlacementParams, ServiceState, View};

/// How long a leaving member waits for the answer to a registration that was under way.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);
/// The record of a leaver stays for the TTL divided by this, which is at least the time between two renewals: a reader that stalls for
/// longer soon loses its own lease.
const SHOWN_PART_OF_TTL: u32 = 3;
/// The record stays at least this long: longer than a reader's pause after a retryable failure, which is a second at most.
const SHOWN_MIN: Duration = Duration::from_millis(1_250);

/// How long it stays where no loss is counted: twenty times the poll interval of the slowest reader.
const SHOWN_BRIEFLY: Duration = Duration::from_millis(500);
/// How long it stays where its keys have no owner meanwhile: four times that interval.
const SHOWN_BY_KEY: Duration = Duration::from_millis(100);

/// And at least this many times the lag until this member saw its own mark: with a slow backend or machine, others read late too. With
/// four busy processes on the machine, readers of Consul did not look for 0.7 s, and their leavers had seen their own marks after 1.5 s.
const SHOWN_TIMES_LAG: u32 = 2;

/// How long the others can see a leaver drain.
#[derive(Debug, Clone, Copy)]
pub(super) struct ShownDraining {
    /// When the mark was requested.
    marked: Moment,
    /// The record stays until then.
    until: Moment,
}

/// What happens to a leaver's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PlaceReservation {
    Free,
    /// It is reserved until the leaver returns.
    Kept,
    /// It was released after the record that reserves it had been requested: that record is deleted too.
    GivenUp,
}

impl Machine {
    pub(super) fn leave(&mut self, now: Moment, actions: &mut Vec<Action>) {
        match self.state() {
            ServiceState::Created => self.turn(now, ServiceState::Left, actions),
            ServiceState::Left | ServiceState::Draining | ServiceState::Unsharded => {}
            ServiceState::Active | ServiceState::Stale | ServiceState::Joining | ServiceState::Refused | ServiceState::Fenced => {
                if let Some(claiming) = &mut self.claiming {
                    claiming.want_nothing(now, Cause::Draining);
                }
                self.place_reservation = if self.keeps_place() { PlaceReservation::Kept } else { PlaceReservation::Free };
                let returns = self.place_reservation == PlaceReservation::Kept;
                self.turn(now, ServiceState::Draining, actions);
                if self.lease.is_held() {
                    actions.push(if returns { Action::MarkPausing } else { Action::MarkDraining });
                } else if !self.lease.is_in_flight() {
                    self.drop_record();
                }
                actions.push(Action::AwaitInFlight);
                self.drain_until = Some(now.plus(self.policy.drain_timeout));
                (self.gives_up_at, self.gives_up) = (self.drain_until, false);
                // An upper bound: a backend that does not store or show the mark delays the leaver no longer than this.
                let wait = if self.lease.is_held() { self.lease.ttl() } else { self.lease.ttl().min(ANSWERED_WITHIN) };
                // A member that is away has not left.
                self.shown = (!returns && self.shows_leaving()).then(|| ShownDraining { marked: now, until: now.plus(wait) });
            }
        }
    }

    /// Leaves without keeping a place, or releases the place that was kept.
    pub(super) fn leave_for_good(&mut self, now: Moment, actions: &mut Vec<Action>) {
        self.leave(now, actions);
        if self.place_reservation != PlaceReservation::Kept {
            return;
        }
        self.place_reservation = PlaceReservation::Free;
        match self.state() {
            // The record left behind belongs to this incarnation.
            ServiceState::Left => {
                self.turn(now, ServiceState::Draining, actions);
                actions.push(Action::Deregister);
            }
            // A record that reserves its place is being written: it is deleted as soon as it exists.
            ServiceState::Draining if self.drain_until.is_none() => self.place_reservation = PlaceReservation::GivenUp,
            _ if self.lease.is_held() => {
                actions.retain(|action| *action != Action::MarkPausing);
                actions.push(Action::MarkDraining);
                self.shown = self.shows_leaving().then(|| ShownDraining { marked: now, until: now.plus(self.lease.ttl()) });
            }
            _ => {}
        }
    }

    /// Whether a leaver's record stays for a while so that the others see it drain. Without `max_loss` only if this member has seen
    /// itself as active: a member without a view does not wait to see itself drain.
    fn shows_leaving(&self) -> bool {
        let is_shown = self.me_in_view().is_some_and(|me| me.state != MemberState::Draining || me.worker.is_some());
        self.policy.max_loss.is_some() || self.lease.is_held() && is_shown
    }

    /// How long the record stays after this member has seen itself drain, if backend and machine are not slow.
    fn shown_for(&self) -> Duration {
        let by_key = |params: &PlacementParams| params.kind.by_key().is_some();
        if self.policy.max_loss.is_some() {
            (self.lease.ttl() / SHOWN_PART_OF_TTL).max(SHOWN_MIN)
        } else if by_key(&self.policy.placement) || self.policy.next.as_ref().is_some_and(by_key) {
            SHOWN_BY_KEY
        } else {
            SHOWN_BRIEFLY
        }
    }

    fn is_drained(&self) -> bool {
        self.me_in_view().is_some_and(|me| me.state == MemberState::Draining)
    }

    /// This incarnation's record in the last view.
    fn me_in_view(&self) -> Option<&Member> {
        let me = self.view.as_ref().and_then(|view| view.member(&self.me.instance_id));
        me.filter(|me| me.incarnation == self.me.incarnation)
    }

    /// Whether the others should count this leaving member until it returns.
    fn keeps_place(&self) -> bool {
        let has_place = matches!(self.state(), ServiceState::Active | ServiceState::Stale | ServiceState::Joining);
        // A member drained by an operator has no place either, although it is a member.
        !self.policy.rejoin_grace.is_zero() && has_place && !self.is_drained() && self.lease.is_held()
    }

    /// A registration begun at `started` was answered after the request to leave: the others must not count on it.
    pub(super) fn registered_too_late(&mut self, started: Moment, actions: &mut Vec<Action>) {
        self.shown = self.shown.map(|_| ShownDraining { marked: started, until: started.plus(self.lease.ttl()) });
        actions.push(Action::MarkDraining);
    }

    /// The others get the remaining time to see what this member sees now.
    pub(super) fn see_oneself_drain(&mut self, now: Moment, view: &View) {
        let Some(ShownDraining { marked, until }) = self.shown else { return };
        if view.member(&self.me.instance_id).is_some_and(|me| me.state == MemberState::Draining) {
            let rest = self.shown_for().max(now.since(marked) * SHOWN_TIMES_LAG);
            self.shown = Some(ShownDraining { marked, until: until.min(now.plus(rest)) });
        }
    }

    /// When a draining member deletes its record: its work has ended or was abandoned, and the others have had time to see it drain. A
    /// registration under way counts: others may have seen it already, as active.
    pub(super) fn leaves_at(&self) -> Option<Moment> {
        let shown = self.shown.filter(|_| self.lease.is_held() || self.lease.is_in_flight());
        self.drain_until.map(|until| shown.map_or(until, |shown| shown.until.max(until)))
    }

    pub(super) fn end_drain(&mut self, now: Moment, actions: &mut Vec<Action>) {
        if self.state() != ServiceState::Draining {
            return;
        }
        if self.has_let_go() && self.leaves_at().is_some_and(|at| now >= at) {
            (self.drain_until, self.shown) = (None, None);
            let away = self.place_reservation == PlaceReservation::Kept && self.lease.is_held();
            actions.push(if away { Action::StepAway { rejoin_grace: self.policy.rejoin_grace } } else { Action::Deregister });
        }
        self.gives_up |= self.gives_up_at.is_some_and(|at| now >= at);
    }
}
