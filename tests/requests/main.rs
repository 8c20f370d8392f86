//! Requests to members, and the channel on which they travel: with real sockets, over the memory backend.

#![expect(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "tests report by panicking")]

mod addressees;
#[path = "../common/asking.rs"]
mod asking;
mod attacks;
mod busy;
#[path = "../common/channel.rs"]
mod channel;
#[path = "../common/mod.rs"]
#[expect(dead_code, reason = "each test file uses its part")]
mod common;
mod hostile;
#[path = "../common/http2.rs"]
mod http2;
mod leaving;
mod outcomes;
mod versions;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use shardwise::requests::{ADDRESS_KEY, Addressee, Answer, Attempt, BODY_BYTES_MAX, MemberEndpoint, Request, Undelivered, WITHIN_DEFAULT};
use shardwise::settings::PolicySettings;
use shardwise::{ErrorKind, InstanceId, ShardingFactory, ShardingService};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use asking::{TOKEN, body, brings, counts, endpoint, hangs, post, to, wide_worker, with_token, worker, worker_with};
use channel::{LONG, Whom};
use common::{World, eventually, policy};

#[tokio::test(start_paused = true)]
async fn handlers_answer_whatever_they_do_and_in_time() {
    let world = World::new();
    let one = world.factory("one").create("workers").unwrap();
    one.on_request("cache/size", |_| async { "7" }).unwrap();
    one.on_request("double", |request: Request| async move {
        let number: i64 = request.json()?;
        Ok::<_, Answer>(json!({"doubled": 2 * number, "query": request.query}))
    })
    .unwrap();
    one.on_request("panic", |_| async { if true { panic!("a mistake in the user's code") } else { "never" } }).unwrap();
    one.on_request("hang", |_| std::future::pending::<String>()).unwrap();
    one.on_request("moved", |_| async { Answer::text("x").with_status(301) }).unwrap();
    one.on_request("large", |_| async { Answer::bytes("x/y", vec![0; BODY_BYTES_MAX + 1]) }).unwrap();

    let size = one.answer(Request::get("cache/size")).await.unwrap();
    assert_eq!((size.status, size.body.as_slice()), (200, &b"7"[..]));
    let mut asked = Request::post("double", "application/json", "21");
    asked.query = Some("a=b".into());
    assert_eq!(body(&one.answer(asked).await.unwrap()), json!({"doubled": 42, "query": "a=b"}));
    for (path, status) in [("double", 400), ("panic", 500), ("moved", 500), ("large", 500), ("nothing", 404)] {
        let answer = one.answer(Request::get(path)).await.unwrap();
        assert!(answer.status == status && body(&answer)["status"] == status, "{path}: {answer:?}");
    }
    assert!(body(&one.answer(Request::get("nothing")).await.unwrap())["detail"].as_str().unwrap().contains("cache/size"));
    let begun = Instant::now();
    assert_eq!(one.answer(Request::get("hang")).await.unwrap().status, 504);
    assert_eq!(begun.elapsed(), WITHIN_DEFAULT);
    for path in ["", "a//b", "../x", "a b"] {
        assert_eq!(one.on_request(path, |_| async { "x" }).unwrap_err().kind(), ErrorKind::Settings, "{path:?}");
    }
}

