//! Requests that are wrong, slow or too large: a clear refusal, bounded memory, and no change of ownership.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{PATIENCE, eventually};
use crate::{Served, http, place};

const JSON: &str = "Content-Type: application/json\r\n";
const TEXT: &str = "Content-Type: text/plain\r\n";
const MIB: u64 = 1 << 20;

/// The part of an ownership that must stay the same.
fn essence(ownership: &Value) -> Value {
    json!([ownership["state"], ownership["slots_owned"], ownership["revision"], ownership["view_fingerprint"]])
}

/// Checks that `trouble` changes no ownership, ends no lease, and leaves hardly any memory in use.
fn unharmed(served: &Served, trouble: impl FnOnce()) {
    served.settles(1, |owned| owned == 256);
    let (before, memory) = (essence(&served.ownership()), served.memory());
    // It is written down a moment after the slots are owned.
    let history = || Some(served.get("rebalances").well("history")).filter(|seen| seen["rebalances"] != json!([]));
    let events = eventually("the join is in the history", PATIENCE, history);
    trouble();
    let ownership = served.ownership();
    assert_eq!(essence(&ownership), before);
    assert!(ownership["owned_for_ms"].as_u64().unwrap() > 0, "{ownership}");
    assert_eq!(served.get("rebalances").well("history"), events, "its lease ended in between");
    let grown = served.memory().saturating_sub(memory);
    assert!(grown < 64 * MIB, "{} MiB were kept", grown / MIB);
}

#[test]
fn what_is_wrong_is_refused_in_words() {
    let place = place();
    let one = Served::start(&place, &["--max-list", "1000000"]);
    unharmed(&one, || {
        keys(&one);
        bodies(&one);
        paths(&one);
        hosts(&one);
        actions(&one);
    });
}

fn keys(one: &Served) {
    let longest = "k".repeat(65_536);
    assert_eq!(one.post("owned", JSON, json!([longest]).to_string()).well("64 KiB"), json!([longest]));
    assert_eq!(one.post("owned", TEXT, &longest).body.len(), 65_537);
    one.post("owned", JSON, json!([format!("{longest}k")]).to_string()).refuses(400, "a byte more");
    one.post("owned", TEXT, format!("a\n{longest}k")).refuses(400, "a byte more");
    assert_eq!(one.get(&format!("owner/{longest}")).status, 414, "no path is that long");
    assert_eq!(one.get("owner/%ff%fe").refuses(400, "no UTF-8 in a path")["title"], "The key is not valid");
    one.get("explain/a%c3").refuses(400, "no UTF-8 in a path");
    one.post("owned", TEXT, b"a\n\xff\n").refuses(400, "no UTF-8 in a line");
    one.post("owned", JSON, b"[\"\xff\"]").refuses(400, "no UTF-8 in JSON");
    one.post("owned", JSON, "[\"\\ud800\"]").refuses(400, "half a character");
}

fn bodies(one: &Served) {
    for body in ["", "{", "[", "null", "[1]", "{\"keys\":[]}", "[\"a\"", "[\"a\"]]", "[[\"a\"]]"] {
        one.post("owned", JSON, body).refuses(400, body);
    }
    for kind in
        ["", "Content-Type: application/xml\r\n", "Content-Type: text/plain; charset=latin1\r\n", "Content-Type: application/jsonx\r\n"]
    {
        one.post("owned", kind, "[]").refuses(415, kind);
        one.post("plan", kind, "{}").refuses(415, kind);
    }
    one.post("owned", TEXT, "k\n".repeat(500_001)).refuses(413, "more than it takes");
    let claims = format!("{}{TEXT}Content-Length: 99999999999999\r\n\r\n", start_of("POST", "owned", one));
    http::raw(one.at, claims.as_bytes()).refuses(413, "more than it takes, and says so");
    for plan in ["", "[]", "{\"join\":1}", "{\"leave\":[\"a\"],\"more\":1}", "{\"join\":[{\"instance_id\":\"x\",\"weight\":101}]}"] {
        one.post("plan", JSON, plan).refuses(400, plan);
    }
    for (plan, expected) in
        [("", "not JSON"), ("{", "not JSON"), ("leave=a", "not JSON"), ("{} x", "not JSON"), ("[]", "no object"), ("null", "no object")]
    {
        let detail = one.post("plan", JSON, plan).refuses(400, plan)["detail"].clone();
        assert!(detail.as_str().unwrap().contains(expected), "{plan:?}: {detail}");
    }
    one.post("plan", JSON, "{\"leave\":[\"nobody\"]}").refuses(404, "nobody leaves");
    one.post("plan", JSON, json!({"join": [{"instance_id": one.id}]}).to_string()).refuses(409, "it is there");
    one.post("plan", JSON, json!({"join": [{"instance_id": ""}]}).to_string()).refuses(409, "nobody can be called so");
    one.post("plan", JSON, " ".repeat(2_000_000)).refuses(413, "a large plan");
}

