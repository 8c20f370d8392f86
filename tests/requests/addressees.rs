//! Handlers for one instance and for any: which of them answers, here and through the listener.

use super::*;

fn of_any(method: Method) -> Request {
    let mut request = Request::new(method);
    request.to = Addressee::Any;
    request
}

#[tokio::test]
async fn a_handler_for_one_instance_never_answers_a_request_to_any() {
    let world = World::new();
    let one = world.factory("one").create("workers").unwrap();
    one.on_request("cache/flush", |_| async { "mine" }).unwrap();
    one.on_any("rate", |request: Request| async move { format!("{} {:?}", request.to, request.method) }).unwrap();
    one.on_any("both", |_| async { "any" }).unwrap();
    one.on_request("both", |_| async { "one" }).unwrap();
    let answered = async |path: &str, to: Addressee| {
        let mut request = Request::new(Method::Post);
        request.to = to;
        let answer = one.answer(path, request).await;
        (answer.status, String::from_utf8(answer.body).unwrap())
    };
    for (path, to, wanted) in [
        ("cache/flush", Addressee::Instance, "mine"),
        ("rate", Addressee::Any, "any instance Post"),
        ("both", Addressee::Any, "any"),
        ("both", Addressee::Instance, "one"),
    ] {
        assert_eq!(answered(path, to).await, (200, wanted.to_owned()), "{path}");
        assert!(one.handles(to, path), "{path}");
    }
    for (path, to, hint) in [
        ("cache/flush", Addressee::Any, "its handler there is for requests to one instance; it answers at: status, both, rate"),
        ("rate", Addressee::Instance, "its handler there is for requests to any instance; it answers at: status, both, cache/flush"),
    ] {
        let (status, text) = answered(path, to).await;
        assert!(status == 404 && text.contains(hint), "{path}: {text}");
        assert!(!one.handles(to, path), "{path}");
    }
    // Every member has a status, so any of them may be asked for it; a suspicion is about one.
    for (path, status) in [("status", 200), ("shardwise/status", 200), ("shardwise/suspect", 404)] {
        assert_eq!(one.answer(path, of_any(Method::Post)).await.status, status, "{path}");
    }
    assert_eq!(one.answer("shardwise/suspect", Request::new(Method::Post)).await.status, 200);
    one.on_request("status", |_| async { "mine" }).unwrap();
    assert_eq!(body(&one.answer("status", of_any(Method::Get)).await)["instance_id"], "one", "its own status is for one instance");
    assert!(one.on_any("shardwise/x", |_| async { "x" }).is_err() && one.on_any("../x", |_| async { "x" }).is_err());
}

/// The listener's answer to a request with that addressee; `None` sends no header, as older versions.
async fn asks_to(at: SocketAddr, whom: &ShardingService, path: &str, to: Option<&'static str>) -> (u16, String) {
    let (whom, target) = (whom.clone(), format!("{}{path}", whom.requests_path()));
    let exchange = move || {
        let (mut stream, _, asking) = greeted(at, &whom, TOKEN);
        let mut asking = asking.expect("it proves that it is the one that was called");
        let request = proven_to(&mut asking, "POST", &target, "x", to);
        let text = exchanged(&mut stream, request.as_bytes());
        (status(&text), text)
    };
    tokio::task::spawn_blocking(exchange).await.unwrap()
}

#[tokio::test]
async fn the_header_decides_which_handler_answers_and_an_older_caller_has_none() {
    let world = World::new();
    let one = worker(&world, "one", Some(TOKEN));
    one.on_request("both", |_| async { "for one" }).unwrap();
    one.on_any("both", |_| async { "for any" }).unwrap();
    one.on_request("flush", |_| async { "flushed" }).unwrap();
    let at = one.listen_for_requests().await.unwrap();
    for (path, to, wanted) in [
        ("both", Some("instance"), (200, "for one")),
        ("both", Some("any"), (200, "for any")),
        ("both", None, (200, "for one")),
        ("flush", None, (200, "flushed")),
        ("flush", Some("any"), (404, "its handler there is for requests to one instance")),
    ] {
        let (status, text) = asks_to(at, &one, path, to).await;
        assert!(status == wanted.0 && text.contains(wanted.1), "{path} to {to:?}: {text}");
        assert!(text.contains("shardwise-peer: 1\r\n"), "a handler's 404 is an answer: {text}");
    }
    // A newer version may know more addressees, and this one does not guess.
    let (status, text) = asks_to(at, &one, "both", Some("owner")).await;
    assert!(status == 400 && text.contains("shardwise-peer: refused") && text.contains("upgrade this member"), "{text}");
}
