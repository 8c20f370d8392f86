//! The handle of one membership: joining and leaving, and the answers to "which keys are mine?".

mod alone;
mod engine;
mod holders;
mod keys;
mod lifecycle;
mod make;
mod news;
mod replicas;
mod sharding;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use shardwise_core::{GroupName, InstanceId, MemberState, Moment, Ownership, Policy, Serves, ServiceState, Timing, View};
use shardwise_discovery::Discovery;
use tokio::sync::watch;

use crate::membership::{Absence, Membership};
use engine::ServiceEngine;
#[cfg(feature = "testing")]
pub(crate) use engine::Spawn;
use replicas::RankCache;
pub use sharding::Sharding;

/// One worker's membership in one group, created by [`crate::ShardingFactory::create`]. Clones share one membership; dropping the last
/// one (the factory's counts until [`crate::ShardingFactory::clear`]) deregisters on a best-effort basis.
///
/// Reading is synchronous, takes no lock and is cheap: call it as often as you like.
#[derive(Clone)]
pub struct ShardingService {
    handle: Arc<ServiceHandle>,
}

struct ServiceHandle {
    membership: Arc<Membership>,
    ranking: RankCache,
    /// `None` for services that never join.
    engine: Option<ServiceEngine>,
}

impl Drop for ServiceHandle {
    fn drop(&mut self) {
        if self.engine.as_ref().is_some_and(ServiceEngine::is_running) {
            self.membership.warn_if_member(
                "the last handle of this worker's service was dropped without deregister_self: it leaves its group on a best-effort basis; call \
                 deregister_self before",
            );
        }
    }
}

impl ShardingService {
    pub(crate) fn membership(&self) -> &Arc<Membership> {
        &self.handle.membership
    }

    /// The backend; `None` for services that never join.
    pub(crate) fn backend(&self) -> Option<&Arc<dyn Discovery>> {
        self.handle.engine.as_ref().map(ServiceEngine::backend)
    }

    /// The latest snapshot. Query it with [`ShardingService::now`], so that its deadline applies.
    pub fn ownership(&self) -> Arc<Ownership> {
        self.membership().ownership()
    }

    /// The group's members as last seen.
    pub fn members(&self) -> Arc<View> {
        Arc::clone(self.membership().ownership().view())
    }

    /// The members that have left for a while (`rejoin_grace`), and the longest time for which their places are kept.
    pub fn absences(&self) -> Vec<Absence> {
        self.membership().absences.of_view(&self.members(), self.policy().rejoin_grace, self.now())
    }

    /// The service's state right now.
    pub fn state(&self) -> ServiceState {
        self.membership().read(Ownership::state_at)
    }

    /// Whether the group sees this worker as drained by an operator: it is a member and owns nothing ([`crate::ShardingFactory::drain`]).
    pub fn is_drained(&self) -> bool {
        let ownership = self.membership().ownership();
        let me = ownership.view().member(self.instance_id());
        ownership.state() == ServiceState::Active && me.is_some_and(|me| me.state == MemberState::Draining)
    }

    /// How many placements this worker has computed: one for each change of the group that it processed, none for a renewal.
    pub fn rebuilds(&self) -> u64 {
        self.membership().rebuilds.load(Ordering::Relaxed)
    }

    /// This worker's name in its group.
    pub fn instance_id(&self) -> &InstanceId {
        &self.membership().instance_id
    }

    /// The group that it shares the work with.
    pub fn group_name(&self) -> &GroupName {
        &self.membership().policy.group
    }

    /// The policy that it was created from.
    pub fn policy(&self) -> &Policy {
        &self.membership().policy
    }

    /// The present moment on the clock of the deadlines.
    pub fn now(&self) -> Moment {
        self.membership().clock.now()
    }

    /// How long ago the view of the group was last proven current; `None` before the first view.
    pub fn view_age(&self) -> Option<Duration> {
        self.membership().view_age()
    }
}

impl Sharding for ShardingService {
    fn ownership(&self) -> Arc<Ownership> {
        self.membership().ownership()
    }

    fn ownership_changes(&self) -> watch::Receiver<Arc<Ownership>> {
        self.membership().changes()
    }

    fn now(&self) -> Moment {
        self.membership().clock.now()
    }

    fn instance_id(&self) -> &InstanceId {
        &self.membership().instance_id
    }

    fn timing(&self) -> Timing {
        self.membership().timing
    }

    fn serves(&self) -> Option<Serves> {
        self.membership().serves.clone()
    }
}

impl std::fmt::Debug for ShardingService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let membership = self.membership();
        write!(f, "ShardingService({} as {:?}: {:?})", membership.policy.name, membership.instance_id, membership.ownership())
    }
}
