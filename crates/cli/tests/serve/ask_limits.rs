//! Requests through a sidecar: an operator's routes, a caller's token, time limits, cancelling, and what is refused.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;

use serde_json::json;

use crate::asked::{TOKENED, asks, exclusive_peers, sends, sends_to, start};
use crate::common::{PATIENCE, Place, eventually};
use crate::peers::{PEER_TOKEN, place_of_peers};
use crate::{Served, TOKEN, http};

/// Waits until it sees so many members and owns something.
fn settles(served: &Served, members: usize) {
    eventually("the group has settled", PATIENCE, || {
        let own = asks(served, "GET", "ownership", "").well("ownership");
        (own["members"] == members && own["slots_owned"].as_u64().unwrap() > 0).then_some(())
    });
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
    let narrow = place_of_peers();
    let served = Served::start(&narrow, &TOKENED);
    let refused = stores(&served, "{\"width\":1,\"skip\":[\"worker-1\"]}").refuses(409, "max_width is 1");
    assert!(refused["detail"].as_str().unwrap().contains("set max_width to 2 or more on all members"), "{refused}");
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
    let at = one.at;
    for rest in ["keys/a/slow".to_owned(), "any/slow".to_owned(), format!("instances/{}/slow", one.id)] {
        std::thread::scope(|scope| {
            let asked = ("POST", rest.as_str());
            let headers = "shardwise-within-ms: 300000\r\nshardwise-request-id: mine-7\r\n";
            let asking = scope.spawn(move || sends_to(at, TOKEN, asked, headers, "hello"));
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
    // A client that is gone waits for no answer.
    for rest in ["keys/a/slow", "any/slow"] {
        let mut client = http::connect(at);
        let head = format!("POST {} HTTP/1.1\r\nHost: {at}\r\nAuthorization: Bearer {TOKEN}\r\n", Served::path(rest));
        let rest_of_it = "shardwise-within-ms: 300000\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello";
        client.write_all((head + rest_of_it).as_bytes()).unwrap();
        assert_eq!(heard.recv_timeout(PATIENCE).unwrap(), "asked");
        drop(client);
        eventually("the worker sees it", PATIENCE, || (heard.recv_timeout(PATIENCE).unwrap() == "gone").then_some(()));
    }
    // Its body has not come yet.
    for rest in ["keys/a/slow", "any/slow"] {
        let mut client = http::connect(at);
        let head = format!("POST {} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\nAuthorization: Bearer {TOKEN}\r\n", Served::path(rest));
        let rest_of_it = "shardwise-request-id: mine-8\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\n";
        client.write_all((head + rest_of_it).as_bytes()).unwrap();
        eventually("its head is read", PATIENCE, || (asks(&one, "DELETE", "requests/mine-8", "").status == 204).then_some(()));
        let refusal = http::read(&mut client).refuses(502, rest);
        assert_eq!(refusal["type"], "urn:shardwise:problem:cancelled");
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
        let line = format!("GET {} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\n", Served::path(&rest), one.at);
        let kind = format!("Content-Type: {}\r\nConnection: close\r\n\r\n", "x".repeat(257));
        http::raw(one.at, (line + &kind).as_bytes()).refuses(400, "a long type");
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
