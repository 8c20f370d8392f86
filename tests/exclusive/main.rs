//! Exclusive ownership over the memory backend: who holds what, under which epoch, and what becomes of work.

#![expect(clippy::expect_used, clippy::panic, reason = "tests report by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod daemons;
mod guards;
mod holders;
mod leases;
#[path = "../common/plain.rs"]
mod plain;
mod refused;
mod singletons;
mod slots;
mod stand_in;
mod stores;
mod timers;
mod versions;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use shardwise::{Fence, OwnershipMode, Policy, ShardingService};

use common::{World, eventually};

const SLOTS: u32 = 64;

fn policy() -> Policy {
    let mut policy = common::policy();
    policy.ownership = OwnershipMode::Exclusive;
    policy.placement.slots = SLOTS;
    policy.drain_timeout = Duration::from_secs(2);
    policy
}

fn service(world: &World, id: &str, policy: Policy) -> ShardingService {
    world.factory_of(id, Arc::new(world.store.link()), policy).create("workers").expect("a known policy")
}

async fn joined(world: &World, id: &str) -> ShardingService {
    let service = service(world, id, policy());
    service.register_self().await.expect("it joins");
    service
}

/// The slots that this worker holds now, with their epochs.
fn held(service: &ShardingService) -> BTreeMap<u32, u64> {
    let ownership = service.ownership();
    let live = ownership.is_live_at(service.now());
    ownership.fences().filter(|_| live).map(|Fence { slot, epoch }| (slot, epoch.get())).collect()
}

/// Whether these hold every slot between them, each once.
fn share(services: &[&ShardingService]) -> bool {
    let mut all: Vec<u32> = services.iter().flat_map(|service| held(service).into_keys()).collect();
    all.sort_unstable();
    all.iter().copied().eq(0..SLOTS)
}

/// A key in that slot.
fn key_in(slot: u32) -> String {
    let mut keys = (0..).map(|n: u32| n.to_string());
    keys.find(|key| shardwise::slot_of(shardwise::ShardKey::key_hash(key), SLOTS) == slot).expect("some key is there")
}

#[tokio::test(start_paused = true)]
async fn slots_move_to_who_joins_and_back_from_who_leaves_each_time_under_a_higher_epoch() {
    let world = World::new();
    let a = joined(&world, "a").await;
    eventually("one alone holds everything", || share(&[&a])).await;
    let first = held(&a);
    let b = joined(&world, "b").await;
    eventually("two share", || share(&[&a, &b]) && !held(&b).is_empty()).await;
    let (kept, moved) = (held(&a), held(&b));
    assert!(kept.iter().all(|(slot, epoch)| first[slot] == *epoch), "what stays keeps its epoch");
    assert!(moved.iter().all(|(slot, epoch)| first[slot] < *epoch), "what moves has a higher one: {moved:?}");
    b.deregister_self().await.expect("leaves");
    eventually("the other has everything again", || share(&[&a])).await;
    let last = held(&a);
    assert!(moved.iter().all(|(slot, epoch)| last[slot] > *epoch));
    assert!(kept.iter().all(|(slot, epoch)| last[slot] == *epoch));
}

#[tokio::test(start_paused = true)]
async fn a_key_has_its_fence_here_and_nowhere_else() {
    let world = World::new();
    let (a, b) = (joined(&world, "a").await, joined(&world, "b").await);
    eventually("they share", || share(&[&a, &b])).await;
    for slot in 0..SLOTS {
        let key = key_in(slot);
        let fences = [&a, &b].map(|service| service.fence(&key));
        let mine = fences.iter().flatten().collect::<Vec<_>>();
        assert!(matches!(mine[..], [Fence { slot: of, .. }] if *of == slot), "{fences:?}");
        assert_eq!(a.owns(&key), fences[0].is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_dead_held_is_taken_over_once_its_record_is_gone() {
    let world = World::new();
    let cut = world.store.link();
    let dead = world.factory_of("a", Arc::new(cut.clone()), policy()).create("workers").expect("known");
    dead.register_self().await.expect("joins");
    let b = joined(&world, "b").await;
    eventually("they share", || share(&[&dead, &b])).await;
    let before = held(&dead);
    cut.set_reachable(false);
    let died = world.clock.now();
    eventually("the other has everything", || share(&[&b])).await;
    let took = world.clock.now().since(died);
    assert!(took <= Duration::from_secs(4), "TTL 3 s, took {took:?}");
    assert!(before.iter().all(|(slot, epoch)| held(&b)[slot] > *epoch));
    assert!(held(&dead).is_empty());
    cut.set_reachable(true);
    eventually("it is back with a share", || share(&[&dead, &b]) && !held(&dead).is_empty()).await;
}
