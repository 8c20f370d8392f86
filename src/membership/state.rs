//! State that one member's driver writes and readers share: the snapshot, notifications of its changes, and the state of the backend.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use shardwise_core::{InstanceId, Member, Moment, Ownership, Policy, Rebalance, Serves, ServiceState, Timing};
use shardwise_discovery::Clock;
use tokio::sync::watch;

use super::context::OwnershipContext;
use super::departures::{Absences, Departures};
use super::listeners::ListenerHub;
use crate::error::locked;
use crate::settings::PolicySettings;

/// One worker's membership in one group: the part that the driver shares.
pub(crate) struct Membership {
    pub(crate) ownership_context: Arc<OwnershipContext>,
    pub(crate) timing: Timing,
    pub(crate) instance_id: InstanceId,
    pub(crate) serves: Option<Serves>,
    /// When the view was last proven current; kept when the worker is fenced.
    pub(super) proven: Mutex<Option<Moment>>,
    /// When the latest renewal that moved the deadline was answered.
    renewed: Mutex<Option<Moment>>,
    /// Signals that this worker has changed a note that its runners follow.
    pub(crate) noted: watch::Sender<()>,
    pub(crate) rebalances: ListenerHub<Rebalance>,
    pub(crate) snapshots: ListenerHub<Arc<Ownership>>,
    /// The backend's last failure since joining began; reported by a join that takes too long.
    pub(crate) failure: ArcSwapOption<String>,
    /// Why the group cannot be watched until an operator fixes the cause, if the backend said so last.
    pub(crate) blinded: watch::Sender<Option<Arc<str>>>,
    /// The backend has answered since joining began, if only with a refusal.
    pub(crate) answered: AtomicBool,
    /// Members that are away, and since when.
    pub(crate) absences: Absences,
    /// Members that are gone, by every view that the driver has seen.
    pub(crate) departures: Departures,
    /// The warning was logged that this member ends without having left.
    warned: AtomicBool,
    pub(crate) rebuilds: AtomicU64,
    changes: watch::Sender<Arc<Ownership>>,
}

impl Membership {
    pub(crate) fn new(
        settings: &PolicySettings,
        policy: Arc<Policy>,
        member: &Member,
        clock: Clock,
        ownership: Arc<Ownership>,
    ) -> Arc<Self> {
        let context = OwnershipContext::new(settings, policy, member, clock, Arc::clone(&ownership));
        let membership = Arc::new(Self {
            ownership_context: Arc::new(context),
            timing: settings.timing,
            instance_id: member.instance_id.clone(),
            serves: member.serves.clone(),
            proven: Mutex::default(),
            renewed: Mutex::default(),
            noted: watch::Sender::new(()),
            rebalances: ListenerHub::default(),
            snapshots: ListenerHub::default(),
            failure: ArcSwapOption::empty(),
            blinded: watch::Sender::new(None),
            answered: AtomicBool::new(false),
            absences: Absences::default(),
            departures: Departures::default(),
            warned: AtomicBool::new(false),
            rebuilds: AtomicU64::new(0),
            changes: watch::Sender::new(ownership),
        });
        membership.belongs_to(&membership);
        membership
    }

    /// Publishes `ownership`, then notifies those that wait for changes.
    pub(crate) fn publish(&self, ownership: Arc<Ownership>) {
        if !self.policy.rejoin_grace.is_zero() && !Arc::ptr_eq(ownership.view(), self.ownership().view()) {
            self.absences.on_view(ownership.view(), self.clock.now());
        }
        if ownership.deadline() > self.ownership().deadline() {
            *locked(&self.renewed) = Some(self.clock.now());
        }
        let claims_ended = ownership.claims_end().is_none();
        self.store(Arc::clone(&ownership));
        if claims_ended {
            self.guards.revoke_all();
        }
        self.snapshots.push(&ownership);
        self.changes.send_replace(ownership);
    }

    /// Passes a rebalance to the work in flight and to all listeners.
    pub(crate) fn rebalanced(&self, rebalance: &Rebalance) {
        self.guards.stop_lost_keys(rebalance);
        self.rebalances.push(rebalance);
    }

    /// Logs `why` once, if this worker ends as a member without having left.
    pub(crate) fn warn_if_member(&self, why: &str) {
        let state = self.ownership().state();
        let goes = matches!(state, ServiceState::Created | ServiceState::Draining | ServiceState::Left | ServiceState::Unsharded);
        if !goes && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(policy = %self.policy.name, instance = %self.instance_id, %state, "{why}");
        }
    }

    /// How long ago the view was last proven current; `None` before the first proof.
    pub(crate) fn view_age(&self) -> Option<Duration> {
        self.age_of(&self.proven)
    }

    /// How long ago the latest renewal was answered; `None` before the first one.
    pub(crate) fn renewed_ago(&self) -> Option<Duration> {
        self.age_of(&self.renewed)
    }

    /// When the view was last proven current. Read it before [`Membership::ownership`]: then that view is at least as new.
    #[cfg(feature = "requests")]
    pub(crate) fn proven(&self) -> Option<Moment> {
        *locked(&self.proven)
    }

    fn age_of(&self, moment: &Mutex<Option<Moment>>) -> Option<Duration> {
        (*locked(moment)).map(|moment| self.clock.now().since(moment))
    }

    /// The snapshot, now and whenever it changes; ends with the service.
    pub(crate) fn changes(&self) -> watch::Receiver<Arc<Ownership>> {
        self.changes.subscribe()
    }
}

impl Deref for Membership {
    type Target = OwnershipContext;

    fn deref(&self) -> &OwnershipContext {
        &self.ownership_context
    }
}
