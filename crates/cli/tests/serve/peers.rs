//! Requests to one instance or any instance: the member that receives a request, and the parts that are forwarded.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};

use nix::sys::signal::Signal;
use serde_json::json;
use shardwise::requests::encoded;
use shardwise::{Settings, ShardingFactory, ShardingService};
use tokio::runtime::Runtime;

use crate::common::{PATIENCE, Place, eventually};
use crate::fakes::{Says, fake};
use crate::http::Answer;
use crate::{Served, TOKEN, http, place};

pub(crate) const PEER_TOKEN: &str = "peers-know-this-one-alone";

pub(crate) fn place_of_peers() -> Place {
    let place = place();
    place.write("peers", format!("{PEER_TOKEN}\n"));
    place.write("others", "peers-of-somebody-else-know-this\n");
    place
}

/// Sends a request with the operator's token and with headers of a browser.
pub(crate) fn asks(served: &Served, method: &str, rest: &str, body: &str) -> Answer {
    let head = format!(
        "{method} {} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\nCookie: session=of-the-caller\r\nX-Api-Key: of-the-caller\r\n\
         Proxy-Authorization: Basic of-the-caller\r\nX-Forwarded-For: 1.2.3.4\r\nContent-Type: application/json\r\nTE: trailers\r\n\
         shardwise-to: any\r\nContent-Length: {}\r\nConnection: close, x-api-key\r\n\r\n",
        Served::path(rest),
        served.at,
        body.len()
    );
    http::raw(served.at, [head.as_bytes(), body.as_bytes()].concat().as_slice())
}

pub(crate) fn by(answer: &Answer) -> &str {
    answer.head.lines().find_map(|line| line.strip_prefix("shardwise-instance: ")).unwrap_or_default()
}

/// An id as encoded in that header.
pub(crate) fn name(served: &Served) -> String {
    encoded(&served.id).to_lowercase()
}

pub(crate) fn status_of(served: &Served, id: &str) -> Answer {
    asks(served, "GET", &format!("instances/{id}/status"), "")
}

/// Reads a request of HTTP/1.1 up to the end of its body; `None` at the end of the connection.
pub(crate) fn heard(stream: &mut TcpStream) -> Option<String> {
    let length = |head: &str| -> usize {
        let mut named = head.lines().filter_map(|line| line.split_once(": "));
        named.find(|(name, _)| name.eq_ignore_ascii_case("content-length")).map_or(0, |(_, length)| length.parse().unwrap())
    };
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n")
            && body.len() >= length(head)
        {
            return Some(text);
        }
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(1) => bytes.push(byte[0]),
            _ => return None,
        }
    }
}

/// A worker in this process that answers one request on each connection; passes on what was received.
pub(crate) fn answering(answer: &'static str) -> (SocketAddr, Receiver<String>) {
    answering_in_turn([answer])
}

/// The same with one answer after the other, and then the last one again and again.
pub(crate) fn answering_in_turn<const N: usize>(answers: [&'static str; N]) -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let (arrived, requests) = mpsc::channel();
    std::thread::spawn(move || {
        let mut answered = 0;
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let Some(text) = heard(&mut stream) else { continue };
            let _ = stream.write_all(answers[answered.min(N - 1)].as_bytes());
            answered += 1;
            if arrived.send(text).is_err() {
                return;
            }
        }
    });
    (at, requests)
}

/// A service in this process for the place's group, with additional policy lines.
pub(crate) fn service(runtime: &Runtime, place: &Place, id: &str, lines: &str) -> ShardingService {
    service_at(runtime, place, id, lines, "")
}

/// The same, with additional lines about its address.
pub(crate) fn service_at(runtime: &Runtime, place: &Place, id: &str, lines: &str, instance: &str) -> ShardingService {
    let _on = runtime.enter();
    let text = std::fs::read_to_string(place.path("settings.toml")).unwrap()
        + &format!(
            "{lines}[default.resilience.sharding.instance]\nid = \"{id}\"\n{instance}[default.resilience.sharding.discovery.local]\npath = '{}'\n",
            place.path("shardwise.db").display()
        );
    ShardingFactory::from_settings(Settings::from_toml_str(&text).unwrap()).unwrap().create("workers").unwrap()
}

