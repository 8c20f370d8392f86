//! Requests through two sidecars: one is asked for the status of the other, without TLS between them and with it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use shardwise_testkit::Authority;

use crate::common::client::Client;
use crate::common::served::{POLL_EVERY, Served, folder, path};
use crate::{CONNECTIONS, print_figure};

const TOKEN: &str = "correct-horse-battery-staple";
/// How long the other one may take until it is seen.
const SEEN_WITHIN: Duration = Duration::from_secs(30);

pub(crate) fn forwarded(turn: Duration) {
    forwarded_by(Path::new(env!("CARGO_BIN_EXE_shardwise")), "", turn);
}

/// The same by sidecars of that program, in figures whose names begin like that.
pub(crate) fn forwarded_by(program: &Path, prefix: &str, turn: Duration) {
    let authority = Authority::new().unwrap();
    let server = authority.server().unwrap();
    let [ca, chain, key] = [authority.file(), server.certificate(), server.key()].map(|path| path.display().to_string());
    let ways: [(&str, &[&str], &[&str]); 2] =
        [("plain", &[], &[]), ("tls", &["--peer-ca-file", &ca], &["--tls-cert", &chain, "--tls-key", &key])];
    for (between, of_one, of_other) in ways {
        let place = folder("");
        std::fs::write(place.path().join("token"), TOKEN).unwrap();
        std::fs::write(place.path().join("peers"), "peers-know-this-one-alone").unwrap();
        let tokens = ["--token-file", "token", "--peer-token-file", "peers"];
        let [one, other] = [of_one, of_other].map(|more| Served::start_by(program, &place, &[&tokens[..], more].concat()));
        for method in ["GET", "POST"] {
            let request = request(&one, method, &other.id);
            seen(&one, &request);
            print_rates(&format!("{prefix}{method} {between}"), one.at, &request, turn);
        }
    }
}

/// How long that request takes alone, and how many of it are answered in a second.
pub(crate) fn print_rates(figure: &str, at: SocketAddr, request: &[u8], turn: Duration) {
    let millis = |took: Duration| took.as_secs_f64() * 1e3;
    let mut alone = times(at, request, turn);
    alone.sort_unstable();
    let [median, slow] = [alone.len() / 2, alone.len() * 99 / 100].map(|place| millis(alone[place]));
    let mut rates: Vec<f64> = (0..3).map(|_| rate(at, request, turn)).collect();
    rates.sort_by(f64::total_cmp);
    print_figure(&json!({
        "figure": figure, "connections": CONNECTIONS, "best": rates[2], "median": rates[1], "alone_p50_ms": median, "alone_p99_ms": slow,
    }));
}

fn request(one: &Served, method: &str, id: &str) -> Vec<u8> {
    let path = path(&format!("instances/{id}/status"));
    format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 0\r\n\r\n", one.at).into_bytes()
}

/// Waits until the other one is seen and answers.
fn seen(one: &Served, request: &[u8]) {
    let (begun, mut client) = (Instant::now(), Client::connect(one.at));
    loop {
        let (status, body) = client.ask(request).unwrap();
        if status == 200 {
            return;
        }
        assert!(begun.elapsed() < SEEN_WITHIN, "{status}: {}", String::from_utf8_lossy(&body));
        std::thread::sleep(POLL_EVERY);
    }
}

/// How long each of them takes, one after the other.
fn times(at: SocketAddr, request: &[u8], turn: Duration) -> Vec<Duration> {
    let (begun, mut client, mut times) = (Instant::now(), Client::connect(at), Vec::new());
    while begun.elapsed() < turn || times.is_empty() {
        let asked = Instant::now();
        assert_eq!(client.ask(request).unwrap().0, 200);
        times.push(asked.elapsed());
    }
    times
}

/// How many of them are answered in a second, over several connections.
fn rate(at: SocketAddr, request: &[u8], turn: Duration) -> f64 {
    let (begun, stop, answered) = (Instant::now(), AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|threads| {
        for _ in 0..CONNECTIONS {
            threads.spawn(|| {
                let mut client = Client::connect(at);
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(client.ask(request).unwrap().0, 200);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        std::thread::sleep(turn);
        stop.store(true, Ordering::Relaxed);
    });
    answered.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64()
}
