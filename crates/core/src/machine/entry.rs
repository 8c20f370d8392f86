//! Joining: the request to join, and the outcome of each registration.
//!
//! A refusal is not final: operators renew tokens and stop duplicates without touching the workers. So a refused member retries by
//! itself, but slowly ([`Lease::ask_again_slowly`](super::lease::Lease)). A caller that does not want to wait for the first entry leaves.

use std::time::Duration;

use super::{Action, Machine, MemberRefusal, Op, OpFailure};
use crate::mistakes::{Mistake, lease_begins, made};
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

    /// The deletion of the former record was requested, and its outcome may be unknown: an abandoned call may still be carried out at any
    /// time. So from here on the member registers as a new incarnation, which that call does not affect.
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
            // The answer took longer than the lease: nothing was owned under it, and the record counts as never created.
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
        actions.push(Action::ReadGroup);
        self.reconsider(now, actions);
    }

    /// A member that was fenced has forgotten its view, and a group that has not changed meanwhile is only proven by the watch. The read
    /// that followed the registration has failed or is still under way.
    pub(super) fn read_again(&self, actions: &mut Vec<Action>) {
        if self.view.is_none() && self.lease.is_held() && self.state() != ServiceState::Draining && !made(Mistake::ReadOnce) {
            actions.push(Action::ReadGroup);
        }
    }

    pub(super) fn failed(&mut self, now: Moment, attempt: u64, failure: OpFailure, actions: &mut Vec<Action>) {
        if !self.lease.answered(attempt) {
            return;
        }
        let entering = self.wanted_call() == Some(Op::Register);
        let rival = matches!(failure, OpFailure::InUse { .. });
        match self.lease.refusal(&self.me.instance_id, failure).filter(|_| entering) {
            // For a member on its last view, a refusal by the backend counts as an outage.
            Some(MemberRefusal::Backend { .. }) if self.state() == ServiceState::Stale => return self.lease.ask_again_slowly(now),
            Some(refusal) => return self.refuse(now, refusal, actions),
            // Waiting for a former incarnation's record to expire is no outage: retry soon.
            None if rival => self.lease.ask_again_soon(now),
            None => self.lease.fail(now),
        }
        if entering && self.state() == ServiceState::Refused {
            // The refusal no longer applies; the member waits for entry as usual.
            self.turn(now, ServiceState::Joining, actions);
        }
    }

    /// Deletes the record at once: otherwise the others would see a member that comes and goes with every retry. The last view is kept
    /// for as long as planned.
    fn refuse_lease(&mut self, now: Moment, short: PolicyError, actions: &mut Vec<Action>) {
        actions.push(Action::Deregister);
        self.begin_life(actions);
        match self.state() {
            ServiceState::Stale => self.lease.ask_again_slowly(now),
            _ => self.refuse(now, MemberRefusal::Lease(short), actions),
        }
    }

    /// Deletes the record at once. If it stayed registered through a rolling restart of the group, it would become the member that joined
    /// first, and would then decide what the group serves.
    pub(super) fn refuse_work(&mut self, now: Moment, refusal: MemberRefusal, actions: &mut Vec<Action>) {
        actions.push(Action::Deregister);
        self.begin_life(actions);
        self.start_over();
        self.refuse(now, refusal, actions);
    }

    /// Publishes the reason once and retries slowly. The watch stops meanwhile: a backend that refuses a record also refuses a watch.
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
