//! The limit on the requests that a worker answers at a time.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::task::JoinSet;

use super::*;

#[tokio::test(start_paused = true)]
async fn not_more_than_64_are_answered_at_a_time() {
    let world = World::new();
    let one = world.factory("one").create("workers").unwrap();
    one.on_request("hang", |_| std::future::pending::<String>()).unwrap();
    let hanging: Vec<_> = (0..64)
        .map(|_| {
            let one = one.clone();
            tokio::spawn(async move { one.answer("hang", Request::new(Method::Get)).await.status })
        })
        .collect();
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(one.answer("hang", Request::new(Method::Get)).await.status, 429);
    for status in futures::future::join_all(hanging).await {
        assert_eq!(status.unwrap(), 504);
    }
    assert_eq!(one.answer("status", Request::new(Method::Get)).await.status, 200);
}

/// A caller may then ask another member, because no handler has seen the request.
#[tokio::test]
async fn a_listener_that_is_busy_refuses_the_request() {
    let world = World::new();
    let one = worker(&world, "one", Some(TOKEN));
    let begun = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&begun);
    one.on_request("hang", move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        std::future::pending::<String>()
    })
    .unwrap();
    one.on_request("echo", |_| async { "hello" }).unwrap();
    let at = one.listen_for_requests().await.unwrap();
    let mut hanging = JoinSet::new();
    for _ in 0..64 {
        let one = one.clone();
        hanging.spawn(async move { one.answer("hang", Request::new(Method::Get)).await });
    }
    eventually("64 are being answered", || begun.load(Ordering::Relaxed) == 64).await;
    let (status, text) = asks(at, &one, "POST", "echo", "x").await;
    assert!(status == 429 && text.contains("shardwise-peer: refused\r\n"), "{text}");
    hanging.shutdown().await;
    let (status, text) = asks(at, &one, "POST", "echo", "x").await;
    assert!(status == 200 && text.contains("shardwise-peer: 1\r\n"), "{text}");
}
