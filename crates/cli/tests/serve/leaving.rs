//! A sidecar that is stopped while its worker handles a request.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{self, Receiver, Sender};

use nix::sys::signal::Signal;

use crate::TOKEN;
use crate::asked::{sends_to, start};
use crate::common::{PATIENCE, Place, eventually};
use crate::peers::{PEER_TOKEN, answering, asks, by, heard, name};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nok";

/// A worker that answers one request, once the test says so. Passes on that the request has come.
fn answering_late() -> (SocketAddr, Receiver<String>, Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let ((arrived, requests), (release, released)) = (mpsc::channel(), mpsc::channel());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        arrived.send(heard(&mut stream).unwrap()).unwrap();
        released.recv().unwrap();
        stream.write_all(OK.as_bytes()).unwrap();
    });
    (at, requests, release)
}

#[test]
fn a_sidecar_that_is_stopped_waits_for_its_workers_answer_and_new_requests_go_to_others() {
    let place = Place::of_workers("5s", "slots = 256\ndrain_timeout = \"5m\"");
    place.write("token", format!("{TOKEN}\n"));
    place.write("peers", format!("{PEER_TOKEN}\n"));
    let ((well, _heard), (late, heard, release)) = (answering(OK), answering_late());
    let (one, mut other) = (start(&place, well), start(&place, late));
    let status = format!("instances/{}/shardwise/status", other.id);
    eventually("it is seen", PATIENCE, || (asks(&one, "GET", &status, "").status == 200).then_some(()));
    let (at, path) = (one.at, format!("instances/{}/x", other.id));
    let asked = std::thread::spawn({
        let path = path.clone();
        move || sends_to(at, TOKEN, ("POST", &path), "shardwise-within-ms: 300000\r\n", "hello")
    });
    heard.recv_timeout(PATIENCE).unwrap();
    other.process.signal(Signal::SIGTERM);

    let state = || asks(&one, "GET", &status, "").json()["state"].as_str().unwrap_or_default().to_owned();
    eventually("it is leaving", PATIENCE, || (state() == "draining").then_some(()));
    let refusal = asks(&one, "POST", &path, "{}").refuses(502, "it is leaving");
    assert_eq!(refusal["type"], "urn:shardwise:problem:unreachable-instance", "nothing was done: {refusal}");
    assert!(refusal["detail"].as_str().unwrap().contains("leaving its group"), "{refusal}");
    for _ in 0..4 {
        let answer = asks(&one, "POST", "any/x", "{}");
        assert_eq!((answer.status, by(&answer)), (200, name(&one).as_str()), "{answer:?}");
    }
    release.send(()).unwrap();
    let answer = asked.join().unwrap();
    assert_eq!((answer.status, answer.body.as_slice(), by(&answer)), (200, &b"ok"[..], name(&other).as_str()), "{answer:?}");
    other.process.ends("after SIGTERM");
}
