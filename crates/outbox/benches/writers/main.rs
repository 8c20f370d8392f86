//! What an insert into the outbox costs the writer, compared with other tables on the same server, in one run, and what it costs to be
//! woken by commits: `cargo xtask bench writers`.
//!
//! Each contestant begins with a fresh copy of the same database, right after a checkpoint, and the server flushes by its defaults. Each
//! round runs all contestants in turn, every second round in the opposite order. Each run appends a line of JSON to the file in
//! `SHARDWISE_OUTBOX_FIGURES`; `SHARDWISE_OUTBOX_ONLY` names the parts to run (`one`, `ten`, `ten of one`, `hot`, `wake`), and
//! `SHARDWISE_SEED` repeats the draw of the aggregates. Under `cargo test --benches` everything is much smaller, and without
//! graphile-worker.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs, reason = "a benchmark reports by panicking")]

mod contestants;
mod load;
#[path = "../shared/mod.rs"]
mod shared;
mod tables;
mod wake;

use std::time::Duration;

use serde_json::json;
use tokio::runtime::Runtime;

use self::contestants::RUNS;
use self::load::Load;
use self::shared::figures::{in_earnest, print_figure, wanted};
use self::shared::stage::Stage;
use self::wake::Wake;

const ROUNDS: u64 = 5;
const AGGREGATES: u64 = 100_000;

fn main() {
    Runtime::new().unwrap().block_on(async {
        let seed = std::env::var("SHARDWISE_SEED").map_or_else(|_| u64::from(rand::random::<u32>()), |seed| seed.parse().unwrap());
        println!("repeat with SHARDWISE_SEED={seed}");
        print_figure(&json!({"seed": seed}));
        let (rounds, load) = if in_earnest() {
            (ROUNDS, Load { aggregates: AGGREGATES, warm: Duration::from_millis(700), window: Duration::from_secs(3) })
        } else {
            (1, Load { aggregates: AGGREGATES / 100, warm: Duration::ZERO, window: Duration::from_millis(300) })
        };
        let stage = Stage::new().await;
        let graphile = tables::keep_empty(&stage).await;
        tables::keep_known(&stage, load.aggregates).await;
        let mut wake = Wake::new(seed);
        for round in 0..rounds {
            let mut runs: Vec<_> = RUNS.iter().filter(|run| wanted(run.pattern.name())).collect();
            runs.retain(|run| graphile || run.contestant.name != contestants::GRAPHILE.name);
            if round % 2 == 1 {
                runs.reverse();
            }
            for run in runs {
                let figure = load.measure(&stage, *run, seed.wrapping_add(round)).await;
                print_figure(&figure);
            }
            if wanted("wake") {
                wake.round(&stage, round).await;
            }
        }
        if wanted("wake") {
            wake.end(&stage).await;
        }
    });
}
