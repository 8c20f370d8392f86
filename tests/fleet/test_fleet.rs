//! The test kit that users get: kill, pause, partition, and a fleet that settles again.

use std::time::Duration;

use shardwise::testing::TestFleet;
use shardwise::{Cause, GroupName, Policy, PolicyName, ShardingService};

#[tokio::test(start_paused = true)]
async fn a_killed_members_keys_are_taken_over_within_one_ttl() {
    let mut fleet = TestFleet::start(3).await;
    let before = fleet.service(1).now();
    fleet.kill(0);
    fleet.settled().await;
    let took = fleet.service(1).now().since(before);
    assert!(took < Duration::from_millis(3_200), "took {took:?} with a TTL of 3 s");
    assert!((0..100).all(|key: u32| fleet.owners(&key).len() == 1));
}

/// A process that is stopped beyond its TTL owns nothing from its first instruction on until it has joined again.
#[tokio::test(start_paused = true)]
async fn a_paused_member_wakes_up_owning_nothing() {
    let mut fleet = TestFleet::start(2).await;
    fleet.pause(0);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!((0..1_000u32).all(|key| !fleet.service(0).owns(&key)), "its snapshot is old, its clock is not");
    assert!((0..1_000u32).all(|key| fleet.owners(&key) == [1]));
    let mut rebalances = fleet.service(0).rebalances();
    let held = fleet.service(0).ownership().slots().clone();
    fleet.resume(0);
    let mut rebalance = rebalances.recv().await.expect("the service lives");
    while rebalance.cause != Cause::Joined {
        rebalance = rebalance.then(rebalances.recv().await.expect("the service lives"));
    }
    assert_eq!(rebalance.lost, held, "it loses everything it held before it owns again");
    fleet.settled().await;
}

#[tokio::test(start_paused = true)]
async fn a_partitioned_member_stops_and_comes_back() {
    let mut fleet = TestFleet::start(3).await;
    fleet.partition(2);
    fleet.settled().await;
    assert!((0..1_000u32).all(|key| !fleet.owners(&key).contains(&2)));
    fleet.heal(2);
    fleet.settled().await;
    assert!((0..1_000u32).any(|key| fleet.owners(&key) == [2]));
}

#[tokio::test(start_paused = true)]
async fn members_join_and_leave_at_will() {
    let mut fleet = TestFleet::start(1).await;
    for _ in 0..4 {
        fleet.join().await;
    }
    fleet.settled().await;
    for i in 0..4 {
        fleet.leave(i).await;
        fleet.settled().await;
    }
    assert!((0..100u32).all(|key| fleet.owners(&key) == [4]));
}

#[tokio::test(start_paused = true)]
async fn below_min_members_no_member_owns() {
    let mut policy = Policy::new(PolicyName::new("p").expect("valid"), GroupName::new("g").expect("valid"));
    policy.min_members = 2;
    let mut fleet = TestFleet::start_with(2, policy).await;
    fleet.leave(1).await;
    let service = fleet.service(0);
    while service.members().members().len() != 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let refused = service.try_filter_owned_items(&["k"]).expect_err("too few members");
    assert_eq!(refused.hint, "1 active members, min_members is 2; start more workers");
}

#[test]
fn a_frozen_service_needs_no_runtime() {
    let shares = ["a", "b", "c"].map(|me| ShardingService::frozen(["a", "b", "c"], me));
    for key in 0..1_000u32 {
        assert_eq!(shares.iter().filter(|s| s.owns(&key)).count(), 1);
    }
}
