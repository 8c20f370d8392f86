//! The life of one member as a state machine: typed inputs in, a list of actions out, time as an argument.
//!
//! The driver (in `shardwise`) feeds events to the machine and carries out its actions; it decides nothing. The machine handles one input
//! at a time and checks the deadline first: a renewal that is answered too late finds the member fenced already.
//!
//! Rules (`docs/internals/design.md`): ownership ends at the start of the last successful renewal plus 0.99 of the granted TTL less the
//! margin, or two TTLs after the view was last proven current, whichever comes first. A fenced member registers again and owns nothing
//! until a view newer than that registration shows it. A refused member retries slowly. Module `ending` handles the deadline where the
//! policy keeps the last view, `loss` handles too many vanished members, and `leaving` handles leaving.

mod claiming;
mod ending;
mod entry;
mod io;
mod lease;
mod leaving;
mod loss;
mod reclaim;
mod rolling;
mod standing;
mod takeover;
#[cfg(test)]
mod tests;

pub use crate::refusal::{MemberRefusal, OtherWork, policy_mismatch};
pub use io::{Action, ClaimInput, Input, Op, OpFailure};

use std::sync::Arc;
use std::time::Duration;

use crate::mistakes::lease_begins;
use crate::{
    Cause, Fingerprint, Holder, Incarnation, InstanceId, Moment, Ownership, PlacementParams, Placer, Policy, Rebalance, ServiceState,
    Timing, View, ViewPlacement,
};
use lease::Lease;

/// The member that the machine represents.
#[derive(Debug, Clone)]
pub struct Identity {
    /// This member's name.
    pub instance_id: InstanceId,
    /// Its incarnation.
    pub incarnation: Incarnation,
}

/// The state machine of one member of one group.
#[derive(Debug)]
pub struct Machine {
    policy: Arc<Policy>,
    /// One placer for each placement that the policy can serve, with its fingerprint.
    placers: Vec<(Fingerprint, Arc<Placer>)>,
    me: Identity,
    lease: Lease,
    view: Option<Arc<View>>,
    /// When the read that returned the view began.
    view_proven: Moment,
    placed: Option<standing::MemberPlacement>,
    /// Placements computed so far; a renewal never adds one.
    placements_computed: u64,
    drain_until: Option<Moment>,
    /// From then on a leaver does not keep its record alive for unfinished work.
    gives_up_at: Option<Moment>,
    gives_up: bool,
    /// Whether a leaver keeps its place for `rejoin_grace`.
    place_reservation: leaving::PlaceReservation,
    losses: loss::Losses,
    /// `None` unless ownership is exclusive.
    claiming: Option<claiming::ClaimState>,
    /// A leaver keeps its record at least this long, so that the others see it drain.
    shown: Option<leaving::ShownDraining>,
    /// Whether the driver follows the group.
    watching: bool,
    /// When the last input was handled.
    stepped: Moment,
    ownership: Arc<Ownership>,
}

impl Machine {
    /// A member that has not registered. `placer` returns the placer for given parameters; it is called for the policy's placement and
    /// for its `next`. Members of one process may share placers.
    pub fn new(policy: Arc<Policy>, timing: Timing, me: Identity, placer: impl Fn(PlacementParams) -> Arc<Placer>, now: Moment) -> Self {
        let mut ownership = Ownership::created(&policy.placement, now);
        (ownership.policy, ownership.min_members) = (Some(policy.name.clone()), policy.min_members);
        let placements = std::iter::once(policy.placement).chain(policy.next);
        let placers = policy.fingerprints().into_iter().zip(placements.map(placer)).collect();
        let lease = Lease::new(timing, me.incarnation);
        let claiming = claiming::ClaimState::new(&policy, Holder { instance_id: me.instance_id.clone(), incarnation: me.incarnation });
        let ownership = Arc::new(ownership);
        Self {
            policy,
            placers,
            me,
            lease,
            view: None,
            view_proven: Moment::ZERO,
            placed: None,
            placements_computed: 0,
            drain_until: None,
            gives_up_at: None,
            gives_up: false,
            place_reservation: leaving::PlaceReservation::Free,
            losses: loss::Losses::default(),
            claiming,
            shown: None,
            watching: false,
            stepped: now,
            ownership,
        }
    }

