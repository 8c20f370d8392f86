//! `shardwise ask`, `route` and `routes`, with real sidecars and their workers.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc::{self, Receiver};

use crate::common::process::Process;
use crate::common::{PATIENCE, Place, eventually, workers};
use serde_json::json;

/// A group whose members have a token, with additional policy lines.
fn place(policy: &str) -> Place {
    let place = Place::empty();
    let token = place.path("peers").display().to_string();
    place.write("settings.toml", workers("2s", &format!("slots = 64\npeer_token_file = '{token}'\n{policy}")));
    place.write("peers", "peers-know-this-one-alone\n");
    place
}

/// A worker that answers each connection's first request with that, and passes on what it has heard.
fn worker(answer: &'static str) -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (arrived, heard) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut request) = (stream.unwrap(), Vec::new());
            let is_whole = |request: &[u8]| {
                let text = String::from_utf8_lossy(request);
                let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
                body.len() >= length.unwrap_or(0)
            };
            let mut piece = [0; 4096];
            while !is_whole(&request) {
                match stream.read(&mut piece) {
                    Ok(read) if read > 0 => request.extend_from_slice(&piece[..read]),
                    _ => break,
                }
            }
            let _ = stream.write_all(answer.as_bytes());
            if arrived.send(String::from_utf8_lossy(&request).into_owned()).is_err() {
                return;
            }
        }
    });
    (url, heard)
}

