//! Getting in: the wish to join, and what becomes of each registration.
//!
//! A refusal is not the end: operators renew tokens and stop doubles without touching the workers. So a refused member asks again by
//! itself, but slowly ([`Lease::ask_again_slowly`](super::lease::Lease)). Whoever waits for the first entry and does not want that leaves.

use std::time::Duration;

use super::{Action, Machine, MemberRefusal, Op, OpFailure};
use crate::mistakes::lease_begins;
use crate::{Moment, PolicyError, ServiceState};

impl Machine {
    pub(super) fn join(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let fresh = matches!(self.state(), ServiceState::Created | ServiceState::Left);
        let again = self.state() == ServiceState::Refused && !self.lease.is_held();
        if fresh || again {
            if self.state() == ServiceState::Left {
                self.begin_life(actions);
            }
            self.start_over();
            self.turn(now, ServiceState::Joining, actions);
            self.start_watch(actions);
            self.lease.call(Op::Register, now, actions);
        }
    }

    /// The former record was asked to be deleted, and whether it was may not be known: a call that was given up may be carried out at any later time. So
    /// what is registered from here on is another life's, which that call does not touch.
    fn begin_life(&mut self, actions: &mut Vec<Action>) {
        self.me.incarnation = self.me.incarnation.next();
        if let Some(claiming) = &mut self.claiming {
            claiming.begin_life(self.me.incarnation);
        }
        actions.push(Action::BeginLife(self.me.incarnation));
    }

    pub(super) fn registered(&mut self, now: Moment, attempt: u64, started: Moment, ttl: Duration, actions: &mut Vec<Action>) {
        if !self.lease.answered(attempt) {
            return;
        }
        if let Err(short) = self.lease.check(ttl)
            && self.state() != ServiceState::Draining
        {
            return self.refuse_lease(now, short, actions);
        }
        if !self.lease.registered(now, lease_begins(started, now), ttl) {
            // The answer took longer than the lease lasts; nothing was ever owned under it, and the record counts as never made.
            self.lease.fail(now);
            return;
        }
        if self.state() == ServiceState::Draining {
            return self.registered_too_late(started, actions);
        }
        if matches!(self.state(), ServiceState::Fenced | ServiceState::Refused) {
            self.turn(now, ServiceState::Joining, actions);
        }
        if let Some(claiming) = &mut self.claiming {
            claiming.enter(now);
        }
        self.start_watch(actions);
        actions.push(Action::Look);
        self.reconsider(now, actions);
    }

    pub(super) fn failed(&mut self, now: Moment, attempt: u64, failure: OpFailure, actions: &mut Vec<Action>) {
        if !self.lease.answered(attempt) {
            return;
        }
        let entering = self.wanted_call() == Some(Op::Register);
        let rival = matches!(failure, OpFailure::InUse { .. });
        match self.lease.refusal(&self.me.instance_id, failure).filter(|_| entering) {
            // A backend that turns away a member on its last view is as good as out of reach.
            Some(MemberRefusal::Backend { .. }) if self.state() == ServiceState::Stale => return self.lease.ask_again_slowly(now),
            Some(refusal) => return self.refuse(now, refusal, actions),
            // A former self that is waited out is no outage: it is asked for again soon.
            None if rival => self.lease.ask_again_soon(now),
            None => self.lease.fail(now),
        }
        if entering && self.state() == ServiceState::Refused {
            // Whoever refused does not say so any more; what is left is the usual wait for an entry.
            self.turn(now, ServiceState::Joining, actions);
        }
    }

    /// The record goes at once: to the others it would be a member that comes and goes with every try. The last view is kept for as long as it was
    /// to be.
    fn refuse_lease(&mut self, now: Moment, short: PolicyError, actions: &mut Vec<Action>) {
        actions.push(Action::Deregister);
        self.begin_life(actions);
        match self.state() {
            ServiceState::Stale => self.lease.ask_again_slowly(now),
            _ => self.refuse(now, MemberRefusal::Lease(short), actions),
        }
    }

    /// The record goes at once: a newcomer that stayed registered would become the member that joined first when those who do the group's work are
    /// restarted one by one, and would then decide what the group works for.
    pub(super) fn refuse_work(&mut self, now: Moment, refusal: MemberRefusal, actions: &mut Vec<Action>) {
        actions.push(Action::Deregister);
        self.begin_life(actions);
        self.start_over();
        self.refuse(now, refusal, actions);
    }

    /// Shows the reason, once, and tries again slowly. Nothing is followed meanwhile: who refuses a record refuses a watch as well.
    fn refuse(&mut self, now: Moment, refusal: MemberRefusal, actions: &mut Vec<Action>) {
        self.stop_watch(actions);
        self.lease.ask_again_slowly(now);
        self.turn_with(now, ServiceState::Refused, Some(refusal), actions);
    }

    fn start_watch(&mut self, actions: &mut Vec<Action>) {
        if !std::mem::replace(&mut self.watching, true) {
            actions.push(Action::StartWatch);
        }
    }

    pub(super) fn stop_watch(&mut self, actions: &mut Vec<Action>) {
        if std::mem::replace(&mut self.watching, false) {
            actions.push(Action::StopWatch);
        }
    }
}
