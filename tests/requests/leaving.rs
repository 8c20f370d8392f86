//! A member leaves in good order: what it handles is answered, and what comes then is refused with certainty.

use std::future::ready;

use shardwise::ServiceState;
use shardwise::requests::To;

use super::*;

/// A handler at `slow` that waits for `finish`, and how often it was called.
fn slow(service: &ShardingService, finish: &CancellationToken) -> Arc<AtomicUsize> {
    let called = Arc::new(AtomicUsize::new(0));
    let (count, finish) = (Arc::clone(&called), finish.clone());
    let handler = move |_: Request| {
        count.fetch_add(1, Ordering::Relaxed);
        let finish = finish.clone();
        async move {
            finish.cancelled().await;
            "done"
        }
    };
    service.on_request("slow", handler).unwrap();
    called
}

/// Why a request to that endpoint was certainly not handled.
async fn refusal(by: &ShardingService, there: &MemberEndpoint) -> String {
    match brings(by, there, &post("slow")).await {
        Err(Undelivered::Unsent(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_leaving_member_answers_what_it_has_and_refuses_the_rest_with_certainty() {
    let world = World::new();
    let [one, two, three] = ["one", "two", "three"].map(|id| worker(&world, id, Some(TOKEN)));
    let finish = CancellationToken::new();
    let called = slow(&one, &finish);
    let at = one.listen_for_requests().await.unwrap();
    for service in [&one, &two, &three] {
        let id = service.instance_id().to_string();
        service.on_any("who", move |_: Request| ready(id.clone())).unwrap();
        service.listen_for_requests().await.unwrap();
        service.register_self().await.unwrap();
    }
    let there = endpoint(&one, at);
    let asked = tokio::spawn({
        let (two, there) = (two.clone(), there.clone());
        async move { brings(&two, &there, &post("slow")).await }
    });
    eventually("it is being handled", || called.load(Ordering::Relaxed) == 1).await;
    let leaving = tokio::spawn({
        let one = one.clone();
        async move { one.deregister_self().await }
    });
    eventually("it is leaving", || one.state() == ServiceState::Draining).await;
    // On a connection of before, and on a new one.
    for caller in [&two, &three] {
        let why = refusal(caller, &there).await;
        assert!(why.contains("is leaving its group"), "{why}");
        let status = brings(caller, &there, &Request::get("shardwise/status")).await.unwrap();
        assert_eq!(body(&status)["state"], "draining", "it says how it is until it has left");
        let answered = caller.ask(&To::any(), post("who"), LONG).await.unwrap();
        assert_ne!(answered.by, *one.instance_id());
    }
    assert!(!leaving.is_finished() && !asked.is_finished(), "it waits for its handler");
    finish.cancel();
    assert_eq!(asked.await.unwrap().unwrap().body, b"done");
    leaving.await.unwrap().unwrap();

    for caller in [&two, &three] {
        let why = refusal(caller, &there).await;
        assert!(why.contains("the member has left"), "its connections have ended, and it takes none: {why}");
    }
    assert_eq!(called.load(Ordering::Relaxed), 1);
    one.register_self().await.unwrap();
    assert_eq!(brings(&two, &endpoint(&one, at), &post("slow")).await.unwrap().body, b"done", "it takes requests when it joins again");
}

/// What ends a connection is seen by a caller that does not use it, too.
#[tokio::test]
async fn idle_connections_end_when_their_member_leaves() {
    let world = World::new();
    let (one, two) = (worker(&world, "one", Some(TOKEN)), worker(&world, "two", Some(TOKEN)));
    let network = Network::default();
    let there = endpoint(&one, network.before(one.listen_for_requests().await.unwrap()).await);
    one.register_self().await.unwrap();
    assert_eq!(brings(&two, &there, &Request::get("status")).await.unwrap().status, 200);
    one.deregister_self().await.unwrap();
    // The next request needs a new connection.
    refusal(&two, &there).await;
    assert!(network.connected.load(Ordering::Relaxed) >= 2);
}
