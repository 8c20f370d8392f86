//! The throughput of `shardwise serve` over loopback, with plain sockets of this process as clients: `cargo xtask bench sidecar`.
//!
//! Each figure appends a line of JSON to the file in `SHARDWISE_SIDECAR_FIGURES`. Under `cargo test --benches` everything is much smaller.
//! Clients and sidecar share the machine's cores, so the figures are lower than the sidecar alone could reach.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::panic, missing_docs, reason = "a benchmark reports by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod forwarded;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use common::client::Client;
use common::in_earnest;
use common::served::{POLL_EVERY, Served, path};

/// The number of connections that request owners.
const CONNECTIONS: usize = 16;
/// The number of connections that send lists while renewals are measured.
const LISTS_BESIDE: usize = 2;

struct Scale {
    rounds: usize,
    list: usize,
    stream: usize,
    owners_for: Duration,
    load_for: Duration,
}

const EARNEST: Scale =
    Scale { rounds: 15, list: 100_000, stream: 1_000_000, owners_for: Duration::from_secs(5), load_for: Duration::from_mins(1) };
const SMALL: Scale =
    Scale { rounds: 2, list: 1_000, stream: 10_000, owners_for: Duration::from_millis(200), load_for: Duration::from_millis(1_500) };

fn print_figure(figure: &Value) {
    common::print_figure("SHARDWISE_SIDECAR_FIGURES", figure);
}

fn main() {
    let scale = if in_earnest() { EARNEST } else { SMALL };
    let served = Served::start("");
    lists(&served, &scale);
    streams(&served, &scale);
    owners(&served, &scale);
    renewals(&served, &scale);
    drop(served);
    forwarded::forwarded(scale.owners_for);
}

fn keys(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|n| format!("tenant-{n:08}"))
}

fn print_rounds(figure: &str, keys: usize, mut rounds: Vec<Duration>) {
    rounds.sort_unstable();
    let millis = |round: Duration| round.as_secs_f64() * 1e3;
    print_figure(&json!({"figure": figure, "keys": keys, "fastest_ms": millis(rounds[0]), "median_ms": millis(rounds[rounds.len() / 2])}));
}

/// A JSON list in one request; the only worker of a group owns all keys, so all of them come back.
fn lists(served: &Served, scale: &Scale) {
    let body = serde_json::to_vec(&keys(scale.list).collect::<Vec<_>>()).unwrap();
    let mut client = Client::connect(served.at);
    let round = |client: &mut Client| {
        let begun = Instant::now();
        let bytes = client.post(&path("owned"), "application/json", &body);
        assert_eq!(bytes, body.len() as u64, "everything is its own");
        begun.elapsed()
    };
    round(&mut client);
    print_rounds("list", scale.list, (0..scale.rounds).map(|_| round(&mut client)).collect());
}

/// Text that is answered while it is received, and the memory for that: once, and with four times the length.
fn streams(served: &Served, scale: &Scale) {
    let body: Vec<u8> = keys(scale.stream).flat_map(|key| [key.into_bytes(), b"\n".to_vec()].concat()).collect();
    let mut client = Client::connect(served.at);
    let mut round = |times: usize| {
        let begun = Instant::now();
        assert_eq!(client.stream(&path("owned"), &body, times), (body.len() * times) as u64, "everything is its own");
        begun.elapsed()
    };
    round(1);
    served.forget_peak();
    let idle = served.peak();
    let rounds: Vec<_> = (0..scale.rounds).map(|_| round(1)).collect();
    let once = served.peak();
    served.forget_peak();
    round(4);
    let four_times = served.peak();
    print_rounds("stream", scale.stream, rounds);
    print_figure(&json!({"figure": "memory", "body": body.len(), "idle": idle, "once": once, "four_times": four_times}));
}

/// Requests owners until `stop` is set, and counts the answers.
fn ask_owners(served: &Served, stop: &AtomicBool, asked: &AtomicU64) {
    let mut client = Client::connect(served.at);
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let bytes = client.get(&path(&format!("owner/tenant-{number}")));
        assert!(bytes > 0);
        asked.fetch_add(1, Ordering::Relaxed);
    }
}

fn owners(served: &Served, scale: &Scale) {
    let rate = |for_: Duration| {
        let (stop, asked) = (AtomicBool::new(false), AtomicU64::new(0));
        let begun = Instant::now();
        std::thread::scope(|threads| {
            for _ in 0..CONNECTIONS {
                threads.spawn(|| ask_owners(served, &stop, &asked));
            }
            std::thread::sleep(for_);
            stop.store(true, Ordering::Relaxed);
        });
        asked.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64()
    };
    let mut rates: Vec<f64> = (0..3).map(|_| rate(scale.owners_for)).collect();
    rates.sort_by(f64::total_cmp);
    print_figure(&json!({"figure": "owner", "connections": CONNECTIONS, "best": rates[2], "median": rates[1]}));
}

/// The remaining lease time when a renewal is answered, idle and under load: the difference is the delay of renewals.
fn renewals(served: &Served, scale: &Scale) {
    let watch = |for_: Duration| {
        let (begun, mut lowest, mut looks) = (Instant::now(), f64::INFINITY, 0);
        while begun.elapsed() < for_ {
            lowest = lowest.min(served.margin());
            looks += 1;
            std::thread::sleep(POLL_EVERY);
        }
        (lowest, looks)
    };
    let idle = watch(scale.load_for.min(Duration::from_secs(10))).0;
    let (stop, asked, listed) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let body = serde_json::to_vec(&keys(scale.list).collect::<Vec<_>>()).unwrap();
    let (loaded, looks) = std::thread::scope(|threads| {
        for _ in 0..CONNECTIONS {
            threads.spawn(|| ask_owners(served, &stop, &asked));
        }
        for _ in 0..LISTS_BESIDE {
            threads.spawn(|| {
                let mut client = Client::connect(served.at);
                while !stop.load(Ordering::Relaxed) {
                    client.post(&path("owned"), "application/json", &body);
                    listed.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let seen = watch(scale.load_for);
        stop.store(true, Ordering::Relaxed);
        seen
    });
    print_figure(&json!({
        "figure": "renewals", "seconds": scale.load_for.as_secs_f64(), "looks": looks,
        "owners": asked.load(Ordering::Relaxed), "lists": listed.load(Ordering::Relaxed),
        "margin_idle_ms": idle * 1e3, "margin_lowest_ms": loaded * 1e3, "late_ms": (idle - loaded).max(0.0) * 1e3,
        "lost": served.lost(),
    }));
}
