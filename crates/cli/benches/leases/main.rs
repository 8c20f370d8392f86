//! How long `POST …/enter` of `shardwise serve` takes at a steady rate, compared with routes that do less: `cargo xtask bench leases`.
//!
//! Each route appends a line of JSON to the file in `SHARDWISE_LEASES_FIGURES`. Under `cargo test --benches` everything is much smaller.
//! `enter` starts nothing in the sidecar that would have to end: the slots stay granted until the lease ends.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::panic, missing_docs, reason = "a benchmark reports by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod lease;
mod load;

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;

use common::client::request;
use common::served::{Served, path, processor_of};
use lease::Lease;
use load::Outcome;

/// Requests a second.
const RATE: u32 = 1_000;
/// The number of keys that are entered, one in each request.
const KEYS: usize = 1_000;

struct Scale {
    rounds: usize,
    /// How long each route has its turn in a round.
    turn: Duration,
}

const EARNEST: Scale = Scale { rounds: 4, turn: Duration::from_secs(5) };
const SMALL: Scale = Scale { rounds: 1, turn: Duration::from_millis(200) };

/// A route, its requests, and what came of them.
struct Route {
    name: &'static str,
    requests: Vec<Vec<u8>>,
    outcome: Outcome,
}

fn main() {
    let scale = if common::in_earnest() { EARNEST } else { SMALL };
    let served = Served::start("ownership = \"exclusive\"");
    let lease = Lease::open(served.at);
    let mut routes = routes(served.at, &lease.id);
    for _ in 0..scale.rounds {
        // In turn, so that other load on the machine affects all of them.
        for route in &mut routes {
            measure(&served, route, scale.turn);
        }
    }
    for Route { name, outcome, .. } in routes {
        common::print_figure("SHARDWISE_LEASES_FIGURES", &outcome.figure(name, RATE));
    }
}

fn of_keys(request_of: impl Fn(String) -> Vec<u8>) -> Vec<Vec<u8>> {
    (0..KEYS).map(|n| request_of(format!("tenant-{n:08}"))).collect()
}

fn routes(at: SocketAddr, lease: &str) -> [Route; 3] {
    let enter = of_keys(|key| request(at, "POST", &path("enter"), Some(lease), Some(&json!({"keys": [key]}))));
    let owner = of_keys(|key| request(at, "GET", &path(&format!("owner/{key}")), None, None));
    let livez = vec![request(at, "GET", "/livez", None, None)];
    [("enter", enter), ("owner", owner), ("livez", livez)].map(|(name, requests)| Route { name, requests, outcome: Outcome::default() })
}

/// Sends to the route for its turn, and counts the processor time of both processes.
fn measure(served: &Served, route: &mut Route, turn: Duration) {
    let used = || (served.processor(), processor_of(std::process::id()));
    let before = used();
    let mut outcome = load::send(served.at, &route.requests, RATE, turn);
    let after = used();
    outcome.used_by_sidecar = after.0.saturating_sub(before.0);
    outcome.used_by_client = after.1.saturating_sub(before.1);
    route.outcome.include(outcome);
}
