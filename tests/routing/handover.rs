//! The owner changes while requests are on their way.

use tokio::time::{Instant, sleep};

use super::*;

/// Members join and leave while clients ask for their keys, one request after the other, with requests that may not be repeated: each is
/// answered, and no two members handle one key at once.
#[tokio::test(start_paused = true)]
async fn a_graceful_handover_loses_no_request_and_no_two_members_handle_a_key() {
    let mut fleet = fleet(2, OwnershipMode::Exclusive).await;
    let handling = Handling::default();
    let serves = |service: &ShardingService| {
        let (handling, id) = (handling.clone(), service.instance_id().to_string());
        let handler = move |owned: Owned| {
            let (handling, id) = (handling.clone(), id.clone());
            async move {
                handling.begin(&owned.request.body, &id);
                sleep(Duration::from_millis(20)).await;
                handling.end(&owned.request.body);
                "done"
            }
        };
        service.on_owned("work", handler).unwrap();
    };
    (0..2).for_each(|member| serves(fleet.service(member)));
    let client = fleet.service(0).clone();
    let until = Instant::now() + Duration::from_secs(20);
    let clients: Vec<_> = (0..20)
        .map(|key| {
            let (client, key) = (client.clone(), format!("key-{key}"));
            tokio::spawn(async move {
                let mut answered = 0;
                while Instant::now() < until {
                    let request = Request::post("work", "text/plain", key.as_str());
                    client.ask(&To::owner(&key), request, LONG).await.unwrap_or_else(|error| panic!("{key}: {error}"));
                    answered += 1;
                }
                answered
            })
        })
        .collect();
    for _ in 0..2 {
        sleep(Duration::from_secs(3)).await;
        fleet.join_with(serves).await;
    }
    sleep(Duration::from_secs(3)).await;
    fleet.leave(1).await;
    let mut answered = 0;
    for client in clients {
        answered += client.await.unwrap();
    }
    let table = handling.0.lock().unwrap();
    assert_eq!((table.twice.as_slice(), table.handled), (&[][..], answered), "each request is handled once, by one member at a time");
}

/// The owner dies with two requests: the one that may be repeated is, and of the other one the outcome is unknown.
#[tokio::test(start_paused = true)]
async fn after_a_takeover_only_what_may_be_repeated_is_repeated() {
    for ownership in [OwnershipMode::Exclusive, OwnershipMode::Eventual] {
        let mut fleet = fleet(3, ownership).await;
        let key = key_of(&fleet, 0);
        let running = hangs(fleet.service(0));
        let handled = Running::default();
        for member in 1..3 {
            let (counted, id) = (handled.clone(), fleet.service(member).instance_id().to_string());
            let handler = move |owned: Owned| {
                // Counted, and never ended.
                std::mem::forget(counted.begin());
                let id = id.clone();
                async move { format!("{id} {:?}", owned.request.idempotency_key) }
            };
            fleet.service(member).on_owned("hang", handler).unwrap();
        }
        let once = asks(fleet.service(1), &key, post("hang"), LONG);
        let get = asks(fleet.service(1), &key, Request::get("hang"), LONG);
        let keyed = asks(fleet.service(1), &key, post("hang").with_idempotency_key("7"), LONG);
        running.are(3).await;
        let killed = Instant::now();
        fleet.kill(0);
        let unknown = once.await.unwrap().unwrap_err();
        assert!(unknown.may_have_been_handled() && matches!(unknown, AskError::Unknown(_)), "{unknown}");
        for repeated in [get, keyed] {
            let answered = repeated.await.unwrap().unwrap();
            assert_ne!(answered.by.as_str(), "worker-0");
        }
        let took = killed.elapsed();
        assert!(took <= TTL + Duration::from_secs(1), "{ownership:?}: the first success came after {took:?}");
        handled.are(2).await;
    }
}

/// What was not sent when its owner died is certainly not handled, and waits for the next owner.
#[tokio::test(start_paused = true)]
async fn a_request_to_a_dead_owner_waits_for_the_next_one() {
    let mut fleet = fleet(2, OwnershipMode::Exclusive).await;
    (0..2).for_each(|member| says_who(fleet.service(member)));
    let key = key_of(&fleet, 0);
    fleet.kill(0);
    let asked = Instant::now();
    let answered = fleet.service(1).ask(&To::owner(&key), post("who"), LONG).await.unwrap();
    assert_eq!(answered.by.as_str(), "worker-1");
    assert!(asked.elapsed() <= TTL + Duration::from_secs(1), "{:?}", asked.elapsed());
}

/// A paused owner has the request and does not answer. Once another member holds the slot, its answer is waited for a second more.
#[tokio::test(start_paused = true)]
async fn an_attempt_ends_once_another_member_is_the_right_one() {
    for ownership in [OwnershipMode::Exclusive, OwnershipMode::Eventual] {
        let mut fleet = fleet(2, ownership).await;
        (0..2).for_each(|member| says_who(fleet.service(member)));
        let key = key_of(&fleet, 0);
        fleet.pause(0);
        let asked = Instant::now();
        let (once, get) = (asks(fleet.service(1), &key, post("who"), LONG), asks(fleet.service(1), &key, Request::get("who"), LONG));
        let unknown = once.await.unwrap().unwrap_err();
        assert!(matches!(&unknown, AskError::Unknown(why) if why.contains("another member has taken its place")), "{unknown}");
        assert_eq!(get.await.unwrap().unwrap().by.as_str(), "worker-1");
        assert!(asked.elapsed() <= TTL + Duration::from_millis(2_500), "{ownership:?}: {:?}", asked.elapsed());
    }
}

/// It lost its slot while it was stopped: its handler is dropped, and its late answer changes nothing.
#[tokio::test(start_paused = true)]
async fn a_handler_whose_slot_is_lost_is_dropped() {
    let mut fleet = fleet(2, OwnershipMode::Exclusive).await;
    let key = key_of(&fleet, 0);
    let running = hangs(fleet.service(0));
    let asked = asks(fleet.service(0), &key, post("hang"), LONG);
    running.are(1).await;
    fleet.partition(0);
    running.are(0).await;
    let unknown = asked.await.unwrap().unwrap_err();
    assert!(unknown.may_have_been_handled(), "{unknown}");
}

/// Its handler was dropped where it awaited, so it may have been handled in part: what may be repeated is sent again.
#[tokio::test(start_paused = true)]
async fn what_lost_its_slot_in_its_handler_is_sent_again_if_it_may_be_repeated() {
    let mut fleet = fleet(2, OwnershipMode::Exclusive).await;
    let key = key_of(&fleet, 0);
    let running = hangs(fleet.service(0));
    fleet.service(1).on_owned("hang", |_: Owned| async { "by the next owner" }).unwrap();
    let keyed = asks(fleet.service(1), &key, post("hang").with_idempotency_key("7"), LONG);
    running.are(1).await;
    fleet.partition(0);
    let answered = keyed.await.unwrap().unwrap();
    assert_eq!((answered.by.as_str(), text(&answered).as_str()), ("worker-1", "by the next owner"));
}
