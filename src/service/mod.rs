//! The handle of one membership: joining and leaving, and the answers to "which keys are mine?".

mod engine;
mod health;
mod holders;
mod keys;
mod lifecycle;
mod replicas;
mod sharding;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use shardwise_core::machine::{Identity, Machine};
use shardwise_core::{
    GroupName, Incarnation, InstanceId, Member, MemberState, Moment, Ownership, OwnershipMode, Policy, Rebalance, Serves, ServiceState,
    Timing, View,
};
use shardwise_discovery::{Clock, Discovery, Registration};
use tokio::sync::watch;

use crate::error::Result;
use crate::membership::{Absence, Departure, DrainFollower, DrainStore, Driver, Membership, Rebalances, Snapshots, placer};
use crate::settings::PolicySettings;
use engine::ServiceEngine;
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
        self.handle.engine.as_ref().map(|engine| &engine.backend)
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

    /// Members that have gone while this worker was a member, the latest last, at most 1,024: those that left, and those that vanished
    /// ([`Departure::vanished`]).
    pub fn departures(&self) -> Vec<Departure> {
        self.membership().departures.all()
    }

    /// The service's state right now.
    pub fn state(&self) -> ServiceState {
        self.membership().read(Ownership::state_at)
    }

    /// Whether the group sees this worker as drained by an operator: it is a member and owns nothing ([`crate::ShardingFactory::drain`]).
    pub fn is_drained(&self) -> bool {
        let ownership = self.membership().ownership();
        let me = ownership.view().member(self.instance_id());
        let by_operator = |me: &Member| me.state == MemberState::Draining && me.worker.is_none();
        ownership.state() == ServiceState::Active && me.is_some_and(by_operator)
    }

    /// How many placements this worker has computed: one for each change of the group that it processed, none for a renewal.
    pub fn rebuilds(&self) -> u64 {
        self.membership().rebuilds.load(Ordering::Relaxed)
    }

    /// This worker's name in its group.
    pub fn instance_id(&self) -> &InstanceId {
        self.membership().life.instance_id()
    }

    /// This worker's incarnation, which changes when it joins again after it has left.
    pub fn incarnation(&self) -> Incarnation {
        self.membership().life.incarnation()
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

    /// How long ago the latest renewal was answered; `None` before the first one.
    pub fn renewed_ago(&self) -> Option<Duration> {
        self.membership().renewed_ago()
    }
}

#[async_trait]
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

    fn group_name(&self) -> &GroupName {
        &self.membership().policy.group
    }

    async fn register_self(&self) -> Result<()> {
        // The method of the type.
        Self::register_self(self).await
    }

    async fn deregister_self(&self) -> Result<()> {
        Self::deregister_self(self).await
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

impl ShardingService {
    /// The latest snapshot, now and whenever it changes: slots, state, view or deadline.
    pub fn ownership_changes(&self) -> watch::Receiver<Arc<Ownership>> {
        self.membership().changes()
    }

    /// The group's members, now and whenever they change; ends with the service.
    pub fn watch_members(&self) -> BoxStream<'static, Arc<View>> {
        let changes = stream::unfold((self.membership().changes(), None), |(mut changes, seen)| async move {
            let is_new = |ownership: &Arc<Ownership>| seen.as_ref() != Some(ownership.view());
            let view = Arc::clone(changes.wait_for(is_new).await.ok()?.view());
            Some((Arc::clone(&view), (changes, Some(view))))
        });
        // A reader that asks once more after the end gets the end again.
        changes.fuse().boxed()
    }

    /// The rebalances from now on, as a stream that ends with the service. A slow reader gets them merged.
    pub fn rebalances(&self) -> Rebalances {
        self.membership().rebalances.subscribe()
    }

    /// Every snapshot from now on, in order, including those that [`ShardingService::ownership_changes`] would skip for a slow reader.
    pub fn snapshots(&self) -> Snapshots {
        self.membership().snapshots.subscribe()
    }

    /// Calls `callback` for each rebalance from now on: one call at a time, outside the driver, merged when it is slow. A panic in it is
    /// logged and has no other effect.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn on_rebalance(&self, callback: impl Fn(&Rebalance) + Send + Sync + 'static) {
        let callback = Arc::new(callback);
        let mut rebalances = self.rebalances();
        tokio::spawn(async move {
            while let Some(rebalance) = rebalances.recv().await {
                let callback = Arc::clone(&callback);
                // It may block, so it runs on a blocking thread; awaiting it keeps the calls in order.
                if tokio::task::spawn_blocking(move || callback(&rebalance)).await.is_err() {
                    tracing::error!("a callback of on_rebalance panicked; it will be called again at the next rebalance");
                }
            }
        });
    }
}

