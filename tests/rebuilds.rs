//! How often a placement is computed: not for a renewal, and once for a burst of changes.

#![expect(clippy::expect_used, clippy::panic, reason = "tests report by panicking")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use common::{World, eventually, policy};
use futures::{StreamExt, stream};
use shardwise::discovery::{
    Capabilities, Discovery, Grant, MemoryBackend, RecordId, Registration, Result, ViewSnapshot, WatchEvent, WatchStream,
};
use shardwise::{GroupName, InstanceId, Member, ShardingService, View};

#[tokio::test(start_paused = true)]
async fn renewals_compute_nothing() {
    let world = World::new();
    let workers = [world.joined("a").await, world.joined("b").await];
    eventually("both see both", || workers.iter().all(|worker| worker.members().members().len() == 2)).await;
    let before = workers.each_ref().map(ShardingService::rebuilds);
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(workers.each_ref().map(ShardingService::rebuilds), before);
}

/// Delivers each change as a burst of fifty, each with one more stranger.
struct Bursts(MemoryBackend);

const BURST: u64 = 50;

fn burst(event: Result<WatchEvent>) -> Vec<Result<WatchEvent>> {
    let Ok(WatchEvent::View(ViewSnapshot { view, proven })) = event else { return vec![event] };
    let listed = view.members().first().map(|member| member.fingerprints.clone()).unwrap_or_default();
    let stranger = |i| Member { fingerprints: listed.clone(), ..Member::named(InstanceId::new(format!("stranger-{i}")).expect("valid")) };
    let swollen = |n| View::new(view.revision() * BURST + n, view.members().iter().cloned().chain((0..n).map(stranger)).collect());
    (1..=BURST).map(|n| Ok(WatchEvent::View(ViewSnapshot { view: Arc::new(swollen(n)), proven }))).collect()
}

#[async_trait]
impl Discovery for Bursts {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    async fn register(&self, registration: &Registration) -> Result<Grant> {
        self.0.register(registration).await
    }
    async fn renew(&self, record_id: &RecordId, ttl: Duration) -> Result<Grant> {
        self.0.renew(record_id, ttl).await
    }
    async fn update(&self, registration: &Registration) -> Result<()> {
        self.0.update(registration).await
    }
    async fn deregister(&self, record_id: &RecordId) -> Result<()> {
        self.0.deregister(record_id).await
    }
    async fn members(&self, group: &GroupName) -> Result<ViewSnapshot> {
        self.0.members(group).await
    }
    fn watch(&self, group: &GroupName, prove_every: Duration) -> WatchStream {
        self.0.watch(group, prove_every).flat_map(|event| stream::iter(burst(event))).boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_changes_is_computed_once_and_the_newest_view_wins() {
    let world = World::new();
    let factory = world.factory_of("a", Arc::new(Bursts(world.store.link())), policy());
    let worker = factory.create("workers").expect("a known policy");
    worker.register_self().await.expect("it joins");
    eventually("the newest view", || worker.members().members().len() == 51).await;
    let before = worker.rebuilds();
    assert!((1..=2).contains(&before), "{before} rebuilds for the burst at the beginning");
    let other = world.joined("b").await;
    eventually("the newest view", || worker.members().members().len() == 52).await;
    assert_eq!(worker.rebuilds() - before, 1);
    drop(other);
}
