//! Requests to the owner of a key, the holder of a name and the member of a session, which go on until a member has taken them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;
use shardwise::requests::{SessionId, SessionLimits, SessionRequest, encoded};
use shardwise::{GroupName, Incarnation, InstanceId};
use tokio::runtime::Runtime;

use crate::channel::{self, Side, Whom};
use crate::common::lease::Lease;
use crate::common::{PATIENCE, Place, eventually};
use crate::http::Answer;
use crate::leases::exclusive;
use crate::peers::{PEER_TOKEN, answering, by, name, place_of_peers, service, status_of};
use crate::{Served, TOKEN, http, http2};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nok";
pub(crate) const TOKENED: [&str; 4] = ["--token-file", "token", "--peer-token-file", "peers"];

pub(crate) fn start(place: &Place, worker: SocketAddr) -> Served {
    let forward = format!("http://{worker}/hooks");
    Served::start(place, &[&TOKENED[..], &["--forward-to", &forward]].concat())
}

pub(crate) fn exclusive_peers() -> Place {
    let place = exclusive("");
    place.write("peers", format!("{PEER_TOKEN}\n"));
    place
}

/// Sends a request with that token and these headers.
pub(crate) fn sends(served: &Served, token: &str, request: (&str, &str), headers: &str, body: &str) -> Answer {
    sends_to(served.at, token, request, headers, body)
}

/// The same from a thread of its own.
pub(crate) fn sends_to(at: SocketAddr, token: &str, (method, rest): (&str, &str), headers: &str, body: &str) -> Answer {
    let head = format!(
        "{method} {} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
         Connection: close\r\n{headers}\r\n",
        Served::path(rest),
        at,
        body.len()
    );
    http::raw(at, [head.as_bytes(), body.as_bytes()].concat().as_slice())
}

pub(crate) fn asks(served: &Served, method: &str, rest: &str, headers: &str) -> Answer {
    sends(served, TOKEN, (method, rest), headers, if method == "POST" { "hello" } else { "" })
}

/// The value of a header of a request that a worker has heard.
fn header<'a>(request: &'a str, name: &str) -> Option<&'a str> {
    request.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

#[test]
fn a_request_to_a_key_reaches_its_owners_worker_under_the_fence_and_goes_on_when_the_owner_is_killed() {
    let place = exclusive_peers();
    let ((first, to_first), (second, to_second)) = (answering(OK), answering(OK));
    let (one, mut other) = (start(&place, first), start(&place, second));
    let leases = [one.at, other.at].map(|at| Lease::kept_with(at, 10_000, TOKEN));
    eventually("each holds its share", PATIENCE, || {
        let [some, others] = leases.each_ref().map(|lease| lease.slots().0.len());
        (some > 0 && others > 0 && some + others == crate::leases::SLOTS).then_some(())
    });
    let (mut owners, mut of_other) = (BTreeSet::new(), None);
    for number in 0..20 {
        let key = format!("tenant/{number}");
        let (asking, path) = (if number % 2 == 0 { &one } else { &other }, format!("keys/{}/rooms/say?a=%2f", encoded(&key)));
        let answer = asks(asking, "POST", &path, "shardwise-within-ms: 60000\r\nX-Api-Key: of-the-caller\r\n");
        assert_eq!((answer.status, answer.body.as_slice()), (200, &b"ok"[..]), "{answer:?}");
        let owner = by(&answer).to_owned();
        let (heard, lease) = if owner == name(&one) { (&to_first, &leases[0]) } else { (&to_second, &leases[1]) };
        let request = heard.recv_timeout(PATIENCE).unwrap();
        assert!(request.starts_with("POST /hooks/rooms/say?a=%2f HTTP/1.1\r\n") && request.ends_with("\r\n\r\nhello"), "{request}");
        assert!(!request.contains("of-the-caller"), "{request}");
        assert_eq!((header(&request, "shardwise-to"), header(&request, "shardwise-key")), (Some("owner"), Some(encoded(&key).as_str())));
        let number_of = |name: &str| header(&request, name).and_then(|text| text.parse::<u64>().ok()).unwrap_or_default();
        let fence = (number_of("shardwise-slot"), number_of("shardwise-epoch"));
        assert!(lease.slots().0.contains(&fence), "{fence:?} is not granted to {owner}");
        // Another member's claim is seen here a moment later.
        let route = eventually("the route has the claim", PATIENCE, || {
            let route = asks(&one, "GET", &format!("route?key={}", encoded(&key)), "");
            (route.status == 200).then(|| route.json()).filter(|route| route["epoch"] == fence.1)
        });
        assert_eq!((&route["why"], &route["set"]), (&json!("claim"), &json!([route["pick"]])), "{route}");
        assert_eq!(encoded(route["pick"].as_str().unwrap()).to_lowercase(), owner, "{route}");
        if owner == name(&other) {
            of_other = Some(path);
        }
        owners.insert(owner);
    }
    assert_eq!(owners.len(), 2, "each of the two owns some of these keys");

    let path = of_other.unwrap();
    other.process.signal(Signal::SIGKILL);
    other.process.ends("after SIGKILL");
    let answer = asks(&one, "POST", &path, "shardwise-within-ms: 120000\r\nIdempotency-Key: message-7\r\n");
    assert_eq!((answer.status, by(&answer)), (200, name(&one).as_str()), "it waits for the next owner: {answer:?}");
    assert_eq!(header(&to_first.recv_timeout(PATIENCE).unwrap(), "idempotency-key"), Some("message-7"));
}

