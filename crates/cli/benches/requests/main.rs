//! What requests between members cost, beside a bare client and server of HTTP/2 on the same cores, and how a hot key is borne:
//! `cargo xtask bench requests`.
//!
//! Each figure appends a line of JSON to the file in `SHARDWISE_REQUESTS_FIGURES`, one in each round; the rounds alternate between what is
//! compared. With `SHARDWISE_BENCH_BEFORE=PATH`, the command of an earlier version, its requests through two sidecars are measured in the
//! same rounds. Under `cargo test --benches` everything is much smaller.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::panic, missing_docs, reason = "a benchmark reports by panicking")]

mod bare;
#[path = "../common/mod.rs"]
mod common;
mod direct;
#[path = "../sidecar/forwarded.rs"]
mod forwarded;
mod group;
mod hops;
mod hot;
mod lanes;
mod routes;
mod server;

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tokio::runtime::Runtime;

/// The number of connections to a sidecar.
const CONNECTIONS: usize = 16;

struct Scale {
    rounds: usize,
    /// How long each of what is compared has its turn in a round.
    turn: Duration,
    /// The same for the hot key, whose width has to settle.
    hot: Duration,
}

const EARNEST: Scale = Scale { rounds: 5, turn: Duration::from_secs(2), hot: Duration::from_secs(10) };
const SMALL: Scale = Scale { rounds: 1, turn: Duration::from_millis(100), hot: Duration::from_millis(1_500) };

fn print_figure(figure: &Value) {
    common::print_figure("SHARDWISE_REQUESTS_FIGURES", figure);
}

/// As a worker has it on a machine with two cores.
fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn main() {
    if server::is_wanted() {
        return server::run();
    }
    let scale = if common::in_earnest() { EARNEST } else { SMALL };
    let before = std::env::var_os("SHARDWISE_BENCH_BEFORE").map(PathBuf::from);
    let runtime = runtime();
    // What ends later ends inside of it too.
    let _inside = runtime.enter();
    let compared = runtime.block_on(direct::Compared::start());
    let hops = hops::Hops::start();
    for round in 0..scale.rounds {
        runtime.block_on(compared.round(round, scale.turn));
        forwarded::forwarded(scale.turn);
        hops.measure(scale.turn);
        if let Some(program) = &before {
            forwarded::forwarded_by(program, "before: ", scale.turn);
        }
    }
    drop(compared);
    runtime.block_on(routes::measure(scale.rounds, scale.turn));
    runtime.block_on(hot::measure(scale.rounds, scale.hot));
}
