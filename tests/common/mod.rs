//! What several test files need.

use std::sync::Arc;
use std::time::Duration;

use shardwise::discovery::{Clock, Discovery, MemoryBackend};
use shardwise::settings::{InstanceSettings, PolicySettings};
use shardwise::{GroupName, InstanceId, Policy, PolicyName, ShardingFactory, ShardingService, Timing};

pub(crate) fn policy() -> Policy {
    Policy::new(PolicyName::new("workers").expect("valid"), GroupName::new("group").expect("valid"))
}

/// Workers of one test, each with a separate factory, over one memory store on tokio's clock, with a TTL of 3 s unless set otherwise.
pub(crate) struct World {
    pub(crate) clock: Clock,
    pub(crate) store: MemoryBackend,
    pub(crate) ttl: Duration,
}

impl World {
    pub(crate) fn new() -> Self {
        let clock = Clock::tokio();
        Self { store: MemoryBackend::new(clock.clone()), clock, ttl: Duration::from_secs(3) }
    }

    pub(crate) fn factory_of(&self, id: &str, backend: Arc<dyn Discovery>, policy: Policy) -> ShardingFactory {
        self.factory_with(InstanceSettings::default(), id, backend, policy)
    }

    pub(crate) fn factory_with(
        &self,
        instance: InstanceSettings,
        id: &str,
        backend: Arc<dyn Discovery>,
        policy: Policy,
    ) -> ShardingFactory {
        let mut settings = PolicySettings::new(policy);
        settings.discovery.backend = "test".into();
        settings.timing = Timing::new(self.ttl, None, Duration::from_millis(100)).expect("valid");
        let builder = ShardingFactory::builder().policy(settings).instance(instance).backend("test", backend).clock(self.clock.clone());
        builder.instance_id(InstanceId::new(id).expect("valid")).build().expect("a valid factory")
    }

    pub(crate) fn factory(&self, id: &str) -> ShardingFactory {
        self.factory_of(id, Arc::new(self.store.link()), policy())
    }

    pub(crate) async fn joined(&self, id: &str) -> ShardingService {
        let service = self.factory(id).create("workers").expect("a known policy");
        service.register_self().await.expect("it joins");
        service
    }
}

/// Waits for a condition in the runtime's time.
///
/// # Panics
///
/// If it does not come true within 50 s.
pub(crate) async fn eventually(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what}: not within 50 s");
}
