//! Hot keys are spread over several members.

use std::collections::BTreeMap;

use shardwise::requests::{KeyHash, KeyRoute, RouteCause, WidthError};
use shardwise::testing::LocalTransport;
use shardwise::{ErrorKind, InstanceId, ShardKey, ShardingFactory};
use tokio::time::sleep;

use super::*;

/// Requests to keys at `slow` take 50 ms; the answer says whether the owner gives it.
fn slow(service: &ShardingService) {
    let handler = |owned: Owned| async move {
        sleep(Duration::from_millis(50)).await;
        if owned.is_owner() { "owner" } else { "helper" }
    };
    service.on_owned("slow", handler).unwrap();
}

/// How many of so many requests at a time each member has answered, and that only the owner says that it is.
async fn burst(fleet: &TestFleet, key: &str, requests: usize) -> BTreeMap<String, usize> {
    let asked: Vec<_> = (0..requests).map(|_| asks(fleet.service(0), key, post("slow"), LONG)).collect();
    let owner = format!("worker-{}", fleet.owners(key)[0]);
    let mut by = BTreeMap::new();
    for asked in asked {
        let answered = asked.await.unwrap().unwrap();
        assert_eq!(text(&answered) == "owner", answered.by.as_str() == owner, "{answered:?}");
        *by.entry(answered.by.to_string()).or_default() += 1;
    }
    by
}

