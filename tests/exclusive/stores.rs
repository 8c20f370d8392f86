//! A store of claims that was wiped or replaced, and the epoch from which another one goes on.

use std::sync::Arc;
use std::time::Duration;

use shardwise::{ErrorKind, ServiceState};

use super::plain::Plain;
use super::{World, eventually, held, joined, policy, service, share};

#[tokio::test(start_paused = true)]
async fn after_a_wipe_no_member_owns_anything_until_the_floor_is_above_what_was_used() {
    let world = World::new();
    let (a, b) = (joined(&world, "a").await, joined(&world, "b").await);
    eventually("they share", || share(&[&a, &b])).await;
    let highest = held(&a).into_values().chain(held(&b).into_values()).max().expect("some");
    world.store.wipe();
    let refused = |service: &shardwise::ShardingService| service.state() == ServiceState::Refused;
    eventually("both are refused", || refused(&a) && refused(&b)).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(refused(&a) && held(&a).is_empty() && held(&b).is_empty());
    let why = a.ownership().not_owning_at(a.now()).expect("nothing").hint;
    assert!(why.contains("wiped or replaced") && why.contains(&format!("at least to {highest}")), "{why}");
    let mut raised = policy();
    raised.epoch_floor = highest;
    let c = service(&world, "c", raised);
    c.register_self().await.expect("joins");
    eventually("all three share", || share(&[&a, &b, &c]) && !held(&a).is_empty()).await;
    let lowest = [&a, &b, &c].into_iter().flat_map(|service| held(service).into_values()).min().expect("some");
    assert!(lowest > highest, "epochs go on above");
}

#[tokio::test(start_paused = true)]
async fn an_epoch_is_taken_once_every_member_has_left_and_is_above_all_that_were_granted() {
    let world = World::new();
    let (a, b) = (joined(&world, "a").await, joined(&world, "b").await);
    eventually("they share", || share(&[&a, &b])).await;
    let operator = world.factory_of("operator", Arc::new(world.store.link()), policy());
    let running = operator.take_epoch("workers").await.expect_err("members may be granted higher ones");
    assert_eq!(running.kind(), ErrorKind::Conflict, "{running}");
    assert!(running.to_string().ends_with("there are: a, b"), "{running}");
    a.deregister_self().await.expect("leaves");
    eventually("the other has everything", || share(&[&b])).await;
    let highest = held(&b).into_values().max().expect("some");
    b.deregister_self().await.expect("leaves");
    let first = operator.take_epoch("workers").await.expect("nobody is left").get();
    let second = operator.take_epoch("workers").await.expect("nobody is left").get();
    assert!(highest < first && first < second, "{highest} {first} {second}");
    let c = joined(&world, "c").await;
    eventually("the next one holds everything", || share(&[&c])).await;
    assert!(held(&c).into_values().all(|epoch| epoch > second), "{second} was used up");
}

#[tokio::test]
async fn a_group_without_claims_has_no_epochs() {
    let world = World::new();
    let eventual = world.factory("operator").take_epoch("workers").await.expect_err("no epochs");
    assert_eq!((eventual.kind(), eventual.to_string().contains("ownership is eventual")), (ErrorKind::Settings, true), "{eventual}");
    let unable = world.factory_of("operator", Arc::new(Plain(world.store.link())), policy());
    let refused = unable.take_epoch("workers").await.expect_err("no claims");
    assert!(refused.to_string().contains("and plain cannot; use \"local\""), "{refused}");
}
