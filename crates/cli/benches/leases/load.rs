//! Requests at a steady rate, and how long their answers take.
//!
//! Each request has a moment that is fixed in advance, and its time counts from there. If the sidecar stops for a while, that is in the
//! time of every request that was due meanwhile, also of those that no connection was free for.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::client::Client;

/// Many more than are busy at a time, unless the sidecar is late.
const CONNECTIONS: usize = 16;
/// The first request is due after so long: by then all threads wait for theirs.
const HEAD_START: Duration = Duration::from_millis(50);

/// What came of a route's requests.
#[derive(Default)]
pub(crate) struct Outcome {
    /// From the moment at which a request was due until its answer.
    took: Vec<Duration>,
    /// From that moment until this process sent it.
    late: Vec<Duration>,
    failures: usize,
    /// From the first request that was due until the last answer.
    lasted: Duration,
    pub(crate) used_by_sidecar: Duration,
    pub(crate) used_by_client: Duration,
}

/// The requests that are due.
struct Schedule {
    begins: Instant,
    every: Duration,
    count: u32,
    taken: AtomicU32,
}

impl Schedule {
    /// The number of the next request, and when it is due; `None` at the end.
    fn next(&self) -> Option<(usize, Instant)> {
        let number = self.taken.fetch_add(1, Ordering::Relaxed);
        (number < self.count).then(|| (number as usize, self.begins + self.every * number))
    }
}

/// Sends these requests by turns, so many a second for so long.
pub(crate) fn send(at: SocketAddr, requests: &[Vec<u8>], rate: u32, lasts: Duration) -> Outcome {
    let clients: Vec<Client> = (0..CONNECTIONS).map(|_| Client::connect(at)).collect();
    let count = u32::try_from(lasts.as_millis()).unwrap() * rate / 1_000;
    let begins = Instant::now() + HEAD_START;
    let schedule = Schedule { begins, every: Duration::from_secs(1) / rate, count, taken: AtomicU32::new(0) };
    let schedule = &schedule;
    std::thread::scope(|threads| {
        let senders: Vec<_> = clients.into_iter().map(|client| threads.spawn(move || send_over(client, requests, schedule))).collect();
        let mut all = Outcome::default();
        for sender in senders {
            all.include(sender.join().unwrap());
        }
        all.lasted = schedule.begins.elapsed();
        all
    })
}

/// Sends over one connection what is due and not taken by another one.
fn send_over(mut client: Client, requests: &[Vec<u8>], schedule: &Schedule) -> Outcome {
    let mut outcome = Outcome::default();
    while let Some((number, due)) = schedule.next() {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        outcome.late.push(due.elapsed());
        match client.ask(&requests[number % requests.len()]) {
            // `enter` answers with an empty list if the key is not held.
            Ok((200, body)) if body != b"[]" => outcome.took.push(due.elapsed()),
            _ => {
                outcome.failures += 1;
                client.reconnect();
            }
        }
    }
    outcome
}

impl Outcome {
    /// Adds what came of more requests.
    pub(crate) fn include(&mut self, more: Self) {
        self.took.extend(more.took);
        self.late.extend(more.late);
        self.failures += more.failures;
        self.lasted += more.lasted;
        self.used_by_sidecar += more.used_by_sidecar;
        self.used_by_client += more.used_by_client;
    }

    pub(crate) fn figure(mut self, route: &str, rate: u32) -> Value {
        self.took.sort_unstable();
        self.late.sort_unstable();
        let sent = self.late.len();
        let micros_each = |used: Duration| used.as_secs_f64() * 1e6 / sent as f64;
        json!({
            "load": route,
            "offered": rate,
            "requests": sent,
            "failures": self.failures,
            "rate": self.took.len() as f64 / self.lasted.as_secs_f64(),
            "p50_ms": millis(&self.took, 500),
            "p99_ms": millis(&self.took, 990),
            "p999_ms": millis(&self.took, 999),
            "worst_ms": millis(&self.took, 1_000),
            "late_p99_ms": millis(&self.late, 990),
            "sidecar_us": micros_each(self.used_by_sidecar),
            "client_us": micros_each(self.used_by_client),
        })
    }
}

/// The smallest time that so many of a thousand do not exceed; none of no times.
fn millis(sorted: &[Duration], per_mille: usize) -> Option<f64> {
    let rank = (sorted.len() * per_mille).div_ceil(1_000).max(1);
    sorted.get(rank - 1).map(|time| time.as_secs_f64() * 1e3)
}
