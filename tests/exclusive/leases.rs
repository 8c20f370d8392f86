//! A backend that grants less than it was asked for, as Consul does for claims.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use shardwise::discovery::{
    Capabilities, Claims, Discovery, Error, Grant, MemoryBackend, RecordId, Registration, ViewSnapshot, WatchStream,
};
use shardwise::{ErrorKind, GroupName, ServiceState, ShardingService};

use super::{SLOTS, World, eventually, held, policy};

/// Grants one part of the TTL in so many, while the record lives for all of it.
struct Grants {
    inner: MemoryBackend,
    share: u32,
    /// Renewals that were asked for, and which of them is never answered.
    renewals: AtomicU32,
    hangs: u32,
}

impl Grants {
    fn new(world: &World, share: u32, hangs: u32) -> Arc<Self> {
        Arc::new(Self { inner: world.store.link(), share, renewals: AtomicU32::new(0), hangs })
    }
}

#[async_trait::async_trait]
impl Discovery for Grants {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    async fn register(&self, registration: &Registration) -> Result<Grant, Error> {
        let granted = self.inner.register(registration).await?;
        Ok(Grant { ttl: granted.ttl / self.share, ..granted })
    }
    async fn renew(&self, record_id: &RecordId, ttl: Duration) -> Result<Grant, Error> {
        if self.renewals.fetch_add(1, Ordering::Relaxed) + 1 == self.hangs {
            return std::future::pending().await;
        }
        let granted = self.inner.renew(record_id, ttl).await?;
        Ok(Grant { ttl: granted.ttl / self.share, ..granted })
    }
    async fn update(&self, registration: &Registration) -> Result<(), Error> {
        self.inner.update(registration).await
    }
    async fn deregister(&self, record_id: &RecordId) -> Result<(), Error> {
        self.inner.deregister(record_id).await
    }
    async fn members(&self, group: &GroupName) -> Result<ViewSnapshot, Error> {
        self.inner.members(group).await
    }
    fn watch(&self, group: &GroupName, prove_every: Duration) -> WatchStream {
        self.inner.watch(group, prove_every)
    }
    fn as_claims(&self) -> Option<&dyn Claims> {
        self.inner.as_claims()
    }
}

fn service(world: &World, backend: Arc<Grants>) -> ShardingService {
    world.factory_of("a", backend, policy()).create("workers").expect("a known policy")
}

/// A renewal was waited for as long as the whole TTL allows, which is until the end of a lease that is half of it.
#[tokio::test(start_paused = true)]
async fn one_renewal_that_hangs_loses_nothing_where_half_of_the_ttl_is_granted() {
    let world = World::new();
    let backend = Grants::new(&world, 2, 3);
    let service = service(&world, Arc::clone(&backend));
    service.register_self().await.expect("joins");
    eventually("it holds all", || held(&service).len() == SLOTS as usize).await;
    let (before, mut snapshots) = (held(&service), service.snapshots());
    while backend.renewals.load(Ordering::Relaxed) < 6 {
        let snapshot = tokio::time::timeout(Duration::from_millis(50), snapshots.recv()).await;
        if let Ok(snapshot) = snapshot {
            let snapshot = snapshot.expect("the service lives");
            assert_eq!(snapshot.state(), ServiceState::Active, "the third renewal hangs, and the others count");
        }
        assert_eq!(held(&service), before);
    }
}

/// A worker cannot know this in advance: the error has both numbers, and no record stays that others would count.
#[tokio::test(start_paused = true)]
async fn a_lease_that_ends_before_its_first_renewal_is_reported_with_the_key_and_leaves_no_record() {
    let world = World::new();
    // 3 s / 25 is 120 ms: 18.8 ms of ownership behind the margin, and the first renewal after 40 ms.
    let service = service(&world, Grants::new(&world, 25, 0));
    let error = service.register_self().await.expect_err("nothing could be owned");
    assert_eq!((error.kind(), error.is_retryable(), service.state()), (ErrorKind::Settings, false, ServiceState::Left));
    let said = "discovery.stop_margin is 100ms: with ttl = 3s, of which the backend grants 120ms, ownership would end before the first renewal; use less than \
                78ms, or a longer ttl";
    assert_eq!(error.to_string(), said);
    let group = policy().group;
    assert!(world.store.members(&group).await.expect("answers").view.members().is_empty());
}