/// How long registering may take beyond the time after which nothing is left of a dead former incarnation.
const JOIN_GRACE: Duration = Duration::from_secs(5);

impl ShardingService {
    /// A service that follows operators' requests for its member.
    pub(crate) fn new(settings: &PolicySettings, member: Member, backend: Arc<dyn Discovery>, clock: Clock) -> Self {
        let spawn = Box::new(|driver: BoxFuture<'static, ()>| drop(tokio::spawn(driver)));
        let PolicySettings { policy, timing, .. } = settings;
        let drains = DrainStore::of(policy, timing.renew_every, &backend).filter(|_| policy.placement.kind.by_key().is_none());
        let follower = drains.map(|drains| DrainFollower { drains, me: member.instance_id.clone(), read_every: timing.ttl / 2 });
        Self::joining(spawn, settings, member, backend, clock, follower)
    }

    pub(crate) fn joining(
        spawn: Spawn,
        settings: &PolicySettings,
        mut member: Member,
        backend: Arc<dyn Discovery>,
        clock: Clock,
        follower: Option<DrainFollower>,
    ) -> Self {
        let (policy, timing) = (Arc::new(settings.policy.clone()), settings.timing);
        member.fingerprints = policy.fingerprints();
        let me = Identity { instance_id: member.instance_id.clone(), incarnation: member.incarnation };
        let machine = Machine::new(Arc::clone(&policy), timing, me, |params| placer(&policy.group, params), clock.now());
        let registration =
            Registration { group: policy.group.clone(), member, ttl: timing.ttl, claims: policy.ownership == OwnershipMode::Exclusive };
        let ownership = Arc::clone(machine.ownership());
        let membership = Membership::new(settings, policy, &registration.member, clock, ownership);
        let capabilities = backend.capabilities();
        let join_limit = (timing.ttl + capabilities.margin).max(capabilities.leftovers) + JOIN_GRACE;
        let driver = Driver::new(Arc::clone(&membership), Arc::clone(&backend), machine, registration);
        Self::of(membership, Some(ServiceEngine::new(driver, spawn, backend, join_limit, follower)))
    }

    /// A service that never joins and whose share never changes.
    pub(crate) fn fixed(policy: Policy, member: &Member, ownership: Ownership, clock: Clock) -> Self {
        let settings = PolicySettings::new(policy);
        let policy = Arc::new(settings.policy.clone());
        let membership = Membership::new(&settings, policy, member, clock, Arc::new(ownership));
        Self::of(membership, None)
    }

    fn of(membership: Arc<Membership>, engine: Option<ServiceEngine>) -> Self {
        Self { handle: Arc::new(ServiceHandle { membership, ranking: RankCache::default(), engine }) }
    }

    /// A service of one worker that owns everything, without a backend.
    pub(crate) fn unsharded(policy: Policy, member: &Member, clock: Clock) -> Self {
        let view = Arc::new(View::new(0, vec![member.clone()]));
        let ownership = Ownership::unsharded(&policy.placement, view, clock.now());
        Self::fixed(policy, member, ownership, clock)
    }
}