#[tokio::test]
async fn every_member_has_a_status() {
    let world = World::new();
    let one = world.factory("one").create("workers").unwrap();
    let status = |service: ShardingService| async move { body(&service.answer(Request::get("status")).await.unwrap()) };
    let before = status(one.clone()).await;
    assert_eq!((&before["state"], &before["view_age_ms"], &before["slots_owned"]), (&json!("created"), &Value::Null, &json!(0)));
    one.register_self().await.unwrap();
    let after = status(one.clone()).await;
    assert_eq!((&after["state"], &after["instance_id"], &after["members"]), (&json!("active"), &json!("one"), &json!(1)));
    assert_eq!(after["view_fingerprint"], one.members().fingerprint().to_string());
    assert_eq!(after["incarnation"], one.incarnation().to_string());
    assert!(before["renewed_ms_ago"].is_null() && after["renewed_ms_ago"].as_u64().unwrap() < 60_000, "{after}");
    assert!(after["slots_owned"] == 16_384 && after["view_age_ms"].as_u64().unwrap() < 60_000, "{after}");
    one.on_request("status", |_| async { "mine" }).unwrap();
    assert_eq!(one.answer(Request::get("status")).await.unwrap().body, b"mine", "its own goes first");
    let reserved = body(&one.answer(Request::get("shardwise/status")).await.unwrap());
    assert_eq!(reserved["view_fingerprint"], after["view_fingerprint"], "and there it does not");
    for path in ["shardwise/status", "shardwise", "shardwise/mine"] {
        let refused = one.on_request(path, |_| async { "mine" }).unwrap_err();
        assert!(refused.to_string().contains("shardwise itself"), "{refused}");
    }
}

#[tokio::test]
async fn a_listening_worker_is_found_by_its_record_and_answers_its_members_alone() {
    let world = World::new();
    let (one, two) = (worker(&world, "one/é", Some(TOKEN)), worker(&world, "two", Some(TOKEN)));
    one.on_request("echo", |request: Request| async move { Answer::bytes("text/x", request.body) }).unwrap();
    let at = one.listen_for_requests().await.unwrap();
    assert_eq!(one.listen_for_requests().await.unwrap(), at, "it listens once");
    one.register_self().await.unwrap();
    two.register_self().await.unwrap();
    let shown = || two.members().member(&InstanceId::new("one/é").unwrap())?.metadata.get(ADDRESS_KEY).cloned();
    eventually("the other one sees where", || shown() == Some(format!("tcp://{at}"))).await;
    let there = endpoint(&one, at);

    let status = brings(&two, &there, &Request::get("status")).await.unwrap();
    assert!(status.status == 200 && body(&status)["state"] == "active", "{status:?}");
    let echo = brings(&two, &there, &Request::post("echo", "text/plain", "hello")).await.unwrap();
    assert_eq!((echo.status, echo.content_type.as_str(), echo.body.as_slice()), (200, "text/x", &b"hello"[..]));
    let nothing = brings(&two, &there, &Request::get("nothing")).await.unwrap();
    assert!(nothing.status == 404 && nothing.content_type == "application/problem+json", "a handler's 404 is an answer: {nothing:?}");
    for (request, why) in [
        (Request::get("a/../status"), "its path is none"),
        (Request::get("%2e%2e"), "its path is none"),
        (Request::get(""), "its path is none"),
        (Request::post("echo", "text/plain", vec![0; BODY_BYTES_MAX + 1]), "a body has at most 1048576 bytes"),
    ] {
        match brings(&two, &there, &request).await {
            Err(Undelivered::Barred(told)) => assert!(told.contains(why), "{told}"),
            other => panic!("{}: {other:?}", request.path),
        }
    }
    let longest = brings(&two, &there, &Request::post("echo", "text/plain", vec![7; BODY_BYTES_MAX])).await.unwrap();
    assert!(longest.body == vec![7; BODY_BYTES_MAX], "{} bytes", longest.body.len());

    let elsewhere = [("group", json!("gruppe")), ("instance_id", json!("two")), ("incarnation", json!("0000000000000001"))];
    for (key, value) in elsewhere {
        let mut hello = Whom::of(&one).hello();
        hello[key] = value;
        assert_eq!(answer_to(at, &hello).await, json!("somebody_else"), "another {key}");
    }
    drop(one);
    eventually("with its service the listener ends, although members are connected", || std::net::TcpStream::connect(at).is_err()).await;
}

