//! A crowd: processes of many members each, which join, leave, are killed and restarted, while leading servers die.
//!
//! In a test run it is a small one on the backends that have no other scene with many members. `cargo xtask soak members` makes it a
//! thousand members (on Consul three hundred) on every backend, `--runs` minutes each.

mod judge;
mod process;
mod running;
mod shape;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use shardwise::discovery::Clock;
use shardwise::{InstanceId, PlacementParams, Settings, SlotOwners, Weight};
use shardwise_testkit::{ConsulCluster, ConsulOptions, Direction, Lag, TcpProxy};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::cluster::Servers;
use crate::figures;
use crate::meeting::{GROUP, Kind, runtime};
use judge::Judge;
use running::Running;
use shape::{Event, Shape};

const POLL_EVERY: Duration = Duration::from_millis(20);

on_servers!(a_crowd_comes_and_goes: consul Consul, etcd Etcd, nats Nats, postgres Postgres, valkey Valkey);

struct Crowd {
    kind: Kind,
    shape: Shape,
    placement: PlacementParams,
    processes: Vec<Running>,
    judge: Judge,
    owners: SlotOwners,
    /// Slots whose owner is another one after a change, by the placements alone.
    unavoidable: usize,
    /// From an order until all have one fingerprint, in milliseconds: of joins and leaves, and of kills.
    toggles: Vec<f64>,
    kills: Vec<f64>,
    leaders: u32,
    rng: StdRng,
    proxies: Vec<TcpProxy>,
    /// The server at which all are registered, on Consul.
    agent: usize,
    folder: TempDir,
    servers: Servers,
    // Dropped last: servers and proxies stand on it.
    runtime: Runtime,
}

