//! Requests to the owner of a key, the holder of a name and the member of a session, which go on until a member has taken them; and how their
//! clients limit and cancel them.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;
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
const TOKENED: [&str; 4] = ["--token-file", "token", "--peer-token-file", "peers"];

fn start(place: &Place, worker: SocketAddr) -> Served {
    let forward = format!("http://{worker}/hooks");
    Served::start(place, &[&TOKENED[..], &["--forward-to", &forward]].concat())
}

fn exclusive_peers() -> Place {
    let place = exclusive("");
    place.write("peers", format!("{PEER_TOKEN}\n"));
    place
}

/// Sends a request with that token and these headers.
fn sends(served: &Served, token: &str, (method, rest): (&str, &str), headers: &str, body: &str) -> Answer {
    let head = format!(
        "{method} {} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
         Connection: close\r\n{headers}\r\n",
        Served::path(rest),
        served.at,
        body.len()
    );
    http::raw(served.at, [head.as_bytes(), body.as_bytes()].concat().as_slice())
}

fn asks(served: &Served, method: &str, rest: &str, headers: &str) -> Answer {
    sends(served, TOKEN, (method, rest), headers, if method == "POST" { "hello" } else { "" })
}

/// Waits until it sees so many members and owns something.
fn settles(served: &Served, members: usize) {
    eventually("the group has settled", PATIENCE, || {
        let own = asks(served, "GET", "ownership", "").well("ownership");
        (own["members"] == members && own["slots_owned"].as_u64().unwrap() > 0).then_some(())
    });
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

#[test]
fn an_operator_spreads_a_key_and_moves_it_and_callers_see_it() {
    let place = Place::of_workers("2s", "slots = 256\nmax_width = 2");
    place.write("token", format!("{TOKEN}\n"));
    place.write("peers", format!("{PEER_TOKEN}\n"));
    let (one, other) = (Served::start(&place, &TOKENED), Served::start(&place, &TOKENED));
    settles(&one, 2);
    let route = || asks(&one, "GET", "route?key=a%2F1", "").well("route");
    let alone = eventually("it has an owner", PATIENCE, || Some(route()).filter(|route| route["set"].as_array().unwrap().len() == 1));
    assert_eq!((&alone["why"], &alone["epoch"], &alone["pick"]), (&json!("placement"), &json!(null), &alone["set"][0]), "{alone}");
    let puts = |served: &Served, body: &str| sends(served, TOKEN, ("PUT", "routes/a%2F1"), "", body);
    let stores = |served: &Served, body: &str| {
        let head = format!("Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
        let line = format!("PUT {} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\n", Served::path("routes/a%2F1"), served.at);
        http::raw(served.at, (line + &head).as_bytes())
    };
    puts(&one, "{\"width\":2}").refuses(415, "text");
    let stored = stores(&other, "{\"width\":2}").well("stored");
    assert_eq!((&stored["key"], &stored["key_hash"], &stored["changed"]), (&json!("a/1"), &alone["key_hash"], &json!(true)), "{stored}");
    assert_eq!(stores(&other, "{\"width\":2}").well("again")["changed"], false);
    let spread = eventually("it is spread", PATIENCE, || Some(route()).filter(|route| route["set"].as_array().unwrap().len() == 2));
    assert_eq!((&spread["why"], &spread["set"][0]), (&json!("operator"), &alone["pick"]), "{spread}");
    let owner = alone["pick"].as_str().unwrap().to_owned();
    assert_eq!(stores(&one, &json!({"width": 1, "skip": [owner]}).to_string()).well("moved")["changed"], true);
    eventually("it is moved", PATIENCE, || (route()["set"] == json!([spread["set"][1]])).then_some(()));
    let listed = asks(&one, "GET", "routes", "").well("routes");
    assert_eq!(listed, json!({"routes": [{"key_hash": alone["key_hash"], "width": 1, "skip": [owner]}]}));
    assert_eq!(asks(&one, "DELETE", "routes/a%2F1", "").well("cleared")["changed"], true);
    assert_eq!(asks(&one, "DELETE", "routes/a%2F1", "").well("again")["changed"], false);
    eventually("it is its owner's again", PATIENCE, || (route()["set"] == json!([owner])).then_some(()));

    for (body, status) in [
        ("{\"width\":0}", 422),
        ("{\"width\":5}", 422),
        ("{\"width\":3}", 409),
        ("{\"width\":-1}", 400),
        ("{}", 400),
        ("{\"width\":2,\"skip\":[\"\"]}", 404),
    ] {
        stores(&one, body).refuses(status, body);
    }
    asks(&one, "GET", "route", "").refuses(400, "no key");
    asks(&one, "GET", "route?key=%ff", "").refuses(400, "no UTF-8");
    let elsewhere = exclusive_peers();
    let held = Served::start(&elsewhere, &TOKENED);
    stores(&held, "{\"width\":2}").refuses(409, "exclusive ownership");
    asks(&held, "GET", "routes", "").refuses(409, "exclusive ownership");
}

#[test]
fn a_callers_token_admits_to_requests_alone() {
    let place = place_of_peers();
    let caller = "callers-show-this-one-here";
    place.write("caller", format!("{caller}\n"));
    let one = Served::start(&place, &[&TOKENED[..], &["--caller-token-file", "caller"]].concat());
    settles(&one, 1);
    for rest in ["any/status", &format!("instances/{}/status", one.id), "keys/a/status", "keys//status", "route?key=a"] {
        assert_eq!(sends(&one, caller, ("GET", rest), "", "").status, 200, "{rest}");
        sends(&one, "nobody-knows-this-one", ("GET", rest), "", "").refuses(401, rest);
    }
    assert_eq!(sends(&one, caller, ("POST", "keys/a/status"), "", "hello").status, 200);
    sends(&one, caller, ("DELETE", "requests/a"), "", "").refuses(404, "it may cancel, and nothing is in flight");
    for (method, rest) in [
        ("GET", "members"),
        ("GET", "owner/a"),
        ("GET", "routes"),
        ("PUT", "routes/a"),
        ("DELETE", "routes/a"),
        ("POST", "drain"),
        ("POST", "owned"),
        ("POST", "leases"),
        ("PUT", "names"),
    ] {
        sends(&one, caller, (method, rest), "", "").refuses(403, rest);
    }
    let without = Served::start(&place, &["--caller-token-file", "caller"]);
    without.get("any/status").refuses(401, "where it is set, it is needed");
    assert_eq!(without.get("members").status, 200, "and elsewhere it is not");
    sends(&without, caller, ("POST", "drain"), "", "{}").refuses(403, "no operator has a token");
    let same = ["serve", "--listen", "127.0.0.1:0", "--policy", "workers", "--token-file", "token", "--caller-token-file", "token"];
    place.run(&same).fails(2, &["--caller-token-file"]);
}

#[test]
fn a_request_is_cancelled_by_its_id_and_its_worker_sees_that() {
    let place = place_of_peers();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let (arrived, heard) = mpsc::channel();
    // It reads, never answers, and says when its caller has gone.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, arrived) = (stream.unwrap(), arrived.clone());
            std::thread::spawn(move || {
                let mut piece = [0; 1024];
                while stream.read(&mut piece).is_ok_and(|read| read > 0) {
                    let _ = arrived.send("asked");
                }
                let _ = arrived.send("gone");
            });
        }
    });
    let one = start(&place, at);
    settles(&one, 1);
    for rest in ["keys/a/slow".to_owned(), "any/slow".to_owned(), format!("instances/{}/slow", one.id)] {
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| asks(&one, "POST", &rest, "shardwise-within-ms: 300000\r\nshardwise-request-id: mine-7\r\n"));
            assert_eq!(heard.recv_timeout(PATIENCE).unwrap(), "asked");
            asks(&one, "GET", "any/x", "shardwise-request-id: mine-7\r\n").refuses(409, "one request has one id");
            asks(&one, "DELETE", "requests/other", "").refuses(404, "another id");
            assert_eq!(asks(&one, "DELETE", "requests/mine-7", "").status, 204, "{rest}");
            let refusal = asking.join().unwrap().refuses(502, &rest);
            assert_eq!(refusal["type"], "urn:shardwise:problem:cancelled");
        });
        // The head and the body may come apart.
        eventually("the worker sees it", PATIENCE, || (heard.recv_timeout(PATIENCE).unwrap() == "gone").then_some(()));
        asks(&one, "DELETE", "requests/mine-7", "").refuses(404, "it has ended");
    }
    let late = asks(&one, "POST", "keys/a/slow", "shardwise-within-ms: 200\r\n").refuses(504, "its time is over");
    assert!(late["detail"].as_str().unwrap().len() > 10, "{late}");
}

