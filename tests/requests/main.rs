//! Requests to one member, and the listener where they arrive: with real sockets, over the memory backend.

#![expect(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "tests report by panicking")]

mod addressees;
mod attacks;
mod busy;
#[path = "../common/mod.rs"]
#[expect(dead_code, reason = "each test file uses its part")]
mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use shardwise::proof::{Nonce, digest};
use shardwise::requests::proven::{AnswerParts, CallerEnd, RequestParts};
use shardwise::requests::{ADDRESS_KEY, ANSWER_WITHIN, Addressee, Answer, BODY_BYTES_MAX, Method, Request};
use shardwise::settings::PolicySettings;
use shardwise::{ErrorKind, InstanceId, ShardingFactory, ShardingService, Timing};

use common::{World, eventually, policy};

const TOKEN: &str = "correct-horse-battery-staple";

fn body(answer: &Answer) -> Value {
    serde_json::from_slice(&answer.body).unwrap_or_else(|error| panic!("no JSON ({error}): {answer:?}"))
}

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

    let get = || Request::new(Method::Get);
    let size = one.answer("cache/size", get()).await;
    assert_eq!((size.status, size.body.as_slice()), (200, &b"7"[..]));
    let mut asked = Request::new(Method::Post);
    (asked.body, asked.query) = (b"21".to_vec(), Some("a=b".into()));
    assert_eq!(body(&one.answer("double", asked).await), json!({"doubled": 42, "query": "a=b"}));
    for (path, status) in [("double", 400), ("panic", 500), ("moved", 500), ("large", 500), ("nothing", 404)] {
        let answer = one.answer(path, get()).await;
        assert!(answer.status == status && body(&answer)["status"] == status, "{path}: {answer:?}");
    }
    assert!(body(&one.answer("nothing", get()).await)["detail"].as_str().unwrap().contains("cache/size"));
    let begun = tokio::time::Instant::now();
    assert_eq!(one.answer("hang", get()).await.status, 504);
    assert_eq!(begun.elapsed(), ANSWER_WITHIN);
    for path in ["", "a//b", "../x", "a b"] {
        assert_eq!(one.on_request(path, |_| async { "x" }).unwrap_err().kind(), ErrorKind::Settings, "{path:?}");
    }
    let handles = |path: &str| one.handles(Addressee::Instance, path);
    assert!(handles("hang") && handles("shardwise/status") && !handles("nothing") && !handles("status"));
}

#[tokio::test]
async fn every_member_has_a_status() {
    let world = World::new();
    let one = world.factory("one").create("workers").unwrap();
    let status = |service: ShardingService| async move { body(&service.answer("status", Request::new(Method::Get)).await) };
    let before = status(one.clone()).await;
    assert_eq!((&before["state"], &before["view_age_ms"], &before["slots_owned"]), (&json!("created"), &Value::Null, &json!(0)));
    one.register_self().await.unwrap();
    let after = status(one.clone()).await;
    assert_eq!((&after["state"], &after["instance_id"], &after["members"]), (&json!("active"), &json!("one"), &json!(1)));
    assert_eq!(after["view_fingerprint"], one.members().fingerprint().to_string());
    assert!(before["renewed_ms_ago"].is_null() && after["renewed_ms_ago"].as_u64().unwrap() < 60_000, "{after}");
    assert!(after["slots_owned"] == 16_384 && after["view_age_ms"].as_u64().unwrap() < 60_000, "{after}");
    one.on_request("status", |_| async { "mine" }).unwrap();
    assert_eq!(one.answer("status", Request::new(Method::Get)).await.body, b"mine", "its own goes first");
    let reserved = body(&one.answer("shardwise/status", Request::new(Method::Get)).await);
    assert_eq!(reserved["view_fingerprint"], after["view_fingerprint"], "and there it does not");
    for path in ["shardwise/status", "shardwise", "shardwise/mine"] {
        let refused = one.on_request(path, |_| async { "mine" }).unwrap_err();
        assert!(refused.to_string().contains("shardwise itself"), "{refused}");
    }
}

/// A worker with a token or without one.
fn worker(world: &World, id: &str, token: Option<&str>) -> ShardingService {
    let mut settings = PolicySettings::new(policy());
    settings.discovery.backend = "test".into();
    settings.timing = Timing::new(world.ttl, None, Duration::from_millis(100)).unwrap();
    settings.peers.token = token.map(|token| token.to_owned().into());
    let builder = ShardingFactory::builder().policy(settings).backend("test", Arc::new(world.store.link())).clock(world.clock.clone());
    builder.instance_id(InstanceId::new(id).unwrap()).build().unwrap().create("workers").unwrap()
}

