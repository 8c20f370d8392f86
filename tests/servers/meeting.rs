//! Where the members of a test meet, and how they come to be there.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use shardwise::discovery::{Clock, Discovery};
use shardwise::{ServiceState, Settings, ShardingFactory, ShardingService, SlotSet};
use shardwise_backend_postgres::{PostgresBackend, PostgresBackendConfig};
use shardwise_testkit::{Consul, Etcd, Nats, NatsOptions, Postgres, PostgresOptions, Redis, RedisOptions, Usage};
use tokio::runtime::Runtime;

pub(crate) const GROUP: &str = "workers";
/// The stream of the bucket in which members meet.
pub(crate) const STREAM: &str = "KV_shardwise";
const POLL_EVERY: Duration = Duration::from_millis(10);
/// A worker that reads the tables in another order may keep them from being dropped, but hardly again and again.
const DROP_TRIES: usize = 5;

/// Held for writing by the one test that runs, or for reading by several that measure nothing.
static ALONE: RwLock<()> = RwLock::new(());

/// Held by the one test that runs.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    ALONE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Held by tests that mostly wait, beside each other.
pub(crate) fn beside() -> RwLockReadGuard<'static, ()> {
    ALONE.read().unwrap_or_else(PoisonError::into_inner)
}

/// A runtime whose threads have this name, which identifies their resource use.
pub(crate) fn runtime(name: &str) -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name(name).enable_all().build().unwrap()
}

/// Which server.
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

    /// How a member's settings name its servers: one of Consul, PostgreSQL and Valkey, all of etcd and NATS.
    pub(crate) fn servers_at(self, addresses: &[SocketAddr]) -> String {
        let of = |scheme: &str| addresses.iter().map(|address| format!("\"{scheme}://{address}\"")).collect::<Vec<_>>().join(", ");
        match self {
            Self::Consul => format!("address = {}", of("http")),
            Self::Etcd => format!("endpoints = [{}]", of("http")),
            Self::Nats => format!("urls = [{}]\nsync_interval = \"always\"", of("nats")),
            Self::Postgres => format!("url = \"{}\"", database_at(addresses[0])),
            Self::Valkey => format!("url = {}", of("redis")),
        }
    }
}

/// The database of a server of PostgreSQL in which all of a test meet.
fn database_at(address: SocketAddr) -> String {
    format!("postgres://postgres@{address}/postgres")
}

/// A running one.
pub(crate) enum Server {
    Consul(Consul),
    Etcd(Etcd),
    Nats(Box<Nats>),
    Postgres(Arc<Postgres>),
    Valkey(Box<Redis>),
}