    /// The latest snapshot.
    pub const fn ownership(&self) -> &Arc<Ownership> {
        &self.ownership
    }

    /// The latest view; it may be newer than the snapshot's in states in which nothing is owned.
    pub const fn view(&self) -> Option<&Arc<View>> {
        self.view.as_ref()
    }

    /// When the request that last proved the view current began; `None` without a view.
    pub fn proven_at(&self) -> Option<Moment> {
        self.view.as_ref().map(|_| self.lease.proven_at())
    }

    /// The latest placement, once a view has shown this member.
    pub fn placement(&self) -> Option<&ViewPlacement> {
        self.placed.as_ref().map(|placed| &placed.shown)
    }

    /// Placements computed by this member. Renewals and repeated views add none, nor do claims that go as expected.
    pub fn placements_computed(&self) -> u64 {
        self.placements_computed + self.claiming.as_ref().map_or(0, claiming::ClaimState::successions)
    }

    /// The timeout of a renewal, after which the next one replaces it: the time between two renewals.
    pub const fn renewal_takes(&self) -> Duration {
        self.lease.renewal_takes()
    }

    /// When to call again with [`Input::Woken`] if no other input comes first.
    pub fn wake_at(&self) -> Option<Moment> {
        let lease = self.wanted_call().and_then(|_| self.lease.wake_at());
        let deadline = if self.state() == ServiceState::Stale { self.ownership.deadline } else { self.due_end() };
        let leaves = self.leaves_at().filter(|_| self.has_let_go());
        [lease, deadline, leaves, self.claims_wake_at()].into_iter().flatten().min()
    }

    /// Handles one input at `now` and appends what the driver has to do.
    pub fn step(&mut self, now: Moment, input: Input, actions: &mut Vec<Action>) {
        self.end_if_due(now, actions);
        match input {
            Input::Join => self.join(now, actions),
            Input::Leave => self.leave(now, actions),
            Input::LeaveForGood => self.leave_for_good(now, actions),
            Input::Woken => {}
            Input::Registered { attempt, started, ttl } => self.registered(now, attempt, started, ttl, actions),
            Input::Renewed { attempt, started, ttl } => {
                if self.lease.answered(attempt) {
                    self.lease.renewed(lease_begins(started, now), ttl);
                    self.reconsider(now, actions);
                }
            }
            Input::Failed { attempt, failure } => self.failed(now, attempt, failure, actions),
            // A registration with this answer failed like any other; fencing again would retry without a pause.
            Input::RecordLost { attempt } if self.wanted_call() == Some(Op::Register) => {
                self.failed(now, attempt, OpFailure::Retryable, actions);
            }
            Input::RecordLost { attempt } => match self.lease.answered(attempt) {
                true if self.state() == ServiceState::Draining => self.drop_record(),
                true if self.state() == ServiceState::Stale => {
                    self.start_over();
                    self.lease.call(Op::Register, now, actions);
                }
                true => self.fence(now, actions),
                false => {}
            },
            Input::Viewed { view, proven } => {
                // A rejected view proves nothing: the deadline of a view unproven for two TTLs must still come.
                if self.see(now, view, proven) {
                    self.lease.prove(proven);
                }
                self.reconsider(now, actions);
            }
            Input::Proven { at } => {
                self.lease.prove(at);
                self.read_again(actions);
                self.reconsider(now, actions);
            }
            Input::Claims(input) => self.claims(now, input, actions),
            Input::Names(names) => {
                if let Some(claiming) = &mut self.claiming {
                    claiming.offer(names);
                    self.reconsider(now, actions);
                }
            }
            Input::InFlightDone => self.drain_until = self.drain_until.map(|_| now),
            Input::Deregistered if self.place_reservation == leaving::PlaceReservation::GivenUp => {
                self.place_reservation = leaving::PlaceReservation::Free;
                actions.push(Action::Deregister);
            }
            // The deletion of a record whose lease was refused, while a leaver still waits for its work.
            Input::Deregistered if self.drain_until.is_some() => {}
            Input::Deregistered => {
                if self.state() == ServiceState::Draining {
                    self.drop_record();
                    self.stop_watch(actions);
                    self.turn(now, ServiceState::Left, actions);
                }
            }
        }
        self.keep_up(now, actions);
        self.settle_claims(now, actions);
        self.stepped = now;
    }