#[test]
fn a_member_that_does_not_own_a_key_refuses_its_request_instead_of_bringing_it_on() {
    let place = exclusive_peers();
    let (worker, heard) = answering(OK);
    let one = start(&place, worker);
    let status = status_of(&one, &format!("{}/shardwise", one.id)).well("status");
    let incarnation = Incarnation::from_hex(status["incarnation"].as_str().unwrap()).unwrap();
    let whom = Whom { group: GroupName::new("workers").unwrap(), instance_id: InstanceId::new(&*one.id).unwrap(), incarnation };
    let refused = Runtime::new().unwrap().block_on(async {
        let opened = channel::open(&one.at.to_string(), &whom, Some(PEER_TOKEN)).await.unwrap();
        let sender = http2::client(opened.plain(Side::Caller)).await;
        let headers = [("shardwise-to", "owner"), ("shardwise-key-bytes", "1"), ("shardwise-key-kind", "bytes")];
        http2::ask(&sender, ("POST", "x"), &headers, "k").await.unwrap()
    });
    assert!(refused.status == 421 && refused.is_refusal(), "its worker has no lease, so it owns nothing: {refused:?}");
    assert!(heard.try_recv().is_err());
    asks(&one, "POST", "keys/k/x", "shardwise-within-ms: 300\r\n").refuses(503, "no member takes it");
    assert!(heard.try_recv().is_err());
}