#[tokio::test(start_paused = true)]
async fn a_hot_key_is_spread_and_narrows_when_it_is_quiet() {
    let fleet = TestFleet::start_as(6, settings(OwnershipMode::Eventual, 4)).await;
    (0..6).for_each(|member| slow(fleet.service(member)));
    let to = To::owner("hot");
    assert_eq!(burst(&fleet, "hot", 1).await.len(), 1);
    let mut by = BTreeMap::new();
    for _ in 0..20 {
        by = burst(&fleet, "hot", 40).await;
    }
    let route = fleet.service(0).route(&to).unwrap();
    assert_eq!((by.len(), route.width(), route.cause()), (4, 4, RouteCause::Spread), "{by:?}");
    assert_eq!(fleet.service(0).route(&To::owner("other")).unwrap().width(), 1, "only the hot key");
    let set: Vec<_> = route.set().map(ToString::to_string).collect();
    assert!(by.keys().all(|id| set.contains(id)), "{by:?} of {set:?}");
    // The owner narrows it, and callers forget what it reported.
    sleep(Duration::from_mins(4)).await;
    assert_eq!(fleet.service(0).route(&to).unwrap().width(), 1);
    assert_eq!(burst(&fleet, "hot", 1).await.len(), 1);
    assert_eq!(fleet.service(0).route(&to).unwrap().width(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_application_widens_its_keys_itself() {
    let fleet = TestFleet::start_as(4, settings(OwnershipMode::Eventual, 3)).await;
    (0..4).for_each(|member| slow(fleet.service(member)));
    let owner = fleet.service(fleet.owners("hot")[0]);
    owner.widen("hot", 3).unwrap();
    burst(&fleet, "hot", 1).await;
    assert_eq!(fleet.service(0).route(&To::owner("hot")).unwrap().width(), 3);
    owner.widen("hot", 1).unwrap();
    // Its next answer says so; without one the caller forgets it after 30 s.
    burst(&fleet, "hot", 2).await;
    burst(&fleet, "hot", 2).await;
    eventually("it is narrow again", || fleet.service(0).route(&To::owner("hot")).unwrap().width() == 1).await;
    for width in [0, 5, u8::MAX] {
        assert!(matches!(owner.widen("hot", width), Err(WidthError::OutOfRange { most, .. }) if most == Width::MAX), "{width}");
    }
    let refused = owner.widen("hot", 4).unwrap_err();
    assert_eq!(refused.to_string(), "width is 4; whole numbers from 1 to 3 are allowed");
    let exclusive = super::fleet(1, OwnershipMode::Exclusive).await;
    assert_eq!(exclusive.service(0).widen("hot", 1), Err(WidthError::Exclusive));
}

/// Factories of one group in one process.
struct Group {
    clock: shardwise::discovery::Clock,
    store: shardwise::discovery::MemoryBackend,
    transport: LocalTransport,
}

impl Group {
    fn new() -> Self {
        let clock = shardwise::discovery::Clock::tokio();
        Self { store: shardwise::discovery::MemoryBackend::new(clock.clone()), clock, transport: LocalTransport::new() }
    }

    fn factory(&self, id: &str, ownership: OwnershipMode) -> ShardingFactory {
        self.factory_of(id, settings(ownership, if ownership == OwnershipMode::Exclusive { 1 } else { 2 }))
    }

    fn factory_of(&self, id: &str, mut settings: PolicySettings) -> ShardingFactory {
        settings.discovery.backend = "test".into();
        let builder = ShardingFactory::builder().policy(settings).clock(self.clock.clone()).backend("test", Arc::new(self.store.link()));
        builder.instance_id(InstanceId::new(id).unwrap()).build().unwrap()
    }

    async fn joined(&self, factory: &ShardingFactory) -> ShardingService {
        let service = factory.create("workers").unwrap();
        self.transport.add(&service).unwrap();
        says_who(&service);
        service.register_self().await.unwrap();
        service
    }
}

#[tokio::test(start_paused = true)]
async fn an_operator_spreads_and_moves_a_key_by_hand() {
    let group = Group::new();
    let factories: Vec<_> = ["a", "b", "c"].map(|id| group.factory(id, OwnershipMode::Eventual)).into();
    let mut services = Vec::new();
    for factory in &factories {
        services.push(group.joined(factory).await);
    }
    let to = To::owner("hot");
    let width = |service: &ShardingService| service.route(&to).map_or(0, |route| route.width());
    let owner_to = |service: &ShardingService| service.route(&to).ok().map(|route| route.member().clone());
    // One member has the key, by its own account and by that of all callers.
    let settled = || {
        let owners: Vec<_> = services.iter().filter(|service| service.owns("hot")).map(|service| service.instance_id().clone()).collect();
        let owner = owners.first().cloned();
        owners.len() == 1
            && services.iter().all(|service| service.members().members().len() == 3 && width(service) == 1 && owner_to(service) == owner)
    };
    eventually("all are seen", settled).await;
    let owner = services[0].route(&to).unwrap().member().clone();
    let hash = KeyHash::new("hot".key_hash());

    let wide = KeyRoute::new(hash, 2, Vec::new()).unwrap();
    assert!(factories[0].set_route("workers", &wide).await.unwrap() && !factories[0].set_route("workers", &wide).await.unwrap());
    eventually("all callers see it", || services.iter().all(|service| width(service) == 2)).await;
    assert_eq!(services[1].route(&to).unwrap().cause(), RouteCause::Operator);
    let moved = KeyRoute::new(hash, 1, vec![owner.clone()]).unwrap();
    factories[2].set_route("workers", &moved).await.unwrap();
    // While a caller still knows the width of two, any of the two may be its pick: the other one proves nothing.
    let moved_for = |service: &ShardingService| width(service) == 1 && owner_to(service).is_some_and(|member| member != owner);
    eventually("it moves", || services.iter().all(moved_for)).await;
    let answered = services[0].ask(&to, Request::get("who"), LONG).await.unwrap();
    assert_eq!(text(&answered), format!("{} helps", answered.by));
    assert_eq!(factories[1].routes("workers").await.unwrap().iter().count(), 1);

    let too_wide = factories[0].set_route("workers", &KeyRoute::new(hash, 3, Vec::new()).unwrap()).await.unwrap_err();
    assert!(too_wide.kind() == ErrorKind::Settings && too_wide.to_string().contains("max_width is 2"), "{too_wide}");
    assert!(factories[0].clear_route("workers", hash).await.unwrap() && !factories[0].clear_route("workers", hash).await.unwrap());
    eventually("it is back", || services.iter().all(|service| *service.route(&to).unwrap().member() == owner)).await;

    let exclusive = Group::new().factory("x", OwnershipMode::Exclusive);
    let refused = exclusive.routes("workers").await.unwrap_err();
    assert!(refused.kind() == ErrorKind::Settings && refused.to_string().contains("only the owner of a key serves it"), "{refused}");
}

/// Regression: under `max_width = 1` a route was stored, and no caller read it.
#[tokio::test(start_paused = true)]
async fn a_route_that_would_have_no_effect_is_refused() {
    let group = Group::new();
    let (wide, narrow) = (group.factory("wide", OwnershipMode::Eventual), group.factory_of("narrow", settings(OwnershipMode::Eventual, 1)));
    let hash = KeyHash::new("hot".key_hash());
    for (width, skip) in [(1, vec![InstanceId::new("wide").unwrap()]), (2, Vec::new())] {
        let refused = narrow.set_route("workers", &KeyRoute::new(hash, width, skip).unwrap()).await.unwrap_err();
        assert!(refused.kind() == ErrorKind::Settings && refused.to_string().contains("policy workers has max_width = 1"), "{refused}");
    }
    // A route that was set before max_width was lowered can be listed and cleared.
    assert!(wide.set_route("workers", &KeyRoute::new(hash, 2, Vec::new()).unwrap()).await.unwrap());
    assert_eq!(narrow.routes("workers").await.unwrap().iter().count(), 1);
    assert!(narrow.clear_route("workers", hash).await.unwrap());
}
