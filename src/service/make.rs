//! Creates services: over a backend, or with a share that never changes.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use shardwise_core::machine::{Identity, Machine};
use shardwise_core::{Member, Ownership, OwnershipMode, Policy, View};
use shardwise_discovery::{Clock, Discovery, Registration};

use super::engine::{ServiceEngine, Spawn};
use super::replicas::RankCache;
use super::{ServiceHandle, ShardingService};
use crate::membership::{DrainFollower, DrainStore, Driver, Membership, placer};
use crate::settings::PolicySettings;

/// How long registering may take beyond the TTL after which a dead former incarnation is gone.
const JOIN_GRACE: Duration = Duration::from_secs(5);

impl ShardingService {
    /// A service that follows operators' requests for its member.
    pub(crate) fn new(settings: &PolicySettings, member: Member, backend: Arc<dyn Discovery>, clock: Clock) -> Self {
        let spawn = Box::new(|driver: BoxFuture<'static, ()>| drop(tokio::spawn(driver)));
        let PolicySettings { policy, timing, .. } = settings;
        let drains = DrainStore::of(policy, *timing, &backend).filter(|_| policy.placement.kind.by_key().is_none());
        let follower = drains.map(|drains| DrainFollower { drains, me: member.instance_id.clone(), read_every: timing.ttl / 2 });
        Self::joining(spawn, settings, member, backend, clock, follower)
    }

    /// A service whose driver `spawn` starts.
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
        let membership = Arc::new(Membership::new(settings, policy, &registration.member, clock, ownership));
        let join_limit = timing.ttl + backend.capabilities().margin + JOIN_GRACE;
        let driver = Driver::new(Arc::clone(&membership), Arc::clone(&backend), machine, registration);
        Self::of(membership, Some(ServiceEngine::new(driver, spawn, backend, join_limit, follower)))
    }

    /// A service that never joins and whose share never changes.
    pub(crate) fn fixed(policy: Policy, member: &Member, ownership: Ownership, clock: Clock) -> Self {
        let settings = PolicySettings::new(policy);
        let policy = Arc::new(settings.policy.clone());
        let membership = Membership::new(&settings, policy, member, clock, Arc::new(ownership));
        Self::of(Arc::new(membership), None)
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
