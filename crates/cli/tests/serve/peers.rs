//! One instance, any instance: requests that are brought from member to member.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{self, Receiver};

use nix::sys::signal::Signal;
use serde_json::json;
use shardwise::requests::{self, Request, encoded};
use shardwise::{Settings, ShardingFactory, ShardingService};
use shardwise_testkit::Authority;
use tokio::runtime::Runtime;

use crate::common::{PATIENCE, Place, eventually};
use crate::http::Answer;
use crate::{Served, TOKEN, http, place};

const PEER_TOKEN: &str = "peers-show-each-other-this";

fn place_of_peers() -> Place {
    let place = place();
    place.write("peers", format!("{PEER_TOKEN}\n"));
    place.write("others", "peers-of-somebody-else-show-this\n");
    place
}

/// With the operator's token and what a browser would send along.
fn asks(served: &Served, method: &str, rest: &str, body: &str) -> Answer {
    let head = format!(
        "{method} {} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\nCookie: session=of-the-caller\r\nX-Api-Key: of-the-caller\r\n\
         Proxy-Authorization: Basic of-the-caller\r\nX-Forwarded-For: 1.2.3.4\r\nContent-Type: application/json\r\nTE: trailers\r\n\
         Content-Length: {}\r\nConnection: close, x-api-key\r\n\r\n",
        Served::path(rest),
        served.at,
        body.len()
    );
    http::raw(served.at, [head.as_bytes(), body.as_bytes()].concat().as_slice())
}

fn by(answer: &Answer) -> &str {
    answer.head.lines().find_map(|line| line.strip_prefix("shardwise-instance: ")).unwrap_or_default()
}

/// An id as that header has it.
fn name(served: &Served) -> String {
    encoded(&served.id).to_lowercase()
}

fn status_of(served: &Served, id: &str) -> Answer {
    asks(served, "GET", &format!("instances/{id}/status"), "")
}

/// A place where requests arrive that somebody in this process answers, each with `answer`; what arrived comes out.
fn answering(answer: &'static str) -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let (arrived, requests) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut bytes = vec![0; 65_536];
            let mut text = String::new();
            // Until the head is there, and with it, in one piece as it is sent here, a short body.
            while !text.contains("\r\n\r\n") || text.contains("content-length: 7") && !text.ends_with("{\"a\":1}") {
                match stream.read(&mut bytes) {
                    Ok(read) if read > 0 => text += &String::from_utf8_lossy(&bytes[..read]),
                    _ => break,
                }
            }
            let _ = stream.write_all(answer.as_bytes());
            if arrived.send(text).is_err() {
                return;
            }
        }
    });
    (at, requests)
}

/// A service in this process for the place's group, with more lines in its policy.
fn service(runtime: &Runtime, place: &Place, id: &str, lines: &str) -> ShardingService {
    let _on = runtime.enter();
    let text = std::fs::read_to_string(place.path("settings.toml")).unwrap()
        + &format!(
            "{lines}[default.resilience.sharding.instance]\nid = \"{id}\"\n[default.resilience.sharding.discovery.local]\npath = '{}'\n",
            place.path("shardwise.db").display()
        );
    ShardingFactory::from_settings(Settings::from_toml_str(&text).unwrap()).unwrap().create("workers").unwrap()
}

/// A member of the place's group in this process that says that requests to it arrive there.
fn member(runtime: &Runtime, place: &Place, id: &str, at: SocketAddr, tls: bool) -> ShardingService {
    let service = service(runtime, place, id, "");
    service.requests_arrive_at(at, tls).unwrap();
    runtime.block_on(service.register_self()).unwrap();
    service
}

