//! A worker beside a sidecar refuses requests that it has not begun: they go on, and the worker is not suspected.

use std::collections::BTreeSet;

use crate::Served;
use crate::asked::{self, exclusive_peers, start};
use crate::common::lease::Lease;
use crate::common::{PATIENCE, eventually};
use crate::leases::SLOTS;
use crate::peers::{answering, answering_in_turn, asks, asks_root, by, name, place_of_peers};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nok";
const NOT_MINE: &str = "HTTP/1.1 421 Misdirected Request\r\nshardwise-peer: refused\r\ncontent-length: 0\r\n\r\n";
const BUSY: &str = "HTTP/1.1 429 Too Many Requests\r\nshardwise-peer: refused\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n";
const OTHER: &str = "HTTP/1.1 503 Service Unavailable\r\nshardwise-peer: refused\r\ncontent-length: 0\r\n\r\n";
/// The status of a handler of the worker, which is an answer.
const ANSWER_421: &str = "HTTP/1.1 421 Misdirected Request\r\ncontent-length: 0\r\n\r\n";

/// Whether the sidecar has suspected its worker.
fn has_suspected(served: &Served) -> bool {
    let metrics = String::from_utf8(asks_root(served, "/metrics").body).unwrap();
    metrics.lines().any(|line| line.starts_with("shardwise_worker_suspected_total{") && !line.ends_with(" 0"))
}

#[test]
fn a_request_to_a_key_that_its_worker_refuses_is_brought_again_until_it_is_taken() {
    let place = exclusive_peers();
    let (worker, heard) = answering_in_turn([NOT_MINE, BUSY, OTHER, OK, ANSWER_421]);
    let one = start(&place, worker);
    let lease = Lease::kept_with(one.at, 10_000, crate::TOKEN);
    eventually("it holds everything", PATIENCE, || (lease.slots().0.len() == SLOTS).then_some(()));
    let within = "shardwise-within-ms: 120000\r\n";
    let answer = asked::asks(&one, "POST", "keys/a/x", within);
    assert_eq!((answer.status, answer.body.as_slice()), (200, &b"ok"[..]), "{answer:?}");
    for refused in 0..4 {
        let request = heard.recv_timeout(PATIENCE).unwrap();
        assert!(request.starts_with("POST /hooks/x HTTP/1.1\r\n"), "after {refused} refusals: {request}");
    }
    assert_eq!(asked::asks(&one, "POST", "keys/a/x", within).status, 421, "without the header it is the answer");
    assert!(!has_suspected(&one), "a worker that refuses works");
}

#[test]
fn any_goes_on_to_another_member_where_the_worker_refuses() {
    let place = place_of_peers();
    let ((well, _heard), (refusing, refused)) = (answering(OK), answering(BUSY));
    let (one, other) = (start(&place, well), start(&place, refusing));
    for (asking, asked) in [(&one, &other), (&other, &one)] {
        let status = format!("instances/{}/shardwise/status", asked.id);
        eventually("it is seen", PATIENCE, || (asks(asking, "GET", &status, "").status == 200).then_some(()));
    }
    for asking in [&one, &other] {
        let answers = (0..4).map(|_| asks(asking, "POST", "any/x", "{}"));
        let answers: BTreeSet<_> = answers.map(|answer| (answer.status, by(&answer).to_owned())).collect();
        assert_eq!(answers, BTreeSet::from([(200, name(&one))]), "at {}", asking.id);
        asks(asking, "POST", &format!("instances/{}/x", other.id), "{}").refuses(429, "no other member may answer");
    }
    // Of the four to any, each second one came to it first.
    for _ in 0..2 * (2 + 1) {
        refused.recv_timeout(PATIENCE).unwrap();
    }
    assert!(!has_suspected(&other), "a worker that refuses works");
}
