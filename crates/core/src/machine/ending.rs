//! The deadline: the member stops or, if its policy says so, continues with its last view for a while.

use super::{Action, Machine, Op};
use crate::{BackendLoss, Cause, Moment, Ownership, ServiceState};

impl Machine {
    /// Checks the deadline before anything else.
    pub(super) fn end_if_due(&mut self, now: Moment, actions: &mut Vec<Action>) {
        if self.state() == ServiceState::Stale {
            if self.ownership.deadline.is_some_and(|until| now >= until) {
                self.fence(now, actions);
            }
            return;
        }
        let Some(deadline) = self.due_end().filter(|deadline| now >= *deadline) else { return };
        if self.state() == ServiceState::Draining {
            // It kept its record for work that did not end, and the drain timeout has passed too.
            self.drop_record();
            return self.turn(now, ServiceState::Draining, actions);
        }
        match self.kept_until(now, deadline) {
            Some(until) => self.go_stale(now, until, actions),
            None => self.fence(now, actions),
        }
    }

    /// When the lease or the view ends, in the states in which that matters.
    pub(super) fn due_end(&self) -> Option<Moment> {
        self.is_joined().then(|| self.deadline()).flatten()
    }

    /// Until when the last view is kept; `None` if it is not. While the record lives, no other member can have taken over. After that the
    /// member counts as cut off from the backend if it has asked in vain and did not itself pause for long (SIGSTOP, a suspended machine):
    /// a runtime that is busy at the deadline is no reason to stop, but a member that slept through its renewals has not lost the backend.
    fn kept_until(&self, now: Moment, deadline: Moment) -> Option<Moment> {
        let BackendLoss::Keep { keep_for } = self.policy.on_backend_loss else { return None };
        let lives = now < self.lease.lives_until();
        let awake = self.lease.is_failing() && now.since(self.stepped) < self.lease.ttl() * 2 / 3;
        let until = deadline.plus(keep_for);
        (self.state() == ServiceState::Active && (lives || awake) && now < until).then_some(until)
    }

    fn go_stale(&mut self, now: Moment, until: Moment, actions: &mut Vec<Action>) {
        let next = Ownership { state: ServiceState::Stale, since: now, deadline: Some(until), ..(*self.ownership).clone() };
        self.publish(now, next, Cause::Fenced, actions);
    }

    /// Owns nothing from here on, and registers again at once.
    pub(super) fn fence(&mut self, now: Moment, actions: &mut Vec<Action>) {
        self.start_over();
        self.turn(now, ServiceState::Fenced, actions);
        self.lease.call(Op::Register, now, actions);
    }
}