#[test]
fn each_member_is_asked_by_its_name_and_any_healthy_one_without() {
    let place = place_of_peers();
    let [one, other, mut third] = std::array::from_fn(|_| Served::start(&place, &["--token-file", "token", "--peer-token-file", "peers"]));
    let members = |wanted: usize| {
        eventually("they see each other", PATIENCE, || {
            (asks(&one, "GET", "ownership", "").well("ownership")["members"] == wanted).then_some(())
        });
    };
    members(3);
    for served in [&one, &other, &third] {
        let answer = eventually("it is seen", PATIENCE, || Some(status_of(&one, &served.id)).filter(|answer| answer.status != 404));
        assert_eq!(by(&answer), name(served), "{answer:?}");
        let status = answer.well("status");
        assert_eq!((&status["instance_id"], &status["state"], &status["members"]), (&json!(served.id), &json!("active"), &json!(3)));
        assert!(status["view_age_ms"].as_u64().is_some() && status["view_fingerprint"].is_string(), "{status}");
    }
    let mut answered: Vec<_> = (0..4).map(|_| by(&asks(&one, "GET", "any/status", "")).to_owned()).collect();
    answered.sort();
    answered.dedup();
    assert!(answered.len() == 2 && !answered.contains(&name(&one)), "the others in turn: {answered:?}");

    for unknown in ["nobody", "%00", "..", "a%2Fb", &"x".repeat(300)] {
        let refusal = asks(&one, "GET", &format!("instances/{unknown}/status"), "").refuses(404, unknown);
        let detail = refusal["detail"].as_str().unwrap();
        assert!([&one.id, &other.id, &third.id].iter().all(|id| detail.contains(id.as_str())), "the living are named: {refusal}");
    }
    let nothing = asks(&one, "GET", &format!("instances/{}/nothing", other.id), "").refuses(404, "no handler");
    assert!(nothing["detail"].as_str().unwrap().contains("it answers at: status"), "{nothing}");

    third.process.signal(Signal::SIGKILL);
    third.process.ends("after SIGKILL");
    let dead = status_of(&one, &third.id).refuses(404, "dead");
    assert!(dead["detail"].as_str().unwrap().contains(&other.id), "{dead}");
    for _ in 0..4 {
        assert_eq!(by(&asks(&one, "GET", "any/status", "")), name(&other), "who is not there is passed over");
    }
    members(2);
    eventually("it is not named any more", PATIENCE, || {
        let gone = status_of(&one, &third.id).refuses(404, "gone");
        (!gone["detail"].as_str().unwrap().contains(&third.id)).then_some(())
    });
    drop(other);
    members(1);
    eventually("alone it answers itself", PATIENCE, || (by(&asks(&one, "GET", "any/status", "")) == name(&one)).then_some(()));
    let metrics = String::from_utf8(asks_root(&one, "/metrics").body).unwrap();
    for outcome in ["answered", "unknown", "unreachable"] {
        assert!(metrics.contains(&format!("shardwise_sidecar_forwards_total{{outcome=\"{outcome}\"}}")), "{metrics}");
    }
    assert!(!metrics.contains("nobody"), "no name of a member is a label: {metrics}");
}

fn asks_root(served: &Served, path: &str) -> Answer {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n", served.at);
    http::raw(served.at, request.as_bytes())
}