    /// Keeps a view unless it is older than the present one. Two reads may overtake each other, and the one that began later may have
    /// seen less; so the revision decides, and the time only between equal revisions.
    fn see(&mut self, now: Moment, view: Arc<View>, proven: Moment) -> bool {
        let newer = self.view.as_ref().is_none_or(|known| (known.revision(), self.view_proven) <= (view.revision(), proven));
        if newer {
            if let Some(max) = self.policy.max_loss {
                self.losses.take(now, &view, self.lease.ttl(), max);
            }
            self.see_oneself_drain(now, &view);
            (self.view, self.view_proven) = (Some(view), proven);
        }
        newer
    }

    /// Starts over: no record, and no view to compare a later one with.
    fn start_over(&mut self) {
        self.drop_record();
        self.losses.start_over();
        (self.view, self.view_proven) = (None, Moment::ZERO);
    }

    /// The record is gone or counts as gone, and every claim with it.
    fn drop_record(&mut self) {
        self.lease.drop_record();
        if let Some(claiming) = &mut self.claiming {
            claiming.fence();
        }
    }

    fn wanted_call(&self) -> Option<Op> {
        match self.state() {
            ServiceState::Draining if self.gives_up && !self.has_let_go() => None,
            _ if self.lease.is_held() => Some(Op::Renew),
            ServiceState::Joining | ServiceState::Fenced | ServiceState::Refused | ServiceState::Stale => Some(Op::Register),
            _ => None,
        }
    }

    fn state(&self) -> ServiceState {
        self.ownership.state
    }

    /// Whether losing the lease matters in the present state.
    fn is_joined(&self) -> bool {
        matches!(self.state(), ServiceState::Active)
            || (self.state() == ServiceState::Draining && self.claiming.is_some() && self.lease.is_held())
            || (matches!(self.state(), ServiceState::Joining | ServiceState::Refused) && self.lease.is_held())
    }

    fn deadline(&self) -> Option<Moment> {
        self.lease.deadline()
    }

    /// Emits what is due: a registration, a renewal, or the end of a drain.
    fn keep_up(&mut self, now: Moment, actions: &mut Vec<Action>) {
        self.end_drain(now, actions);
        if let Some(op) = self.wanted_call().filter(|_| self.lease.is_due(now)) {
            self.lease.call(op, now, actions);
        }
    }

    /// Changes to a state in which nothing is owned.
    fn turn(&mut self, now: Moment, state: ServiceState, actions: &mut Vec<Action>) {
        self.turn_with(now, state, None, actions);
    }

    fn turn_with(&mut self, now: Moment, state: ServiceState, refusal: Option<MemberRefusal>, actions: &mut Vec<Action>) {
        let cause = match state {
            ServiceState::Draining | ServiceState::Left => Cause::Draining,
            ServiceState::Refused => Cause::Refused,
            _ => Cause::Fenced,
        };
        let since = if state == self.state() { self.ownership.since } else { now };
        let claims_end = self.lease.deadline().filter(|_| self.claiming.is_some());
        let next = Ownership { state, since, held: self.none(), deadline: None, claims_end, refusal, ..(*self.ownership).clone() };
        self.publish(now, next, cause, actions);
    }

    fn publish(&mut self, now: Moment, next: Ownership, cause: Cause, actions: &mut Vec<Action>) {
        if next == *self.ownership {
            return;
        }
        let before = std::mem::replace(&mut self.ownership, Arc::new(next));
        let after = &self.ownership;
        actions.push(Action::Publish(Arc::clone(after)));
        actions.extend(Rebalance::between(&before, after, cause, now).map(Action::Rebalanced));
    }
}