/// The status, and all that came back.
async fn raw(to: SocketAddr, request: Vec<u8>) -> (u16, String) {
    let exchange = move || {
        let mut stream = TcpStream::connect(to).unwrap();
        let text = exchanged(&mut stream, &request);
        (status(&text), text)
    };
    tokio::task::spawn_blocking(exchange).await.unwrap()
}

fn exchanged(stream: &mut TcpStream, request: &[u8]) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(50))).unwrap();
    // A refusal may come before the last byte is sent.
    let _ = stream.write_all(request);
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn status(text: &str) -> u16 {
    text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("no answer: {text:?}"))
}

fn header<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.split_once(": ").filter(|(found, _)| found.eq_ignore_ascii_case(name))).map(|(_, value)| value.trim())
}

fn head(method: &str, path: &str, headers: &str) -> Vec<u8> {
    format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n").into_bytes()
}

const PEER: &str = "shardwise-peer: 1\r\n";

/// A connection on which `whom` was greeted, what it has answered, and, if that
/// proves that it is `whom` and knows the token, the caller's end.
fn greeted(at: SocketAddr, whom: &ShardingService, token: &str) -> (TcpStream, String, Option<CallerEnd>) {
    let (mut stream, nonce) = (TcpStream::connect(at).unwrap(), Nonce::random());
    stream.write_all(&head("GET", &whom.requests_path(), &format!("{PEER}shardwise-nonce: {nonce}\r\n"))).unwrap();
    let mut bytes = Vec::new();
    // Up to the end of the head, and no further: what follows is the next answer.
    while !bytes.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte).unwrap() == 0 {
            break;
        }
        bytes.push(byte[0]);
    }
    let text = String::from_utf8(bytes).unwrap();
    let [own, proof] = ["shardwise-nonce", "shardwise-proof"].map(|name| header(&text, name).unwrap_or_default().to_owned());
    let asking = CallerEnd::begun(token.as_bytes(), &whom.recipient(), &nonce, &own, &proof);
    (stream, text, asking)
}

/// A request with its proof, the next one of that connection. It names no addressee, as those of older versions.
fn proven(asking: &mut CallerEnd, method: &str, target: &str, body: &str) -> String {
    proven_to(asking, method, target, body, None)
}

/// The same with that addressee in its header.
fn proven_to(asking: &mut CallerEnd, method: &str, target: &str, body: &str, to: Option<&str>) -> String {
    let digest = digest(body.as_bytes());
    let asked = RequestParts { method, target, content_type: None, traceparent: None, digest: &digest, to: to.map(str::as_bytes) };
    let proof = asking.proof(&asked);
    let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    let to = to.map(|to| format!("shardwise-to: {to}\r\n")).unwrap_or_default();
    let headers = format!("{PEER}{length}{to}shardwise-digest: {digest}\r\nshardwise-proof: {proof}\r\n");
    String::from_utf8(head(method, target, &headers)).unwrap() + body
}

/// The status and all that comes back to a member, whose proof is judged.
async fn asks(at: SocketAddr, whom: &ShardingService, method: &'static str, rest: &str, body: &str) -> (u16, String) {
    let (whom, target, body) = (whom.clone(), format!("{}{rest}", whom.requests_path()), body.to_owned());
    let exchange = move || {
        let (mut stream, _, asking) = greeted(at, &whom, TOKEN);
        let mut asking = asking.expect("it proves that it is the one that was called");
        let request = proven(&mut asking, method, &target, &body);
        let text = exchanged(&mut stream, request.as_bytes());
        let (by, body) = (header(&text, "shardwise-peer").unwrap(), text.split_once("\r\n\r\n").unwrap().1);
        let content_type = header(&text, "content-type").map(str::as_bytes);
        let answered = AnswerParts { by, status: status(&text), content_type, body: body.as_bytes() };
        assert!(asking.is_answer(header(&text, "shardwise-proof"), &answered), "not proven: {text}");
        (status(&text), text)
    };
    tokio::task::spawn_blocking(exchange).await.unwrap()
}