fn serve(place: &Place, id: &str, arguments: &[&str]) -> Process {
    let serve = ["serve", "--policy", "workers", "--id", id, "--listen", "127.0.0.1:0"];
    let mut process = Process::start(place.command(&[&serve[..], arguments].concat()));
    process.prints("it listens", |line| line["listening"].is_string());
    process
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 3\r\n\r\nok\n";
const NO: &str = "HTTP/1.1 404 Not Found\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nno";

#[test]
fn a_request_goes_to_the_owner_of_a_key_and_its_answer_is_the_result() {
    let place = place("");
    let (url, heard) = worker(OK);
    let _one = serve(&place, "one", &["--forward-to", &url]);
    assert_eq!(place.run(&["ask", "--key", "tenant/7", "rooms/say?a=b", "--data", "{\"a\":1}", "--within", "1m"]).well(), "ok\n");
    let request = heard.recv_timeout(PATIENCE).unwrap();
    assert!(request.starts_with("POST /rooms/say?a=b HTTP/1.1\r\n") && request.ends_with("\r\n\r\n{\"a\":1}"), "{request}");
    for header in ["content-type: application/json", "shardwise-to: owner", "shardwise-key: tenant%2F7"] {
        assert!(request.contains(&format!("{header}\r\n")), "{header}: {request}");
    }
    let piped = place.run_with(&["ask", "--any", "/x", "--method", "post", "--idempotency-key", "order-7"], b"a line\n");
    assert_eq!(piped.well(), "ok\n");
    let request = heard.recv_timeout(PATIENCE).unwrap();
    assert!(request.contains("shardwise-to: any\r\n") && request.contains("idempotency-key: order-7\r\n"), "{request}");
    assert!(request.contains("content-type: text/plain; charset=utf-8\r\n") && request.ends_with("a line\n"), "{request}");
    let as_json = place.run(&["ask", "--member", "one", "x", "--json"]).json();
    assert_eq!(as_json, json!({"by": "one", "status": 200, "content_type": "text/plain", "body": "ok\n"}));
    assert!(heard.recv_timeout(PATIENCE).unwrap().starts_with("GET /x HTTP/1.1\r\n"));
}

#[test]
fn exit_codes_say_whether_it_was_handled() {
    let place = place("");
    let nobody = place.run(&["ask", "--key", "a", "x", "--within", "300ms"]);
    assert_eq!((nobody.code, nobody.out.as_slice()), (Some(3), &b""[..]), "{nobody:?}");
    assert!(nobody.err.contains("no member took the request within 300ms") && nobody.err.contains("it was not handled"), "{nobody:?}");

    let (url, _heard) = worker(NO);
    let _one = serve(&place, "one", &["--forward-to", &url]);
    let answered = place.run(&["ask", "--key", "a", "x", "--within", "1m"]);
    assert_eq!((answered.code, answered.out.as_slice()), (Some(1), &b"no"[..]), "{answered:?}");
    assert_eq!(answered.err, "shardwise: one answers with status 404\n");
    place.run(&["ask", "--member", "two", "x"]).fails(4, &["no member of that name", "the members are: one"]);
    let wrong: [(&[&str], &str); 7] = [
        (&["ask", "x"], "--key"),
        (&["ask", "--key", "a", "--any", "x"], "--any"),
        (&["ask", "--any", "../x"], "single slashes"),
        (&["ask", "--any", "x", "--within", "6m"], "the time limit is 360s"),
        (&["ask", "--any", "x", "--method", "get", "--data", "a"], "a GET has no body"),
        (&["ask", "--session", "a", "x"], "not the id of a session"),
        (&["ask", "--member", "", "x"], "--member"),
    ];
    for (wrong, part) in wrong {
        place.run(wrong).fails(2, &[part]);
    }
}

#[test]
fn routes_are_set_listed_and_cleared_and_route_shows_what_they_do() {
    let place = place("max_width = 2");
    let _both = [serve(&place, "one", &[]), serve(&place, "two", &[])];
    let route = || place.run(&["route", "tenant-7", "--json"]);
    let alone = eventually("it has an owner", PATIENCE, || Some(route()).filter(|ran| ran.code == Some(0))).json();
    let (owner, hash) = (alone["pick"].as_str().unwrap(), alone["key_hash"].as_str().unwrap());
    assert_eq!((&alone["set"], &alone["why"], &alone["epoch"]), (&json!([owner]), &json!("placement"), &json!(null)), "{alone}");
    assert_eq!(place.run(&["routes", "list"]).well(), "workers: no key has a route\n");

    let set = place.run(&["routes", "set", "tenant-7", "--width", "2"]).well();
    assert_eq!(set, "key \"tenant-7\": width 2; callers read it within a TTL\n");
    assert_eq!(place.run(&["routes", "set", "--hash", hash, "--width", "2", "--json"]).json()["changed"], false, "it is the same key");
    let spread = eventually("it is spread", PATIENCE, || Some(route().json()).filter(|route| route["set"].as_array().unwrap().len() == 2));
    assert_eq!((&spread["set"][0], &spread["why"]), (&json!(owner), &json!("operator")), "{spread}");
    let moved = place.run(&["routes", "set", "tenant-7", "--skip", owner]).well();
    assert_eq!(moved, format!("key \"tenant-7\": width 1, skips {owner}; callers read it within a TTL\n"));
    let listed = place.run(&["routes", "list"]).well();
    assert!(listed.lines().any(|line| line.split_whitespace().eq([hash, "1", owner])), "{listed}");
    let text = eventually("it is moved", PATIENCE, || {
        Some(place.run(&["route", "tenant-7"]).text())
            .filter(|text| text.starts_with(&format!("pick\t{}\n", spread["set"][1].as_str().unwrap())))
    });
    assert!(text.contains("why\toperator\n") && text.ends_with(&format!("hash\t{hash}\n")), "{text}");

    assert!(place.run(&["routes", "clear", "--hash", hash]).well().contains("cleared"));
    let again = place.run(&["routes", "clear", "tenant-7"]);
    assert_eq!((again.code, again.text()), (Some(1), "key \"tenant-7\": it has no route\n".to_owned()), "{again:?}");
    place.run(&["routes", "set", "a", "--width", "5"]).fails(2, &["--width", "1..=4"]);
    place.run(&["routes", "set", "a", "--width", "3"]).fails(2, &["max_width is 2"]);
    place.run(&["routes", "set", "--hash", "7", "--width", "2"]).fails(2, &["sixteen hexadecimal digits"]);
    place.run(&["routes", "set"]).fails(2, &["--hash"]);
}

#[test]
fn where_only_the_owner_serves_a_key_there_are_no_routes() {
    let place = place("ownership = \"exclusive\"");
    let _one = serve(&place, "one", &[]);
    place.run(&["routes", "set", "a", "--width", "2"]).fails(2, &["only the owner of a key serves it"]);
    let unserved = place.run(&["route", "a"]);
    assert_eq!((unserved.code, unserved.out.as_slice()), (Some(1), &b""[..]), "{unserved:?}");
    assert!(unserved.err.contains("shardwise: no route: "), "{unserved:?}");
}

/// Regression: under the default `max_width` a route was stored, and had no effect.
#[test]
fn where_max_width_is_1_no_route_is_set() {
    let place = place("");
    let _one = serve(&place, "one", &[]);
    let refusal = "policy workers has max_width = 1, so a key is served by its owner alone and no route has an effect: set max_width to 2";
    place.run(&["routes", "set", "tenant-7", "--skip", "one"]).fails(2, &[refusal]);
    place.run(&["routes", "set", "tenant-7", "--width", "2"]).fails(2, &[refusal]);
    assert_eq!(place.run(&["routes", "list"]).well(), "workers: no key has a route\n");
    assert_eq!(place.run(&["routes", "clear", "tenant-7"]).code, Some(1));

    // Set while max_width was higher.
    let raised = "SHARDWISE__RESILIENCE__SHARDING__POLICIES__WORKERS__MAX_WIDTH";
    let mut set = place.command(&["routes", "set", "tenant-7", "--width", "2"]);
    assert!(set.env(raised, "2").output().unwrap().status.success());
    let listed = place.run(&["routes", "list"]);
    assert!(listed.code == Some(0) && listed.err.contains("max_width = 1 in these settings, so no route has an effect"), "{listed:?}");
    let mut listed = place.command(&["routes", "list"]);
    assert!(!String::from_utf8_lossy(&listed.env(raised, "2").output().unwrap().stderr).contains("no route has an effect"));
}