impl Server {
    pub(crate) async fn start(kind: Kind) -> Self {
        match kind {
            Kind::Consul => Self::Consul(Consul::single().await.unwrap()),
            Kind::Etcd => Self::Etcd(Etcd::single().await.unwrap()),
            Kind::Nats => Self::Nats(Box::new(Nats::start(NatsOptions::default().newest().durable()).await.unwrap())),
            Kind::Postgres => Self::Postgres(postgres().await),
            Kind::Valkey => Self::Valkey(Box::new(Redis::start(RedisOptions::default().valkey()).await.unwrap())),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        match self {
            Self::Consul(server) => server.socket_addr(),
            Self::Etcd(server) => server.socket_addr(),
            Self::Nats(server) => server.socket_addr(),
            Self::Postgres(server) => server.socket_addr(),
            Self::Valkey(server) => server.socket_addr(),
        }
    }

    /// Kills it and starts it with what it had stored; gives back when it answers again.
    pub(crate) async fn restart(&self) {
        match self {
            Self::Consul(server) => server.restart(true).await,
            Self::Etcd(server) => server.restart(true).await,
            Self::Nats(server) => server.restart().await,
            Self::Postgres(server) => server.restart().await,
            Self::Valkey(server) => server.restart().await,
        }
        .unwrap();
    }

    /// Takes away everything that members keep there. Consul and etcd begin anew with an empty disk; of the others an operator deletes the
    /// stream, drops the tables and makes them anew, or deletes every key.
    pub(crate) async fn wipe(&self) {
        match self {
            Self::Consul(server) => server.restart(false).await.unwrap(),
            Self::Etcd(server) => server.restart(false).await.unwrap(),
            Self::Nats(server) => nats_does(server, &format!("$JS.API.STREAM.DELETE.{STREAM}"), "").await,
            Self::Postgres(server) => {
                drop_tables(server).await;
                make_tables(server).await;
            }
            Self::Valkey(server) => assert_eq!(server.command(&["FLUSHALL"]).await.unwrap(), "OK"),
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        match self {
            Self::Consul(server) => server.usage(),
            Self::Etcd(server) => server.usage(),
            Self::Nats(server) => server.usage(),
            Self::Postgres(server) => server.usage(),
            Self::Valkey(server) => server.usage(),
        }
        .unwrap()
    }
}

/// A server that flushes to its disk, as exclusive ownership needs it, with the tables.
pub(crate) async fn postgres() -> Arc<Postgres> {
    let server = Postgres::start(PostgresOptions::default().durable()).await.unwrap();
    make_tables(&server).await;
    server
}

/// As `shardwise backend init` does.
async fn make_tables(server: &Postgres) {
    PostgresBackend::init(&PostgresBackendConfig::new(database_at(server.socket_addr()))).await.unwrap();
}

async fn drop_tables(server: &Postgres) {
    const DROP: &str = "DROP SCHEMA shardwise CASCADE";
    for _ in 1..DROP_TRIES {
        if server.execute(DROP).await.is_ok() {
            return;
        }
    }
    server.execute(DROP).await.unwrap();
}

/// Sends a message to a stream, or a request to `JetStream`; neither may fail.
pub(crate) async fn nats_does(server: &Nats, subject: &str, payload: &str) {
    let answer = server.request(subject, payload).await.unwrap();
    assert!(!answer.contains("\"error\""), "{subject}: {answer}");
}

/// The settings of every member of a test, except its name.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) kind: Kind,
    pub(crate) ttl: Duration,
    pub(crate) slots: u32,
}

impl Terms {
    /// The settings of the member with this name, which meets the others at this address.
    pub(crate) fn settings(self, address: SocketAddr, id: &str) -> Settings {
        let Self { kind, ttl, slots } = self;
        let (name, table) = (kind.name(), "[default.resilience.sharding");
        let mut text = format!("{table}.policies.workers]\ngroup_name = \"{GROUP}\"\nslots = {slots}\ndrain_timeout = \"0s\"\n");
        let at = kind.servers_at(&[address]);
        // Writing to a String cannot fail.
        let _ = write!(text, "{table}.instance]\nid = \"{id}\"\n");
        let _ =
            write!(text, "{table}.discovery]\nbackend = \"{name}\"\nttl = \"{}ms\"\n{table}.discovery.{name}]\n{at}\n", ttl.as_millis());
        Settings::from_toml_str(&text).unwrap()
    }

    /// A separate backend.
    pub(crate) fn backend(self, address: SocketAddr) -> Arc<dyn Discovery> {
        backend_by(Some(self.kind), &self.settings(address, "nobody"))
    }

    /// A member, which has not joined.
    pub(crate) fn service(self, address: SocketAddr, id: &str) -> ShardingService {
        ShardingFactory::from_settings(self.settings(address, id)).unwrap().create("workers").unwrap()
    }
}

/// A separate backend by these settings; without a kind it is `local`.
pub(crate) fn backend_by(kind: Option<Kind>, settings: &Settings) -> Arc<dyn Discovery> {
    let opens = match kind {
        None => shardwise_backend_local::BACKEND,
        Some(Kind::Consul) => shardwise_backend_consul::BACKEND,
        Some(Kind::Etcd) => shardwise_backend_etcd::BACKEND,
        Some(Kind::Nats) => shardwise_backend_nats::BACKEND,
        Some(Kind::Postgres) => shardwise_backend_postgres::BACKEND,
        Some(Kind::Valkey) => shardwise_backend_valkey::BACKEND,
    };
    (opens.open)(&settings.policy("workers").unwrap().discovery.options, &Clock::system()).unwrap()
}

/// Waits, outside of any runtime, until `check` finds nothing that is missing.
pub(crate) fn until(what: &str, within: Duration, mut check: impl FnMut() -> Result<(), String>) -> Duration {
    let begun = Instant::now();
    while let Err(why) = check() {
        assert!(begun.elapsed() < within, "{what}: not within {within:?}: {why}");
        std::thread::sleep(POLL_EVERY);
    }
    begun.elapsed()
}

/// Whether all are active, all see exactly each other, and each slot has one owner.
pub(crate) fn settled<'a>(services: impl Iterator<Item = &'a ShardingService> + Clone) -> Result<(), String> {
    let count = services.clone().count();
    for service in services.clone() {
        let (id, state, seen) = (service.instance_id(), service.state(), service.members().members().len());
        if state != ServiceState::Active || seen != count {
            return Err(format!("{id} is {state} and sees {seen} members of {count}"));
        }
    }
    let owned: Vec<_> = services.map(ShardingService::ownership).collect();
    let slots = owned[0].slots().slots();
    let all = owned.iter().fold(SlotSet::empty(slots), |all, one| all.union(one.slots())).len();
    let sum: u32 = owned.iter().map(|one| one.slots().len()).sum();
    if all == slots && sum == slots { Ok(()) } else { Err(format!("{all} of {slots} slots are owned, {sum} times")) }
}
