//! Writes, renews, changes and deletes the member's record.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use shardwise_core::machine::{Input, Op, OpFailure};
use shardwise_core::{Loss, Member, MemberState, Missing, ServiceState, View, WorkerHealth};
use shardwise_discovery::{Discovery, Error, ErrorKind, RecordId, Registration};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::Instrument;

use super::{CallOutcome, Driver};
use crate::membership::calls::limited;
use crate::membership::worker::WorkerReport;

/// How long leaving may take beyond the drain; the record expires by its TTL anyway. At most half of it is for showing the member as
/// draining. If a place should have been kept and could not, half of it is added for leaving for good.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);
/// The limit if no backend has answered since joining began and no member was seen: probably nothing was written.
const LEAVE_UNHEARD_LIMIT: Duration = Duration::from_millis(500);
const RECLAIM_NOT_SHOWN: &str = "could not show that this worker wants back what others hold in its place; trying again";
const MISSING_NOT_SHOWN: &str = "could not publish which members are missing; trying again";

impl Driver {
    /// Starts a call and abandons the one before, whose answer is not needed any more. A record that it wrote expires with its TTL.
    pub(super) fn call(&mut self, op: Op, attempt: u64) {
        if let Some(earlier) = self.call.take() {
            earlier.abort();
        }
        if op == Op::Register {
            self.record_updater.give_up();
            self.registration.member.loss = None;
        }
        tracing::trace!(policy = %self.membership.policy.name, ?op, attempt, "calls the backend");
        let (backend, registration) = (Arc::clone(&self.backend), self.registration.clone());
        let limit = match op {
            Op::Register => self.membership.timing.ttl,
            Op::Renew => self.machine.renewal_takes(),
        };
        let call = async move {
            let answer = match op {
                Op::Register => limited(limit, &*backend, "register", async { backend.register(&registration).await }).await,
                Op::Renew => {
                    limited(limit, &*backend, "renew", async { backend.renew(&registration.record_id(), registration.ttl).await }).await
                }
            };
            match (answer, op) {
                (Ok(grant), Op::Register) => Input::Registered { attempt, started: grant.started, ttl: grant.ttl }.into(),
                (Ok(grant), Op::Renew) => Input::Renewed { attempt, started: grant.started, ttl: grant.ttl }.into(),
                (Err(error), _) => CallOutcome { input: failed(attempt, &error), error: Some(error) },
            }
        };
        self.call = Some(self.answers.spawn(call.in_current_span()));
    }

    pub(super) fn read_group(&mut self) {
        let (backend, group, limit) = (Arc::clone(&self.backend), self.registration.group.clone(), self.membership.timing.renew_every);
        self.answers.spawn(async move {
            match limited(limit, &*backend, "members", async { backend.members(&group).await }).await {
                Ok(snapshot) => Input::Viewed { view: snapshot.view, proven: snapshot.proven }.into(),
                // The watch will report it.
                Err(_) => Input::Woken.into(),
            }
        });
    }

    pub(super) fn mark_loss(&mut self, missing: Vec<Missing>) {
        if !missing.is_empty() && self.registration.member.loss.is_none() {
            tracing::warn!(
                policy = %self.membership.policy.name,
                missing = missing.len(),
                "more members have vanished within one TTL than max_loss allows: no worker takes over what they had until enough are back; \
                 if they are gone for good, run shardwise confirm-loss"
            );
        }
        self.registration.member.loss = (!missing.is_empty()).then_some(Loss::Missing(missing));
        let Some(mut registration) = self.wanted_record() else { return };
        registration.member.loss.clone_from(&self.registration.member.loss);
        self.mark(registration, MISSING_NOT_SHOWN);
    }

    /// Asks for what others hold in this worker's place.
    pub(super) fn reclaim(&mut self, count: u64) {
        tracing::info!(
            policy = %self.membership.policy.name, instance = %self.membership.instance_id,
            "other workers hold slots or names of this worker's share, because it did not claim them in time or work on them has not \
             ended; this worker asks for them back"
        );
        self.registration.member.reclaims = count;
        let Some(mut registration) = self.wanted_record() else { return };
        registration.member.reclaims = count;
        self.mark(registration, RECLAIM_NOT_SHOWN);
    }

    pub(super) fn mark_leaving(&mut self, state: MemberState, or_else: &'static str) {
        let mut registration = self.registration.clone();
        registration.member.state = state;
        // A member that leaves has nothing to say of its worker, so that its departure is not taken for a death.
        registration.member.worker = None;
        self.mark(registration, or_else);
    }

    /// Shows in the record, across registrations, whether an operator has drained this member. The record of a leaver already has its
    /// state. Without a record the next registration writes it; one that is being written is corrected with the next renewal.
    pub(super) fn show_drained(&mut self, drained: bool) {
        if std::mem::replace(&mut self.drained, drained) == drained {
            return;
        }
        let (policy, instance) = (&self.membership.policy.name, &self.membership.instance_id);
        // A warning, because a worker without work must be visible where only warnings are shown, and so must its end.
        if drained {
            tracing::warn!(%policy, %instance, "this worker is drained by an operator: it hands over what it owns and takes nothing until shardwise undrain");
        } else {
            tracing::warn!(%policy, %instance, "this worker is no longer drained: it takes its share again");
        }
        self.show_standing();
    }

