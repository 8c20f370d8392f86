//! Many unfinished bodies at once: their total memory is bounded, and clients with complete bodies are answered meanwhile.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{Served, http, memory_of, place};

const JSON: &str = "Content-Type: application/json\r\n";
const TEXT: &str = "Content-Type: text/plain\r\n";
const MIB: u64 = 1 << 20;
/// The memory limit of the sidecar in `deploy/kubernetes/sidecar-deployment.yaml`.
const SHIPPED: u64 = 128 * MIB;
const ATTACKERS: usize = 200;
/// How often a client retries, once a second, when it is asked to: for longer than the bodies may take, on a busy machine.
const AGAIN_MAX: u32 = 60;
/// All but the last byte of the longest body that is read as a whole.
const SENT: usize = (1 << 20) - 1;

/// Begins a body of 1 MiB, sends all of it but the end, and returns the connection.
fn begins(at: SocketAddr, number: usize) -> TcpStream {
    let (route, kind, line) = match number % 10 {
        0 => ("owned", TEXT, "a-key-that-is-mine-because-i-am-alone\n"),
        // A key of the largest size, completely escaped.
        1 => ("owned", JSON, "\\u0041"),
        _ => ("plan", JSON, " "),
    };
    let mut stream = http::connect(at);
    let head = format!("POST {} HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n{kind}\r\n", Served::path(route), at, SENT + 1);
    let begin = if number % 10 == 1 { format!("[\"{}", line.repeat(60_000)) } else { line.repeat(SENT / line.len()) };
    // The request may be refused before everything was sent.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(begin.as_bytes()));
    stream
}

/// Sends a request and retries after a second, as clients do, if the sidecar asks for it or an answer breaks off because the rest of the
/// list was dropped. Returns the answer and the number of retries.
fn asks_again(one: &Served, route: &str, body: &str) -> (Value, u32) {
    for again in 0.. {
        let answer = one.post(route, JSON, body);
        let breaks_off = answer.status == 200 && !answer.is_whole;
        if !(answer.status == 429 || breaks_off) || again == AGAIN_MAX {
            return (answer.well("what is asked beside the attack"), again);
        }
        assert!(breaks_off || answer.head.contains("retry-after: 1"), "{answer:?}");
        std::thread::sleep(Duration::from_secs(1));
    }
    unreachable!()
}

/// Sends every kind of request, with and without a body; returns the number of retries.
fn asks(one: &Served) -> u32 {
    let keys: Vec<String> = (0..20_000).map(|n| format!("tenant-{n}")).collect();
    let (mine, listing) = asks_again(one, "owned", &json!(keys).to_string());
    assert_eq!(mine.as_array().unwrap().len(), keys.len(), "all of them, as it is alone");
    let (plan, planning) = asks_again(one, "plan", &json!({"join": [{"instance_id": "x"}]}).to_string());
    assert_eq!(plan["after"]["members"], 2);
    // The largest possible plan.
    let many: Vec<_> = (0..1_000).map(|n| json!({"instance_id": format!("{n}-{}", "x".repeat(200))})).collect();
    let (_, much) = asks_again(one, "plan", &json!({"join": many}).to_string());
    assert_eq!(one.ownership()["slots_owned"], 256);
    listing + planning + much
}

/// Sets the flag at the end of the scope, even after a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn two_hundred_unfinished_bodies_stay_within_the_shipped_limit_and_others_are_answered() {
    let place = place();
    let one = Served::start(&place, &[]);
    one.settles(1, |owned| owned == 256);
    assert_eq!(asks(&one), 0);
    let (before, at, pid, is_over) = (one.memory(), one.at, one.process.pid(), AtomicBool::new(false));
    let highest = std::thread::scope(|scope| {
        let over = Over(&is_over);
        let watching = scope.spawn(|| {
            let mut highest = 0;
            while !is_over.load(Ordering::Relaxed) {
                highest = highest.max(memory_of(pid));
                std::thread::sleep(Duration::from_millis(5));
            }
            highest
        });
        let attacking: Vec<_> = (0..ATTACKERS).map(|number| scope.spawn(move || begins(at, number))).collect();
        // During their beginning, while it is unknown which bodies will be completed, and when all are unfinished and silent.
        let begun = Instant::now();
        let meanwhile = asks(&one);
        let streams: Vec<_> = attacking.into_iter().map(|attacker| attacker.join().unwrap()).collect();
        let afterwards = asks(&one);
        println!(
            "{} attackers, {:?}: told to come again {meanwhile} times while they began, {afterwards} times afterwards",
            streams.len(),
            begun.elapsed()
        );
        drop(over);
        watching.join().unwrap()
    });
    println!("{} MiB before, {} MiB at most", before / MIB, highest / MIB);
    assert!(highest < SHIPPED, "{} MiB, which is more than the manifest gives it: {} MiB before", highest / MIB, before / MIB);
}
