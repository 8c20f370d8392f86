//! What happens at the deadline: the member stops, or, where its policy says so, goes on with its last view for a while.

use super::{Action, Machine, Op};
use crate::{BackendLoss, Cause, Moment, Ownership, ServiceState};

impl Machine {
    /// Looks at the clock before anything else is looked at.
    pub(super) fn end_if_due(&mut self, now: Moment, actions: &mut Vec<Action>) {
        if self.state() == ServiceState::Stale {
            if self.ownership.deadline.is_some_and(|until| now >= until) {
                self.fence(now, actions);
            }
            return;
        }
        let Some(deadline) = self.due_end().filter(|deadline| now >= *deadline) else { return };
        if self.state() == ServiceState::Draining {
            // It kept its record for work that did not end, and that time is over too.
            self.drop_record();
            return self.turn(now, ServiceState::Draining, actions);
        }
        match self.kept_until(now, deadline) {
            Some(until) => self.go_stale(now, until, actions),
            None => self.fence(now, actions),
        }
    }

    /// When the lease or the view runs out, in the states in which that means something.
    pub(super) fn due_end(&self) -> Option<Moment> {
        self.is_joined().then(|| self.deadline()).flatten()
    }

    /// Until when the last view is kept; `None` if it is not. While the record lives nobody can have taken over. After that a member is
    /// believed that it has lost the backend if it has asked in vain and has not stood still for long itself (SIGSTOP, a suspended machine): a
    /// runtime that is busy at the deadline is no reason to stop, but one that slept through its renewals has lost nothing but time.
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

    /// Owns nothing from here on, and registers anew at once.
    pub(super) fn fence(&mut self, now: Moment, actions: &mut Vec<Action>) {
        self.start_over();
        self.turn(now, ServiceState::Fenced, actions);
        self.lease.call(Op::Register, now, actions);
    }
}
