//! Many members in one process: their costs while nothing happens, and when a member comes or goes.

use std::time::{Duration, Instant};

use futures::future::join_all;
use serde_json::json;
use shardwise::{Moment, ShardingService, SlotOwners};
use shardwise_testkit::{Direction, TcpProxy, Usage};
use tokio::runtime::Runtime;

use crate::figures;
use crate::meeting::{Kind, Server, Terms, runtime, settled, until};

/// The runtime of the members has threads of this name.
const MEMBERS: &str = "members";
/// From the first registration until all see all.
const START_MAX: Duration = Duration::from_mins(3);
/// A machine that is paused for a TTL loses members, and then more is computed. What is wrong in the code is wrong each time.
const TRIES: u32 = 4;

on_servers!(members_of_one_process_share_connections_and_placement_and_heartbeats_compute_nothing:
    consul Consul, etcd Etcd; soak: nats Nats, postgres Postgres, valkey Valkey);

fn members_of_one_process_share_connections_and_placement_and_heartbeats_compute_nothing(kind: Kind) {
    let is_soak = figures::wanted().is_some();
    let count = match kind {
        Kind::Consul if is_soak => 300,
        Kind::Etcd if is_soak => 1_000,
        _ => 100,
    };
    // A renewal is two requests on Consul and waits for the disk elsewhere: a hundred in a second are more than a busy machine can do.
    let ttl = Duration::from_secs(if is_soak { 10 } else { 8 });
    let crowd = Crowd::start(Terms { kind, ttl, slots: 16_384 }, count);
    let mut measured = at_best(|| crowd.steady(ttl * if is_soak { 3 } else { 2 }));
    let at_rest = measured["member_us"].as_f64().unwrap() * count as f64;
    for (name, value) in at_best(|| crowd.one_comes_and_goes(Duration::from_secs_f64(at_rest / 1e6))) {
        measured[name] = value;
    }
    figures::note(&measured);
}

/// The first good result of a few tries.
fn at_best<T>(measure: impl Fn() -> Result<T, String>) -> T {
    let mut faults = Vec::new();
    for _ in 0..TRIES {
        match measure() {
            Ok(figures) => return figures,
            Err(fault) => {
                println!("one more try, because {fault}");
                faults.push(fault);
            }
        }
    }
    panic!("wrong in each of {TRIES} tries: {faults:#?}");
}

/// Fails with the message if the condition does not hold.
fn check(holds: bool, message: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(message()) }
}

/// A server, a proxy that counts, and members that have settled.
struct Crowd {
    terms: Terms,
    services: Vec<ShardingService>,
    started: Duration,
    /// Bytes for each member.
    memory: f64,
    proxy: TcpProxy,
    server: Server,
    // The members' goes first.
    members: Runtime,
    _outside: Runtime,
}

impl Crowd {
    fn start(terms: Terms, count: usize) -> Self {
        let (outside, members) = (runtime("outside"), runtime(MEMBERS));
        let server = outside.block_on(Server::start(terms.kind));
        let proxy = outside.block_on(TcpProxy::start(server.address())).unwrap();
        let (before, begun) = (Usage::of_threads(MEMBERS).unwrap(), Instant::now());
        // Only inside a runtime do factories share what they have.
        let inside = members.enter();
        let services: Vec<_> = (0..count).map(|n| terms.service(proxy.address(), &format!("member-{n}"))).collect();
        let joined = members.block_on(join_all(services.iter().map(joins)));
        joined.into_iter().collect::<Result<(), _>>().unwrap();
        drop(inside);
        until("all see all", START_MAX, || settled(services.iter()));
        let started = begun.elapsed();
        let memory = Usage::of_threads(MEMBERS).unwrap().memory.saturating_sub(before.memory) as f64 / count as f64;
        Self { terms, services, started, memory, proxy, server, members, _outside: outside }
    }
}

/// Joins as users do: so many at once may take a busy machine longer than one try waits.
async fn joins(service: &ShardingService) -> Result<(), shardwise::Error> {
    let begun = Instant::now();
    loop {
        match service.register_self().await {
            Err(error) if error.is_retryable() && begun.elapsed() < START_MAX => {}
            answer => return answer,
        }
    }
}

/// The resource use until some moment.
struct Reading {
    at: Instant,
    members: Usage,
    server: Usage,
    to_server: u64,
    to_client: u64,
    /// Of each member.
    rebuilds: Vec<u64>,
    /// `None`: it owns nothing at this moment.
    deadlines: Vec<Option<Moment>>,
}

impl Crowd {
    fn read(&self) -> Reading {
        Reading {
            at: Instant::now(),
            members: Usage::of_threads(MEMBERS).unwrap(),
            server: self.server.usage(),
            to_server: self.proxy.bytes(Direction::ToServer),
            to_client: self.proxy.bytes(Direction::ToClient),
            rebuilds: self.services.iter().map(ShardingService::rebuilds).collect(),
            deadlines: self.services.iter().map(|service| service.ownership().deadline()).collect(),
        }
    }

    /// Until everybody has taken in the last of those who joined.
    fn quiet(&self) {
        let sum = || self.services.iter().map(ShardingService::rebuilds).sum::<u64>();
        let mut before = (sum(), Instant::now());
        until("nothing is computed any more", START_MAX, || {
            let now = sum();
            if now != before.0 {
                before = (now, Instant::now());
            }
            (before.1.elapsed() >= self.terms.ttl / 3).then_some(()).ok_or_else(|| format!("{now} so far"))
        });
    }

