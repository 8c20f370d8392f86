//! Requests for a sidecar's local worker: which handler answers `status`, which members `any` passes over, and the addressee of a request.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use shardwise_testkit::Port;

use crate::Served;
use crate::common::{PATIENCE, Place, eventually};
use crate::peers::{answering, asks, asks_root, by, name, place_of_peers, status_of};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nok";

fn start(place: &Place, worker: SocketAddr) -> Served {
    let forward = format!("http://{worker}/hooks");
    Served::start(place, &["--token-file", "token", "--peer-token-file", "peers", "--forward-to", &forward])
}

/// Waits until each of them sees every other one. No worker is asked for that.
fn see_each_other(all: &[&Served]) {
    for asking in all {
        for asked in all {
            let status = format!("instances/{}/shardwise/status", asked.id);
            eventually("it is seen", PATIENCE, || (asks(asking, "GET", &status, "").status == 200).then_some(()));
        }
    }
}

#[test]
fn a_workers_own_status_goes_first_and_the_sidecar_has_one_for_workers_without() {
    let place = place_of_peers();
    let (with, heard) = answering(OK);
    let (without, asked) = answering("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n");
    let (one, other) = (start(&place, with), start(&place, without));
    see_each_other(&[&one, &other]);
    for asking in [&one, &other] {
        let own = status_of(asking, &one.id);
        assert_eq!((own.status, own.body.as_slice()), (200, &b"ok"[..]), "{own:?}");
        let request = heard.recv_timeout(PATIENCE).unwrap();
        assert!(request.starts_with("GET /hooks/status HTTP/1.1\r\n"), "{request}");
        assert!(request.contains("shardwise-to: instance\r\n"), "the caller's own is not believed: {request}");

        let status = status_of(asking, &other.id).well("the sidecar's, because the worker has none");
        assert_eq!(status["instance_id"], other.id.as_str());
        assert!(asked.recv_timeout(PATIENCE).unwrap().starts_with("GET /hooks/status "));
        let nothing = asks(asking, "GET", &format!("instances/{}/x", other.id), "");
        assert_eq!((nothing.status, nothing.body.as_slice()), (404, &b""[..]), "a worker's 404 is an answer: {nothing:?}");
        asked.recv_timeout(PATIENCE).unwrap();
    }
    assert!(heard.try_recv().is_err() && asked.try_recv().is_err(), "each was asked once");
}

/// A worker that has ended did certainly nothing, so another one may be asked; a worker's own 502 is an answer.
#[test]
fn any_goes_on_to_another_member_where_the_worker_is_dead() {
    let place = place_of_peers();
    let (well, heard) = answering(OK);
    let (failing, asked) = answering("HTTP/1.1 502 Bad Gateway\r\ncontent-length: 2\r\n\r\nno");
    let ended = Port::reserve().unwrap();
    let [one, dead, third] = [well, ended.address(), failing].map(|worker| start(&place, worker));
    let all = [&one, &dead, &third];
    see_each_other(&all);
    for asking in all {
        for (method, body) in [("GET", ""), ("POST", "{}")] {
            let answers = (0..6).map(|_| asks(asking, method, "any/x", body));
            let answers: BTreeSet<_> = answers.map(|answer| (answer.status, by(&answer).to_owned())).collect();
            assert_eq!(answers, BTreeSet::from([(200, name(&one)), (502, name(&third))]), "{method} at {}", asking.id);
        }
    }
    let (wanted, mut count) = (all.len() * 2 * 6, 0);
    let mut heard_all = || {
        for request in heard.try_iter().chain(asked.try_iter()) {
            assert!(request.contains("shardwise-to: any\r\n"), "{request}");
            count += 1;
        }
        (count >= wanted).then_some(())
    };
    eventually("all have come", PATIENCE, &mut heard_all);
    assert_eq!(count, wanted, "each came to one worker, once");

    for asking in all {
        let refusal = asks(asking, "POST", &format!("instances/{}/x", dead.id), "{}").refuses(502, "its worker is dead");
        let detail = refusal["detail"].as_str().unwrap();
        assert_eq!(refusal["type"], "urn:shardwise:problem:unreachable-worker");
        assert!(detail.contains(&format!("the worker of {} gives no valid answer: 127.0.0.1:", dead.id)), "{detail}");
        let own = asks(asking, "POST", &format!("instances/{}/x", third.id), "{}");
        assert_eq!((own.status, own.body.as_slice()), (502, &b"no"[..]), "{own:?}");
    }
    let metrics = String::from_utf8(asks_root(&one, "/metrics").body).unwrap();
    assert!(metrics.contains("shardwise_sidecar_forwards_total{outcome=\"no_worker\"}"), "{metrics}");
    assert!(metrics.contains("shardwise_load{policy=\"workers\"} "), "an autoscaler reads it here: {metrics}");

    let elsewhere = place_of_peers();
    let alone = start(&elsewhere, ended.address());
    let refusal = asks(&alone, "POST", "any/x", "{}").refuses(502, "no worker is there");
    assert_eq!(refusal["type"], "urn:shardwise:problem:unreachable-worker");
}