#[test]
fn what_is_wrong_with_a_request_is_refused_in_words() {
    let place = place_of_peers();
    let one = Served::start(&place, &TOKENED);
    settles(&one, 1);
    for rest in ["keys/a/status".to_owned(), "any/status".to_owned(), format!("instances/{}/status", one.id)] {
        for within in ["0", "300001", "-1", "10s", "1.5"] {
            let refusal = asks(&one, "GET", &rest, &format!("shardwise-within-ms: {within}\r\n")).refuses(400, within);
            assert!(refusal["detail"].as_str().unwrap().contains("from 1 to 300000"), "{refusal}");
        }
        asks(&one, "GET", &rest, &format!("Idempotency-Key: {}\r\n", "k".repeat(257))).refuses(400, "a long key");
        asks(&one, "GET", &rest, "shardwise-request-id: a b\r\n").refuses(400, "a blank in the id");
        let large = "x".repeat((1 << 20) + 1);
        sends(&one, TOKEN, ("POST", rest.as_str()), "", &large).refuses(413, "a large body");
        assert_eq!(asks(&one, "GET", &rest, "shardwise-within-ms: 300000\r\n").status, 200);
    }
    for path in ["", "/", "..", "a/..", "a//b", "%2e%2e", "a%2fb"] {
        let answer = asks(&one, "GET", &format!("keys/a/{path}"), "");
        assert!(matches!(answer.status, 400 | 404), "{path}: {answer:?}");
    }
    asks(&one, "GET", "keys/%ff/status", "").refuses(400, "no UTF-8");
    assert_eq!(asks(&one, "GET", &format!("keys/{}/status", "k".repeat(65_536)), "").status, 414, "no path is that long");
    asks(&one, "PUT", "keys/a/status", "").refuses(405, "PUT");
    let page = format!("Origin: http://{}\r\nSec-Fetch-Site: none\r\n", one.at);
    asks(&one, "GET", "keys/a/status", &page).refuses(403, "a link in a page");
}