    /// Shows in the record, across registrations, what is known of the worker that this member speaks for.
    pub(super) fn show_worker(&mut self, report: WorkerReport) {
        if self.worker != report {
            self.meters.worker(report.health.is_none());
            self.worker = report;
            self.show_standing();
            // There before it happens.
            self.meters.spared(self.membership.worker.is_spared.load(Ordering::Relaxed));
        }
    }

    /// Writes the record if the member should have, or should not have, a share by what is known now.
    pub(super) fn show_standing(&mut self) {
        let me = &self.membership.instance_id;
        // Until the group has seen that the worker fails, nothing is decided.
        let is_seen = |view: &&Arc<View>| view.member(me).is_some_and(|me| me.worker.is_some());
        let least = self.membership.policy.min_members;
        let may_drain = self.machine.view().filter(is_seen).map(|view| view.may_drain_for_health(me, least));
        let is_spared = self.worker.fails && may_drain == Some(false) && !self.drained;
        // Without a view, such as after a fence, the last decision stays.
        self.is_drained_for_health = self.worker.fails && may_drain.unwrap_or(self.is_drained_for_health);
        let is_draining = self.drained || self.worker.health == Some(WorkerHealth::Absent) || self.is_drained_for_health;
        // A member that an operator has drained is no part of what health decides, whatever its worker does.
        let health = self.worker.health.filter(|_| !self.drained);
        let state = if is_draining { MemberState::Draining } else { MemberState::Active };
        self.show_spared(is_spared);
        let shown = (&mut self.registration.member.state, &mut self.registration.member.worker);
        if (*shown.0, *shown.1) == (state, health) {
            return;
        }
        (*shown.0, *shown.1) = (state, health);
        if matches!(self.machine.ownership().state(), ServiceState::Active | ServiceState::Stale | ServiceState::Refused) {
            self.mark(self.registration.clone(), "could not show whether this worker is drained or works; it is tried again");
        }
    }

    fn show_spared(&mut self, is_spared: bool) {
        if self.membership.worker.is_spared.swap(is_spared, Ordering::Relaxed) == is_spared {
            return;
        }
        self.meters.spared(is_spared);
        if is_spared {
            tracing::warn!(
                policy = %self.membership.policy.name, instance = %self.membership.instance_id,
                "the worker fails, and keeps its share, because fewer than half of the group, or than min_members, would stay active: check what the workers have in common"
            );
        }
    }

    /// Shows in the record the addresses on which this worker listens. A record that is being written gets them with the next renewal.
    pub(super) fn show_addresses(&mut self, addresses: &BTreeMap<&'static str, String>) {
        if addresses.is_empty() {
            return;
        }
        let show =
            |member: &mut Member| member.metadata.extend(addresses.iter().map(|(key, address)| ((*key).to_owned(), address.clone())));
        show(&mut self.registration.member);
        if matches!(self.machine.ownership().state(), ServiceState::Active | ServiceState::Draining | ServiceState::Stale) {
            let Some(mut registration) = self.wanted_record() else { return };
            show(&mut registration.member);
            self.mark(registration, "could not show where messages or requests to this worker arrive; it is tried again");
        }
    }

    /// Writes the wanted record if the group sees something else, because the others act on it. Only what is seen counts, whatever the
    /// outcome of a call; the snapshot's view does not change while this member drains.
    pub(super) fn mark_if_missed(&mut self) {
        let or_else = self.record_updater.wanted().map_or(MISSING_NOT_SHOWN, |wish| wish.or_else);
        let Some(registration) = self.wanted_record() else { return };
        let wanted = &registration.member;
        let keys = self.membership.advertised.keys();
        let addresses = |member: &Member| keys.iter().map(|key| member.metadata.get(*key).cloned()).collect::<Vec<_>>();
        let says = |member: &Member| (member.state, member.worker, member.loss.clone(), member.reclaims, addresses(member));
        let other = |seen: &Member| seen.incarnation == wanted.incarnation && says(seen) != says(wanted);
        if self.machine.view().and_then(|view| view.member(&wanted.instance_id)).is_some_and(other) {
            self.mark(registration, or_else);
        }
    }

    /// The wanted record: the last one requested, else the one that was registered. `None` while it is being deleted: a change would show
    /// the leaver as active again, and its end would count as its death.
    fn wanted_record(&self) -> Option<Registration> {
        match self.record_updater.wanted() {
            Some(wish) => Some((*wish.registration).clone()),
            None if matches!(self.machine.ownership().state(), ServiceState::Draining | ServiceState::Left) => None,
            None => Some(self.registration.clone()),
        }
    }

    fn mark(&mut self, registration: Registration, or_else: &'static str) {
        let wish = RecordUpdate { registration: Arc::new(registration), or_else };
        self.record_updater.want(&self.backend, self.membership.timing.renew_every, wish);
    }

