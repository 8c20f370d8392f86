//! A store of claims that was wiped or replaced.

use std::time::Duration;

use shardwise::ServiceState;

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