fn a_crowd_comes_and_goes(kind: Kind) {
    let Some(shape) = Shape::of(kind) else { return };
    let seed = std::env::var("SHARDWISE_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("{}: SHARDWISE_SEED={seed} repeats the order of the changes", kind.name());
    let lag = Lag::begin();
    let mut crowd = Crowd::start(kind, shape, seed);
    let (begun, before) = (Instant::now(), crowd.meter());
    for (at, event) in shape.events() {
        crowd.wait(at.saturating_sub(begun.elapsed()));
        crowd.carry_out(event);
    }
    let mut figures = crowd.figures(&before);
    figures["seed"] = seed.into();
    figures["rolling_s"] = crowd.restart_all().as_secs().into();
    let (judge, late) = (crowd.end(), lag.allowance());
    // Under eventual ownership two members may hold a slot for a moment, so they are not counted.
    let overlaps = (kind != Kind::Valkey).then(|| judge.overlaps());
    figures["overlaps"] = overlaps.as_ref().map(Vec::len).into();
    figures["lost"] = judge.fenced.len().into();
    figures::note(&figures);
    assert!(overlaps.as_ref().is_none_or(Vec::is_empty), "two members held a slot at once; SHARDWISE_SEED={seed}: {overlaps:#?}");
    // A soak reports them. Here a renewal that is late by less than a third of the TTL leaves another third to try again, and no server
    // that leads is killed.
    let is_excused = shape.is_soak || late >= shape.ttl / 3;
    let lost = &judge.fenced;
    assert!(is_excused || lost.is_empty(), "not killed, and lost their leases: {lost:?}; {late:?} for this machine; SHARDWISE_SEED={seed}");
}

/// What was used until some moment.
struct Meter {
    /// On the clock of the lines.
    at: u64,
    processor_us: u64,
    server: Duration,
    bytes: u64,
    entered: usize,
}

impl Crowd {
    fn start(kind: Kind, shape: Shape, seed: u64) -> Self {
        let runtime = runtime("crowd");
        let starting = async {
            let servers = servers(kind, shape).await;
            let mut proxies = Vec::new();
            for address in servers.addresses() {
                proxies.push(TcpProxy::start(address).await.unwrap());
            }
            // Members are lost with the agent at which they are registered, so that one must not be the leader, which is killed.
            let agent = if kind == Kind::Consul { (servers.leader(false).await + 1) % proxies.len() } else { 0 };
            (servers, proxies, agent)
        };
        let (servers, proxies, agent) = runtime.block_on(starting);
        let (folder, text) = (TempDir::new().unwrap(), settings(kind, shape, &proxies, agent));
        let placement = Settings::from_toml_str(&text).unwrap().policy("workers").unwrap().policy.placement;
        let owners = SlotOwners::place(std::iter::empty(), placement);
        let (rng, unavoidable, toggles, kills, leaders) = (StdRng::seed_from_u64(seed), 0, Vec::new(), Vec::new(), 0);
        let mut crowd = Self {
            kind,
            shape,
            placement,
            processes: Vec::new(),
            judge: Judge::default(),
            owners,
            unavoidable,
            toggles,
            kills,
            leaders,
            rng,
            proxies,
            agent,
            folder,
            servers,
            runtime,
        };
        // One after the other, as a fleet is deployed: a thousand at once are as many changes for sixteen readers.
        for number in 0..shape.processes {
            let name = format!("process-{number}");
            std::fs::write(crowd.folder.path().join(format!("{name}.toml")), &text).unwrap();
            crowd.processes.push(Running::start(&crowd.folder, name, shape.members));
            crowd.settle("the members of one more process have joined");
        }
        // The last claims, and what follows a change by itself.
        crowd.wait(shape.ttl);
        crowd.unavoidable = 0;
        crowd
    }

    fn observe(&mut self) {
        for process in &mut self.processes {
            process.told.catch_up(&mut self.judge);
        }
    }

    fn wait(&mut self, long: Duration) {
        let begun = Instant::now();
        loop {
            self.observe();
            if begun.elapsed() >= long {
                return;
            }
            std::thread::sleep(POLL_EVERY.min(long));
        }
    }

    /// Waits until all see exactly those that are there, and returns since when they do.
    fn settle(&mut self, what: &str) -> u64 {
        let begun = Instant::now();
        loop {
            self.observe();
            match self.agreed() {
                Ok(at) => {
                    self.place();
                    return at;
                }
                Err(why) => {
                    let within = self.shape.settles_within;
                    if begun.elapsed() > within {
                        self.folder.disable_cleanup(true);
                        panic!("{what}: not within {within:?}: {why}; what the members wrote is in {}", self.folder.path().display());
                    }
                    std::thread::sleep(POLL_EVERY);
                }
            }
        }
    }

    fn agreed(&self) -> Result<u64, String> {
        let present: usize = self.processes.iter().map(|process| process.present.len()).sum();
        let (mut one, mut last) = (None, 0);
        for process in self.processes.iter().filter(|process| !process.present.is_empty()) {
            let Some(seen) = &process.told.seen else { return Err(format!("the members of {} have not agreed yet", process.name)) };
            if seen.members != present {
                return Err(format!("{} sees {} of {present} members", process.name, seen.members));
            }
            if *one.get_or_insert(&seen.fingerprint) != &seen.fingerprint {
                return Err(format!("{} has another fingerprint", process.name));
            }
            last = last.max(seen.at);
        }
        Ok(last)
    }

    /// Counts the slots that have another owner now.
    fn place(&mut self) {
        let ids = self.processes.iter().flat_map(|process| process.present.iter().map(move |number| process::id(&process.name, *number)));
        let owners = SlotOwners::place(ids.map(|id| (InstanceId::new(id).unwrap(), Weight::ONE)), self.placement);
        let moves = |slot: &u32| owners.owner_of_slot(*slot) != self.owners.owner_of_slot(*slot);
        self.unavoidable += (0..self.shape.slots).filter(moves).count();
        self.owners = owners;
    }

    fn carry_out(&mut self, event: Event) {
        let (index, number) = (self.rng.random_range(0..self.shape.processes), self.rng.random_range(0..self.shape.members));
        let ordered = now();
        match event {
            Event::Toggle => {
                self.processes[index].toggle(number);
                let agreed = self.settle("a join or a leave is in force");
                self.toggles.push(agreed.saturating_sub(ordered) as f64 / 1e6);
            }
            Event::Kill => {
                self.processes[index].kill();
                let agreed = self.settle("the members of a killed process are gone");
                self.kills.push(agreed.saturating_sub(ordered) as f64 / 1e6);
                self.restart(index);
            }
            // It forgets every member when it is restarted, so each of them would be lost by it.
            Event::Leader if self.kind == Kind::Valkey => println!("Valkey has one server and no leader, so none is killed"),
            Event::Leader => {
                let leader = self.runtime.block_on(self.servers.leader(false));
                if self.kind == Kind::Consul && leader == self.agent {
                    println!("the members are registered at the leader, which is therefore not killed");
                    return;
                }
                self.servers.kill(leader);
                self.leaders += 1;
                self.wait(Duration::from_secs(1));
                self.runtime.block_on(self.servers.revive(leader));
            }
        }
    }

    fn restart(&mut self, index: usize) {
        self.processes[index].restart(&self.folder, self.shape.members);
        self.settle("the members of a restarted process have joined");
    }

    /// One process after the other leaves in good order and comes back.
    fn restart_all(&mut self) -> Duration {
        let begun = Instant::now();
        for index in 0..self.processes.len() {
            self.processes[index].leave();
            self.settle("the members of a process have left");
            self.processes[index].ends(self.shape.settles_within);
            self.restart(index);
        }
        begun.elapsed()
    }

    /// Ends everything in good order.
    fn end(mut self) -> Judge {
        self.processes.iter_mut().for_each(Running::leave);
        for process in &mut self.processes {
            process.ends(self.shape.settles_within);
        }
        self.observe();
        std::mem::take(&mut self.judge)
    }

    fn meter(&mut self) -> Meter {
        self.observe();
        let bytes = |proxy: &TcpProxy| proxy.bytes(Direction::ToServer) + proxy.bytes(Direction::ToClient);
        Meter {
            at: now(),
            processor_us: self.judge.processor_us(),
            server: self.servers.usage().processor,
            bytes: self.proxies.iter().map(bytes).sum(),
            entered: self.judge.entered,
        }
    }

    /// The figures of the time since then.
    fn figures(&mut self, before: &Meter) -> Value {
        let after = self.meter();
        let (count, seconds) = (self.shape.processes * self.shape.members, Duration::from_nanos(after.at - before.at).as_secs_f64());
        let each = |amount: f64| (amount / seconds / count as f64 * 10.0).round() / 10.0;
        // What a server has used that was killed meanwhile, or a connection that has ended, is not in it.
        let server = after.server.saturating_sub(before.server);
        let moved = after.entered - before.entered;
        self.toggles.sort_by(f64::total_cmp);
        self.kills.sort_by(f64::total_cmp);
        let at = |sorted: &[f64], percent: usize| sorted.get((sorted.len() * percent).div_ceil(100).max(1) - 1).map(|ms| ms.round());
        let connections = self.proxies.iter().map(TcpProxy::open).sum::<u64>();
        json!({
            "scene": "crowd",
            "backend": self.kind.name(),
            "processes": self.shape.processes,
            "members": count,
            "ttl_s": self.shape.ttl.as_secs(),
            "window_s": seconds.round(),
            "changes": self.toggles.len(),
            "kills": self.kills.len(),
            "leaders": self.leaders,
            "agreed_p50_ms": at(&self.toggles, 50),
            "agreed_p99_ms": at(&self.toggles, 99),
            "agreed_after_kill_ms": at(&self.kills, 100),
            "member_us": each((after.processor_us - before.processor_us) as f64),
            "server_us": each(server.as_secs_f64() * 1e6),
            "bytes": each((after.bytes - before.bytes) as f64),
            "connections": connections as f64 / self.shape.processes as f64,
            "memory_kib_h": self.judge.memory_slope(before.at as f64 / 1e9).map(f64::round),
            "moved": moved,
            "beyond": moved.saturating_sub(self.unavoidable),
        })
    }
}

/// The present moment on the clock of the lines.
fn now() -> u64 {
    Clock::system().now().as_nanos()
}

/// Three in a soak, where there are clusters; else one.
async fn servers(kind: Kind, shape: Shape) -> Servers {
    match (kind, shape.is_soak) {
        (Kind::Consul, is_soak) => {
            // Each process has up to 19 connections while it starts or recovers, and 16 processes are at one agent: with Consul's limit of
            // 200 they never come to rest.
            let options = ConsulOptions::default().with_http_connections(400);
            Servers::Consul(ConsulCluster::start(if is_soak { 3 } else { 1 }, options).await.unwrap())
        }
        (_, true) => Servers::to_measure(kind).await,
        (_, false) => Servers::to_strike(kind, 1).await,
    }
}

fn settings(kind: Kind, shape: Shape, proxies: &[TcpProxy], agent: usize) -> String {
    let (name, table) = (kind.name(), "[default.resilience.sharding");
    let mut addresses: Vec<_> = proxies.iter().map(TcpProxy::address).collect();
    if kind == Kind::Consul {
        addresses = vec![addresses[agent]];
    }
    let ownership = if kind == Kind::Valkey { "eventual" } else { "exclusive" };
    let mut text = format!("{table}.policies.workers]\ngroup_name = \"{GROUP}\"\nownership = \"{ownership}\"\nslots = {}\n", shape.slots);
    // Writing to a String cannot fail.
    let _ = write!(text, "{table}.discovery]\nbackend = \"{name}\"\nttl = \"{}s\"\n", shape.ttl.as_secs());
    let _ = write!(text, "{table}.discovery.{name}]\n{}\n", kind.servers_at(&addresses));
    text
}
