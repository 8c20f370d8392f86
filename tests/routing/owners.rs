//! Requests to the owner of a key.

use futures::FutureExt as _;
use shardwise::core::OwnedKey;
use shardwise::requests::{Addressee, Answer, NoRoute, RouteCause, Undelivered};

use super::*;

#[tokio::test(start_paused = true)]
async fn a_request_reaches_the_owner_of_its_key_from_every_member() {
    for ownership in [OwnershipMode::Eventual, OwnershipMode::Exclusive] {
        let fleet = fleet(3, ownership).await;
        (0..3).for_each(|member| says_who(fleet.service(member)));
        for key in (0..20).map(|key| format!("key-{key}")) {
            let owner = format!("worker-{}", fleet.owners(&key)[0]);
            for from in 0..3 {
                let answered = fleet.service(from).ask(&To::owner(&key), Request::get("who"), LONG).await.unwrap();
                assert_eq!((answered.by.as_str(), text(&answered)), (owner.as_str(), owner.clone()), "{key} from {from}");
                let route = fleet.service(from).route(&To::owner(&key)).unwrap();
                assert_eq!((route.member().as_str(), route.width()), (owner.as_str(), 1));
                let is_exclusive = ownership == OwnershipMode::Exclusive;
                assert_eq!((route.cause() == RouteCause::Claim, route.epoch().is_some()), (is_exclusive, is_exclusive));
            }
        }
        let number = OwnedKey::of(&7_u64);
        let answered = fleet.service(0).ask(&To::from(&number), Request::get("who"), LONG).await.unwrap();
        assert_eq!(text(&answered), format!("worker-{}", fleet.owners(&7_u64)[0]), "an integer is placed like any key");
    }
}

#[tokio::test(start_paused = true)]
async fn under_exclusive_ownership_a_handler_has_the_fence_of_its_slot() {
    let fleet = fleet(2, OwnershipMode::Exclusive).await;
    let key = key_of(&fleet, 1);
    let handler = |owned: Owned| async move { format!("{:?}", owned.fence().unwrap()) };
    fleet.service(1).on_owned("fence", handler).unwrap();
    let answered = fleet.service(0).ask(&To::owner(&key), Request::get("fence"), LONG).await.unwrap();
    assert_eq!(text(&answered), format!("{:?}", fleet.service(1).fence(&key).unwrap()));
}

/// A handler that takes the request alone out of what it gets does not let the slot go.
#[tokio::test(start_paused = true)]
async fn a_slot_is_held_until_the_handler_has_ended() {
    let mut fleet = fleet(1, OwnershipMode::Exclusive).await;
    let running = Running::default();
    let counted = running.clone();
    let handler = move |owned: Owned| {
        let call = counted.begin();
        async move {
            let Owned { request, .. } = owned;
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(call);
            Answer::bytes("text/plain", request.body)
        }
    };
    fleet.service(0).on_owned("slow", handler).unwrap();
    let keys: Vec<_> = (0..20).map(|key| format!("key-{key}")).collect();
    let asked: Vec<_> =
        keys.iter().map(|key| asks(fleet.service(0), key, Request::post("slow", "text/plain", key.as_str()), LONG)).collect();
    running.are(20).await;
    fleet.join().await;
    while running.0.load(Ordering::SeqCst) > 0 {
        assert!(keys.iter().all(|key| !fleet.owners(key).contains(&1)), "a slot has moved while a handler ran in it");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for (asked, key) in asked.into_iter().zip(&keys) {
        assert_eq!(text(&asked.await.unwrap().unwrap()), *key);
    }
    fleet.settled().await;
    assert!(keys.iter().any(|key| fleet.owners(key) == [1]));
}

#[tokio::test(start_paused = true)]
async fn a_member_that_does_not_own_the_key_refuses_and_names_the_owner() {
    let fleet = fleet(2, OwnershipMode::Exclusive).await;
    (0..2).for_each(|member| says_who(fleet.service(member)));
    let key = key_of(&fleet, 1);
    // Warm, so that it knows the owner.
    fleet.service(0).ask(&To::owner(&key), Request::get("who"), LONG).await.unwrap();
    let mut request = Request::get("who");
    (request.to, request.key) = (Addressee::Owner, Some(OwnedKey::of(&key)));
    let refused = fleet.service(0).answer(request).await.unwrap_err();
    assert_eq!(refused, Undelivered::NotMine(Some(fleet.service(1).instance_id().clone())));
}

#[tokio::test(start_paused = true)]
async fn before_there_is_an_owner_a_request_waits() {
    let mut fleet = fleet(0, OwnershipMode::Eventual).await;
    let first = fleet.join().await;
    fleet.settled().await;
    says_who(fleet.service(first));
    let service = fleet.service(first).clone();
    service.deregister_self().await.unwrap();
    let late = service.ask(&To::owner("k"), Request::get("who"), Duration::from_millis(300)).await.unwrap_err();
    assert!(matches!(late, AskError::TooLate { .. }), "{late}");
    let waiting = asks(&service, "k", Request::get("who"), LONG);
    tokio::time::sleep(Duration::from_secs(1)).await;
    service.register_self().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap().by.as_str(), "worker-0");
}

#[tokio::test(start_paused = true)]
async fn a_route_allocates_nothing() {
    let fleet = TestFleet::start_as(5, settings(OwnershipMode::Eventual, 4)).await;
    let (service, other) = (fleet.service(0), fleet.service(1).instance_id());
    for to in [To::owner("key"), To::Member(other), To::any()] {
        // The first one begins to follow the group.
        service.route(&to).unwrap();
        let measured = allocation_counter::measure(|| {
            for _ in 0..100 {
                drop(service.route(&to).unwrap());
            }
        });
        assert_eq!(measured.count_total, 0, "{to:?}");
    }
}

#[test]
fn outside_a_runtime_there_is_no_route_and_no_panic() {
    let service = ShardingService::frozen(["a", "b"], "a");
    assert_eq!(service.route(&To::owner("k")).unwrap_err(), NoRoute::NoView);
    let outside = service.ask(&To::owner("k"), Request::get("who"), LONG).now_or_never().unwrap().unwrap_err();
    assert!(matches!(&outside, AskError::Invalid(why) if why.contains("tokio runtime")), "{outside}");
}