/// What a member says to that frame, before it closes the connection.
async fn answer_to(at: SocketAddr, hello: &Value) -> Value {
    use tokio::io::AsyncWriteExt as _;
    let mut stream = channel::connect(&at.to_string()).await;
    stream.write_all(&channel::frame(hello)).await.unwrap();
    let answer = channel::receive(&mut stream).await.unwrap();
    assert!(channel::rest(&mut stream).await.is_empty());
    answer
}

/// Without a token any program of this machine may ask, so nothing is done for it, and what is sent has no body.
#[tokio::test]
async fn without_a_token_a_member_is_read_and_nothing_else() {
    let world = World::new();
    let (one, two) = (worker(&world, "one", None), worker(&world, "two", None));
    let done = counts(&one, "act");
    let at = one.listen_for_requests().await.unwrap();
    let there = endpoint(&one, at);
    assert_eq!(brings(&two, &there, &Request::get("act")).await.unwrap().body, b"done");
    match brings(&two, &there, &post("act")).await {
        Err(Undelivered::Barred(why)) => assert!(why.contains("set peer_token_file for all members"), "{why}"),
        other => panic!("{other:?}"),
    }
    // The caller does not send it. A program that does is refused.
    let opened = channel::open(&at.to_string(), &Whom::of(&one), None).await.unwrap();
    let client = http2::client(opened.plain(channel::Side::Caller)).await;
    let refused = http2::ask(&client, ("POST", "act"), &[("shardwise-to", "instance")], "x").await.unwrap();
    assert!(refused.status == 403 && refused.is_refusal() && refused.body.contains("peer_token_file"), "{refused:?}");
    assert_eq!(done.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn it_listens_on_this_machine_alone_unless_members_prove_themselves() {
    let world = World::new();
    let mut settings = PolicySettings::new(policy());
    settings.discovery.backend = "test".into();
    settings.peers.listen = "0.0.0.0:0".parse().unwrap();
    let builder = ShardingFactory::builder().policy(settings).backend("test", Arc::new(world.store.link()));
    let error = builder.build().unwrap().create("workers").unwrap_err().to_string();
    assert!(error.contains("peer_listen is 0.0.0.0:0") && error.contains("peer_token_file"), "{error}");
}

/// A process that does that with every connection, and its address.
async fn process<F>(each: impl Fn(TcpStream) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(each(stream));
        }
    });
    at
}

/// The network before a member: what has connected, and a cut that ends all connections and every later one.
#[derive(Clone, Default)]
struct Network {
    connected: Arc<AtomicUsize>,
    cut: CancellationToken,
}

impl Network {
    /// Leads to that address.
    async fn before(&self, member: SocketAddr) -> SocketAddr {
        let network = self.clone();
        process(move |mut stream| {
            let network = network.clone();
            async move {
                network.connected.fetch_add(1, Ordering::Relaxed);
                let mut there = TcpStream::connect(member).await.unwrap();
                let passing = tokio::io::copy_bidirectional(&mut stream, &mut there);
                let _ = network.cut.run_until_cancelled(passing).await;
            }
        })
        .await
    }
}

/// Connections are shared and kept: a hundred requests at a time need one.
#[tokio::test]
async fn many_requests_share_one_connection() {
    let world = World::new();
    let (one, two) = (worker(&world, "one", Some(TOKEN)), worker(&world, "two", Some(TOKEN)));
    one.on_request("number", |request: Request| async move { Answer::bytes("text/plain", request.body) }).unwrap();
    let network = Network::default();
    let there = endpoint(&one, network.before(one.listen_for_requests().await.unwrap()).await);
    let all = (0..100_u32).map(|number| {
        let (two, there) = (&two, &there);
        async move {
            let request = Request::post("number", "text/plain", number.to_string());
            // At most 64 are in flight: the others wait for one of them.
            (number, brings(two, there, &request).await)
        }
    });
    for (number, answer) in futures::future::join_all(all).await {
        assert_eq!(answer.unwrap().body, number.to_string().as_bytes());
    }
    assert_eq!(network.connected.load(Ordering::Relaxed), 1);
}
