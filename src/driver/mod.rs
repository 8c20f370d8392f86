//! The one task per service: backend answers, watch news and timers go into the core's machine, its actions are carried out.
//!
//! It decides nothing about ownership; what it adds are limits on how long a call may take.

mod claims;
mod record;
mod record_updater;

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use shardwise_core::machine::{Action, ClaimInput, Input, Machine, MemberRefusal};
use shardwise_core::{Fingerprint, Moment, Ownership, View};
use shardwise_discovery::{ClaimsStream, Discovery, Error, Registration, WatchEvent, WatchStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tracing::{Instrument, Span};

use crate::ServiceState;
use crate::calls::{follow, follow_claims};
use crate::departures::Departures;
use crate::messages::ADDRESS_KEY as MESSAGES_KEY;
use crate::metrics::Meters;
use crate::placement_cache::placed_ahead;
use crate::requests::ADDRESS_KEY as REQUESTS_KEY;
use crate::shared::{OwnershipContext, Shared};
use record_updater::RecordUpdater;

/// Timers stand still while the machine is suspended and deadlines do not, so the clock is looked at this often.
const SLEEP_LONGEST: Duration = Duration::from_millis(250);
/// The most news of a watch taken in at once; timers are looked at in between.
const BURST_MAX: usize = 256;
/// How many members that vanished at once are logged by name.
const VANISHED_LOGGED: usize = 100;
/// A watch proves its view this often within one TTL.
const PROOFS_PER_TTL: u32 = 4;

/// What a service's handle asks of its driver. The reply comes once the machine has taken the request in.
pub(crate) enum DriverCommand {
    Join(Span, oneshot::Sender<()>),
    Leave(Span, oneshot::Sender<()>),
    /// An operator wants this member to stay and own nothing, or not any more.
    Drain(bool, oneshot::Sender<()>),
    LeaveForGood(Span, oneshot::Sender<()>),
}

/// What came of something that the driver had set going.
struct CallOutcome {
    input: Input,
    /// Why a call failed.
    error: Option<Error>,
}

impl From<Input> for CallOutcome {
    fn from(input: Input) -> Self {
        Self { input, error: None }
    }
}

pub(crate) struct Driver {
    shared: Arc<Shared>,
    backend: Arc<dyn Discovery>,
    machine: Machine,
    registration: Registration,
    /// Answers of calls on their way.
    answers: JoinSet<CallOutcome>,
    call: Option<AbortHandle>,
    /// Changes what the record says.
    record_updater: RecordUpdater,
    watch: Option<WatchStream>,
    /// News of claims, under exclusive ownership.
    claims: Option<ClaimsStream>,
    /// Why registering or renewing fails, which is logged once until it succeeds or fails for another reason.
    complaint: Option<String>,
    /// The same of claims.
    claims_complaint: Option<String>,
    /// The watch fails, which is logged once until it succeeds.
    blind: bool,
    /// A member does not say what it works for, which is logged once until none is there.
    beside_older: bool,
    /// Who is gone from the group.
    departures: Departures,
    /// Since when this worker has been fenced, until it is active again.
    fenced: Option<Moment>,
    meters: Meters,
    /// In the traces: joining, or leaving, while it goes on.
    stage: Span,
    /// In the traces: work that drains, and what is given back after it.
    giving: Span,
}

impl Driver {
    pub(crate) fn new(shared: Arc<Shared>, backend: Arc<dyn Discovery>, machine: Machine, registration: Registration) -> Self {
        let meters = Meters::new(&shared.policy);
        Self {
            shared,
            backend,
            machine,
            registration,
            answers: JoinSet::new(),
            call: None,
            record_updater: RecordUpdater::default(),
            watch: None,
            claims: None,
            complaint: None,
            claims_complaint: None,
            blind: false,
            beside_older: false,
            departures: Departures::default(),
            fenced: None,
            meters,
            stage: Span::none(),
            giving: Span::none(),
        }
    }

    /// Runs until the service has left and nobody holds a handle to it any more.
    pub(crate) async fn run(mut self, mut commands: mpsc::Receiver<DriverCommand>) {
        let shared = Arc::clone(&self.shared);
        let mut names = shared.names.follow();
        let mut address = shared.post.address();
        address.mark_changed();
        let mut requests = shared.request_handlers.address();
        // Known before it joins, it is in the first record already.
        let known = requests.borrow_and_update().clone();
        self.show_address(REQUESTS_KEY, known);
        let mut orphaned = false;
        let mut actions = Vec::new();
        self.meters.begin();
        loop {
            let wake_at = self.machine.wake_at();
            // In this order, so that a seed repeats a life. Each step looks at the time first, so timers may come last.
            let input = tokio::select! {
                biased;
                command = commands.recv(), if !orphaned => match command {
                    Some(DriverCommand::Join(span, taken)) => {
                        self.stage = span;
                        self.shared.failure.store(None);
                        self.shared.blinded.send_replace(None);
                        self.shared.answered.store(false, Ordering::Relaxed);
                        self.step(Input::Join, &mut actions);
                        let _ = taken.send(());
                        continue;
                    }
                    Some(DriverCommand::Leave(span, taken)) => {
                        self.stage = span;
                        self.step(Input::Leave, &mut actions);
                        let _ = taken.send(());
                        continue;
                    }
                    Some(DriverCommand::Drain(drained, taken)) => {
                        self.show_drained(drained);
                        let _ = taken.send(());
                        continue;
                    }
                    Some(DriverCommand::LeaveForGood(span, taken)) => {
                        self.stage = span;
                        self.step(Input::LeaveForGood, &mut actions);
                        let _ = taken.send(());
                        continue;
                    }
                    None => {
                        orphaned = true;
                        Input::Leave
                    }
                },
                Some(answer) = self.answers.join_next() => match answer {
                    Ok(answer) => self.heard(answer),
                    Err(_aborted) => continue,
                },
                Some(event) = next(self.watch.as_mut()) => match self.news(event) {
                    Some(input) => input,
                    None => continue,
                },
                Some(event) = next(self.claims.as_mut()) => match self.claims_news(event) {
                    Some(input) => input,
                    None => continue,
                },
                offered = names.next() => Input::Names(offered),
                idle = shared.guards.idle() => Input::Claims(ClaimInput::Idle(idle)),
                Ok(()) = address.changed() => {
                    let address = address.borrow_and_update().clone();
                    self.show_address(MESSAGES_KEY, address);
                    continue;
                }
                Ok(()) = requests.changed() => {
                    let address = requests.borrow_and_update().clone();
                    self.show_address(REQUESTS_KEY, address);
                    continue;
                }
                () = until(&self.shared, wake_at) => Input::Woken,
            };
            self.step(input, &mut actions);
            if orphaned && self.machine.ownership().state() == ServiceState::Left {
                return;
            }
        }
    }

    fn heard(&mut self, CallOutcome { input, error }: CallOutcome) -> Input {
        if let Some(error) = &error {
            self.meters.failed(error);
        }
        if let Input::Renewed { started, .. } = &input {
            self.meters.renewed(self.shared.clock.now(), *started, self.machine.ownership().deadline());
        }
        match (&input, error) {
            (Input::Claims(_), Some(error)) => {
                self.shared.failure.store(Some(Arc::new(error.to_string())));
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

    /// The backend is there, whatever it said.
    fn answered(&self) {
        self.shared.answered.store(true, Ordering::Relaxed);
    }

    fn complain(&mut self, error: &Error) {
        self.shared.failure.store(Some(Arc::new(error.to_string())));
        // What may pass by itself is one reason in whatever words; of the rest the words count, whichever call it was.
        let said = if error.is_retryable() { String::new() } else { error.to_string() };
        let reason = said.strip_prefix(error.operation()).unwrap_or(&said).to_owned();
        if self.complaint.as_ref() != Some(&reason) {
            tracing::warn!(%error, retryable = error.is_retryable(), "the discovery backend failed");
            self.complaint = Some(reason);
        }
    }

    fn step(&mut self, input: Input, actions: &mut Vec<Action>) {
        self.machine.step(self.shared.clock.now(), input, actions);
        if let Some(proven) = self.machine.proven_at() {
            *self.shared.proven.lock().unwrap_or_else(PoisonError::into_inner) = Some(proven);
        }
        self.shared.rebuilds.store(self.machine.placements_computed(), Ordering::Relaxed);
        for action in actions.drain(..) {
            if matches!(&action, Action::Publish(after) if after.state() == ServiceState::Left) {
                // Whoever waits for that may end the process: what is told of leaving is told by then.
                self.stage = Span::none();
            }
            let stage = self.stage.clone();
            let _within = stage.enter();
            self.carry_out(action);
        }
        let OwnershipContext { refused, guards, clock, .. } = &*self.shared.ownership_context;
        self.meters.look(clock.now(), self.machine.proven_at(), refused.load(Ordering::Relaxed), || guards.oldest_drain());
        if !matches!(self.machine.ownership().state(), ServiceState::Joining | ServiceState::Fenced | ServiceState::Draining) {
            self.stage = Span::none();
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::BeginLife(incarnation) => {
                self.registration.member.incarnation = incarnation;
                self.shared.life.begin(incarnation);
            }
            Action::Call { op, attempt } => self.call(op, attempt),
            Action::StartWatch => {
                self.shared.in_flight.reopen();
                self.departures.start_over();
                let prove_every = self.shared.timing.ttl / PROOFS_PER_TTL;
                let watch = follow(&self.backend, &self.registration.group, prove_every);
                self.watch = Some(placed_ahead(watch, (*self.shared.policy).clone()));
                self.claims = self.registration.claims.then(|| follow_claims(&self.backend, &self.registration.group, prove_every));
            }
            Action::StopWatch => {
                (self.watch, self.claims) = (None, None);
                self.shared.post.hear_nothing();
            }
            Action::Claim(action) => self.claim(action),
            Action::Look => self.look(),
            Action::MarkDraining => self.mark_draining(),
            Action::MarkPausing => self.mark_pausing(),
            Action::MarkLoss(missing) => self.mark_loss(missing),
            Action::AwaitInFlight => {
                self.shared.in_flight.close();
                let shared = Arc::clone(&self.shared);
                let drained = async move {
                    shared.in_flight.wait().await;
                    Input::InFlightDone.into()
                };
                self.answers.spawn(drained.instrument(tracing::info_span!("drain")));
            }
            Action::Deregister => self.leave(None),
            Action::StepAway { grace } => self.leave(Some(grace)),
            Action::Publish(ownership) => {
                let published = self.shared.ownership();
                self.meters.published(self.shared.clock.now(), &published, &ownership, self.machine.wanted_slots());
                let before = published.state();
                if ownership.state() == ServiceState::Stale && before != ServiceState::Stale {
                    tracing::warn!(
                        policy = %self.shared.policy.name,
                        "the backend is out of reach: this worker keeps what it has, and others may do the same work"
                    );
                }
                self.warn_of_fencing(ownership.state());
                self.warn_of_refusal(&published, &ownership);
                if ownership.state() != before {
                    tracing::info!(policy = %self.shared.policy.name, instance = %self.shared.instance_id, from = %before, to = %ownership.state(), "state");
                }
                self.tell_switch(ownership.policy_fingerprint());
                self.shared.publish(ownership);
            }
            Action::Rebalanced(mut rebalance) => {
                // Views that came together were placed once: the mark of a leaver may have been in one between.
                rebalance.members_vanished.retain(|id| !self.departures.has_left(id));
                let span = tracing::info_span!(
                    "rebalance",
                    "shardwise.policy" = %self.shared.policy.name,
                    "shardwise.cause" = rebalance.cause.as_str(),
                    "shardwise.revision" = rebalance.revision,
                    "shardwise.members" = rebalance.members_total,
                    "shardwise.owned" = rebalance.slots_owned,
                    "shardwise.gained" = rebalance.gained.len(),
                    "shardwise.lost" = rebalance.lost.len()
                );
                let _within = span.enter();
                tracing::info!(
                    policy = %self.shared.policy.name, cause = %rebalance.cause, members = rebalance.members_total,
                    owned = ?rebalance.slots_owned, gained = rebalance.gained.len(), lost = rebalance.lost.len(), "rebalanced"
                );
                self.meters.rebalanced(&rebalance);
                self.shared.rebalanced(&rebalance);
            }
        }
    }

    /// A worker that the group refuses owns nothing for as long as that lasts. What the backend refuses was logged with its answer.
    fn warn_of_refusal(&self, before: &Ownership, now: &Ownership) {
        let refusal =
            now.refusal().filter(|refusal| before.refusal() != Some(*refusal) && !matches!(refusal, MemberRefusal::Backend { .. }));
        if let Some(refusal) = refusal {
            let (policy, instance) = (&self.shared.policy.name, self.shared.instance_id.as_str());
            tracing::warn!(%policy, ?instance, %refusal, "refused: this worker owns nothing until the cause is gone");
        }
    }

    /// Warns when this worker is fenced, and when it is back.
    fn warn_of_fencing(&mut self, now: ServiceState) {
        let (policy, instance) = (&self.shared.policy.name, &self.shared.instance_id);
        match now {
            ServiceState::Fenced if self.fenced.is_none() => {
                self.fenced = Some(self.shared.clock.now());
                tracing::warn!(%policy, ?instance, "fenced: this worker lost its lease or its view of the group and owns nothing; it joins again");
            }
            ServiceState::Active => {
                if let Some(since) = self.fenced.take() {
                    let fenced_for = self.shared.clock.now().since(since);
                    tracing::warn!(%policy, ?instance, ?fenced_for, "back: this worker is active again after it was fenced");
                }
            }
            ServiceState::Draining | ServiceState::Left => self.fenced = None,
            _ => {}
        }
    }

    /// Warns of each member that is gone without having announced that.
    fn warn_of_vanished(&self, view: &Arc<View>) {
        let gone = self.departures.saw(view);
        let vanished: Vec<_> = gone.iter().filter(|gone| gone.vanished() && gone.instance_id != self.shared.instance_id).collect();
        for gone in vanished.iter().take(VANISHED_LOGGED) {
            tracing::warn!(policy = %self.shared.policy.name, instance = ?gone.instance_id, "a member has vanished: its lease ended without its leaving");
        }
        if let Some(more) = vanished.len().checked_sub(VANISHED_LOGGED).filter(|more| *more > 0) {
            tracing::warn!(policy = %self.shared.policy.name, more, "more members have vanished with these");
        }
    }

    /// Logs what the group goes by, where that is another placement than so far; a worker that joins expects the policy's own.
    fn tell_switch(&self, now: Option<Fingerprint>) {
        let policy = &self.shared.policy;
        let before = self.shared.ownership().policy_fingerprint().unwrap_or_else(|| policy.fingerprint());
        let Some((now, placement)) = now.filter(|now| *now != before).and_then(|now| Some((now, policy.serving(Some(now))?))) else {
            return;
        };
        tracing::info!(
            policy = %policy.name, from = %before, to = %now, slots = placement.circle(), virtual_nodes = placement.virtual_nodes,
            load_margin = %placement.load_margin, "the group serves placement {} now", placement.kind.as_str()
        );
    }

    /// Warns of members of a version that did not say yet what it works for: nothing keeps another outbox's publisher of that version out of the group.
    /// An instance of another fleet lists no fingerprint and is not meant.
    fn warn_of_older(&mut self, view: &View) {
        let older = view.members().iter().find(|member| member.serves.is_none() && !member.fingerprints.is_empty());
        let is_new = !std::mem::replace(&mut self.beside_older, older.is_some());
        if let Some(member) = older.filter(|_| is_new) {
            tracing::warn!(
                policy = %self.shared.policy.name,
                member = ?member.instance_id.as_str(),
                "this member's version does not say yet whether it serves keys or which outbox: make sure that it does the same work as this one, and \
                 upgrade it"
            );
        }
    }

    /// This news and all that is there with it, merged: a burst of changes is placed once, by the newest view.
    fn news(&mut self, first: Result<WatchEvent, Error>) -> Option<Input> {
        let mut merged = self.told(first);
        // Where it matters how members left, no view in which they drain may be passed over.
        let most = if self.shared.policy.max_loss.is_some() { 1 } else { BURST_MAX };
        for _ in 1..most {
            let Some(Some(event)) = next(self.watch.as_mut()).now_or_never() else { break };
            merged = match (merged, self.told(event)) {
                (Some(Input::Viewed { view, proven }), Some(Input::Proven { at })) => Some(Input::Viewed { view, proven: proven.max(at) }),
                (Some(Input::Viewed { view, proven }), Some(Input::Viewed { view: newer, .. })) if newer.revision() < view.revision() => {
                    Some(Input::Viewed { view, proven })
                }
                (earlier, later) => later.or(earlier),
            };
        }
        merged
    }

    fn told(&mut self, event: Result<WatchEvent, Error>) -> Option<Input> {
        if event.is_ok() {
            self.answered();
        }
        self.shared.blinded.send_if_modified(|why| {
            let now = event.as_ref().err().filter(|error| !error.is_retryable()).map(|error| error.to_string().into());
            std::mem::replace(why, now) != *why
        });
        if let Err(error) = &event {
            self.meters.failed(error);
        }
        match event {
            Ok(WatchEvent::View(snapshot)) => {
                self.blind = false;
                self.warn_of_older(&snapshot.view);
                self.warn_of_vanished(&snapshot.view);
                Some(Input::Viewed { view: snapshot.view, proven: snapshot.proven })
            }
            Ok(WatchEvent::Proven(at)) => {
                self.blind = false;
                Some(Input::Proven { at })
            }
            Ok(_) => None,
            Err(error) => {
                self.shared.failure.store(Some(Arc::new(error.to_string())));
                if !std::mem::replace(&mut self.blind, true) {
                    tracing::warn!(%error, "the group cannot be seen just now; ownership ends unless this passes within two TTLs");
                }
                None
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.warn_if_member(
            "the runtime of this worker ended while it was a member: the others take over when its lease expires; call deregister_self before the \
             runtime ends",
        );
    }
}

async fn next<T>(watch: Option<&mut BoxStream<'static, Result<T, Error>>>) -> Option<Result<T, Error>> {
    watch?.next().await
}

/// Until that moment on the service's clock; for ever without one.
async fn until(shared: &Shared, moment: Option<Moment>) {
    let Some(moment) = moment else { return std::future::pending().await };
    loop {
        let left = moment.since(shared.clock.now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(SLEEP_LONGEST)).await;
    }
}
