//! The throughput of an outbox in PostgreSQL, compared with other programs on the same server, in one run: `cargo xtask bench outbox`.
//!
//! Each contestant begins with a copy of the same full database, right after a checkpoint, and the server flushes by its defaults. Each
//! round runs all contestants in turn, every second round in the opposite order, so that other load on the machine affects all of them.
//! Each run appends a line of JSON to the file in `SHARDWISE_OUTBOX_FIGURES`; `SHARDWISE_OUTBOX_ONLY` names the parts to run (`ceiling`,
//! `ours`, `poison`, `nats`, `kafka`, `skip locked`, `graphile`). Under `cargo test --benches` everything is a hundred times smaller.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, missing_docs, reason = "a benchmark reports by panicking")]

mod bare_kafka;
#[path = "../../tests/sinks/kafka/cluster.rs"]
mod cluster;
mod ours;
mod peers;
#[path = "../shared/mod.rs"]
mod shared;

use std::time::Instant;

use serde_json::json;
use shardwise_testkit::{Nats, NatsOptions};
use tokio::runtime::Runtime;

use self::cluster::Cluster;
use self::shared::figures::{in_earnest, print_figure, wanted};
use self::shared::stage::{self, Shape, Stage};

/// Rounds over all contestants; their medians are judged.
const ROUNDS: u32 = 5;
/// Pairs of drains with and without poison in a round. A drain takes a second and varies by a sixth, and their ratio must be precise to a
/// twentieth.
const PAIRS: u32 = 6;

/// Ten events an aggregate, and one.
const MANY: &str = "many";
const SINGLE: &str = "single";
/// What the peers drain: they know no aggregates.
const JOBS: &str = "jobs";

#[derive(Debug, Clone, Copy)]
enum Contestant {
    Ceiling(&'static str),
    /// Of this shape, with so many publishers.
    Ours(&'static str, u32),
    SkipLocked,
    Graphile,
    Poison,
    Nats(u32),
    BareKafka {
        read_first: bool,
    },
    Kafka(u32),
}

/// In the order of a round: those that are compared follow each other.
const CONTESTANTS: [Contestant; 15] = [
    Contestant::Ceiling(MANY),
    Contestant::Ours(MANY, 1),
    Contestant::Ours(MANY, 2),
    Contestant::SkipLocked,
    Contestant::Ours(SINGLE, 2),
    Contestant::Ours(SINGLE, 1),
    Contestant::Graphile,
    Contestant::Ceiling(SINGLE),
    Contestant::Poison,
    Contestant::Nats(1),
    Contestant::Nats(2),
    Contestant::BareKafka { read_first: true },
    Contestant::BareKafka { read_first: false },
    Contestant::Kafka(1),
    Contestant::Kafka(2),
];

impl Contestant {
    /// The part that `SHARDWISE_OUTBOX_ONLY` knows.
    const fn part(self) -> &'static str {
        match self {
            Self::Ceiling(_) => "ceiling",
            Self::Ours(..) => "ours",
            Self::SkipLocked => "skip locked",
            Self::Graphile => "graphile",
            Self::Poison => "poison",
            Self::Nats(_) => "nats",
            Self::BareKafka { .. } | Self::Kafka(_) => "kafka",
        }
    }
}

/// The stage, and how many events a full database has.
struct Benchmark {
    stage: Stage,
    events: u64,
    round: u32,
}

fn main() {
    let runtime = Runtime::new().unwrap();
    if ours::is_publisher() {
        runtime.block_on(ours::publisher());
        return;
    }
    let (rounds, events) = if in_earnest() { (ROUNDS, 200_000) } else { (1, 2_000) };
    runtime.block_on(async {
        let begun = Instant::now();
        let stage = Stage::new().await;
        for (name, each) in [(MANY, 10), (SINGLE, 1)] {
            let database = stage.empty().await;
            stage::fill(&database, Shape { events, each }).await;
            stage.keep(&database, name).await;
        }
        let mut benchmark = Benchmark { stage, events, round: 0 };
        let mut contestants: Vec<_> = CONTESTANTS.into_iter().filter(|contestant| wanted(contestant.part())).collect();
        for _ in 0..rounds {
            benchmark.round += 1;
            for contestant in &contestants {
                benchmark.run(*contestant).await;
            }
            contestants.reverse();
        }
        print_figure(&json!({"rounds": rounds, "minutes": begun.elapsed().as_secs_f64() / 60.0}));
    });
}

impl Benchmark {
    fn print(&self, name: &str, shape: &str, seconds: f64) {
        print_figure(&json!({"name": name, "shape": shape, "round": self.round, "events": self.events, "seconds": seconds}));
    }

