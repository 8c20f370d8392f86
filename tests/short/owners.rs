//! More than one member for a key, asked of the service: its owner and who comes after, over zones.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use shardwise::settings::{InstanceSettings, PolicySettings};
use shardwise::{InstanceId, ShardingFactory, ShardingService, Timing};

use crate::common::{World, eventually, policy};

async fn joined_in(world: &World, id: &str, zone: &str) -> ShardingService {
    let mut instance = InstanceSettings::default();
    instance.zone = Some(zone.into());
    let mut settings = PolicySettings::new(policy());
    settings.discovery.backend = "test".into();
    settings.timing = Timing::new(Duration::from_secs(3), None, Duration::from_millis(100)).expect("valid");
    let builder = ShardingFactory::builder().policy(settings).backend("test", Arc::new(world.store.link())).clock(world.clock.clone());
    let factory = builder.instance(instance).instance_id(InstanceId::new(id).expect("valid")).build().expect("a valid factory");
    let service = factory.create("workers").expect("a known policy");
    service.register_self().await.expect("it joins");
    service
}

fn names(owners: &[InstanceId]) -> Vec<&str> {
    owners.iter().map(InstanceId::as_str).collect()
}

#[tokio::test(start_paused = true)]
async fn the_first_is_the_owner_all_are_different_and_zones_come_first() {
    let world = World::new();
    let mut fleet = Vec::new();
    for (id, zone) in [("a", "north"), ("b", "north"), ("c", "south"), ("d", "south")] {
        fleet.push(joined_in(&world, id, zone).await);
    }
    eventually("all see four", || fleet.iter().all(|service| service.members().members().len() == 4)).await;
    let north = |id: &InstanceId| ["a", "b"].contains(&id.as_str());
    for key in 0..500_u32 {
        let owners = fleet[0].owners(&key, 4);
        let mine = fleet.iter().find(|service| service.owns(&key)).expect("somebody owns it");
        assert_eq!(Some(mine.instance_id()), owners.first(), "key {key}: {:?}", names(&owners));
        assert_eq!(owners.iter().collect::<BTreeSet<_>>().len(), 4, "key {key}: {:?}", names(&owners));
        assert_ne!(north(&owners[0]), north(&owners[1]), "key {key}: the first two are in one zone: {:?}", names(&owners));
        for service in &fleet {
            assert_eq!(service.owners(&key, 4), owners, "all give the same answer");
            assert_eq!(service.owners(&key, 2), owners[..2], "a smaller number is the beginning of a larger");
        }
    }
    assert_eq!((fleet[0].owners("key", 9).len(), fleet[0].owners("key", 0).len()), (4, 0));
}

#[tokio::test(start_paused = true)]
async fn the_answer_follows_the_group() {
    let world = World::new();
    let (a, b) = (world.joined("a").await, world.joined("b").await);
    eventually("a sees b", || a.owners("key", 2).len() == 2).await;
    let before = a.owners("key", 2);
    // Asked for less after that: what is kept for two serves for one.
    assert_eq!(a.owners("key", 1), before[..1]);
    b.deregister_self().await.expect("leaves");
    eventually("a sees that b is gone", || names(&a.owners("key", 2)) == ["a"]).await;
}

#[tokio::test(start_paused = true)]
async fn no_owner_is_named_before_a_view_was_seen_and_alone_it_is_me() {
    let world = World::new();
    let service = world.factory("a").create("workers").expect("known");
    assert!(service.owners("key", 3).is_empty());
    service.register_self().await.expect("joins");
    assert_eq!(names(&service.owners("key", 3)), ["a"]);
}