#[test]
fn a_request_to_a_name_reaches_the_worker_that_holds_it_and_an_unknown_name_is_404() {
    let place = exclusive_peers();
    let ((first, to_first), (second, to_second)) = (answering(OK), answering(OK));
    let (one, other) = (start(&place, first), start(&place, second));
    let leases = [one.at, other.at].map(|at| Lease::kept_with(at, 10_000, TOKEN));
    for lease in &leases {
        assert_eq!(lease.asks("PUT", "names", Some(&json!({"singletons": ["leader"]}))).0, 200);
    }
    let within = "shardwise-within-ms: 120000\r\n";
    for asking in [&one, &other] {
        let answer = asks(asking, "POST", "names/singleton%2Fleader/orders/next", within);
        assert_eq!((answer.status, answer.body.as_slice()), (200, &b"ok"[..]), "{answer:?}");
        let heard = if by(&answer) == name(&one) { &to_first } else { &to_second };
        let request = heard.recv_timeout(PATIENCE).unwrap();
        assert_eq!((header(&request, "shardwise-to"), header(&request, "shardwise-name")), (Some("holder"), Some("singleton%2Fleader")));
        assert!(header(&request, "shardwise-epoch").is_some_and(|epoch| epoch.parse::<u64>().is_ok()), "{request}");
        assert_eq!(header(&request, "shardwise-slot"), None);
    }
    eventually("both are seen", PATIENCE, || {
        let members = asks(&one, "GET", "members", "");
        (members.status == 200 && members.json()["members"].as_array().unwrap().len() == 2).then_some(())
    });
    for (unknown, within) in [("singleton%2Fnobody", "shardwise-within-ms: 300\r\n"), ("%00", "")] {
        let refusal = asks(&one, "GET", &format!("names/{unknown}/x"), within).refuses(404, unknown);
        let detail = refusal["detail"].as_str().unwrap();
        assert_eq!(refusal["type"], "urn:shardwise:problem:unknown-name");
        assert!([&one.id, &other.id].iter().all(|id| detail.contains(id.as_str())), "the living are named: {refusal}");
    }
    let elsewhere = place_of_peers();
    let eventual = Served::start(&elsewhere, &TOKENED);
    asks(&eventual, "GET", "names/singleton%2Fleader/x", "").refuses(409, "there are no names");
}

#[test]
fn a_request_to_a_session_reaches_the_member_that_opened_it_or_none() {
    let (place, runtime) = (place_of_peers(), Runtime::new().unwrap());
    let (worker, heard) = answering(OK);
    let one = start(&place, worker);
    let opener = service(&runtime, &place, "opener", &format!("peer_token_file = '{}'\n", place.path("peers").display()));
    opener.on_session("work", |asked: SessionRequest| async move { String::from_utf8(asked.request.body).unwrap() }).unwrap();
    runtime.block_on(opener.listen_for_requests()).unwrap();
    runtime.block_on(opener.register_self()).unwrap();
    let limits = SessionLimits { idle: Duration::from_mins(5), life: Duration::from_mins(5), per_key: 1 };
    let session = {
        let _on = runtime.enter();
        opener.open_session("tenant-7", limits).unwrap()
    };
    let path = format!("sessions/{}/work", session.id());
    let answer = asks(&one, "POST", &path, "shardwise-within-ms: 60000\r\n");
    assert_eq!((answer.status, answer.body.as_slice(), by(&answer)), (200, &b"hello"[..], "opener"), "{answer:?}");
    assert!(session.end());
    let ended = asks(&one, "POST", &path, "").refuses(410, "it was closed");
    assert_eq!(ended["type"], "urn:shardwise:problem:session-ended");
    for malformed in ["a", "AQ", &format!("{}A", session.id()), "..", "%00"] {
        let refusal = asks(&one, "GET", &format!("sessions/{malformed}/work"), "").refuses(400, malformed);
        assert_eq!(refusal["type"], "urn:shardwise:problem:bad-session");
    }
    let gone = SessionId::new(Incarnation::new(7), [7; 16]);
    asks(&one, "GET", &format!("sessions/{gone}/work"), "shardwise-within-ms: 60000\r\n").refuses(410, "its member is gone");

    // The worker beside a sidecar keeps its own sessions, under ids of its member.
    let status = status_of(&one, &format!("{}/shardwise", one.id)).well("status");
    let of_worker = SessionId::new(Incarnation::from_hex(status["incarnation"].as_str().unwrap()).unwrap(), [7; 16]);
    assert_eq!(asks(&one, "GET", &format!("sessions/{of_worker}/work"), "").status, 200);
    let request = heard.recv_timeout(PATIENCE).unwrap();
    let seen = (header(&request, "shardwise-to"), header(&request, "shardwise-session").map(str::to_owned));
    assert_eq!(seen, (Some("session"), Some(of_worker.to_string())));
}
