//! Another process at a member's address, or on the way there: it learns nothing of requests and cannot forge answers.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};

use shardwise::ShardingService;
use shardwise::proof::Nonce;
use shardwise::requests::Request;
use tokio::runtime::Runtime;

use crate::common::{PATIENCE, Place, eventually};
use crate::http::Answer;
use crate::peers::{asks, member, place_of_peers, service};
use crate::proofs::{Caller, PEER_TOKEN, header, heard};
use crate::{Served, http};

const TOKENED: [&str; 4] = ["--token-file", "token", "--peer-token-file", "peers"];
const SECRET: &str = "{\"a\":1}";

/// The address, and what was received there.
type Heard = (SocketAddr, Receiver<String>);
/// Changes a request (`true`) or an answer in transit.
type Way = fn(bool, &str) -> String;

/// Answers each request with the result of `says`, and passes on everything received.
fn impostor(says: impl Fn(&str) -> Option<String> + Send + 'static) -> Heard {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let (arrived, requests) = mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            while let Some(text) = heard(&mut stream) {
                let answer = says(&text);
                if arrived.send(text).is_err() {
                    return;
                }
                let Some(answer) = answer else { break };
                let _ = stream.write_all(answer.as_bytes());
            }
        }
    });
    (at, requests)
}

/// An answer to a greeting, with that nonce and proof.
fn greeting(nonce: &str, proof: &str) -> String {
    format!("HTTP/1.1 204 No Content\r\nshardwise-peer: 1\r\nshardwise-nonce: {nonce}\r\nshardwise-proof: {proof}\r\n\r\n")
}

fn base(text: &str) -> &str {
    text.split(' ').nth(1).unwrap()
}

/// Another process listens at a dead member's port: the record exists until the lease has expired.
#[test]
fn a_process_on_a_members_port_learns_nothing_and_forges_nothing() {
    let (place, runtime) = (place_of_peers(), Runtime::new().unwrap());
    let [one, living] = [(); 2].map(|()| Served::start(&place, &TOKENED));
    let living_base = eventually("the other one is seen", PATIENCE, || {
        let status = asks(&one, "GET", &format!("instances/{}/status", living.id), "");
        (status.status == 200).then(|| format!("/v1/peers/workers/{}/{}/", living.id, status.json()["incarnation"].as_str().unwrap()))
    });
    let old = "HTTP/1.1 200 OK\r\nshardwise-peer: 1\r\ncontent-length: 2\r\n\r\nok";
    let refused = "HTTP/1.1 401 Unauthorized\r\nshardwise-peer: refused\r\ncontent-length: 0\r\n\r\n";
    let random = || Nonce::random().to_string();
    // The greeting is relayed to a live member that accepts it, with the caller's nonce.
    let (relayed_at, relayed_base) = (living.at, living_base);
    let relayed = move |text: &str| {
        let mut stream = TcpStream::connect(relayed_at).unwrap();
        let text = text.replacen(base(text), &relayed_base, 1).replacen(header(text, "host").unwrap(), &relayed_at.to_string(), 1);
        stream.write_all(text.as_bytes()).unwrap();
        heard(&mut stream)
    };
    let (back_to, reflected_to) = (one.at, Arc::new(one.id.clone()));
    // The greeting is reflected to the caller, as if the caller were the member.
    let reflected = move |text: &str| {
        let path = base(text).replacen("/reflecting/", &format!("/{reflected_to}/"), 1);
        let mut stream = TcpStream::connect(back_to).unwrap();
        let text = text.replacen(base(text), &path, 1).replacen(header(text, "host").unwrap(), &back_to.to_string(), 1);
        stream.write_all(text.as_bytes()).unwrap();
        heard(&mut stream)
    };
    let impostors: [(_, _, _, Heard); 8] = [
        ("silent", 502, "", impostor(|_| None)),
        ("strange", 502, "not a member of the group", impostor(|_| Some("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok".into()))),
        ("answering", 502, "older version of shardwise", impostor(move |_| Some(old.into()))),
        ("refusing", 502, "older version of shardwise", impostor(move |_| Some(refused.into()))),
        ("proving", 502, "does not prove", impostor(move |_| Some(greeting(&random(), &random())))),
        ("repeating", 502, "does not prove", impostor(|text| header(text, "shardwise-nonce").map(|nonce| greeting(nonce, nonce)))),
        ("relaying", 502, "does not prove", impostor(relayed)),
        ("reflecting", 502, "another member is there", impostor(reflected)),
    ];
    for (id, status, why, (at, heard)) in impostors {
        let _member = member(&runtime, &place, id, at, false);
        let seen = |method: &str| {
            eventually("it is seen", PATIENCE, || {
                Some(asks(&one, method, &format!("instances/{id}/cache/flush?what=all"), SECRET))
                    .filter(|answer| !String::from_utf8_lossy(&answer.body).contains("no living member"))
            })
        };
        for method in ["POST", "GET"] {
            let refusal = if method == "POST" { seen("POST") } else { asks(&one, "GET", &format!("instances/{id}/cache/flush"), "") };
            let refusal = refusal.refuses(status, id);
            assert!(refusal["detail"].as_str().unwrap().contains(why), "{id}: {refusal}");
        }
        let all: Vec<String> = heard.try_iter().collect();
        assert!(!all.is_empty(), "{id} was called");
        for text in all {
            assert!(text.starts_with("GET /v1/peers/workers/") && base(&text).ends_with('/'), "{id} heard more than a greeting: {text}");
            assert!(header(&text, "authorization").is_none() && !text.contains(PEER_TOKEN) && !text.contains("flush"), "{id}: {text}");
            assert!(text.ends_with("\r\n\r\n") && !text.contains(SECRET), "{id}: {text}");
        }
    }
    drop(runtime);
}