fn paths(one: &Served) {
    let unknown = http::get(one.at, "/v1/policies/strangers/owner/x").refuses(404, "unknown policy");
    assert!(unknown["title"] == "Not found" && unknown["detail"].as_str().unwrap().contains("workers"), "{unknown}");
    for path in [
        "/assets/",
        "/assets/../livez",
        "/assets/page.css/x",
        "/v1",
        "/v1/policies//owner/x",
        "/v1/policies/workers/owner/a/b",
        "/v1/policies/workers/../../livez",
        "//livez",
        "/livez/",
        "/v1/policies/%ff/members",
    ] {
        let answer = http::get(one.at, path);
        assert!(answer.status == 404 || answer.status == 400, "{path}: {answer:?}");
        answer.refuses(answer.status, path);
    }
    let deleted = http::raw(one.at, format!("{}\r\n", start_of("DELETE", "members", one)).as_bytes());
    assert!(deleted.refuses(405, "DELETE")["detail"].is_string() && deleted.head.contains("allow: get, head"), "{deleted:?}");
    one.get("owned").refuses(405, "GET of a list");
}

fn start_of(method: &str, path: &str, one: &Served) -> String {
    format!("{method} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", Served::path(path), one.at)
}

fn hosts(one: &Served) {
    let port = one.at.port();
    let with =
        |line: &str, headers: &str| http::raw(one.at, format!("GET {line} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n").as_bytes());
    for host in ["localhost", &format!("127.0.0.1:{port}"), "LocalHost:1", "[::1]"] {
        assert_eq!(with("/livez", &format!("Host: {host}\r\n")).status, 200, "{host}");
    }
    for host in ["evil.example", "127.0.0.1.evil.example", "10.1.2.3", "x@127.0.0.1", "", "127.0.0.1:80/x"] {
        for path in ["/livez", &Served::path("members")] {
            with(path, &format!("Host: {host}\r\n")).refuses(421, host);
        }
    }
    with("/livez", "").refuses(400, "no host");
    with("/livez", "Host: localhost\r\nHost: evil.example\r\n").refuses(400, "two hosts");
    with("http://evil.example/livez", "Host: localhost\r\n").refuses(421, "another host in the line");
    for origin in ["http://evil.example", "null", "https://localhost.evil.example", "file://", "http://"] {
        with("/livez", &format!("Host: localhost\r\nOrigin: {origin}\r\n")).refuses(403, origin);
    }
    assert_eq!(with("/livez", &format!("Host: localhost\r\nOrigin: http://localhost:{port}\r\n")).status, 200);
}

fn actions(one: &Served) {
    for route in ["drain", "undrain"] {
        one.acts(route, &json!({"instance_id": one.id})).refuses(403, "without a token nobody acts");
    }
}

#[test]
fn a_body_without_an_end_is_ended() {
    let place = place();
    let one = Served::start(&place, &["--max-list", "20000000"]);
    unharmed(&one, || {
        for (kind, piece, status) in [
            (TEXT, "x".repeat(4_096), 400),
            (JSON, "[\"".to_owned() + &"x".repeat(4_096), 400),
            (TEXT, format!("{}\n", "y".repeat(40_000)), 200),
        ] {
            let mut stream = http::connect(one.at);
            let mut sending = stream.try_clone().unwrap();
            let head = format!("{}{kind}Transfer-Encoding: chunked\r\n\r\n", start_of("POST", "owned", &one));
            let writer = std::thread::spawn(move || {
                let (chunk, begun) = (format!("{:x}\r\n{piece}\r\n", piece.len()), Instant::now());
                let _ = sending.write_all(head.as_bytes());
                while begun.elapsed() < PATIENCE && sending.write_all(chunk.as_bytes()).is_ok() {}
                begun.elapsed()
            });
            let answer = http::read(&mut stream);
            drop(stream);
            assert!(writer.join().unwrap() < PATIENCE, "it was let to send for ever");
            assert_eq!(answer.status, status, "{}", answer.head);
            // An error after the answer has begun cannot be reported in the status, but the answer is incomplete.
            assert!(status != 200 || !answer.is_whole);
        }
    });
}