/// It is unknown what a worker did that ended while it answered: a `GET` is sent to another one, a `POST` is not.
#[test]
fn any_goes_on_with_a_get_alone_where_the_worker_ends_without_an_answer() {
    let place = place_of_peers();
    let ((well, _heard), (ending, asked)) = (answering(OK), answering(""));
    let (one, other) = (start(&place, well), start(&place, ending));
    see_each_other(&[&one, &other]);
    for asking in [&one, &other] {
        let answers = |method: &str, body: &str| {
            let answers = (0..4).map(|_| asks(asking, method, "any/x", body));
            answers.map(|answer| (answer.status, by(&answer).to_owned())).collect::<BTreeSet<_>>()
        };
        assert_eq!(answers("GET", ""), BTreeSet::from([(200, name(&one))]), "at {}", asking.id);
        assert_eq!(answers("POST", "{}"), BTreeSet::from([(200, name(&one)), (502, name(&other))]), "at {}", asking.id);

        let of_other = format!("instances/{}/x", other.id);
        let read = asks(asking, "GET", &of_other, "").refuses(502, "no answer");
        assert_eq!(read["type"], "urn:shardwise:problem:bad-gateway", "it may have been done");
        let action = asks(asking, "POST", &of_other, "{}").refuses(502, "no answer");
        assert_eq!(action["type"], "urn:shardwise:problem:worker", "it may have been done");
    }
    assert_eq!(asked.try_iter().count(), 2 * (2 + 2 + 2), "half of those to any and all to it, each once");
}

#[test]
fn any_may_name_its_instance_and_the_worker_does_not_see_that() {
    let place = place_of_peers();
    let ((first, _first), (second, heard)) = (answering(OK), answering(OK));
    let (one, other) = (start(&place, first), start(&place, second));
    see_each_other(&[&one, &other]);
    let id = &other.id;
    for (rest, target) in [
        (format!("any/cache/size?a=%2f&instance={id}&b"), "/hooks/cache/size?a=%2f&b"),
        (format!("any/cache/size?instance={id}"), "/hooks/cache/size"),
    ] {
        for _ in 0..3 {
            let answer = asks(&one, "GET", &rest, "");
            assert_eq!((answer.status, by(&answer)), (200, name(&other).as_str()), "{answer:?}");
            let request = heard.recv_timeout(PATIENCE).unwrap();
            assert!(request.starts_with(&format!("GET {target} HTTP/1.1\r\n")) && request.contains("shardwise-to: any\r\n"), "{request}");
        }
    }
    assert_eq!(asks(&one, "GET", &format!("instances/{id}/x?instance=a"), "").status, 200);
    assert!(heard.recv_timeout(PATIENCE).unwrap().starts_with("GET /hooks/x?instance=a "), "elsewhere it is the worker's");

    let unknown = asks(&one, "GET", "any/x?instance=worker-of-another-group", "").refuses(404, "no such member");
    assert_eq!(unknown["type"], "urn:shardwise:problem:unknown-instance");
    asks(&one, "GET", "any/x?instance=", "").refuses(404, "no name");
    asks(&one, "GET", &format!("any/x?instance={id}&instance={id}"), "").refuses(400, "two names");
}

#[test]
fn a_timeout_is_reported_to_the_member_whether_or_not_the_request_named_it() {
    let place = place_of_peers();
    let (late, _heard) = answering("HTTP/1.1 504 Gateway Timeout\r\ncontent-length: 0\r\n\r\n");
    let one = Served::start(&place, &["--token-file", "token", "--peer-token-file", "peers"]);
    let (other, third) = (start(&place, late), start(&place, late));
    see_each_other(&[&one, &other, &third]);
    let is_reported = |served: &Served| {
        let metrics = String::from_utf8(asks_root(served, "/metrics").body).unwrap();
        metrics.lines().any(|line| line.starts_with("shardwise_worker_suspected_total{") && !line.ends_with(" 0"))
    };
    for (asked, rest) in [(&other, format!("any/x?instance={}", other.id)), (&third, format!("instances/{}/x", third.id))] {
        assert!(!is_reported(asked), "nothing was asked yet");
        // A report that takes longer than a second is dropped, and the next one is sent after five seconds.
        eventually("the member has the report", PATIENCE, || {
            assert_eq!(asks(&one, "GET", &rest, "").status, 504);
            is_reported(asked).then_some(())
        });
    }
}
