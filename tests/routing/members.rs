//! Requests to one member, to any, and to all.

use std::collections::BTreeMap;

use shardwise::requests::{Among, NoRoute, RoundRobin};
use shardwise::settings::InstanceSettings;
use shardwise::{InstanceId, ShardingFactory};

use super::*;

fn names(service: &ShardingService) {
    let id = service.instance_id().to_string();
    let by_name = id.clone();
    service.on_request("who", move |_| std::future::ready(format!("{by_name} itself"))).unwrap();
    service.on_any("who", move |_| std::future::ready(id.clone())).unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_member_is_asked_by_its_name_and_any_by_none() {
    let fleet = fleet(3, OwnershipMode::Eventual).await;
    (0..3).for_each(|member| names(fleet.service(member)));
    let two = fleet.service(2).instance_id();
    let answered = fleet.service(0).ask(&To::Member(two), Request::get("who"), LONG).await.unwrap();
    assert_eq!((answered.by.as_str(), text(&answered).as_str()), ("worker-2", "worker-2 itself"));
    let unknown = InstanceId::new("worker-9").unwrap();
    let begun = tokio::time::Instant::now();
    let refused = fleet.service(0).ask(&To::Member(&unknown), Request::get("who"), LONG).await.unwrap_err();
    assert_eq!((refused, begun.elapsed()), (AskError::NoRoute(NoRoute::UnknownMember), Duration::ZERO), "at once");

    fleet.service(0).set_pick(RoundRobin::default()).unwrap_err();
    fleet.service(1).set_pick(RoundRobin::default()).unwrap();
    let mut by = BTreeMap::<String, usize>::new();
    for _ in 0..9 {
        let answered = fleet.service(1).ask(&To::any(), post("who"), LONG).await.unwrap();
        assert_eq!(text(&answered), answered.by.as_str());
        *by.entry(text(&answered)).or_default() += 1;
    }
    assert_eq!(by.into_values().collect::<Vec<_>>(), [3, 3, 3], "one after the other, the asking one too");
    assert_eq!(fleet.service(1).route(&To::any()).unwrap().width(), 3);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_brought_to_one_member_goes_to_another() {
    let mut fleet = fleet(3, OwnershipMode::Eventual).await;
    (0..3).for_each(|member| names(fleet.service(member)));
    fleet.kill(1);
    let by_name = fleet.service(1).instance_id().clone();
    for _ in 0..20 {
        let answered = fleet.service(0).ask(&To::any(), post("who"), Duration::from_secs(1)).await.unwrap();
        assert_ne!(answered.by, by_name);
    }
}

#[tokio::test(start_paused = true)]
async fn each_members_outcome_has_its_name() {
    let mut fleet = fleet(20, OwnershipMode::Eventual).await;
    (0..20).for_each(|member| names(fleet.service(member)));
    fleet.kill(7);
    let outcomes = fleet.service(0).ask_all(Among::all(), &post("who"), Duration::from_secs(1)).await.unwrap();
    assert_eq!(outcomes.len(), 20);
    for (id, outcome) in outcomes {
        match outcome {
            Ok(answered) => assert_eq!((text(&answered), &answered.by), (format!("{id} itself"), &id)),
            Err(error) => assert!(id.as_str() == "worker-7" && matches!(error, AskError::TooLate { .. }), "{id}: {error}"),
        }
    }
    fleet.settled().await;
    let outcomes = fleet.service(0).ask_all(Among::all(), &post("who"), LONG).await.unwrap();
    assert!(outcomes.len() == 19 && outcomes.values().all(Result::is_ok), "{outcomes:?}");
    let none = fleet.service(0).ask_all(Among::labelled("disk", "fast"), &post("who"), LONG).await.unwrap_err();
    assert_eq!(none, AskError::NoRoute(NoRoute::NoMembers));
}

#[tokio::test(start_paused = true)]
async fn a_label_chooses_among_the_members() {
    let clock = shardwise::discovery::Clock::tokio();
    let store = shardwise::discovery::MemoryBackend::new(clock.clone());
    let transport = shardwise::testing::LocalTransport::new();
    let mut services = Vec::new();
    for (id, disk) in [("a", "fast"), ("b", "slow"), ("c", "fast")] {
        let mut settings = settings(OwnershipMode::Eventual, 1);
        settings.discovery.backend = "test".into();
        let mut instance = InstanceSettings::default();
        instance.metadata.insert("disk".into(), disk.into());
        let builder = ShardingFactory::builder().policy(settings).instance(instance).clock(clock.clone());
        let builder = builder.backend("test", Arc::new(store.link())).instance_id(InstanceId::new(id).unwrap());
        let service = builder.build().unwrap().create("workers").unwrap();
        transport.add(&service).unwrap();
        names(&service);
        service.register_self().await.unwrap();
        services.push(service);
    }
    let fast = Among::labelled("disk", "fast");
    eventually("all are seen", || services[1].route(&To::Any(fast)).is_ok_and(|route| route.width() == 2)).await;
    for _ in 0..10 {
        let answered = services[1].ask(&To::Any(fast), post("who"), LONG).await.unwrap();
        assert!(["a", "c"].contains(&answered.by.as_str()), "{answered:?}");
    }
    let outcomes = services[1].ask_all(fast, &post("who"), LONG).await.unwrap();
    assert_eq!(outcomes.into_keys().map(|id| id.to_string()).collect::<Vec<_>>(), ["a", "c"]);
}
