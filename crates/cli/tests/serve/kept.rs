//! Pooled connections between members: which are reused, and with which host name.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};

use tokio::runtime::Runtime;

use crate::Served;
use crate::common::{PATIENCE, eventually};
use crate::http::Answer;
use crate::peers::{asks, member, place_of_peers, service_at, status_of};
use crate::proofs::{Fake, heard};

/// A server that handles up to `each` requests after a greeting on one connection and then closes it silently. It reports the connection's
/// number with each request.
fn answering(each: usize) -> (SocketAddr, Receiver<(usize, String)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let (arrived, requests) = mpsc::channel();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().map_while(Result::ok).enumerate() {
            let arrived = arrived.clone();
            std::thread::spawn(move || answer(stream, number, each, &arrived));
        }
    });
    (at, requests)
}

fn answer(mut stream: TcpStream, number: usize, each: usize, arrived: &Sender<(usize, String)>) {
    let (fake, mut answered) = (Fake::default(), 0);
    while answered < each {
        let Some(text) = heard(&mut stream) else { return };
        if let Some(greeting) = fake.greets(&text) {
            let _ = stream.write_all(greeting.as_bytes());
            continue;
        }
        let answer = fake.answers(&text, "HTTP/1.1 200 OK\r\nshardwise-peer: 1\r\ncontent-length: 2\r\n\r\nok");
        let _ = stream.write_all(answer.as_bytes());
        if arrived.send((number, text)).is_err() {
            return;
        }
        answered += 1;
    }
}

#[test]
fn questions_share_a_connection_and_an_action_has_one_of_its_own() {
    let (place, runtime) = (place_of_peers(), Runtime::new().unwrap());
    let one = Served::start(&place, &["--token-file", "token", "--peer-token-file", "peers"]);
    let (lasting, long) = answering(usize::MAX);
    let (closing, short) = answering(1);
    let _members = [("lasting", lasting), ("closing", closing)].map(|(id, at)| member(&runtime, &place, id, at, false));
    let get = |id: &str| asks(&one, "GET", &format!("instances/{id}/x"), "").status;
    for (id, requests) in [("lasting", &long), ("closing", &short)] {
        eventually("it is seen", PATIENCE, || (get(id) == 200).then_some(()));
        requests.recv_timeout(PATIENCE).unwrap();
    }
    // A slow machine may lose all pooled connections once, but not every time.
    let ten = |id: &str, requests: &Receiver<(usize, String)>| -> BTreeSet<usize> {
        let one = |_| {
            assert_eq!(get(id), 200);
            requests.recv_timeout(PATIENCE).unwrap().0
        };
        (0..10).map(one).collect()
    };
    let asked = ten("lasting", &long);
    assert!(asked.len() < 5, "ten questions came on {} connections", asked.len());
    let mut acted = BTreeSet::new();
    for _ in 0..3 {
        assert_eq!(asks(&one, "POST", "instances/lasting/x", "{\"a\":1}").status, 200);
        let (number, request) = long.recv_timeout(PATIENCE).unwrap();
        assert!(request.starts_with("POST ") && !asked.contains(&number), "an action came on connection {number}, as a question had");
        acted.insert(number);
    }
    assert!(ten("lasting", &long).is_disjoint(&acted), "a question came on the connection of an action: {acted:?}");
    // A connection that the other side has closed meanwhile gives no answer: a read is repeated on another one, and arrives once.
    assert_eq!(ten("closing", &short).len(), 10);
    assert!(short.try_recv().is_err() && long.try_recv().is_err());
    drop(runtime);
}

#[test]
fn a_member_is_called_by_the_name_in_its_record_and_says_so_where_that_is_not_its_own() {
    let (place, runtime) = (place_of_peers(), Runtime::new().unwrap());
    let arguments = ["--token-file", "token", "--peer-token-file", "peers"];
    let one = Served::start(&place, &arguments);
    // A name that resolves to this machine but is not configured.
    let name = "127.1";
    let knowing = Served::start(&place, &[&arguments[..], &["--allow-host", name]].concat());
    let mapped = |id: &str, to: &Served| {
        let service = service_at(&runtime, &place, id, "", &format!("address = \"{name}\"\nport = {}\n", to.at.port()));
        let shown = service.requests_arrive_at(([0, 0, 0, 0], to.at.port()).into(), false).unwrap();
        assert_eq!(shown, format!("http://{name}:{}", to.at.port()));
        runtime.block_on(service.register_self()).unwrap();
        service
    };
    let _members = [mapped("unknown", &one), mapped("known", &knowing)];
    let refused = |id: &str, status| {
        let said = |answer: &Answer| answer.json()["detail"].as_str().unwrap().to_owned();
        let answer =
            eventually("it is seen", PATIENCE, || Some(status_of(&one, id)).filter(|answer| !said(answer).contains("no living member")));
        answer.refuses(status, id);
        said(&answer)
    };
    let why = refused("unknown", 502);
    assert!(why.contains(&format!("does not accept the host name {name}:")) && why.contains("--allow-host"), "{why}");
    // The host name is accepted, but another member is at this address, recognized by its incarnation.
    let why = refused("known", 502);
    assert!(why.contains("another member is there now"), "{why}");
    drop(runtime);
}