/// A client sends a million keys and reads the answer very slowly: the sidecar buffers neither, and eventually closes the connection.
#[test]
fn who_reads_a_byte_a_second_is_ended_and_nothing_piles_up_meanwhile() {
    let place = place();
    let one = Served::start(&place, &[]);
    unharmed(&one, || {
        let keys = "a-key-that-is-mine-because-i-am-alone\n".repeat(1_000_000);
        let head = format!("{}{TEXT}Content-Length: {}\r\n\r\n", start_of("POST", "owned", &one), keys.len());
        let (mut stream, memory) = (http::connect(one.at), one.memory());
        let (mut sending, begun) = (stream.try_clone().unwrap(), Instant::now());
        let writer = std::thread::spawn(move || sending.write_all(head.as_bytes()).and_then(|()| sending.write_all(keys.as_bytes())));
        let mut highest = memory;
        let read = a_byte_a_second(&mut stream, || {
            highest = highest.max(one.memory());
            assert!(begun.elapsed() < PATIENCE, "38 MB are still being sent for somebody who reads a byte a second");
            writer.is_finished()
        });
        let sent = writer.join().unwrap();
        assert!(sent.is_err(), "38 MB were taken for somebody who reads a byte a second: {read} bytes were read");
        assert!((2..100).contains(&read), "{read} bytes were read in {:?}", begun.elapsed());
        let grown = highest.saturating_sub(memory);
        assert!(grown < 32 * MIB, "{} MiB were kept for somebody who reads a byte a second", grown / MIB);
    });
}

/// Reads a byte per second until it is over, and checks more often whether it is. Returns the number of bytes.
fn a_byte_a_second(stream: &mut TcpStream, mut is_over: impl FnMut() -> bool) -> usize {
    // The wait for a byte must also end soon.
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let (mut next, mut read) = (Instant::now(), 0);
    while !is_over() {
        if Instant::now() < next {
            std::thread::sleep(Duration::from_millis(20));
        } else if let Ok(bytes) = stream.read(&mut [0])
            && bytes > 0
        {
            read += bytes;
            next = Instant::now() + Duration::from_secs(1);
        }
    }
    read
}

#[test]
fn more_requests_than_the_rate_are_refused_and_probes_are_not_counted() {
    let place = place();
    let one = Served::start(&place, &["--rate", "1"]);
    let answers: Vec<http::Answer> = (0..10).map(|_| one.get("ownership")).collect();
    let (answered, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
    assert!(!answered.is_empty() && !refused.is_empty(), "{} were answered and {} refused", answered.len(), refused.len());
    for answer in refused {
        let problem = answer.refuses(429, "ten at once");
        assert!(problem["detail"].as_str().unwrap().contains("--rate"), "{problem}");
    }
    for _ in 0..10 {
        assert_eq!(http::get(one.at, "/livez").status, 200);
    }
}

#[test]
fn a_thousand_idle_connections_keep_no_client_out() {
    let place = place();
    let one = Served::start(&place, &["--max-connections", "100"]);
    unharmed(&one, || {
        let mut idle: Vec<TcpStream> = (0..1_000).map(|_| http::connect(one.at)).collect();
        let half: Vec<_> = idle.iter_mut().filter_map(|stream| stream.write_all(b"GET /livez HT").err()).collect();
        for n in 0..20 {
            let begun = Instant::now();
            assert_eq!(http::get(one.at, &Served::path(&format!("owner/{n}"))).status, 200, "beside {} idle ones", idle.len() - half.len());
            assert!(begun.elapsed() < Duration::from_secs(8), "it had to wait until idle ones were given up");
        }
        let open = || std::fs::read_dir(format!("/proc/{}/fd", one.process.pid())).unwrap().count();
        eventually("few are kept open", PATIENCE, || (open() < 200).then_some(()));
    });
}

#[test]
fn it_does_not_start_where_others_could_listen_in_or_guess() {
    let place = place();
    place.write("short", "abc\n");
    let serve = |arguments: &[&str]| place.run(&[&["serve", "--policy", "workers"], arguments].concat());
    for open in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80"] {
        serve(&["--listen", open]).fails(2, &[open, "--token-file", "--tls-cert"]);
        serve(&["--listen", open, "--token-file", "token"]).fails(2, &["--tls-cert"]);
    }
    serve(&["--token-file", "short"]).fails(2, &["short", "16 bytes"]);
    serve(&["--token-file", "missing"]).fails(3, &["missing"]);
    serve(&["--tls-cert", "token", "--tls-key", "token"]).fails(2, &["token", "certificates in PEM"]);
    serve(&["--tls-cert", "token"]).fails(2, &["--tls-key"]);
    place.run(&["serve", "--policy", "strangers"]).fails(2, &["strangers", "workers"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    serve(&["--listen", &address]).fails(3, &[&address]);
}
