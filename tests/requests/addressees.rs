//! Handlers for one instance and for any: which of them answers, here and through the listener.

use super::*;

#[tokio::test]
async fn a_handler_for_one_instance_never_answers_a_request_to_any() {
    let world = World::new();
    let one = world.factory("one").create("workers").unwrap();
    one.on_request("cache/flush", |_| async { "mine" }).unwrap();
    one.on_any("rate", |request: Request| async move { format!("{} {:?}", request.to, request.method) }).unwrap();
    one.on_any("both", |_| async { "any" }).unwrap();
    one.on_request("both", |_| async { "one" }).unwrap();
    let answered = async |path: &str, addressee: Addressee| {
        let answer = one.answer(to(addressee, post(path))).await.unwrap();
        (answer.status, String::from_utf8(answer.body).unwrap())
    };
    for (path, addressee, wanted) in [
        ("cache/flush", Addressee::Instance, "mine"),
        ("rate", Addressee::Any, "any instance Post"),
        ("both", Addressee::Any, "any"),
        ("both", Addressee::Instance, "one"),
    ] {
        assert_eq!(answered(path, addressee).await, (200, wanted.to_owned()), "{path}");
    }
    for (path, addressee, hint) in [
        ("cache/flush", Addressee::Any, "its handler there is for requests to one instance; it answers at: status, both, rate"),
        ("rate", Addressee::Instance, "its handler there is for requests to any instance; it answers at: status, both, cache/flush"),
        ("rate", Addressee::Owner, "its handler there is for requests to any instance; it answers at: status"),
    ] {
        let (status, text) = answered(path, addressee).await;
        assert!(status == 404 && text.contains(hint), "{path}: {text}");
    }
    // Every member has a status, so any of them may be asked for it; a suspicion is about one.
    for (path, status) in [("status", 200), ("shardwise/status", 200), ("shardwise/suspect", 404)] {
        assert_eq!(answered(path, Addressee::Any).await.0, status, "{path}");
    }
    assert_eq!(answered("shardwise/suspect", Addressee::Instance).await.0, 200);
    one.on_request("status", |_| async { "mine" }).unwrap();
    let status = one.answer(to(Addressee::Any, Request::get("status"))).await.unwrap();
    assert_eq!(body(&status)["instance_id"], "one", "its own status is for one instance");
    assert!(one.on_any("shardwise/x", |_| async { "x" }).is_err() && one.on_any("../x", |_| async { "x" }).is_err());
}

#[tokio::test]
async fn the_addressee_that_travels_with_a_request_decides_which_handler_answers() {
    let world = World::new();
    let (one, two) = (worker(&world, "one", Some(TOKEN)), worker(&world, "two", Some(TOKEN)));
    one.on_request("both", |_| async { "for one" }).unwrap();
    one.on_any("both", |_| async { "for any" }).unwrap();
    one.on_request("flush", |_| async { "flushed" }).unwrap();
    let at = one.listen_for_requests().await.unwrap();
    for (path, addressee, status, text) in [
        ("both", Addressee::Instance, 200, "for one"),
        ("both", Addressee::Any, 200, "for any"),
        ("flush", Addressee::Instance, 200, "flushed"),
        ("flush", Addressee::Any, 404, "its handler there is for requests to one instance"),
    ] {
        let answer = brings(&two, &endpoint(&one, at), &to(addressee, post(path))).await.expect("a handler's 404 is an answer");
        let told = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(answer.status == status && told.contains(text), "{path} to {addressee}: {told}");
    }
    // A newer version may know more addressees, and this one does not guess; nor does it without the header, or without what belongs to it.
    let opened = channel::open(&at.to_string(), &Whom::of(&one), Some(TOKEN)).await.unwrap();
    let client = http2::client(opened.plain(channel::Side::Caller)).await;
    for (headers, why) in [
        (vec![], "upgrade this member"),
        (vec![("shardwise-to", "everybody")], "upgrade this member"),
        (vec![("shardwise-to", "owner")], "for which key, name or session"),
        (vec![("shardwise-to", "owner"), ("shardwise-key-bytes", "65537")], "its key is too long"),
        (vec![("shardwise-to", "owner"), ("shardwise-key-bytes", "2"), ("shardwise-key-kind", "bytes")], "it ends before its key does"),
        (vec![("shardwise-to", "holder")], "for which key, name or session"),
        (vec![("shardwise-to", "holder"), ("shardwise-name", "%FF")], "its name is not text"),
    ] {
        let refused = http2::ask(&client, ("POST", "both"), &headers, "x").await.unwrap();
        assert!(refused.status == 400 && refused.is_refusal() && refused.body.contains(why), "{headers:?}: {refused:?}");
    }
    for (method, path) in [("PUT", "both"), ("DELETE", "both"), ("GET", "a/../both"), ("GET", "%2e%2e"), ("GET", "")] {
        let refused = http2::ask(&client, (method, path), &[("shardwise-to", "instance")], "").await.unwrap();
        assert!(refused.status == 400 && refused.is_refusal(), "{method} {path}: {refused:?}");
    }
}

/// What a member cannot know of a request that it has not handled is said to the caller as such.
#[tokio::test]
async fn a_worker_behind_a_member_may_be_missing_busy_or_not_the_right_one() {
    let world = World::new();
    let (one, two) = (worker(&world, "one", Some(TOKEN)), worker(&world, "two", Some(TOKEN)));
    let right = InstanceId::new("three/é").unwrap();
    let said = right.clone();
    one.on_others(move |request: Request| {
        let outcome = match request.path.as_str() {
            "missing" => Err(Undelivered::Unsent("it cannot be reached".into())),
            "full" => Err(Undelivered::Busy(Some(Duration::from_secs(3)))),
            "elsewhere" => Err(Undelivered::NotMine(Some(said.clone()))),
            "lost" => Err(Undelivered::Unknown("it was killed".into())),
            path => Ok(Answer::text(path)),
        };
        std::future::ready(outcome)
    });
    let there = endpoint(&one, one.listen_for_requests().await.unwrap());
    let comes = async |path: &str| brings(&two, &there, &post(path)).await;
    assert_eq!(comes("missing").await, Err(Undelivered::Unsent("it cannot be reached".into())));
    assert_eq!(comes("full").await, Err(Undelivered::Busy(Some(Duration::from_secs(3)))));
    assert_eq!(comes("elsewhere").await, Err(Undelivered::NotMine(Some(right))));
    assert_eq!(comes("lost").await, Err(Undelivered::Unknown("it was killed".into())));
    assert_eq!(comes("anything").await.unwrap().body, b"anything");
    let status = brings(&two, &there, &Request::get("shardwise/status")).await.unwrap();
    assert_eq!(body(&status)["instance_id"], "one", "what is reserved does not go on");
}