/// A member of the place's group in this process that publishes that address for requests.
pub(crate) fn member(runtime: &Runtime, place: &Place, id: &str, at: SocketAddr, tls: bool) -> ShardingService {
    let service = service(runtime, place, id, "");
    service.requests_arrive_at(at, tls).unwrap();
    runtime.block_on(service.register_self()).unwrap();
    service
}

#[test]
fn each_member_is_asked_by_its_name_and_any_healthy_one_without() {
    let place = place_of_peers();
    let [one, mut other, mut third] =
        std::array::from_fn(|_| Served::start(&place, &["--token-file", "token", "--peer-token-file", "peers"]));
    let members = |wanted: usize| {
        eventually("they see each other", PATIENCE, || {
            (asks(&one, "GET", "ownership", "").well("ownership")["members"] == wanted).then_some(())
        });
    };
    for served in [&one, &other, &third] {
        // Each must have seen all three, and the addresses must have arrived here.
        let status = eventually("all see all", PATIENCE, || {
            let answer = status_of(&one, &served.id);
            (answer.status == 200 && by(&answer) == name(served)).then(|| answer.well("status")).filter(|status| status["members"] == 3)
        });
        assert_eq!((&status["instance_id"], &status["state"]), (&json!(served.id), &json!("active")));
        assert!(status["view_age_ms"].as_u64().is_some() && status["view_fingerprint"].is_string(), "{status}");
    }
    let any_of = |times: usize| (0..times).map(|_| by(&asks(&one, "GET", "any/status", "")).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(any_of(6), BTreeSet::from([name(&one), name(&other), name(&third)]), "all in turn, this one too");

    for unknown in ["nobody", "%00", "..", "a%2Fb", &"x".repeat(300)] {
        let refusal = asks(&one, "GET", &format!("instances/{unknown}/status"), "").refuses(404, unknown);
        let detail = refusal["detail"].as_str().unwrap();
        assert!([&one.id, &other.id, &third.id].iter().all(|id| detail.contains(id.as_str())), "the living are named: {refusal}");
    }
    let nothing = asks(&one, "GET", &format!("instances/{}/nothing", other.id), "").refuses(404, "no handler");
    assert!(nothing["detail"].as_str().unwrap().contains("it answers at: status"), "{nothing}");

    let whom = json!({"instance_id": third.id}).to_string();
    assert_eq!(asks(&one, "POST", "drain", &whom).status, 200);
    let both = BTreeSet::from([name(&one), name(&other)]);
    eventually("who is drained is not asked for any", PATIENCE, || (any_of(6) == both).then_some(()));
    assert_eq!(asks(&one, "POST", "undrain", &whom).status, 200);
    eventually("and is again", PATIENCE, || (any_of(6).len() == 3).then_some(()));

    third.process.signal(Signal::SIGKILL);
    third.process.ends("after SIGKILL");
    let dead = status_of(&one, &third.id).refuses(502, "dead, and its record has not expired");
    let (_, living) = dead["detail"].as_str().unwrap().split_once("the living are: ").unwrap();
    assert!(living.contains(&other.id) && !living.contains(&third.id), "{dead}");
    assert_eq!(any_of(6), both, "who is not there is passed over");
    members(2);
    let gone = eventually("its record has expired", PATIENCE, || Some(status_of(&one, &third.id)).filter(|answer| answer.status != 502));
    let gone = gone.refuses(404, "gone");
    assert!(!gone["detail"].as_str().unwrap().contains(&third.id), "{gone}");
    other.process.signal(Signal::SIGKILL);
    other.process.ends("after SIGKILL");
    // Before the group has noticed it, and with a body that no member has handled.
    assert_eq!(by(&asks(&one, "GET", "any/status", "")), name(&one), "nobody else is there");
    assert_eq!(by(&asks(&one, "POST", "any/status", "{}")), name(&one), "nobody else is there");
    members(1);
    eventually("alone it answers itself", PATIENCE, || (by(&asks(&one, "GET", "any/status", "")) == name(&one)).then_some(()));
    assert_eq!(by(&asks(&one, "POST", "any/status", "{}")), name(&one), "alone it answers itself");
    let metrics = String::from_utf8(asks_root(&one, "/metrics").body).unwrap();
    for outcome in ["answered", "unknown", "unreachable"] {
        assert!(metrics.contains(&format!("shardwise_sidecar_forwards_total{{outcome=\"{outcome}\"}}")), "{metrics}");
    }
    assert!(!metrics.contains("nobody"), "no name of a member is a label: {metrics}");
}

pub(crate) fn asks_root(served: &Served, path: &str) -> Answer {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n", served.at);
    http::raw(served.at, request.as_bytes())
}

#[test]
fn nothing_of_the_callers_goes_along_and_only_what_peer_networks_has_is_called() {
    let (place, runtime) = (place_of_peers(), Runtime::new().unwrap());
    let one = Served::start(&place, &["--token-file", "token", "--peer-token-file", "peers"]);
    let headers = &[("set-cookie", "a=b"), ("content-type", "text/html")];
    let (listening, arrived) = fake(&runtime, Says { status: 201, headers, ..Says::OK });
    let (moving, moved) = fake(&runtime, Says { status: 302, headers: &[("location", "http://127.0.0.1:1/")], body: "" });
    let (stranger, _strange) = answering("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
    let [_listens, _moves, _strange, _far, _open] = [
        ("listens", listening, false),
        ("moves", moving, false),
        ("stranger", stranger, false),
        ("far", "169.254.169.254:80".parse().unwrap(), true),
        ("open", "192.0.2.1:80".parse().unwrap(), false),
    ]
    .map(|(id, at, tls)| member(&runtime, &place, id, at, tls));
    // The member that joined last.
    eventually("they are seen", PATIENCE, || (asks(&one, "GET", "instances/open/x", "").status == 502).then_some(()));

    let answer = asks(&one, "POST", "instances/listens/cache/flush?what=all", "{\"a\":1}");
    assert_eq!((answer.status, answer.body.as_slice()), (201, &b"ok"[..]), "{answer:?}");
    for header in ["content-type: text/html", "content-security-policy: sandbox", "x-content-type-options: nosniff"] {
        assert!(answer.head.contains(header), "what a member answers is no page of this sidecar's: {}", answer.head);
    }
    assert!(!answer.head.contains("set-cookie"), "{}", answer.head);
    let request = arrived.recv_timeout(PATIENCE).unwrap();
    assert_eq!((request.head.method.as_str(), request.body.as_slice()), ("POST", &b"{\"a\":1}"[..]), "{request:?}");
    assert_eq!(request.head.uri.path_and_query().unwrap(), "/cache/flush?what=all");
    let mut names: Vec<_> = request.head.headers.keys().map(::http::HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["content-length", "content-type", "shardwise-to", "shardwise-within-ms"]);
    assert_eq!(request.head.headers["shardwise-to"], "instance", "the caller's own is not believed");
    let whole = format!("{request:?}");
    assert!(!whole.contains("of-the-caller") && !whole.contains(TOKEN) && !whole.contains(PEER_TOKEN), "{whole}");

    let refused =
        |id: &str, status| asks(&one, "GET", &format!("instances/{id}/x"), "").refuses(status, id)["detail"].as_str().unwrap().to_owned();
    assert!(refused("moves", 502).contains("status 302"), "a redirect is not followed");
    moved.recv_timeout(PATIENCE).unwrap();
    assert!(refused("stranger", 502).contains("does not prove within"));
    for far in ["far", "open"] {
        let why = refused(far, 502);
        assert!(why.contains("in none of peer_networks"), "{why}");
    }
    assert!(arrived.try_recv().is_err() && moved.try_recv().is_err(), "each was asked once");
    drop(runtime);
}

/// A read may be tried with several members; an action is sent to one, whatever it answers.
#[test]
fn who_answers_nonsense_is_passed_over_where_any_may_answer() {
    let (place, runtime) = (place_of_peers(), Runtime::new().unwrap());
    let one = Served::start(&place, &["--token-file", "token", "--peer-token-file", "peers"]);
    let (well, _heard) = fake(&runtime, Says::OK);
    let (nonsense, _asked) = fake(&runtime, Says { status: 302, headers: &[], body: "" });
    let _members = [("well", well), ("nonsense", nonsense)].map(|(id, at)| member(&runtime, &place, id, at, false));
    for (id, status) in [("well", 200), ("nonsense", 502)] {
        eventually("it is seen", PATIENCE, || (asks(&one, "GET", &format!("instances/{id}/x"), "").status == status).then_some(()));
    }
    // This sidecar is one of the three, and has no handler there.
    let asked: BTreeSet<_> = (0..6).map(|_| asks(&one, "GET", "any/x", "")).map(|answer| (answer.status, by(&answer).to_owned())).collect();
    assert_eq!(asked, BTreeSet::from([(200, "well".to_owned()), (404, name(&one))]));
    let acted: BTreeSet<u16> = (0..6).map(|_| asks(&one, "POST", "any/x", "{}").status).collect();
    assert_eq!(acted, BTreeSet::from([200, 404, 502]), "what may have been done is not done again");
    drop(runtime);
}

#[test]
fn tricks_with_paths_lead_nowhere() {
    let (place, runtime) = (place_of_peers(), Runtime::new().unwrap());
    let one = Served::start(&place, &["--token-file", "token", "--peer-token-file", "peers"]);
    let (listening, arrived) = fake(&runtime, Says::OK);
    let _member = member(&runtime, &place, "listens", listening, false);
    eventually("it is seen", PATIENCE, || (asks(&one, "GET", "instances/listens/x", "").status == 200).then_some(()));
    arrived.recv_timeout(PATIENCE).unwrap();
    let long = "x".repeat(257);
    let tricks = [
        "",
        "/",
        "..",
        ".",
        "a/..",
        "../status",
        "a/../../b",
        "%2e%2e/status",
        "a%2fb",
        "a%2Fb",
        "%00",
        "a%00",
        "//evil.example",
        "/evil.example/x",
        "http://evil.example/",
        "@evil.example",
        "a\\b",
        "a%5Cb",
        "a;b",
        "a/",
        "a//b",
        "%",
        "%zz",
        "%ff",
        "caf%C3%A9",
        &long,
    ];
    for whom in ["instances/listens", "any"] {
        for trick in tricks {
            let answer = asks(&one, "GET", &format!("{whom}/{trick}"), "");
            assert!(answer.status == 400 || answer.status == 404, "{whom}/{trick}: {answer:?}");
            answer.refuses(answer.status, trick);
        }
        let query = "q".repeat(5_000);
        asks(&one, "GET", &format!("{whom}/x?{query}"), "").refuses(400, "a long query");
        asks(&one, "POST", &format!("{whom}/x"), &"x".repeat((1 << 20) + 1)).refuses(413, "a large body");
        assert!(asks(&one, "DELETE", &format!("{whom}/x"), "").refuses(405, "DELETE")["detail"].as_str().unwrap().contains("GET, POST"));
    }
    let absolute = format!(
        "GET http://evil.example{} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n",
        Served::path("instances/listens/x"),
        one.at
    );
    http::raw(one.at, absolute.as_bytes()).refuses(421, "another host in the line");
    assert!(arrived.try_recv().is_err(), "none of it arrived");
    drop(runtime);
}