    /// Seconds for our publishers with a copy of a full database.
    async fn drain(&self, shape: &str, sink: &str, publishers: u32) -> f64 {
        ours::drain(&self.stage.copy(shape).await.url(), sink, publishers, self.events).await
    }

    async fn run(&self, contestant: Contestant) {
        match contestant {
            Contestant::Ceiling(shape) => {
                let database = self.stage.copy(shape).await;
                self.print("ceiling", shape, peers::ceiling(&database.url(), self.events).await);
            }
            Contestant::Ours(shape, publishers) => {
                self.print(&format!("ours {publishers}"), shape, self.drain(shape, "nowhere", publishers).await);
            }
            Contestant::SkipLocked => {
                let database = self.stage.empty().await;
                self.print("skip locked", JOBS, peers::skip_locked(&database.url(), self.events).await);
            }
            Contestant::Graphile => self.graphile().await,
            Contestant::Poison => {
                for pair in 0..if in_earnest() { PAIRS } else { 1 } {
                    self.beside_poison(pair).await;
                }
            }
            Contestant::Nats(publishers) => {
                let server = Nats::start(NatsOptions::default()).await.unwrap();
                self.print(&format!("nats {publishers}"), MANY, self.drain(MANY, &server.address(), publishers).await);
            }
            Contestant::BareKafka { read_first } => {
                let (database, cluster) = (self.stage.copy(MANY).await, fresh_cluster());
                let seconds = bare_kafka::produce(&database.url(), &cluster.brokers, self.events, read_first).await;
                self.print(if read_first { "bare kafka, read before" } else { "bare kafka" }, MANY, seconds);
            }
            Contestant::Kafka(publishers) => {
                let cluster = fresh_cluster();
                let seconds = self.drain(MANY, &format!("kafka://{}", cluster.brokers), publishers).await;
                self.print(&format!("kafka {publishers}"), MANY, seconds);
            }
        }
    }

    async fn graphile(&self) {
        if !in_earnest() {
            return;
        }
        match peers::graphile_worker(&self.stage.empty().await.url(), self.events) {
            Ok(seconds) => self.print("graphile-worker", JOBS, seconds),
            Err(missing) => print_figure(&json!({"name": "graphile-worker", "missing": missing})),
        }
    }

    /// One publisher with poison and without, in alternating order. Only the events of the other aggregates count.
    async fn beside_poison(&self, pair: u32) {
        let others = self.events - self.events / ours::POISON_ONE_IN;
        let mut both = [("poison 1", "poisoned", others), ("clean 1", "nowhere", self.events)];
        both.rotate_left(usize::from((self.round + pair) % 2 == 1));
        for (name, sink, events) in both {
            let seconds = ours::drain(&self.stage.copy(MANY).await.url(), sink, 1, events).await;
            print_figure(&json!({"name": name, "shape": MANY, "round": self.round, "pair": pair, "events": events, "seconds": seconds}));
        }
    }
}

/// librdkafka's mock cluster, with the topic of everybody.
fn fresh_cluster() -> Cluster {
    let cluster = Cluster::start(1);
    cluster.create_topic(bare_kafka::TOPIC, bare_kafka::PARTITIONS);
    cluster
}
