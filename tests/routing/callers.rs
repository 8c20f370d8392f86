//! Callers: cancelling, telling, and callers that are not members.

use shardwise::requests::{Answer, KeyHash, KeyRoute, RouteCause};
use shardwise::testing::LocalTransport;
use shardwise::{InstanceId, ShardKey, ShardingFactory};
use tokio::time::{Instant, sleep};

use super::*;

#[tokio::test(start_paused = true)]
async fn a_dropped_request_ends_its_handler() {
    let fleet = fleet(2, OwnershipMode::Exclusive).await;
    let key = key_of(&fleet, 0);
    let running = hangs(fleet.service(0));
    for from in 0..2 {
        let asked = asks(fleet.service(from), &key, post("hang"), LONG);
        running.are(1).await;
        asked.abort();
        running.are(0).await;
    }
    // Its guard is gone too: the member can leave at once.
    let begun = Instant::now();
    fleet.service(0).deregister_self().await.unwrap();
    assert!(begun.elapsed() < Duration::from_millis(1_500), "{:?} of a drain_timeout of 2 s", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_teller_waits_until_the_handler_begins_and_no_longer() {
    let fleet = fleet(2, OwnershipMode::Exclusive).await;
    let key = key_of(&fleet, 0);
    let running = Running::default();
    let counted = running.clone();
    let handler = move |owned: Owned| {
        let counted = counted.clone();
        async move {
            let _call = counted.begin();
            sleep(Duration::from_secs(1)).await;
            drop(owned);
            Answer::text("late").with_status(500)
        }
    };
    fleet.service(0).on_owned("slow", handler).unwrap();
    for from in 0..2 {
        let begun = Instant::now();
        fleet.service(from).tell(&To::owner(&key), post("slow"), LONG).await.unwrap();
        assert!(begun.elapsed() < Duration::from_millis(100), "{:?}", begun.elapsed());
        running.are(1).await;
        running.are(0).await;
    }
    let none = fleet.service(1).tell(&To::owner(&key), post("nothing"), LONG).await.unwrap_err();
    assert!(matches!(&none, AskError::Barred(why) if why.contains("no handler")), "{none}");
    // A member that leaves waits for it.
    fleet.service(1).tell(&To::owner(&key), post("slow"), LONG).await.unwrap();
    running.are(1).await;
    fleet.service(0).deregister_self().await.unwrap();
    assert_eq!(running.0.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_router_sends_requests_and_is_no_member() {
    for ownership in [OwnershipMode::Eventual, OwnershipMode::Exclusive] {
        let clock = shardwise::discovery::Clock::tokio();
        let store = shardwise::discovery::MemoryBackend::new(clock.clone());
        let (transport, is_eventual) = (LocalTransport::new(), ownership == OwnershipMode::Eventual);
        let factory = |id: &str| {
            let mut settings = settings(ownership, if is_eventual { 2 } else { 1 });
            settings.discovery.backend = "test".into();
            let builder = ShardingFactory::builder().policy(settings).clock(clock.clone()).backend("test", Arc::new(store.link()));
            builder.instance_id(InstanceId::new(id).unwrap()).build().unwrap()
        };
        let factories = ["a", "b"].map(factory);
        let mut services = Vec::new();
        for factory in &factories {
            let service = factory.create("workers").unwrap();
            transport.add(&service).unwrap();
            says_who(&service);
            service.register_self().await.unwrap();
            services.push(service);
        }
        let router = factory("caller").router("workers").await.unwrap();
        router.set_transport(Arc::new(transport.clone())).unwrap();
        for key in (0..20).map(|key| format!("key-{key}")) {
            eventually("it has one owner", || services.iter().filter(|service| service.owns(&key)).count() == 1).await;
            let owner = services.iter().find(|service| service.owns(&key)).unwrap();
            let answered = router.ask(&To::owner(&key), post("who"), LONG).await.unwrap();
            assert_eq!(answered.by, *owner.instance_id());
            assert_eq!(router.route(&To::owner(&key)).unwrap().member(), owner.instance_id());
        }
        assert_eq!(router.observer().members().members().len(), 2);
        if is_eventual {
            let hash = KeyHash::new("hot".key_hash());
            factories[0].set_route("workers", &KeyRoute::new(hash, 2, Vec::new()).unwrap()).await.unwrap();
            let causes = || router.route(&To::owner("hot")).unwrap().cause();
            eventually("it follows the operator's routes", || causes() == RouteCause::Operator).await;
        }
        let left = services[0].instance_id().clone();
        services[0].deregister_self().await.unwrap();
        for _ in 0..10 {
            assert_ne!(router.ask(&To::owner("k"), post("who"), LONG).await.unwrap().by, left);
        }
    }
}
