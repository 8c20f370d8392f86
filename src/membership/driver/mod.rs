//! The one task of a service: passes backend answers, watch events and timers to the core's machine, and carries out its actions.
//!
//! It decides nothing about ownership; it only adds timeouts.

mod claims;
mod publish;
mod record;
mod updates;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use publish::FencedTime;
use record::RecordUpdater;
use shardwise_core::machine::{Action, ClaimInput, Input, Machine};
use shardwise_core::{MemberState, Moment, ServiceState};
use shardwise_discovery::{ClaimsStream, Discovery, Error, ErrorKind, LogThrottle, Registration, WatchStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tracing::{Instrument, Span};
use updates::next;

use super::calls::{PROOFS_PER_TTL, follow, follow_claims};
use super::context::OwnershipContext;
use super::placement_cache::placed_ahead;
use super::state::Membership;
use super::worker::WorkerReport;
use crate::error::locked;
use crate::telemetry::metrics::Meters;

/// Timers stop while the machine is suspended and deadlines do not, so the clock is read this often.
const SLEEP_LONGEST: Duration = Duration::from_millis(250);

pub(crate) enum DriverCommand {
    Join(Span),
    Leave(Span),
    LeaveForGood(Span),
    /// Whether an operator wants this member drained.
    Drain(bool),
}

/// Each command with the channel for the reply, which follows once the machine has processed it.
pub(crate) type Commands = mpsc::Sender<(DriverCommand, oneshot::Sender<()>)>;

/// The outcome of something that the driver started.
struct CallOutcome {
    input: Input,
    error: Option<Error>,
}

impl From<Input> for CallOutcome {
    fn from(input: Input) -> Self {
        Self { input, error: None }
    }
}

#[expect(clippy::struct_excessive_bools, reason = "the facts are independent")]
pub(crate) struct Driver {
    membership: Arc<Membership>,
    backend: Arc<dyn Discovery>,
    machine: Machine,
    registration: Registration,
    /// An operator wants this member drained.
    drained: bool,
    /// The worker's health drains this member.
    is_drained_for_health: bool,
    /// What is known of the worker that this member speaks for.
    worker: WorkerReport,
    answers: JoinSet<CallOutcome>,
    call: Option<AbortHandle>,
    record_updater: RecordUpdater,
    watch: Option<WatchStream>,
    claims: Option<ClaimsStream>,
    /// Why registering or renewing fails, logged once until it succeeds or fails for another reason.
    complaint: Option<String>,
    /// The same for claims.
    claims_complaint: Option<String>,
    /// The watch fails, logged once until it succeeds.
    blind: bool,
    /// A member's record does not say what it serves, logged once until none is left.
    beside_older: bool,
    /// Members that the group refuses because of their settings, by their ids.
    other_settings: LogThrottle<String>,
    /// The time that this worker is fenced; `None` once it is active again.
    fenced: Option<FencedTime>,
    meters: Meters,
    /// The span of joining or leaving, while it lasts.
    stage: Span,
    giving: Span,
}

impl Driver {
    pub(crate) fn new(membership: Arc<Membership>, backend: Arc<dyn Discovery>, machine: Machine, registration: Registration) -> Self {
        let meters = Meters::new(&membership.policy);
        Self {
            membership,
            backend,
            machine,
            registration,
            drained: false,
            is_drained_for_health: false,
            worker: WorkerReport::default(),
            answers: JoinSet::new(),
            call: None,
            record_updater: RecordUpdater::default(),
            watch: None,
            claims: None,
            complaint: None,
            claims_complaint: None,
            blind: false,
            beside_older: false,
            other_settings: LogThrottle::default(),
            fenced: None,
            meters,
            stage: Span::none(),
            giving: Span::none(),
        }
    }

    /// Runs until the service has left and all handles are dropped.
    pub(crate) async fn run(mut self, mut commands: mpsc::Receiver<(DriverCommand, oneshot::Sender<()>)>) {
        let membership = Arc::clone(&self.membership);
        let mut names = membership.wanted_names.subscribe();
        names.mark_changed();
        let mut addresses = membership.advertised.follow();
        // Addresses known before joining are in the first record.
        let known = addresses.borrow_and_update().clone();
        self.show_addresses(&known);
        let mut worker = membership.worker.report.subscribe();
        worker.mark_changed();
        let mut orphaned = false;
        let mut actions = Vec::new();
        self.meters.begin();
        loop {
            let wake_at = self.machine.wake_at();
            // A fixed order, so that a seed reproduces a run. Each step reads the time first, so timers may come last.
            let input = tokio::select! {
                biased;
                command = commands.recv(), if !orphaned => {
                    if let Some((command, taken)) = command {
                        self.on_command(command, &mut actions);
                        // The handle may have stopped waiting.
                        let _ = taken.send(());
                        continue;
                    }
                    orphaned = true;
                    Input::Leave
                }
                Some(answer) = self.answers.join_next() => match answer {
                    Ok(answer) => self.on_answer(answer),
                    Err(_aborted) => continue,
                },
                Some(event) = next(self.watch.as_mut()) => match self.on_watch(event) {
                    Some(input) => input,
                    None => continue,
                },
                Some(event) = next(self.claims.as_mut()) => match self.on_claims(event) {
                    Some(input) => input,
                    None => continue,
                },
                Ok(()) = names.changed() => {
                    let wanted = names.borrow_and_update().clone();
                    Input::Names(wanted)
                }
                idle = membership.guards.idle() => Input::Claims(ClaimInput::Idle(idle)),
                Ok(()) = addresses.changed() => {
                    let shown = addresses.borrow_and_update().clone();
                    self.show_addresses(&shown);
                    continue;
                }
                Ok(()) = worker.changed() => {
                    let report = worker.borrow_and_update().clone();
                    self.show_worker(report);
                    continue;
                }
                () = until(&self.membership, wake_at) => Input::Woken,
            };
            self.step(input, &mut actions);
            if orphaned && self.machine.ownership().state() == ServiceState::Left {
                return;
            }
        }
    }

    fn on_command(&mut self, command: DriverCommand, actions: &mut Vec<Action>) {
        match command {
            DriverCommand::Join(span) => {
                self.stage = span;
                self.membership.failure.store(None);
                self.membership.blinded.send_replace(None);
                self.membership.answered.store(false, Ordering::Relaxed);
                // Before the first record is written.
                let report = self.membership.worker.report.borrow().clone();
                self.show_worker(report);
                self.step(Input::Join, actions);
            }
            DriverCommand::Leave(span) => {
                self.stage = span;
                self.step(Input::Leave, actions);
            }
            DriverCommand::LeaveForGood(span) => {
                self.stage = span;
                self.step(Input::LeaveForGood, actions);
            }
            DriverCommand::Drain(drained) => self.show_drained(drained),
        }
    }

    fn step(&mut self, input: Input, actions: &mut Vec<Action>) {
        self.machine.step(self.membership.clock.now(), input, actions);
        self.warn_if_still_fenced();
        self.show_standing();
        self.membership.rebuilds.store(self.machine.placements_computed(), Ordering::Relaxed);
        for action in actions.drain(..) {
            if matches!(&action, Action::Publish(after) if after.state() == ServiceState::Left) {
                // A caller waiting for this may end the process, so the span of leaving ends first.
                self.stage = Span::none();
            }
            let stage = self.stage.clone();
            let _within = stage.enter();
            self.carry_out(action);
        }
        // After the view is published, so that a reader of this and then of the view has one that is at least as new.
        if let Some(proven) = self.machine.proven_at() {
            *locked(&self.membership.proven) = Some(proven);
        }
        let OwnershipContext { refused, guards, clock, .. } = &*self.membership.ownership_context;
        self.meters.sample(clock.now(), self.machine.proven_at(), refused.load(Ordering::Relaxed), || guards.oldest_drain());
        if !matches!(self.machine.ownership().state(), ServiceState::Joining | ServiceState::Fenced | ServiceState::Draining) {
            self.stage = Span::none();
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::BeginLife(incarnation) => {
                self.registration.member.incarnation = incarnation;
                self.membership.life.begin(incarnation);
            }
            Action::Call { op, attempt } => self.call(op, attempt),
            Action::StartWatch => {
                self.membership.in_flight.reopen();
                self.membership.departures.start_over();
                let prove_every = self.membership.timing.ttl / PROOFS_PER_TTL;
                let watch = follow(&self.backend, &self.registration.group, prove_every);
                self.watch = Some(placed_ahead(watch, (*self.membership.policy).clone()));
                self.claims = self.registration.claims.then(|| follow_claims(&self.backend, &self.registration.group, prove_every));
            }
            Action::StopWatch => {
                (self.watch, self.claims) = (None, None);
                self.membership.holders.clear();
            }
            Action::Claim(action) => self.claim(action),
            Action::ReadGroup => self.read_group(),
            Action::MarkDraining => {
                self.mark_leaving(MemberState::Draining, "could not show this worker as draining; the others see it when it is gone");
            }
            Action::MarkPausing => {
                self.mark_leaving(
                    MemberState::Pausing,
                    "could not show that this worker leaves for a while; the others see it when it is away",
                );
            }
            Action::MarkLoss(missing) => self.mark_loss(missing),
            Action::Reclaim(count) => self.reclaim(count),
            Action::AwaitInFlight => {
                self.membership.in_flight.close();
                let membership = Arc::clone(&self.membership);
                let drained = async move {
                    membership.in_flight.wait().await;
                    Input::InFlightDone.into()
                };
                self.answers.spawn(drained.instrument(tracing::info_span!("drain")));
            }
            Action::Deregister => self.leave(None),
            Action::StepAway { rejoin_grace } => self.leave(Some(rejoin_grace)),
            Action::Publish(ownership) => self.publish(ownership),
            Action::Rebalanced(rebalance) => self.rebalanced(rebalance),
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.membership.warn_if_member(
            "the runtime of this worker ended while it was a member: the others take over when its lease expires; call deregister_self before the \
             runtime ends",
        );
    }
}

/// Waits until that moment on the service's clock; for ever without one.
async fn until(membership: &Membership, moment: Option<Moment>) {
    let Some(moment) = moment else { return std::future::pending().await };
    loop {
        let left = moment.since(membership.clock.now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(SLEEP_LONGEST)).await;
    }
}

impl Driver {
    fn on_answer(&mut self, CallOutcome { input, error }: CallOutcome) -> Input {
        if let Some(error) = &error {
            self.meters.failed(error);
        }
        if let Input::Renewed { started, .. } = &input {
            self.meters.renewed(self.membership.clock.now(), *started, self.machine.ownership().deadline());
        }
        match (&input, error) {
            (Input::Claims(_), Some(error)) => {
                self.membership.failure.store(Some(Arc::new(error.to_string())));
                self.complain_of_claims(&error);
            }
            (Input::Claims(ClaimInput::Acquired { .. }), None) => self.claims_complaint = None,
            (_, Some(error)) => {
                self.complain(&error);
                if !error.is_retryable() {
                    self.answered();
                }
            }
            (Input::Registered { .. } | Input::Renewed { .. }, None) => {
                self.complaint = None;
                self.answered();
                if matches!(input, Input::Renewed { .. }) {
                    self.mark_if_missed();
                }
            }
            _ => {}
        }
        input
    }

    fn answered(&self) {
        self.membership.answered.store(true, Ordering::Relaxed);
    }

    fn complain(&mut self, error: &Error) {
        self.membership.failure.store(Some(Arc::new(error.to_string())));
        // All retryable errors count as one reason; others differ by their text, whatever the call.
        let said = if error.is_retryable() { String::new() } else { error.to_string() };
        let reason = said.strip_prefix(error.operation()).unwrap_or(&said).to_owned();
        if self.complaint.as_ref() != Some(&reason) {
            if matches!(error.kind(), ErrorKind::InUse { .. }) {
                // No refusal yet: whether that worker lives shows in its next renewal, and then the refusal is logged.
                tracing::warn!(
                    policy = %self.membership.policy.name,
                    %error,
                    "a record of this worker's id is still in the group: this worker joins when that record has expired, within a TTL; if the worker \
                     that wrote it still runs, this one is refused"
                );
            } else {
                tracing::warn!(%error, retryable = error.is_retryable(), "the discovery backend failed");
            }
            self.complaint = Some(reason);
        }
    }
}
