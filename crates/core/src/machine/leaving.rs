//! Leaving in good order: the work in flight is waited for, and the others get the time to see this member drain.
//!
//! A reader sees the newest view alone. One that does not look between the mark and the end of the record sees an active member and then none,
//! which is reported as a death, and under `max_loss` counts as one. So the record stays for a while after this member has seen itself drain, and is deleted then. Left to
//! expire it would show the mark for longer yet, and the process could end at once; but the id would be taken for up to a TTL, so that a
//! worker that is restarted under its own id waits for it each time, and on Consul an ordinary stop would leave a failing check behind.
//!
//! The handover does not wait for that: the slots go with the mark, and claims with the end of the work. Under a key placement they go only with the record, and
//! nobody has them while it stays: there it is shown for a tenth of a second.
//!
//! With `rejoin_grace` it leaves for a while: it is not taken out of the placement while its work ends, and then its record is replaced by one that
//! keeps its place. A member that had no place, or has lost its record by then, leaves for good.

use std::time::Duration;

use super::{Action, Machine};
use crate::{Cause, Member, MemberState, Moment, PlacementParams, ServiceState, View};

/// How long the answer to a registration is waited for that was on its way when the wish to leave came.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);
/// Of the TTL a leaver is shown for one part in so many, which is no less than the time between two renewals: a reader that stands still for
/// longer loses its own lease soon.
const SHOWN_PART_OF_TTL: u32 = 3;
/// And no shorter than this: longer than a reader rests after a failure that may pass, which is a second at most.
const SHOWN_LEAST: Duration = Duration::from_millis(1_250);

/// Where no loss is counted, a leaver is shown for so long: twenty times the time between two looks of the slowest reader.
const SHOWN_BRIEFLY: Duration = Duration::from_millis(500);
/// Where its keys have no owner for as long as it is shown: four times that time.
const SHOWN_BY_KEY: Duration = Duration::from_millis(100);

/// And never less than so many times what it took until this member saw its own mark: where the backend or this machine is slow, the others read
/// late too. Beside four busy processes readers of Consul looked away for 0.7 s, and their leavers had seen their own marks after 1.5 s.
const SHOWN_TIMES_LAG: u32 = 2;

/// For how long the others can see a leaver drain.
#[derive(Debug, Clone, Copy)]
pub(super) struct ShownDraining {
    /// When the mark was asked for.
    marked: Moment,
    /// Its record stays until then.
    until: Moment,
}