#[test]
fn nothing_of_the_callers_goes_along_and_only_what_peer_networks_has_is_called() {
    let (place, runtime) = (place_of_peers(), Runtime::new().unwrap());
    let one = Served::start(&place, &["--token-file", "token", "--peer-token-file", "peers"]);
    let ok = "HTTP/1.1 201 Created\r\nshardwise-peer: 1\r\nset-cookie: a=b\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\nok";
    let (listening, arrived) = answering(ok);
    let (moving, moved) =
        answering("HTTP/1.1 302 Found\r\nshardwise-peer: 1\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n");
    let (stranger, strange) = answering("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
    let [_listens, _moves, _strange, _far, _open] = [
        ("listens", listening, false),
        ("moves", moving, false),
        ("stranger", stranger, false),
        ("far", "169.254.169.254:80".parse().unwrap(), true),
        ("open", "192.0.2.1:80".parse().unwrap(), false),
    ]
    .map(|(id, at, tls)| member(&runtime, &place, id, at, tls));
    // The last one that has joined.
    eventually("they are seen", PATIENCE, || (asks(&one, "GET", "instances/open/x", "").status == 502).then_some(()));

    let answer = asks(&one, "POST", "instances/listens/cache/flush?what=all", "{\"a\":1}");
    assert_eq!((answer.status, answer.body.as_slice()), (201, &b"ok"[..]), "{answer:?}");
    for header in ["content-type: text/html", "content-security-policy: sandbox", "x-content-type-options: nosniff"] {
        assert!(answer.head.contains(header), "what a member answers is no page of this sidecar's: {}", answer.head);
    }
    assert!(!answer.head.contains("set-cookie"), "{}", answer.head);
    let request = arrived.recv_timeout(PATIENCE).unwrap();
    assert!(request.starts_with("POST /v1/peers/workers/listens/") && request.ends_with("{\"a\":1}"), "{request}");
    assert!(request.contains("/cache/flush?what=all HTTP/1.1\r\n") && request.contains(&format!("Bearer {PEER_TOKEN}")), "{request}");
    let mut names: Vec<_> = request.lines().skip(1).filter_map(|line| line.split_once(": ")).map(|(name, _)| name.to_lowercase()).collect();
    names.sort();
    assert_eq!(names, ["authorization", "content-length", "content-type", "host", "shardwise-peer"]);
    assert!(!request.contains("of-the-caller") && !request.contains(TOKEN), "{request}");

    let refused =
        |id: &str, status| asks(&one, "GET", &format!("instances/{id}/x"), "").refuses(status, id)["detail"].as_str().unwrap().to_owned();
    assert!(refused("moves", 502).contains("status 302"), "a redirect is not followed");
    moved.recv_timeout(PATIENCE).unwrap();
    assert!(refused("stranger", 404).contains("no member of the group"));
    strange.recv_timeout(PATIENCE).unwrap();
    for far in ["far", "open"] {
        let why = refused(far, 502);
        assert!(why.contains("in none of peer_networks"), "{why}");
    }
    assert!(arrived.try_recv().is_err() && moved.try_recv().is_err(), "each was asked once");
    drop(runtime);
}

#[test]
fn tricks_with_paths_lead_nowhere() {
    let (place, runtime) = (place_of_peers(), Runtime::new().unwrap());
    let one = Served::start(&place, &["--token-file", "token", "--peer-token-file", "peers"]);
    let (listening, arrived) = answering("HTTP/1.1 200 OK\r\nshardwise-peer: 1\r\ncontent-length: 2\r\n\r\nok");
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

#[test]
fn who_acts_has_tokens_and_who_is_no_member_is_not_let_in() {
    let place = place_of_peers();
    let open = Served::start(&place, &[]);
    let tokened = Served::start(&place, &["--token-file", "token"]);
    let closed = Served::start(&place, &["--token-file", "token", "--peer-token-file", "peers"]);
    let foreign = Served::start(&place, &["--token-file", "token", "--peer-token-file", "others"]);
    open.settles(4, |_| true);
    let get = |from: &Served, to: &Served| status_of(from, &to.id);
    assert_eq!(get(&tokened, &open).status, 200, "on this machine it may be read without tokens");
    open.post(&format!("any/{}", "status"), "", "").refuses(403, "without an operator's token nobody acts");
    asks(&tokened, "POST", &format!("instances/{}/status", open.id), "").refuses(502, "nor without a peer's");
    for (from, to) in [(&open, &closed), (&foreign, &closed), (&closed, &foreign), (&open, &tokened)] {
        let refusal = get(from, to).refuses(502, "another token or none");
        assert!(refusal["detail"].as_str().unwrap().contains("token"), "{refusal}");
    }

    let page = format!("Authorization: Bearer {TOKEN}\r\nOrigin: http://{}\r\n", closed.at);
    closed.post(&format!("instances/{}/status", closed.id), &page, "").refuses(403, "from a browser, and not from the page");

    let path = get(&closed, &closed).well("status");
    let path = format!("/v1/peers/workers/{}/{}/status", closed.id, path["incarnation"].as_str().unwrap());
    let direct = |path: &str, headers: &str| {
        http::raw(closed.at, format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{headers}\r\n", closed.at).as_bytes())
    };
    let peer = format!("shardwise-peer: 1\r\nAuthorization: Bearer {PEER_TOKEN}\r\n");
    assert_eq!(direct(&path, &peer).status, 200);
    direct(&path, &format!("Authorization: Bearer {PEER_TOKEN}\r\n")).refuses(403, "no member");
    direct(&path, &format!("shardwise-peer: 1\r\nAuthorization: Bearer {TOKEN}\r\n"))
        .refuses(401, "the operator's token is none of the peers'");
    direct(&path, "shardwise-peer: 1\r\n").refuses(401, "no token");
    direct("/v1/peers/workers/nobody/0000000000000000/status", &peer).refuses(421, "somebody else");
    direct(&path.replace("/status", "/a/../status"), &peer).refuses(400, "no path");
    let members = direct(&Served::path("members"), &peer).refuses(401, "a peer's token is no operator's");
    assert!(!members.to_string().contains(PEER_TOKEN));
}

#[test]
fn the_worker_beside_answers_what_the_sidecar_does_not() {
    let place = place_of_peers();
    let (beside, arrived) = answering("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nok");
    let forward = format!("http://{beside}/hooks");
    let one = Served::start(&place, &["--token-file", "token", "--peer-token-file", "peers"]);
    let other = Served::start(&place, &["--token-file", "token", "--peer-token-file", "peers", "--forward-to", &forward]);
    eventually("it is seen", PATIENCE, || (status_of(&one, &other.id).status == 200).then_some(()));
    let answer = asks(&one, "POST", &format!("instances/{}/cache/flush", other.id), "{\"a\":1}");
    assert_eq!((answer.status, answer.body.as_slice()), (200, &b"ok"[..]), "{answer:?}");
    let request = arrived.recv_timeout(PATIENCE).unwrap();
    assert!(request.starts_with("POST /hooks/cache/flush HTTP/1.1\r\n") && request.ends_with("{\"a\":1}"), "{request}");
    assert!(!request.to_lowercase().contains("authorization") && !request.contains("of-the-caller"), "{request}");
    for elsewhere in ["http://10.0.0.7:80", "https://127.0.0.1:1", "127.0.0.1:80", "http://user@127.0.0.1:1"] {
        place.run(&["serve", "--policy", "workers", "--forward-to", elsewhere]).fails(2, &["of this machine"]);
    }
}

#[test]
fn a_rust_worker_without_a_sidecar_answers_by_its_own_handlers() {
    let (place, runtime) = (place_of_peers(), Runtime::new().unwrap());
    let one = Served::start(&place, &["--token-file", "token", "--peer-token-file", "peers"]);
    let tokened = format!("peer_token_file = '{}'\n", place.path("peers").display());
    let [worker, stranger] = [("wörker/1", tokened.as_str()), ("stranger", "")].map(|(id, lines)| {
        let service = service(&runtime, &place, id, lines);
        service
            .on_request("cache/size", |request: Request| async move {
                let asked = String::from_utf8(request.body).unwrap();
                requests::Answer::json(&json!({"size": 7, "asked": asked, "query": request.query})).with_status(202)
            })
            .unwrap();
        runtime.block_on(service.listen_for_requests()).unwrap();
        runtime.block_on(service.register_self()).unwrap();
        service
    });
    // The one with a token asks whoever has it; whoever has none is read all the same.
    for worker in [&worker, &stranger] {
        let id = encoded(worker.instance_id().as_str());
        let status = eventually("it is seen", PATIENCE, || Some(status_of(&one, &id)).filter(|answer| answer.status == 200));
        assert_eq!(by(&status), id.to_lowercase());
        assert_eq!(status.well("status")["instance_id"], worker.instance_id().as_str());
    }
    let id = encoded(worker.instance_id().as_str());
    let answer = asks(&one, "POST", &format!("instances/{id}/cache/size?a=b"), "{\"a\":1}");
    assert_eq!((answer.status, answer.json()), (202, json!({"size": 7, "asked": "{\"a\":1}", "query": "a=b"})));
    asks(&one, "POST", "instances/stranger/cache/size", "").refuses(502, "without a token only GET");
    let nothing = asks(&one, "GET", &format!("instances/{id}/nothing"), "").refuses(404, "no handler");
    assert!(nothing["detail"].as_str().unwrap().contains("cache/size"), "{nothing}");
    runtime.block_on(worker.deregister_self()).unwrap();
    eventually("it has left", PATIENCE, || (status_of(&one, &id).status == 404).then_some(()));
    drop((worker, stranger, runtime));
}

#[test]
fn members_that_speak_tls_are_believed_by_their_certificate() {
    let (place, good, bad) = (place_of_peers(), Authority::new().unwrap(), Authority::new().unwrap());
    let server = good.server().unwrap();
    let [chain, key] = [server.certificate(), server.key()].map(|path| path.display().to_string());
    let tls = ["--tls-cert", &chain, "--tls-key", &key, "--token-file", "token", "--peer-token-file", "peers"];
    let other = Served::start(&place, &tls);
    let asking = |ca: &[&str]| Served::start(&place, &[&["--token-file", "token", "--peer-token-file", "peers"], ca].concat());
    let [good, bad] = [good.file(), bad.file()].map(|path| path.display().to_string());
    let trusting = asking(&["--peer-ca-file", &good]);
    eventually("it is seen", PATIENCE, || (status_of(&trusting, &other.id).status == 200).then_some(()));
    for (ca, why) in [(&[][..], "--peer-ca-file"), (&["--peer-ca-file", &bad], "certificate")] {
        let one = asking(ca);
        let refusal = eventually("it is seen", PATIENCE, || Some(status_of(&one, &other.id)).filter(|answer| answer.status != 404));
        let refusal = refusal.refuses(502, why);
        assert!(refusal["detail"].as_str().unwrap().contains(why), "{refusal}");
    }
    place.run(&["serve", "--policy", "workers", "--peer-ca-file", "token"]).fails(2, &["token", "no certificates"]);
}
