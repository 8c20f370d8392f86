//! The environment of a scene: a real server, a proxy in front of it, and settings for it.

use std::any::Any;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use shardwise::discovery::Clock;
use shardwise_testkit::{Consul, Etcd, Nats, NatsOptions, Postgres, PostgresOptions, Redis, RedisOptions, TcpProxy};
use tokio::runtime::Runtime;

use crate::common::Place;
use crate::common::lines::{longest_overlap, members, owns, sets};
use crate::common::process::Process;

pub(crate) const SLOTS: u32 = 64;
/// The time limit of a change if the test is not about its duration.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Held by the running scene.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Consul,
    Etcd,
    Nats,
    Postgres,
    Valkey,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Consul => "consul",
            Self::Etcd => "etcd",
            Self::Nats => "nats",
            Self::Postgres => "postgres",
            Self::Valkey => "valkey",
        }
    }

    /// How its settings name a server without TLS and password.
    pub(crate) fn address(self, at: SocketAddr) -> String {
        match self {
            Self::Consul | Self::Etcd => format!("http://{at}"),
            Self::Nats => format!("nats://{at}"),
            Self::Postgres => format!("postgres://postgres@{at}/postgres"),
            Self::Valkey => format!("redis://{at}"),
        }
    }

    /// The settings of a fleet with this address, without its policies.
    pub(crate) fn settings(self, address: &str, ttl: &str, more: &str) -> String {
        let (name, table) = (self.name(), "[default.resilience.sharding.discovery");
        let address = match self {
            Self::Consul => format!("address = {address:?}"),
            // Several addresses are separated by commas.
            Self::Etcd => format!("endpoints = {:?}", address.split(',').collect::<Vec<_>>()),
            Self::Nats => format!("urls = {:?}", address.split(',').collect::<Vec<_>>()),
            Self::Postgres | Self::Valkey => format!("url = {address:?}"),
        };
        format!("{table}]\nbackend = \"{name}\"\nttl = \"{ttl}\"\n{table}.{name}]\n{address}\n{more}\n")
    }
}

pub(crate) fn policy(name: &str, more: &str) -> String {
    format!("[default.resilience.sharding.policies.{name}]\ngroup_name = \"{name}\"\nslots = {SLOTS}\n{more}\n")
}

/// The present time on the clock of the lines.
pub(crate) fn now_ns() -> u64 {
    Clock::system().now().as_nanos()
}

/// One server, and a directory with settings.
pub(crate) struct Meeting {
    pub(crate) place: Place,
    pub(crate) proxy: TcpProxy,
    // Kept until the workers are gone, and the runtime until the proxy is.
    _server: Box<dyn Any>,
    runtime: Runtime,
}

impl Meeting {
    /// Workers talk to the server itself.
    pub(crate) fn direct(kind: Kind, ttl: &str, policies: &str) -> Self {
        Self::start(kind, ttl, policies, false)
    }

    /// Workers talk to the server through the proxy.
    pub(crate) fn by_proxy(kind: Kind, ttl: &str, policies: &str) -> Self {
        Self::start(kind, ttl, policies, true)
    }

    fn start(kind: Kind, ttl: &str, policies: &str, by_proxy: bool) -> Self {
        let runtime = Runtime::new().unwrap();
        let (server, at) = runtime.block_on(start_server(kind));
        let proxy = runtime.block_on(TcpProxy::start(at)).unwrap();
        let address = kind.address(if by_proxy { proxy.address() } else { at });
        let place = Place::with_settings(&(kind.settings(&address, ttl, "") + policies));
        make_tables(kind, &place);
        Self { place, proxy, _server: server, runtime }
    }

    pub(crate) fn heal(&self) {
        self.runtime.block_on(self.proxy.heal()).unwrap();
    }

    /// A port that a proxy has just had: the system assigns it to no other socket, so a connection that is opened too early does not reach
    /// itself.
    pub(crate) fn unused(&self) -> SocketAddr {
        self.runtime.block_on(TcpProxy::start(self.proxy.address())).unwrap().address()
    }

    /// Starts a worker that prints everything.
    pub(crate) fn start_worker(&self, policy: &str, id: &str) -> Process {
        start_worker(&self.place, "settings.toml", policy, id)
    }

    /// A fleet of active workers that all see each other.
    pub(crate) fn fleet<const COUNT: usize>(&self, policy: &str, ids: [&str; COUNT]) -> Vec<Process> {
        let mut fleet: Vec<_> = ids.iter().map(|id| self.start_worker(policy, id)).collect();
        settle(&mut fleet);
        fleet
    }
}