/// A member of this process behind `way`, which changes requests and answers in transit; returns how often it has done so.
fn behind(runtime: &Runtime, place: &Place, id: &str, way: Way) -> (ShardingService, Arc<AtomicUsize>) {
    let tokened = format!("peer_token_file = '{}'\n", place.path("peers").display());
    let (member, acted) = (service(runtime, place, id, &tokened), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&acted);
    member
        .on_request("act", move |request: Request| {
            counted.fetch_add(1, Ordering::Relaxed);
            async move { String::from_utf8(request.body).unwrap() + "done" }
        })
        .unwrap();
    let to = runtime.block_on(member.listen_for_requests()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    member.requests_arrive_at(listener.local_addr().unwrap(), false).unwrap();
    runtime.block_on(member.register_self()).unwrap();
    std::thread::spawn(move || {
        for mut caller in listener.incoming().map_while(Result::ok) {
            let mut member = TcpStream::connect(to).unwrap();
            while let Some(request) = heard(&mut caller) {
                let is_greeting = header(&request, "shardwise-nonce").is_some();
                let request = if is_greeting { request } else { way(true, &request) };
                let _ = member.write_all(request.as_bytes());
                let Some(answer) = heard(&mut member) else { break };
                let answer = if is_greeting { answer } else { way(false, &answer) };
                let _ = caller.write_all(answer.as_bytes());
            }
        }
    });
    (member, acted)
}

#[test]
fn what_is_changed_on_the_way_is_refused_in_both_directions() {
    let (place, runtime) = (place_of_peers(), Runtime::new().unwrap());
    let one = Served::start(&place, &TOKENED);
    let ask = |id: &str| {
        eventually("it is seen", PATIENCE, || {
            Some(asks(&one, "POST", &format!("instances/{id}/act"), SECRET))
                .filter(|answer| !String::from_utf8_lossy(&answer.body).contains("no living member"))
        })
    };
    let ways: [(&str, Way, usize); 11] = [
        ("passes", |_, text| text.to_owned(), 1),
        ("body", |asked, text| if asked { text.replace(SECRET, "{\"a\":2}") } else { text.into() }, 0),
        ("path", |asked, text| if asked { text.replacen("/act ", "/status ", 1) } else { text.into() }, 0),
        ("query", |asked, text| if asked { text.replacen("/act ", "/act?a=b ", 1) } else { text.into() }, 0),
        ("method", |asked, text| if asked { text.replacen("POST", "GET", 1) } else { text.into() }, 0),
        ("type", |asked, text| if asked { text.replacen("application/json", "text/plain", 1) } else { text.into() }, 0),
        ("addressee", |asked, text| if asked { text.replacen("-to: instance", "-to: any", 1) } else { text.into() }, 0),
        ("unaddressed", |asked, text| if asked { text.replacen("shardwise-to: instance\r\n", "", 1) } else { text.into() }, 0),
        ("answer", |asked, text| if asked { text.into() } else { text.replacen("done", "gone", 1) }, 1),
        ("status", |asked, text| if asked { text.into() } else { text.replacen("200 OK", "201 OK", 1) }, 1),
        ("refusal", |asked, text| if asked { text.into() } else { text.replacen("shardwise-peer: 1", "shardwise-peer: refused", 1) }, 1),
    ];
    for (id, way, acts) in ways {
        let (_member, acted) = behind(&runtime, &place, id, way);
        let answer = ask(id);
        assert_eq!(acted.load(Ordering::Relaxed), acts, "{id}: {answer:?}");
        if id == "passes" {
            assert_eq!((answer.status, answer.body.as_slice()), (200, format!("{SECRET}done").as_bytes()));
            continue;
        }
        let why = answer.refuses(502, id)["detail"].as_str().unwrap().to_owned();
        // The member itself proves its answer that the body was changed; all other answers could be from anyone.
        let is_said = if id == "body" { why.contains("status 400") } else { why.contains("is not proven") && why.contains("unknown") };
        assert!(is_said, "{id}: {why}");
    }
    drop(runtime);
}

/// A recorded request, repeated on its own connection and on others, to a sidecar that keeps connections.
#[test]
fn a_recorded_request_counts_once() {
    let place = place_of_peers();
    let [one, other] = [(); 2].map(|()| Served::start(&place, &TOKENED));
    let of = |served: &Served| {
        let status = asks(served, "GET", &format!("instances/{}/status", served.id), "").well("status");
        format!("/v1/peers/workers/{}/{}/", served.id, status["incarnation"].as_str().unwrap())
    };
    let bases = [of(&one), of(&other)];
    let greeted = |served: &Served, base: &str| Caller::greets(served.at, base, PEER_TOKEN).unwrap();
    let mut caller = greeted(&one, &bases[0]);
    let target = format!("{}status", bases[0]);
    let recorded: Vec<String> = (0..2)
        .map(|_| {
            let request = caller.request("GET", &target, "");
            let (text, is_proven) = caller.sends(&request);
            assert!(text.starts_with("HTTP/1.1 200") && is_proven, "{text}");
            request
        })
        .collect();
    let (text, is_proven) = caller.sends(&recorded[1]);
    assert!(text.starts_with("HTTP/1.1 401") && !is_proven, "again on its own connection: {text}");
    for request in &recorded {
        let (text, is_proven) = greeted(&one, &bases[0]).sends(request);
        assert!(text.starts_with("HTTP/1.1 401") && !is_proven, "on another connection: {text}");
        let elsewhere = request.replace(&bases[0], &bases[1]).replace(&one.at.to_string(), &other.at.to_string());
        let (text, is_proven) = greeted(&other, &bases[1]).sends(&elsewhere);
        assert!(text.starts_with("HTTP/1.1 401") && !is_proven, "to another member: {text}");
        let without: Answer = http::raw(one.at, request.replacen("\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1).as_bytes());
        without.refuses(401, "without a greeting");
    }
    // Two greetings on one connection: proofs for the first are invalid after the second.
    let mut caller = greeted(&one, &bases[0]);
    let early = caller.request("GET", &target, "");
    let again =
        format!("GET {} HTTP/1.1\r\nHost: {}\r\nshardwise-peer: 1\r\nshardwise-nonce: {}\r\n\r\n", bases[0], one.at, Nonce::random());
    assert!(caller.sends(&again).0.starts_with("HTTP/1.1 204"));
    assert!(caller.sends(&early).0.starts_with("HTTP/1.1 401"));
}
