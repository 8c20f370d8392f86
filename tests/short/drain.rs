//! A worker that an operator drains stays a member and owns nothing, over its restarts too, until the wish is taken back.

use std::sync::Arc;
use std::time::Duration;

use shardwise::{ErrorKind, InstanceId, KeyPlacement, OwnershipMode, PlacementKind, ServiceState, ShardingService};

use crate::common::{World, eventually, policy};
use crate::log::Log;

fn id(name: &str) -> InstanceId {
    InstanceId::new(name).unwrap()
}

fn slots(service: &ShardingService) -> u32 {
    let ownership = service.ownership();
    if ownership.is_live_at(service.now()) { ownership.slots().len() } else { 0 }
}

#[tokio::test(start_paused = true)]
async fn a_drained_worker_owns_nothing_over_its_restarts_until_it_is_undrained() {
    let (log, _logging) = Log::start();
    for ownership in [OwnershipMode::Eventual, OwnershipMode::Exclusive] {
        let world = World::new();
        let mut policy = policy();
        (policy.ownership, policy.placement.slots) = (ownership, 1_024);
        let factory = |name| world.factory_of(name, Arc::new(world.store.link()), policy.clone());
        let (a, b, operator) = (factory("a"), factory("b"), factory("operator"));
        let (left, right) = (a.create("workers").unwrap(), b.create("workers").unwrap());
        left.register_self().await.unwrap();
        right.register_self().await.unwrap();
        eventually("both share", || slots(&left) > 0 && slots(&right) > 0 && slots(&left) + slots(&right) == 1_024).await;

        assert!(operator.drain("workers", &id("a")).await.unwrap());
        assert!(!operator.drain("workers", &id("a")).await.unwrap(), "it is drained already");
        eventually("the other one has everything", || slots(&left) == 0 && slots(&right) == 1_024).await;
        assert!(left.is_drained() && left.state() == ServiceState::Active && left.members().members().len() == 2);
        assert_eq!(operator.drained("workers").await.unwrap(), [id("a")]);

        left.deregister_self().await.unwrap();
        drop((left, a));
        let again = factory("a").create("workers").unwrap();
        let mut snapshots = again.snapshots();
        again.register_self().await.unwrap();
        tokio::time::sleep(world.ttl * 3).await;
        let most = std::iter::from_fn(|| futures::FutureExt::now_or_never(snapshots.recv()).flatten()).map(|seen| seen.slots().len()).max();
        assert_eq!((most, slots(&right)), (Some(0), 1_024), "restarted it took slots, if only for a moment");

        assert!(operator.undrain("workers", &id("a")).await.unwrap());
        assert!(!operator.undrain("workers", &id("a")).await.unwrap());
        eventually("both share again", || slots(&again) > 0 && slots(&again) + slots(&right) == 1_024).await;
        assert!(!again.is_drained());
    }
    let warns = |part: &str| log.lines_where(|line| line.contains(" WARN ") && line.contains(part));
    // Twice in each mode, because the second life of the worker says it too.
    assert_eq!((warns("this worker is drained by an operator"), warns("this worker is no longer drained")), (4, 2), "once for each change");
}

#[tokio::test(start_paused = true)]
async fn a_wish_that_came_while_a_service_was_no_member_is_heard_when_it_joins_again() {
    let world = World::new();
    let factory = |name| world.factory_of(name, Arc::new(world.store.link()), policy());
    let (a, operator) = (factory("a"), factory("operator"));
    let service = a.create("workers").unwrap();
    service.register_self().await.unwrap();
    let other = factory("b").create("workers").unwrap();
    other.register_self().await.unwrap();
    assert!(operator.drain("workers", &id("a")).await.unwrap());
    eventually("it is drained", || service.is_drained() && slots(&service) == 0).await;
    service.deregister_self().await.unwrap();
    assert!(operator.undrain("workers", &id("a")).await.unwrap());
    service.register_self().await.unwrap();
    assert!(!service.is_drained(), "undrained while it was away");
    service.deregister_self().await.unwrap();
    other.deregister_self().await.unwrap();

    let elsewhere = factory("a").create("workers").unwrap();
    elsewhere.register_self().await.unwrap();
    assert!(operator.drain("workers", &id("a")).await.unwrap());
    elsewhere.deregister_self().await.unwrap();
    let mut snapshots = service.snapshots();
    service.register_self().await.unwrap();
    tokio::time::sleep(world.ttl * 3).await;
    let most = std::iter::from_fn(|| futures::FutureExt::now_or_never(snapshots.recv()).flatten()).map(|seen| seen.slots().len()).max();
    assert_eq!((most, service.is_drained()), (Some(0), true), "it took slots, if only for a moment");
}

#[tokio::test(start_paused = true)]
async fn who_drains_itself_hears_of_it_at_once_and_alone_it_owns_nothing_either() {
    let world = World { ttl: Duration::from_mins(10), ..World::new() };
    let factory = world.factory("a");
    let service = factory.create("workers").unwrap();
    service.register_self().await.unwrap();
    let begun = tokio::time::Instant::now();
    factory.drain("workers", &id("a")).await.unwrap();
    eventually("it owns nothing", || slots(&service) == 0).await;
    factory.undrain("workers", &id("a")).await.unwrap();
    eventually("it owns everything", || slots(&service) > 0).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_drained_worker_that_leaves_keeps_no_place() {
    let world = World::new();
    let mut policy = policy();
    policy.rejoin_grace = Duration::from_mins(10);
    let factory = |name: &str| {
        let mut instance = shardwise::settings::InstanceSettings::default();
        instance.id = Some(id(name));
        world.factory_with(instance, name, Arc::new(world.store.link()), policy.clone())
    };
    let services = ["a", "b"].map(|name| factory(name).create("workers").unwrap());
    for service in &services {
        service.register_self().await.unwrap();
    }
    factory("operator").drain("workers", &id("a")).await.unwrap();
    eventually("it is drained", || services[0].is_drained()).await;
    services[0].deregister_self().await.unwrap();
    eventually("it is gone for good", || services[1].members().members().len() == 1).await;
    eventually("the other one has everything", || slots(&services[1]) == policy.placement.slots).await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_drained_is_refused_with_what_to_do() {
    let world = World::new();
    let _a = world.joined("a").await;
    let operator = world.factory("operator");
    let unknown = operator.drain("workers", &id("nobody")).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::UnknownInstance);
    assert!(unknown.to_string().contains("\"nobody\"; there are: a"), "{unknown}");
    assert!(!operator.undrain("workers", &id("nobody")).await.unwrap(), "of one that is gone the wish can be taken back");

    let mut by_key = policy();
    by_key.placement.kind = PlacementKind::Key(KeyPlacement::Modulo);
    let refused = world.factory_of("operator", Arc::new(world.store.link()), by_key).drain("workers", &id("a")).await.unwrap_err();
    assert!(refused.kind() == ErrorKind::Settings && refused.to_string().contains("stop the worker"), "{refused}");

    let without_notes = Arc::new(crate::plain::Plain(world.store.link()));
    let refused = world.factory_of("operator", without_notes, policy()).drain("workers", &id("a")).await.unwrap_err();
    assert!(refused.kind() == ErrorKind::Settings && refused.to_string().contains("keeps no notes"), "{refused}");
}