/// What PostgreSQL needs before workers start.
pub(crate) fn make_tables(kind: Kind, place: &Place) {
    if kind == Kind::Postgres {
        let ran = place.run(&["backend", "init", "--policy", "workers"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
}

pub(crate) async fn start_server(kind: Kind) -> (Box<dyn Any>, SocketAddr) {
    match kind {
        Kind::Consul => {
            let consul = Consul::single().await.unwrap();
            settled(&consul).await;
            let at = consul.socket_addr();
            (Box::new(consul), at)
        }
        Kind::Etcd => {
            let etcd = Etcd::single().await.unwrap();
            let at = etcd.socket_addr();
            (Box::new(etcd), at)
        }
        Kind::Nats => {
            let nats = Nats::start(NatsOptions::default().newest()).await.unwrap();
            let at = nats.socket_addr();
            (Box::new(nats), at)
        }
        Kind::Postgres => {
            let postgres = Postgres::start(PostgresOptions::default().durable()).await.unwrap();
            let at = postgres.socket_addr();
            (Box::new(postgres), at)
        }
        Kind::Valkey => {
            let valkey = Redis::start(RedisOptions::default().valkey()).await.unwrap();
            let at = valkey.socket_addr();
            (Box::new(valkey), at)
        }
    }
}

/// Waits until an agent that has just started reports a failed check by itself, which takes it up to three seconds (Consul's docs.md,
/// "Timing").
async fn settled(consul: &Consul) {
    let check = serde_json::json!({ "CheckID": "probe", "TTL": "50ms", "Status": "passing" });
    let service = serde_json::json!({ "Name": "probe", "Check": check });
    for _ in 0..2 {
        consul.api("PUT", "/v1/agent/service/register", Some(&service)).await.unwrap();
        let failed = async {
            while consul.api("GET", "/v1/health/checks/probe?consistent", None).await.unwrap()[0]["Status"] != "critical" {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(SOON, failed).await.unwrap();
    }
    consul.api("PUT", "/v1/agent/service/deregister/probe", None).await.unwrap();
}

/// Starts a worker with these settings that prints everything.
pub(crate) fn start_worker(place: &Place, settings: &str, policy: &str, id: &str) -> Process {
    let mut command = place.command(&["watch", "--join", "--policy", policy, "--slots", "--renewals", "--settings", settings]);
    command.env("SHARDWISE__RESILIENCE__SHARDING__INSTANCE__ID", id);
    Process::start(command)
}

/// Whether the line is from an active worker in a group of this size.
pub(crate) fn is_active_of(count: usize) -> impl Fn(&Value) -> bool {
    move |line| line["state"] == "active" && members(line) == count
}

/// Waits until all are active, all see all, and each slot has one owner.
pub(crate) fn settle(fleet: &mut [Process]) {
    let count = fleet.len();
    for worker in &mut *fleet {
        worker.shows(SOON, "it sees the whole fleet", is_active_of(count));
    }
    shared(fleet);
}

/// Checks that each slot has exactly one owner by their last lines.
pub(crate) fn shared(fleet: &[Process]) {
    let mut all: Vec<u32> = fleet.iter().filter_map(|worker| sets(&worker.printed).pop()).flatten().collect();
    all.sort_unstable();
    assert!(all.iter().copied().eq(0..SLOTS), "not every slot has one owner: {all:?}");
}

/// Checks that no two of them had one slot for longer than this, as they may for a moment while their views differ.
pub(crate) fn differ_at_most(limit: Duration, fleet: &[Process]) {
    for (n, one) in fleet.iter().enumerate() {
        for other in &fleet[n + 1..] {
            let overlap = longest_overlap(&one.printed, &other.printed);
            assert!(overlap < limit, "two workers had one slot for {overlap:?}");
        }
    }
}

/// SIGTERM to all; each leaves gracefully.
pub(crate) fn leave(fleet: &mut [Process]) {
    for worker in &mut *fleet {
        worker.signal(nix::sys::signal::Signal::SIGTERM);
    }
    for worker in fleet {
        let ran = worker.ends("after SIGTERM");
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let last = worker.printed.last().map(|line| (line["state"].as_str(), owns(line)));
        assert_eq!(last, Some((Some("left"), 0)));
    }
}
