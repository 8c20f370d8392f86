//! Who may register and not see the group. Neither server lets one user do so (who may not read is refused when it registers; the backends'
//! own tests show it), so two users stand in for one whose right is taken away in between.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use shardwise::discovery::{Capabilities, Clock, Discovery, Grant, RecordId, Registration, Result, ViewSnapshot, WatchStream};
use shardwise::settings::PolicySettings;
use shardwise::{ErrorKind, GroupName, InstanceId, Policy, PolicyName, ServiceState, ShardingFactory, Timing};
use shardwise_backend_etcd::{EtcdBackend, EtcdConfig};
use shardwise_testkit::{Etcd, EtcdOptions, KeyAccess, Lag};

use crate::meeting::{GROUP, alone, runtime};

const TTL: Duration = Duration::from_secs(10);
/// Long before the next renewal would be refused, and before a worker gives up by itself.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Registers as one user and looks as another.
struct Blinded {
    worker: EtcdBackend,
    blind: EtcdBackend,
}

#[async_trait]
impl Discovery for Blinded {
    fn capabilities(&self) -> Capabilities {
        self.worker.capabilities()
    }
    async fn register(&self, registration: &Registration) -> Result<Grant> {
        self.worker.register(registration).await
    }
    async fn renew(&self, record_id: &RecordId, ttl: Duration) -> Result<Grant> {
        self.worker.renew(record_id, ttl).await
    }
    async fn update(&self, registration: &Registration) -> Result<()> {
        self.worker.update(registration).await
    }
    async fn deregister(&self, record_id: &RecordId) -> Result<()> {
        self.worker.deregister(record_id).await
    }
    async fn members(&self, group: &GroupName) -> Result<ViewSnapshot> {
        self.blind.members(group).await
    }
    fn watch(&self, group: &GroupName, prove_every: Duration) -> WatchStream {
        self.blind.watch(group, prove_every)
    }
}

#[test]
fn a_worker_that_may_register_and_not_see_its_group_is_reported_at_once() {
    let _alone = alone();
    runtime("rights").block_on(async {
        let server = Etcd::start(EtcdOptions::default().with_auth()).await.unwrap();
        let mut users = Vec::new();
        for (name, access) in [("worker", KeyAccess::ReadWrite), ("blind", KeyAccess::Write)] {
            server.add_user(name, "right", &[(access, "/shardwise/")]).await.unwrap();
            let (username, password) = (Some(name.into()), Some("right".into()));
            let config = EtcdConfig { endpoints: vec![server.address()], username, password, ..EtcdConfig::default() };
            users.push(EtcdBackend::open(&config, Clock::system()).unwrap());
        }
        let [worker, blind] = users.try_into().unwrap();
        let mut settings = PolicySettings::new(Policy::new(PolicyName::new("workers").unwrap(), GroupName::new(GROUP).unwrap()));
        settings.discovery.backend = "blinded".into();
        settings.timing = Timing::new(TTL, None, Duration::from_millis(100)).unwrap();
        let backend = Arc::new(Blinded { worker, blind });
        let factory = ShardingFactory::builder().policy(settings).backend("blinded", backend);
        let factory = factory.instance_id(InstanceId::new("a").unwrap()).build().unwrap();
        let service = factory.create("workers").unwrap();

        let (lag, begun) = (Lag::begin(), Instant::now());
        let error = service.register_self().await.unwrap_err();
        let (took, said) = (begun.elapsed(), error.to_string());
        println!("told after {} ms: {said}", took.as_millis());
        let late = lag.allowance();
        assert!(took < AT_ONCE + late, "{took:?}, with {late:?} for this machine");
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Backend, false), "{said}");
        assert!(said.starts_with("watch: user \"blind\" may not read and write below \"/shardwise\" in etcd; grant it"), "{said}");
        assert!(said.contains("discovery.etcd.username") && !said.contains('\n'), "{said}");
        assert_eq!(service.state(), ServiceState::Left);
    });
}
