//! Handlers that take one request of a key at a time.

use std::sync::atomic::AtomicBool;

use shardwise::requests::{OwnedOptions, QueueLimits};
use tokio::time::sleep;

use super::*;

#[tokio::test(start_paused = true)]
async fn one_request_of_a_key_is_handled_at_a_time_in_the_order_of_arrival() {
    let fleet = fleet(1, OwnershipMode::Exclusive).await;
    let (order, busy, overlap) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let handler = {
        let (order, busy, overlap) = (Arc::clone(&order), Arc::clone(&busy), Arc::clone(&overlap));
        move |owned: Owned| {
            let (order, busy, overlap) = (Arc::clone(&order), Arc::clone(&busy), Arc::clone(&overlap));
            async move {
                if busy.swap(true, Ordering::SeqCst) {
                    overlap.store(true, Ordering::SeqCst);
                }
                sleep(Duration::from_millis(10)).await;
                order.lock().unwrap().push(owned.request.body[0]);
                busy.store(false, Ordering::SeqCst);
                "done"
            }
        }
    };
    fleet.service(0).on_owned_with("turns", OwnedOptions::default().one_at_a_time(), handler).unwrap();
    let asked: Vec<_> = (0..10_u8).map(|number| asks(fleet.service(0), "key", Request::post("turns", "x/y", vec![number]), LONG)).collect();
    for asked in asked {
        assert_eq!(asked.await.unwrap().unwrap().answer.status, 200);
    }
    assert_eq!((order.lock().unwrap().clone(), overlap.load(Ordering::SeqCst)), ((0..10_u8).collect::<Vec<_>>(), false));
}

#[tokio::test(start_paused = true)]
async fn beyond_the_limit_a_request_is_busy_and_a_cancelled_one_makes_room() {
    let fleet = fleet(2, OwnershipMode::Exclusive).await;
    let key = key_of(&fleet, 0);
    let running = Running::default();
    let counted = running.clone();
    let handler = move |owned: Owned| {
        let call = counted.begin();
        async move {
            let _held = (owned, call);
            std::future::pending::<String>().await
        }
    };
    let options = OwnedOptions::default().one_at_a_time_within(QueueLimits { per_key: 1, in_all: 8 });
    fleet.service(0).on_owned_with("hang", options, handler).unwrap();
    let first = asks(fleet.service(1), &key, post("hang"), LONG);
    running.are(1).await;
    let second = asks(fleet.service(1), &key, post("hang"), LONG);
    sleep(Duration::from_millis(10)).await;
    let third = fleet.service(1).ask(&To::owner(&key), post("hang"), Duration::from_secs(1)).await.unwrap_err();
    assert!(matches!(third, AskError::Busy { .. }) && !third.may_have_been_handled(), "{third}");
    first.abort();
    running.are(1).await;
    second.abort();
    running.are(0).await;
}

/// Its caller learns that before its own time is over: otherwise the request might have been handled.
#[tokio::test(start_paused = true)]
async fn what_waits_for_its_turn_until_its_time_is_over_was_not_handled() {
    let fleet = fleet(2, OwnershipMode::Exclusive).await;
    let key = key_of(&fleet, 0);
    let running = Running::default();
    let (counted, begun) = (running.clone(), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&begun);
    let handler = move |owned: Owned| {
        let call = counted.begin();
        seen.fetch_add(1, Ordering::SeqCst);
        async move {
            let _held = (owned, call);
            std::future::pending::<String>().await
        }
    };
    fleet.service(0).on_owned_with("hang", OwnedOptions::default().one_at_a_time(), handler).unwrap();
    let first = asks(fleet.service(1), &key, post("hang"), LONG);
    running.are(1).await;
    for from in 0..2 {
        let late = fleet.service(from).ask(&To::owner(&key), post("hang"), Duration::from_secs(1)).await.unwrap_err();
        assert!(matches!(late, AskError::Busy { .. }) && !late.may_have_been_handled(), "{late}");
    }
    assert_eq!(begun.load(Ordering::SeqCst), 1);
    first.abort();
    running.are(0).await;
}

/// What waits goes to the next owner: a request that waits does not hold up the handover.
#[tokio::test(start_paused = true)]
async fn a_queue_moves_with_its_key() {
    let mut fleet = fleet(1, OwnershipMode::Exclusive).await;
    let handled = Arc::new(Mutex::new(Vec::new()));
    let serves = |service: &ShardingService| {
        let (handled, id) = (Arc::clone(&handled), service.instance_id().to_string());
        let handler = move |owned: Owned| {
            let (handled, id) = (Arc::clone(&handled), id.clone());
            async move {
                sleep(Duration::from_millis(300)).await;
                handled.lock().unwrap().push((owned.request.body.clone(), id.clone()));
                id
            }
        };
        service.on_owned_with("slow", OwnedOptions::default().one_at_a_time(), handler).unwrap();
    };
    serves(fleet.service(0));
    let mut asked = Vec::new();
    for key in ["a", "b", "c", "d"] {
        for number in 0..5 {
            asked.push(asks(fleet.service(0), key, Request::post("slow", "text/plain", format!("{key}{number}")), LONG));
        }
    }
    fleet.join_with(serves).await;
    for asked in asked {
        assert_eq!(asked.await.unwrap().unwrap().answer.status, 200);
    }
    let handled = handled.lock().unwrap().clone();
    let different: std::collections::BTreeSet<_> = handled.iter().map(|(body, _)| body).collect();
    assert_eq!((handled.len(), different.len()), (20, 20), "each is handled once");
}