/// What becomes of a leaver's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PlaceReservation {
    Free,
    /// It waits for the leaver to come back.
    Kept,
    /// It was to be kept, and is not any more since the record that keeps it was on its way: that one goes too.
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
                // At the latest: a backend that takes no mark, or shows none, keeps nobody for longer.
                let wait = if self.lease.is_held() { self.lease.ttl() } else { self.lease.ttl().min(ANSWERED_WITHIN) };
                // A member that is away is not gone.
                self.shown = (!returns && self.shows_leaving()).then(|| ShownDraining { marked: now, until: now.plus(wait) });
            }
        }
    }

    /// Leaves without keeping a place, or gives up the place that was kept.
    pub(super) fn leave_for_good(&mut self, now: Moment, actions: &mut Vec<Action>) {
        self.leave(now, actions);
        if self.place_reservation != PlaceReservation::Kept {
            return;
        }
        self.place_reservation = PlaceReservation::Free;
        match self.state() {
            // The record that was left behind is this life's own.
            ServiceState::Left => {
                self.turn(now, ServiceState::Draining, actions);
                actions.push(Action::Deregister);
            }
            // Its record is being replaced by one that keeps its place: that one goes as soon as it is there.
            ServiceState::Draining if self.drain_until.is_none() => self.place_reservation = PlaceReservation::GivenUp,
            _ if self.lease.is_held() => {
                actions.retain(|action| *action != Action::MarkPausing);
                actions.push(Action::MarkDraining);
                self.shown = self.shows_leaving().then(|| ShownDraining { marked: now, until: now.plus(self.lease.ttl()) });
            }
            _ => {}
        }
    }

    /// Whether a leaver's record stays for a while, so that the others see it drain. Without `max_loss` only one that this member has seen itself, active:
    /// a member without a view does not wait to see itself drain.
    fn shows_leaving(&self) -> bool {
        let is_shown = self.me_in_view().is_some_and(|me| me.state != MemberState::Draining);
        self.policy.max_loss.is_some() || self.lease.is_held() && is_shown
    }

    /// For how long, once this member has seen itself drain, where backend and machine are not slow.
    fn shown_for(&self) -> Duration {
        let by_key = |params: &PlacementParams| params.kind.by_key().is_some();
        if self.policy.max_loss.is_some() {
            (self.lease.ttl() / SHOWN_PART_OF_TTL).max(SHOWN_LEAST)
        } else if by_key(&self.policy.placement) || self.policy.next.as_ref().is_some_and(by_key) {
            SHOWN_BY_KEY
        } else {
            SHOWN_BRIEFLY
        }
    }

    /// Whether the group sees this member as draining.
    fn is_drained(&self) -> bool {
        self.me_in_view().is_some_and(|me| me.state == MemberState::Draining)
    }

    /// This life's record as the group has last been seen.
    fn me_in_view(&self) -> Option<&Member> {
        let me = self.view.as_ref().and_then(|view| view.member(&self.me.instance_id));
        me.filter(|me| me.incarnation == self.me.incarnation)
    }

    /// Whether the others are to count this member, which is about to leave, until it is back.
    fn keeps_place(&self) -> bool {
        let has_place = matches!(self.state(), ServiceState::Active | ServiceState::Stale | ServiceState::Joining);
        // Whom an operator has drained has none either, though it is a member.
        !self.policy.rejoin_grace.is_zero() && has_place && !self.is_drained() && self.lease.is_held()
    }

    /// A registration that began then has been answered behind the wish to leave: the others must not count on it.
    pub(super) fn registered_too_late(&mut self, started: Moment, actions: &mut Vec<Action>) {
        self.shown = self.shown.map(|_| ShownDraining { marked: started, until: started.plus(self.lease.ttl()) });
        actions.push(Action::MarkDraining);
    }

    /// The others have the rest of the time to see what this member sees now.
    pub(super) fn see_oneself_drain(&mut self, now: Moment, view: &View) {
        let Some(ShownDraining { marked, until }) = self.shown else { return };
        if view.member(&self.me.instance_id).is_some_and(|me| me.state == MemberState::Draining) {
            let rest = self.shown_for().max(now.since(marked) * SHOWN_TIMES_LAG);
            self.shown = Some(ShownDraining { marked, until: until.min(now.plus(rest)) });
        }
    }

    /// When a draining member deletes its record: its work is done or given up, and the others have had time to see it drain. A
    /// registration that is on its way counts: it may have been seen by now, as active.
    pub(super) fn leaves_at(&self) -> Option<Moment> {
        let shown = self.shown.filter(|_| self.lease.is_held() || self.lease.is_in_flight());
        self.drain_until.map(|until| shown.map_or(until, |shown| shown.until.max(until)))
    }

    /// Deletes the record when that is due.
    pub(super) fn end_drain(&mut self, now: Moment, actions: &mut Vec<Action>) {
        if self.state() != ServiceState::Draining {
            return;
        }
        if self.has_let_go() && self.leaves_at().is_some_and(|at| now >= at) {
            (self.drain_until, self.shown) = (None, None);
            let away = self.place_reservation == PlaceReservation::Kept && self.lease.is_held();
            actions.push(if away { Action::StepAway { grace: self.policy.rejoin_grace } } else { Action::Deregister });
        }
        self.gives_up |= self.gives_up_at.is_some_and(|at| now >= at);
    }
}