    /// Watches while nothing happens but heartbeats.
    fn steady(&self, lasts: Duration) -> Result<serde_json::Value, String> {
        self.quiet();
        let before = self.read();
        std::thread::sleep(lasts);
        let after = self.read();

        check(after.rebuilds == before.rebuilds, || "a placement was computed although no member came or went".to_owned())?;
        let heartbeats = self.terms.ttl / 3;
        let moved = |(before, after): (&Option<Moment>, &Option<Moment>)| Some((*after)?.since((*before)?));
        let least = before.deadlines.iter().zip(&after.deadlines).map(moved).min().flatten().unwrap_or_default();
        check(least >= heartbeats * 3, || format!("a member's deadline moved by {least:?} only, which is not three heartbeats"))?;
        settled(self.services.iter())?;
        let connections_max = match self.terms.kind {
            // One for the group's blocking query, and at most 16 requests at a time.
            Kind::Consul => 17,
            // One that listens, and those that carry calls.
            Kind::Postgres => shardwise_backend_postgres::CONNECTIONS_MAX as u64 + 2,
            // And one that takes its place, if a proof came late.
            _ => 2,
        };
        // Those that are closed are counted until both ends have seen it, which may take a busy machine a moment.
        let mut connections = 0;
        until("they share connections", START_MAX / 18, || {
            connections = self.proxy.open();
            (connections <= connections_max).then_some(()).ok_or_else(|| format!("{connections} connections, {connections_max} are enough"))
        });

        let seconds = (after.at - before.at).as_secs_f64();
        let count = self.services.len() as f64;
        let each = |amount: f64| (amount / seconds / count * 10.0).round() / 10.0;
        let micros = |before: Usage, after: Usage| each(after.processor.saturating_sub(before.processor).as_secs_f64() * 1e6);
        Ok(json!({
            "backend": self.terms.kind.name(),
            "members": self.services.len(),
            "ttl_s": self.terms.ttl.as_secs(),
            "window_s": seconds.round(),
            "start_ms": self.started.as_millis(),
            "start_rebuilds": before.rebuilds.iter().max(),
            "connections": connections,
            "memory_kb": (self.memory / 1024.0).round(),
            "to_server_bytes": each((after.to_server - before.to_server) as f64),
            "from_server_bytes": each((after.to_client - before.to_client) as f64),
            "member_us": micros(before.members, after.members),
            "server_us": micros(before.server, after.server),
        }))
    }

    /// One more joins and leaves again. `at_rest` is what all members use in a second while nothing happens.
    fn one_comes_and_goes(&self, at_rest: Duration) -> Result<[(&'static str, serde_json::Value); 7], String> {
        self.quiet();
        let params = self.services[0].policy().placement;
        let begun = Instant::now();
        let placed = SlotOwners::of_view(&self.services[0].members(), params);
        let placing = begun.elapsed();
        assert_eq!(placed.members().len(), self.services.len());

        let _inside = self.members.enter();
        let newcomer = self.terms.service(self.proxy.address(), "newcomer");
        let everybody = || self.services.iter().chain([&newcomer]);
        let join = self.change(|| self.members.block_on(newcomer.register_self()).unwrap(), || settled(everybody()));
        let leave = self.change(|| self.members.block_on(newcomer.deregister_self()).unwrap(), || settled(self.services.iter()));
        for (what, most, Change { rebuilds, used, over, .. }) in [("join", 1, &join), ("departure", 2, &leave)] {
            check(*rebuilds <= most, || format!("a member placed the group {rebuilds} times for one {what}"))?;
            let alone = placing * u32::try_from(self.services.len()).unwrap();
            let beside = used.saturating_sub(at_rest.mul_f64(over.as_secs_f64()));
            check(beside < alone / 2, || {
                format!("a {what} took {beside:?} of processor; if each placed it for itself, that would be some {alone:?}")
            })?;
        }
        let ms = |time: Duration| json!((time.as_secs_f64() * 1e4).round() / 10.0);
        Ok([
            ("placement_ms", ms(placing)),
            ("join_ms", ms(join.took)),
            ("join_used_ms", ms(join.used)),
            ("join_rebuilds", json!(join.rebuilds)),
            ("leave_ms", ms(leave.took)),
            ("leave_used_ms", ms(leave.used)),
            ("leave_rebuilds", json!(leave.rebuilds)),
        ])
    }

    /// Makes a change and waits until it is in force at all.
    fn change(&self, make: impl FnOnce(), in_force: impl FnMut() -> Result<(), String>) -> Change {
        let before = self.read();
        make();
        until("the change is in force at all", START_MAX, in_force);
        let took = before.at.elapsed();
        self.quiet();
        let after = self.read();
        let rebuilds = before.rebuilds.iter().zip(&after.rebuilds).map(|(before, after)| after - before).max().unwrap();
        let over = after.at - before.at;
        Change { took, rebuilds, over, used: after.members.processor.saturating_sub(before.members.processor) }
    }
}

struct Change {
    took: Duration,
    /// The most that one member asked for.
    rebuilds: u64,
    /// Until nothing was computed any more.
    over: Duration,
    /// By all members in that time.
    used: Duration,
}
