//! Another process at a member's address, or on the way there: it learns nothing of requests and cannot forge answers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};

use serde_json::{Value, json};
use shardwise::requests::channel::proof::Nonce;
use shardwise::requests::{self, Attempt, Request};
use shardwise::{Incarnation, InstanceId, ShardingService};
use tokio::runtime::Runtime;
use tokio::time::Instant;

use crate::channel::frame;
use crate::common::{PATIENCE, Place, eventually};
use crate::middle::{Middle, PASSES, RECORD_HEAD_BYTES, Way, framed};
use crate::peers::{PEER_TOKEN, asks, member, place_of_peers, service, status_of};
use crate::{Served, http};

const TOKENED: [&str; 4] = ["--token-file", "token", "--peer-token-file", "peers"];
const SECRET: &str = "{\"a\":1}";

/// The address, and all that was received there on each connection.
type Heard = (SocketAddr, Receiver<Vec<u8>>);

/// Answers each hello with the result of `says`, and passes on everything received until the caller closes the connection.
fn impostor(says: impl Fn(&Value) -> Option<Vec<u8>> + Send + 'static) -> Heard {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let (arrived, heard) = mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let Some(mut all) = framed(&mut stream, 4) else { continue };
            if let Some(answer) = says(&serde_json::from_slice(&all[4..]).unwrap()) {
                let _ = stream.write_all(&answer);
                let _ = stream.read_to_end(&mut all);
            }
            if arrived.send(all).is_err() {
                return;
            }
        }
    });
    (at, heard)
}

fn says(answer: Value) -> Heard {
    impostor(move |_| Some(frame(&answer)))
}

fn challenge(nonce: &str, proof: Option<&str>) -> Vec<u8> {
    frame(&json!({"challenge": {"nonce": nonce, "proof": proof}}))
}

/// A member, as its record describes it.
#[derive(Clone)]
struct Whom {
    at: SocketAddr,
    id: String,
    incarnation: String,
}

impl Whom {
    /// Once `by` sees it.
    fn seen(by: &Served, served: &Served) -> Self {
        let status = eventually("it is seen", PATIENCE, || Some(status_of(by, &served.id)).filter(|answer| answer.status == 200));
        let incarnation = status.well("status")["incarnation"].as_str().unwrap().to_owned();
        Self { at: served.at, id: served.id.clone(), incarnation }
    }

    /// What it answers to this hello, made out to it.
    fn answers(&self, hello: &Value) -> Option<Vec<u8>> {
        let mut hello = hello.clone();
        hello["instance_id"] = json!(self.id);
        hello["incarnation"] = json!(self.incarnation);
        let mut stream = http::connect(self.at);
        stream.write_all(&frame(&hello)).unwrap();
        framed(&mut stream, 4)
    }
}

