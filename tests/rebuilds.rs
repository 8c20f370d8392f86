//! How often a placement is computed: not for a renewal, and once for a burst of changes.

#![expect(clippy::expect_used, clippy::panic, reason = "tests report by panicking")]

#[expect(dead_code, reason = "each test file uses its part")]
mod common;

use std::time::Duration;

use common::{World, eventually};
use shardwise::discovery::{Discovery, Registration};
use shardwise::{InstanceId, Member};

#[tokio::test(start_paused = true)]
async fn renewals_compute_nothing() {
    let world = World::new();
    let workers = [world.joined("a").await, world.joined("b").await];
    eventually("both see both", || workers.iter().all(|worker| worker.members().members().len() == 2)).await;
    let before = workers.each_ref().map(|worker| worker.rebuilds());
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(workers.each_ref().map(|worker| worker.rebuilds()), before);
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_changes_is_computed_once_and_the_newest_view_wins() {
    let world = World::new();
    let worker = world.joined("a").await;
    let before = worker.rebuilds();
    for i in 0..100 {
        let member =
            Member { fingerprints: vec![worker.policy().fingerprint()], ..Member::named(InstanceId::new(format!("b{i}")).expect("valid")) };
        let registration = Registration { group: worker.group_name().clone(), member, ttl: Duration::from_secs(3) };
        // The store answers without giving the worker a turn.
        world.store.register(&registration).await.expect("it registers");
    }
    eventually("the newest view", || worker.members().members().len() == 101).await;
    let share = worker.ownership().slots().len();
    assert!((1..=2).contains(&(worker.rebuilds() - before)), "{} rebuilds", worker.rebuilds() - before);
    assert!((100..=250).contains(&share), "a hundred-and-first of 16,384 slots, not {share}");
}
