//! The throughput of an outbox in PostgreSQL, compared with other programs on the same server, in one run: `cargo xtask bench outbox`.
//!
//! Each contestant begins with a copy of the same full database, right after a checkpoint, and the server flushes by its defaults. Each
//! round runs all contestants in turn, so that other load on the machine affects all of them. Each run appends a line of JSON to the file
//! in `SHARDWISE_OUTBOX_FIGURES`. Under `cargo test --benches` everything is a hundred times smaller.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, missing_docs, reason = "a benchmark reports by panicking")]

mod bare_kafka;
#[path = "../../tests/sinks/kafka/cluster.rs"]
mod cluster;
mod ours;
mod peers;
#[path = "../shared/mod.rs"]
mod shared;

use serde_json::json;
use shardwise_testkit::{Nats, NatsOptions};
use tokio::runtime::Runtime;

use self::cluster::Cluster;
use self::shared::figures::{in_earnest, print_figure, wanted};
use self::shared::stage::{self, Shape, Stage};

/// Rounds over all contestants.
const ROUNDS: u32 = 3;
/// Pairs of drains with and without poison in a round. A drain takes a second and varies by a sixth, and their ratio must be precise to a
/// twentieth.
const PAIRS: u32 = 10;

fn main() {
    let runtime = Runtime::new().unwrap();
    if ours::is_publisher() {
        runtime.block_on(ours::publisher());
        return;
    }
    let (rounds, scale) = if in_earnest() { (ROUNDS, 1) } else { (1, 100) };
    runtime.block_on(async {
        let shapes = [("many", Shape { events: 200_000 / scale, each: 10 }), ("single", Shape { events: 200_000 / scale, each: 1 })];
        let stage = Stage::new().await;
        for (shape_name, shape) in shapes {
            let database = stage.empty().await;
            stage::fill(&database, shape).await;
            stage.keep(&database, shape_name).await;
        }
        for round in 1..=rounds {
            for (shape_name, shape) in shapes {
                let print_run = |name: &str, seconds: f64| {
                    let figure = json!({"name": name, "shape": shape_name, "round": round, "events": shape.events, "seconds": seconds});
                    print_figure(&figure);
                };
                if wanted("ceiling") {
                    print_run("ceiling", peers::ceiling(&stage.copy(shape_name).await.url(), shape.events).await);
                }
                for publishers in [1, 2] {
                    if wanted("ours") {
                        let database = stage.copy(shape_name).await;
                        print_run(&format!("ours {publishers}"), ours::drain(&database.url(), "nowhere", publishers, shape.events).await);
                    }
                }
            }
            let shape = shapes[0].1;
            if wanted("poison") {
                for pair in 0..if in_earnest() { PAIRS } else { 1 } {
                    beside_poison(&stage, shape, pair).await;
                }
            }
            for publishers in [1, 2] {
                if wanted("nats") {
                    let (database, server) = (stage.copy("many").await, Nats::start(NatsOptions::default()).await.unwrap());
                    let seconds = ours::drain(&database.url(), &server.address(), publishers, shape.events).await;
                    print_figure(&json!({"name": format!("nats {publishers}"), "shape": "many", "round": round, "events": shape.events, "seconds": seconds}));
                }
            }
            if wanted("kafka") {
                kafka(&stage, shape, round).await;
            }
            let print_run = |name: &str, seconds: f64| {
                print_figure(&json!({"name": name, "shape": "jobs", "round": round, "events": shape.events, "seconds": seconds}));
            };
            if wanted("skip locked") {
                print_run("skip locked", peers::skip_locked(&stage.empty().await.url(), shape.events).await);
            }
            if wanted("graphile") && in_earnest() {
                match peers::graphile_worker(&stage.empty().await.url(), shape.events) {
                    Ok(seconds) => print_run("graphile-worker", seconds),
                    Err(missing) => print_figure(&json!({"name": "graphile-worker", "missing": missing})),
                }
            }
        }
    });
}

/// Into librdkafka's mock cluster: a bare producer, and our publishers.
async fn kafka(stage: &Stage, shape: Shape, round: u32) {
    let print_run = |name: &str, seconds: f64| {
        print_figure(&json!({"name": name, "shape": "many", "round": round, "events": shape.events, "seconds": seconds}));
    };
    let fresh = || {
        let cluster = Cluster::start(1);
        cluster.create_topic(bare_kafka::TOPIC, bare_kafka::PARTITIONS);
        cluster
    };
    for (name, read_first) in [("bare kafka", false), ("bare kafka, read before", true)] {
        let (database, cluster) = (stage.copy("many").await, fresh());
        print_run(name, bare_kafka::produce(&database.url(), &cluster.brokers, shape.events, read_first).await);
    }
    for publishers in [1, 2] {
        let (database, cluster) = (stage.copy("many").await, fresh());
        let seconds = ours::drain(&database.url(), &format!("kafka://{}", cluster.brokers), publishers, shape.events).await;
        print_run(&format!("kafka {publishers}"), seconds);
    }
}

/// One publisher with poison and without, in alternating order. Only the events of the other aggregates count.
async fn beside_poison(stage: &Stage, shape: Shape, pair: u32) {
    let mut both = [("poison 1", "poisoned", shape.events - shape.events / ours::POISON_ONE_IN), ("clean 1", "nowhere", shape.events)];
    both.rotate_left(usize::from(pair % 2 == 1));
    for (name, sink, events) in both {
        let seconds = ours::drain(&stage.copy("many").await.url(), sink, 1, events).await;
        print_figure(&json!({"name": name, "shape": "many", "pair": pair, "events": events, "seconds": seconds}));
    }
}