#[tokio::test]
async fn a_listening_worker_is_found_by_its_record_and_answers_its_members_alone() {
    let world = World::new();
    let (one, other) = (worker(&world, "one/é", Some(TOKEN)), worker(&world, "other", None));
    one.on_request("echo", |request: Request| async move { Answer::bytes("text/x", request.body) }).unwrap();
    let at = one.listen_for_requests().await.unwrap();
    assert_eq!(one.listen_for_requests().await.unwrap(), at, "it listens once");
    one.register_self().await.unwrap();
    other.register_self().await.unwrap();
    let shown = || other.members().member(&InstanceId::new("one/é").unwrap())?.metadata.get(ADDRESS_KEY).cloned();
    eventually("the other one sees where", || shown() == Some(format!("http://{at}"))).await;

    let (status, text) = asks(at, &one, "GET", "status", "").await;
    assert!(status == 200 && text.contains("\"state\":\"active\""), "{text}");
    let (status, text) = asks(at, &one, "POST", "echo", "hello").await;
    assert!(status == 200 && text.ends_with("\r\n\r\nhello") && text.contains("content-type: text/x"), "{text}");
    for (method, rest, body, wanted) in [
        ("GET", "nothing", String::new(), 404),
        ("GET", "a/../status", String::new(), 400),
        ("GET", "%2e%2e", String::new(), 400),
        ("GET", "", String::new(), 400),
        ("POST", "echo", "x".repeat(BODY_BYTES_MAX + 1), 413),
    ] {
        let (found, text) = asks(at, &one, method, rest, &body).await;
        assert_eq!(found, wanted, "{rest}: {text}");
        assert!(text.contains("shardwise-peer: refused") == (rest != "nothing") && text.contains("urn:shardwise:problem:"), "{text}");
    }

    let path = |rest: &str| format!("{}{rest}", one.requests_path());
    let elsewhere = one.requests_path().replace("group", "gruppe");
    let nonce = format!("{PEER}shardwise-nonce: {}\r\n", Nonce::random());
    for (request, status) in [
        (head("GET", &path("status"), PEER), 401),
        (head("GET", &path("status"), &format!("{PEER}shardwise-proof: {}\r\n", Nonce::random())), 401),
        (head("GET", &path(""), &format!("{PEER}shardwise-nonce: x\r\nConnection: close\r\n")), 401),
        // A foreign web page cannot send that header without a preflight request.
        (head("GET", &path("status"), ""), 403),
        (head("GET", &format!("{elsewhere}status"), PEER), 421),
        (head("GET", &elsewhere, &nonce), 421),
        (head("GET", &other.requests_path(), &nonce), 421),
        (head("GET", "/", PEER), 421),
        (head("DELETE", &path("status"), PEER), 405),
    ] {
        let (found, text) = raw(at, request.clone()).await;
        assert_eq!(found, status, "{}: {text}", String::from_utf8_lossy(&request[..request.len().min(300)]));
        let has_token = text.contains(TOKEN);
        assert!(!has_token && text.contains("urn:shardwise:problem:") && header(&text, "shardwise-proof").is_none(), "{text}");
    }

    let at = other.listen_for_requests().await.unwrap();
    let path = format!("{}status", other.requests_path());
    assert_eq!(raw(at, head("GET", &path, PEER)).await.0, 200, "without a token it may be read");
    assert_eq!(raw(at, head("POST", &path, &format!("{PEER}Content-Length: 0\r\n"))).await.0, 403, "and nothing else");
    let (found, text) = raw(at, head("GET", &other.requests_path(), &nonce)).await;
    assert!(found == 403 && header(&text, "shardwise-proof") == Some("none"), "it says that it cannot prove itself: {text}");
    drop(other);
    eventually("with its service the listener ends", || TcpStream::connect(at).is_err()).await;
}

#[tokio::test]
async fn it_listens_on_this_machine_alone() {
    let world = World::new();
    let mut settings = PolicySettings::new(policy());
    settings.discovery.backend = "test".into();
    settings.peers.listen = "0.0.0.0:0".parse().unwrap();
    let builder = ShardingFactory::builder().policy(settings).backend("test", Arc::new(world.store.link()));
    let error = builder.build().unwrap().create("workers").unwrap_err().to_string();
    assert!(error.contains("peer_listen is 0.0.0.0:0") && error.contains("TLS"), "{error}");
}
