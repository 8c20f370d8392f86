//! What PostgreSQL, NATS and Valkey cost as backends, and how soon they show a change, on real servers: `cargo xtask bench backends`.
//!
//! Each figure is a line of JSON on the terminal and in the file that `SHARDWISE_BACKENDS_FIGURES` names. Under `cargo test --benches`
//! everything is much smaller.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, missing_docs, reason = "a benchmark reports by panicking")]

mod claims;
mod group;
mod server;
mod writes;

use std::io::Write as _;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use shardwise_core::{GroupName, InstanceId, Member};
use shardwise_discovery::{Discovery, Registration, random_incarnation};
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};

use self::group::{Group, TTL};
use self::server::Server;

/// The TTL of members that do not renew.
const LASTING: Duration = Duration::from_mins(10);
/// No step of a benchmark takes longer.
const PATIENCE: Duration = Duration::from_secs(30);

struct Scale {
    /// The sizes of the groups.
    members: [u32; 2],
    /// How long a group is left alone before its server's processor time is counted, and for how long that is counted.
    settling: Duration,
    window: Duration,
    /// Changes of each kind.
    changes: u32,
    /// Rounds in which many claims are acquired at once, and in which our writes and bare ones alternate.
    rounds: u32,
    claims: u32,
    /// Writes of a round, for each of those that are under way at a time.
    writes: u32,
}

const EARNEST: Scale = Scale {
    members: [16, 300],
    settling: Duration::from_secs(5),
    window: TTL.saturating_mul(3),
    changes: 300,
    rounds: 5,
    claims: 1_024,
    writes: 16,
};
const SMALL: Scale = Scale {
    members: [16, 32],
    settling: Duration::from_millis(500),
    window: Duration::from_millis(500),
    changes: 3,
    rounds: 1,
    claims: 64,
    writes: 1,
};

fn main() {
    let scale = if std::env::args().any(|argument| argument == "--bench") { EARNEST } else { SMALL };
    Runtime::new().unwrap().block_on(async {
        for name in server::NAMES {
            let server = Server::start(name).await;
            for members in scale.members {
                measure(name, &server, members, &scale).await;
            }
            claims::rounds(name, &server, scale.rounds, scale.claims).await;
        }
        writes::compare(scale.rounds, scale.writes).await;
    });
}

/// A group of that many members: what its server uses while nothing changes, and how soon changes are seen.
async fn measure(name: &str, server: &Server, members: u32, scale: &Scale) {
    let (mut group, mut records) = Group::start(server, members).await;
    sleep(scale.settling).await;
    let (before, begun) = (server.processor(), Instant::now());
    sleep(scale.window).await;
    let used = server.processor().saturating_sub(before).as_secs_f64() / begun.elapsed().as_secs_f64();
    print_figure(&json!({ "figure": format!("{name}: server, {members} members"), "percent": used * 100.0 }));
    let took = records.times(scale.changes, async |number| group.change_record(number).await).await;
    print_times(&format!("{name}: record, {members} members"), took);
    if let Some((store, mut claims)) = group.watch_claims().await {
        let took = claims.times(scale.changes, async |number| group.claim(&store, number).await).await;
        print_times(&format!("{name}: claim, {members} members"), took);
    }
    group.check(members).await;
}

/// Registers a member, and tries again where that helps.
async fn register(backend: &dyn Discovery, group: &GroupName, id: &str, ttl: Duration) -> Registration {
    let member = Member { incarnation: random_incarnation(), ..Member::named(InstanceId::new(id).unwrap()) };
    let registration = Registration { group: group.clone(), member, ttl, claims: backend.as_claims().is_some() };
    let registering = async {
        while let Err(error) = backend.register(&registration).await {
            assert!(error.is_retryable(), "{id} is not registered: {error}");
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, registering).await.unwrap_or_else(|_| panic!("{id} is not registered within {PATIENCE:?}"));
    registration
}

fn print_figure(figure: &Value) {
    println!("{figure}");
    if let Some(path) = std::env::var_os("SHARDWISE_BACKENDS_FIGURES") {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        writeln!(file, "{figure}").unwrap();
    }
}

fn print_times(figure: &str, mut took: Vec<Duration>) {
    took.sort_unstable();
    let at = |percent: usize| millis(took[(took.len() * percent).div_ceil(100).max(1) - 1]);
    print_figure(&json!({ "figure": figure, "times": took.len(), "p50_ms": at(50), "p99_ms": at(99), "worst_ms": at(100) }));
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