    /// Deletes the record, or leaves one behind that keeps this worker's place for `rejoin_grace`. If the place cannot be kept, it is
    /// released, so that the others need not wait for the record to expire.
    pub(super) fn leave(&mut self, rejoin_grace: Option<Duration>) {
        if let Some(earlier) = self.call.take() {
            earlier.abort();
        }
        let (backend, mut registration, record_updater) =
            (Arc::clone(&self.backend), self.registration.clone(), std::mem::take(&mut self.record_updater));
        registration.member.worker = None;
        let unheard = !self.membership.answered.load(Ordering::Relaxed) && self.machine.ownership().view().members().is_empty();
        let limit = if unheard { LEAVE_UNHEARD_LIMIT } else { LEAVE_LIMIT };
        let left = async move {
            let shown = record_updater.finish(limit / 2);
            match rejoin_grace {
                None => deregister(&*backend, limit, shown, &registration.record_id()).await,
                Some(rejoin_grace) => {
                    let away = async {
                        shown.await;
                        backend.step_away(&registration, rejoin_grace).await
                    };
                    if let Err(error) = limited(limit, &*backend, "step_away", away).await {
                        tracing::warn!(%error, "this worker's place cannot be kept while it is away: it deregisters");
                        deregister(&*backend, limit / 2, std::future::ready(()), &registration.record_id()).await;
                    }
                }
            }
            Input::Deregistered.into()
        };
        self.answers.spawn(left.in_current_span());
    }
}

async fn deregister(backend: &dyn Discovery, limit: Duration, shown: impl Future<Output = ()>, record_id: &RecordId) {
    let left = limited(limit, backend, "deregister", async {
        shown.await;
        backend.deregister(record_id).await
    });
    if let Err(error) = left.await {
        tracing::warn!(%error, "could not deregister; the record dies with its TTL");
    }
}

fn failed(attempt: u64, error: &Error) -> Input {
    let failure = match error.kind() {
        ErrorKind::Lost => return Input::RecordLost { attempt },
        ErrorKind::InUse { address, stamp } => OpFailure::InUse { address: address.clone(), stamp: *stamp },
        _ if error.is_retryable() => OpFailure::Retryable,
        _ => OpFailure::Permanent { message: error.to_string().into() },
    };
    Input::Failed { attempt, failure }
}

/// How often an update is tried, and the pause between two tries. After that a renewal requests it again.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub(super) struct RecordUpdate {
    pub(super) registration: Arc<Registration>,
    pub(super) or_else: &'static str,
}

/// The only writer of the record's updates: nothing queues up behind a slow backend, and an older version never overwrites a newer one.
#[derive(Default)]
pub(super) struct RecordUpdater(Option<RecordWriter>);

struct RecordWriter {
    wanted: watch::Sender<RecordUpdate>,
    task: JoinHandle<()>,
}

impl RecordUpdater {
    /// Updates the record, as soon as a call under way has been answered; `limit` is for one call. Replaces an earlier update.
    pub(super) fn want(&mut self, backend: &Arc<dyn Discovery>, limit: Duration, wish: RecordUpdate) {
        if let Some(writer) = &self.0 {
            writer.wanted.send_replace(wish);
            return;
        }
        let (sender, mut wanted) = watch::channel(wish);
        wanted.mark_changed();
        let task = tokio::spawn(write(Arc::clone(backend), limit, wanted));
        self.0 = Some(RecordWriter { wanted: sender, task });
    }

    /// The last update since the record was created.
    pub(super) fn wanted(&self) -> Option<RecordUpdate> {
        self.0.as_ref().map(|writer| writer.wanted.borrow().clone())
    }

    /// Cancels the update: the record is being created again, or is not needed.
    pub(super) fn give_up(&mut self) {
        if let Some(writer) = self.0.take() {
            writer.task.abort();
        }
    }

    /// Tries the last update once more and waits for it, at most for `within`.
    pub(super) async fn finish(self, within: Duration) {
        let Some(RecordWriter { wanted, mut task }) = self.0 else { return };
        drop(wanted);
        if tokio::time::timeout(within, &mut task).await.is_err() {
            task.abort();
        }
    }
}

/// Writes updates until the updater is dropped. Logs a failure once until one succeeds: renewals request it again.
async fn write(backend: Arc<dyn Discovery>, limit: Duration, mut wanted: watch::Receiver<RecordUpdate>) {
    let mut said = None;
    while wanted.changed().await.is_ok() {
        for attempt in 1..=ATTEMPTS {
            let RecordUpdate { registration, or_else } = wanted.borrow_and_update().clone();
            match limited(limit, &*backend, "update", async { backend.update(&registration).await }).await {
                Ok(()) => {
                    said = None;
                    break;
                }
                Err(error) if error.is_retryable() && attempt < ATTEMPTS => {
                    // A newer update does not wait, nor does a leaver.
                    if let Ok(Err(_leaving)) = tokio::time::timeout(PAUSE, wanted.changed()).await {
                        return;
                    }
                }
                Err(error) => {
                    if said.replace(or_else) != Some(or_else) {
                        tracing::warn!(%error, "{or_else}");
                    }
                    break;
                }
            }
        }
    }
}