/// Another process listens at a dead member's port: the record exists until the lease has expired.
#[test]
fn a_process_on_a_members_port_learns_nothing_and_forges_nothing() {
    let (place, runtime) = (place_of_peers(), Runtime::new().unwrap());
    let [one, living] = [(); 2].map(|()| Served::start(&place, &TOKENED));
    let random = || Nonce::random().to_string();
    // The hello is relayed to a live member that answers it with its proof, and back to the caller itself.
    let relaying = |whom: Whom| impostor(move |hello| whom.answers(hello));
    let impostors: [(_, _, Heard); 10] = [
        ("silent", "", impostor(|_| None)),
        ("strange", "a frame of", impostor(|_| Some(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok".to_vec()))),
        ("agreeing", "not the expected one", says(json!("ok"))),
        ("refusing", "does not take this process's peer token", says(json!("unproven"))),
        ("other", "another version of shardwise", says(json!("other_protocol"))),
        ("open", "it has no peer token", impostor(move |_| Some(challenge(&random(), None)))),
        ("proving", "does not prove", impostor(move |_| Some(challenge(&random(), Some(&random()))))),
        ("repeating", "does not prove", impostor(|hello| hello["nonce"].as_str().map(|nonce| challenge(nonce, Some(nonce))))),
        ("relaying", "does not prove", relaying(Whom::seen(&one, &living))),
        ("reflecting", "does not prove", relaying(Whom::seen(&one, &one))),
    ];
    for (id, why, (at, heard)) in impostors {
        let _member = member(&runtime, &place, id, at, false);
        for (method, rest, body) in [("POST", "cache/flush?what=all", SECRET), ("GET", "cache/flush", "")] {
            let refusal = eventually("it is seen", PATIENCE, || {
                Some(asks(&one, method, &format!("instances/{id}/{rest}"), body))
                    .filter(|answer| !String::from_utf8_lossy(&answer.body).contains("no living member"))
            });
            let refusal = refusal.refuses(502, id);
            assert!(refusal["detail"].as_str().unwrap().contains(why), "{id}: {refusal}");
        }
        let all: Vec<Vec<u8>> = heard.try_iter().collect();
        assert!(!all.is_empty(), "{id} was called");
        for bytes in all {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let hello: Value = serde_json::from_slice(&bytes[4..]).unwrap_or_else(|_| panic!("{id} heard more than a hello: {text}"));
            let mut names: Vec<_> = hello.as_object().unwrap().keys().map(String::as_str).collect();
            names.sort_unstable();
            assert_eq!(names, ["group", "incarnation", "instance_id", "nonce", "shardwise"], "{id}");
            assert!(!text.contains(PEER_TOKEN) && !text.contains("flush") && !text.contains(SECRET), "{id}: {text}");
        }
    }
    drop(runtime);
}

/// A member of this process behind `way`, which changes records in transit; returns how often it has acted.
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
    member.requests_arrive_at(Middle::before(to, way).at, false).unwrap();
    runtime.block_on(member.register_self()).unwrap();
    (member, acted)
}

/// Where the text is in the record; records are proven and not hidden.
fn found(record: &[u8], text: &str) -> Option<usize> {
    record.windows(text.len()).position(|part| part == text.as_bytes())
}

/// The record with one bit changed.
fn flipped(mut record: Vec<u8>, at: usize) -> Vec<u8> {
    record[at] ^= 1;
    record
}

/// The same, if it has the text.
fn changed(record: Vec<u8>, text: &str, at: impl Fn(&[u8]) -> usize) -> Vec<u8> {
    if found(&record, text).is_none() {
        return record;
    }
    let at = at(&record);
    flipped(record, at)
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
    let ways: [(&str, Way, RangeInclusive<usize>); 9] = [
        ("passes", PASSES, 1..=1),
        ("body", |asked, record| if asked { changed(record, SECRET, |record| found(record, SECRET).unwrap()) } else { record }, 0..=0),
        ("proof", |asked, record| if asked { changed(record, SECRET, |_| 4) } else { record }, 0..=0),
        ("length", |asked, record| if asked { changed(record, SECRET, |_| 0) } else { record }, 0..=0),
        ("each", |asked, record| if asked { flipped(record, RECORD_HEAD_BYTES) } else { record }, 0..=0),
        ("twice", |asked, record| if asked && found(&record, SECRET).is_some() { record.repeat(2) } else { record }, 0..=1),
        ("answer", |asked, record| if asked { record } else { changed(record, "done", |record| found(record, "done").unwrap()) }, 1..=1),
        ("its-proof", |asked, record| if asked { record } else { changed(record, "done", |_| 4) }, 1..=1),
        ("its-end", |asked, record| if asked { record } else { changed(record, "done", |record| record.len() - 1) }, 1..=1),
    ];
    for (id, way, acts) in ways {
        let (_member, acted) = behind(&runtime, &place, id, way);
        let answer = ask(id);
        let count = acted.load(Ordering::Relaxed);
        assert!(acts.contains(&count), "{id} acted {count} times: {answer:?}");
        if id == "passes" {
            assert_eq!((answer.status, answer.body.as_slice()), (200, format!("{SECRET}done").as_bytes()));
            continue;
        }
        // Of a record that was sent twice, the first one is right.
        if id == "twice" && answer.status == 200 {
            continue;
        }
        let why = answer.refuses(502, id)["detail"].as_str().unwrap().to_owned();
        // Before the first record is accepted no request was sent.
        assert!(why.contains("unknown") || id == "each", "{id}: {why}");
    }
    drop(runtime);
}

/// A recorded connection, sent again to the same member and to another one, which both keep connections.
#[test]
fn a_recorded_connection_is_worthless() {
    let (place, runtime) = (place_of_peers(), Runtime::new().unwrap());
    let [one, other] = [(); 2].map(|()| Served::start(&place, &TOKENED));
    let whom = Whom::seen(&other, &one);
    let tokened = format!("peer_token_file = '{}'\n", place.path("peers").display());
    let (caller, middle) = (service(&runtime, &place, "caller", &tokened), Middle::before(one.at, PASSES));
    let incarnation = Incarnation::from_hex(&whom.incarnation).unwrap();
    let to =
        requests::MemberEndpoint { instance_id: InstanceId::new(&*whom.id).unwrap(), incarnation, address: format!("tcp://{}", middle.at) };
    let (connections, request) = (caller.connections(), Request::get("status"));
    let answer = runtime.block_on(async { connections.bring(&to, &request, &Attempt::until(Instant::now() + PATIENCE)).await });
    assert_eq!(answer.unwrap().status, 200);

    let recorded = middle.asked();
    let [hello, confirmation, records @ ..] = recorded.as_slice() else { panic!("no hello was recorded") };
    assert!(!records.is_empty(), "and records");
    let heard = |stream: &mut TcpStream| -> Value { serde_json::from_slice(&framed(stream, 4).unwrap()[4..]).unwrap() };
    let mut again = http::connect(one.at);
    again.write_all(hello).unwrap();
    assert!(heard(&mut again)["challenge"]["proof"].is_string());
    again.write_all(confirmation).unwrap();
    assert_eq!(heard(&mut again), "unproven", "the proof was for another challenge");
    assert_eq!(framed(&mut again, 4), None);

    let mut elsewhere = http::connect(other.at);
    elsewhere.write_all(hello).unwrap();
    assert_eq!(heard(&mut elsewhere), "somebody_else");
    let mut without = http::connect(one.at);
    // It may close the connection before all was sent.
    let _ = without.write_all(&records.concat());
    assert_eq!(framed(&mut without, 4), None, "records without a hello");
    drop(runtime);
}
