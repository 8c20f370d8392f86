//! The sender's errors when there is no reply.

use super::*;
use shardwise::MessageError;

#[tokio::test]
async fn a_message_that_is_not_taken_in_time_was_not_handled() {
    let world = World::new();
    let a = joined(&world, "a").await;
    let error = handle(&a).send_within(echo("x"), Duration::from_millis(100)).await.unwrap_err();
    assert!(matches!(&error, MessageError::NoLeader { why, .. } if why == "no member holds the name"), "{error:?}");
    assert!(!error.may_have_been_handled());
    assert!(error.to_string().starts_with("singleton/boss: no member took the message within "), "{error}");
}

#[tokio::test]
async fn so_many_wait_and_no_more() {
    let world = World::new();
    let a = joined(&world, "a").await;
    let handle = handle(&a);
    let all = futures::future::join_all((0..1_025).map(|_| handle.send_within(echo("x"), LONG)));
    let (all, _run) = tokio::join!(all, async { run(&a) });
    let (handled, refused): (Vec<_>, Vec<_>) = all.into_iter().partition(Result::is_ok);
    assert_eq!(handled.len(), 1_024, "those that wait are handled");
    assert!(matches!(&refused[..], [Err(MessageError::Full { .. })]), "{refused:?}");
    handle.send_within(echo("again"), LONG).await.expect("there is room again");
}

/// The holder takes none: 256 wait there, and further ones at their senders.
#[tokio::test]
async fn a_holder_that_takes_nothing_is_full() {
    let world = World::new();
    let (a, b) = (joined(&world, "a").await, joined(&world, "b").await);
    let _run = a.singleton("boss").expect("exclusive").run(|tenure| async move {
        let _inbox = tenure.messages::<Ask, AskReply>().await?;
        tenure.cancel().cancelled().await;
        Ok::<(), shardwise::Error>(())
    });
    eventually("it listens", || address(&b, "a").is_some()).await;
    let own = handle(&a);
    let _waiting: Vec<_> = (0..256)
        .map(|_| {
            let own = own.clone();
            tokio::spawn(async move { own.send_within(echo("x"), LONG).await })
        })
        .collect();
    for handle in [handle(&a), handle(&b)] {
        // Until the others have arrived it may itself be admitted, and then waits without an answer.
        let full = async {
            loop {
                let error = handle.send_within(echo("x"), Duration::from_millis(300)).await.unwrap_err();
                if matches!(&error, MessageError::Full { why, .. } if why.contains("holder")) {
                    return;
                }
            }
        };
        tokio::time::timeout(LONG, full).await.expect("it is full at last");
    }
}

#[tokio::test]
async fn what_is_dropped_or_panics_or_is_not_answered_may_have_been_handled() {
    let world = World::new();
    let (a, b, _run) = boss_and_other(&world).await;
    for service in [&a, &b] {
        let handle = handle(service);
        for (ask, within) in [(Ask::Drop, LONG), (Ask::Panic, LONG), (Ask::Hold, Duration::from_secs(2))] {
            handle.send_within(echo("it runs"), LONG).await.expect("it runs again after a panic");
            let error = handle.send_within(ask.clone(), within).await.unwrap_err();
            assert!(matches!(&error, MessageError::Lost { .. }) && error.may_have_been_handled(), "{ask:?}: {error:?}");
        }
    }
}

#[tokio::test]
async fn what_waits_in_an_inbox_that_ends_goes_to_the_next_holder() {
    let world = World::new();
    let (a, b) = (joined(&world, "a").await, joined(&world, "b").await);
    let (taken, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let deaf = a.singleton("boss").expect("exclusive").run(move |tenure| {
        let taken = taken.clone();
        async move {
            let inbox = tenure.messages::<Ask, AskReply>().await?;
            taken.send(()).unwrap();
            tenure.cancel().cancelled().await;
            drop(inbox);
            Ok::<(), shardwise::Error>(())
        }
    });
    seen.recv().await.expect("it runs");
    let sent: Vec<_> = [&a, &b]
        .map(|service| {
            let handle = handle(service);
            tokio::spawn(async move { handle.send_within(echo("x"), LONG).await })
        })
        .into();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let _run = run(&b);
    deaf.stop().await;
    for sent in sent {
        assert_eq!(sent.await.unwrap().expect("a reply").by, "b");
    }
}

#[tokio::test]
async fn what_is_too_large_or_of_another_type_is_refused() {
    let world = World::new();
    let (a, b, _run) = boss_and_other(&world).await;
    for service in [&a, &b] {
        let error = handle(service).send(echo(&"x".repeat(300_000))).await.unwrap_err();
        assert!(matches!(error, MessageError::TooLarge { bytes: 300_011, .. }), "{error:?}");
        let error = handle(service).send_within(Ask::Large(300_000), LONG).await.unwrap_err();
        assert!(matches!(&error, MessageError::Reply { why, .. } if why.contains("262144")), "{error:?}");
        let whole = handle(service).send_within(Ask::Large(250_000), LONG).await.expect("what is large and allowed");
        assert_eq!(whole.text.len(), 250_000);
        let other: SingletonHandle<u32, AskReply> = service.singleton("boss").expect("exclusive").handle();
        let error = other.send_within(7, LONG).await.unwrap_err();
        assert!(matches!(error, MessageError::Refused { .. }), "{error:?}");
        let other: SingletonHandle<Ask, u32> = service.singleton("boss").expect("exclusive").handle();
        let error = other.send_within(echo("x"), LONG).await.unwrap_err();
        assert!(matches!(error, MessageError::Reply { .. }) && error.may_have_been_handled(), "{error:?}");
    }
}

#[tokio::test]
async fn a_service_that_ends_ends_the_waiting() {
    let world = World::new();
    let a = joined(&world, "a").await;
    let handle = handle(&a);
    let sent = tokio::spawn(async move { handle.send_within(echo("x"), LONG).await });
    tokio::task::yield_now().await;
    drop(a);
    assert_eq!(sent.await.unwrap(), Err(MessageError::Closed));
}
