//! The backend, the settings of each sidecar and the way on which it reaches that backend, and the fenced table of the workers.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use shardwise::{ShardKey as _, slot_of};
use shardwise_testkit::{ConsulCluster, ConsulOptions, EtcdCluster, EtcdOptions, TcpProxy, kill_with_parent, python_with};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
use sqlx::{Connection as _, SqliteConnection};

use crate::common::{PATIENCE, Place, eventually};
use crate::{SLOTS, TTL};

/// What the client needs.
const PACKAGES: [&str; 2] = ["anyio==4.12.0", "httpx==0.28.1"];
/// The fence of docs/reference/fencing.md, and what is written behind it: each row names the slot and the epoch that it was written under.
const TABLES: [&str; 2] = [
    include_str!("../../../fencing/sql/sqlite/fence.up.sql"),
    "CREATE TABLE work (number INTEGER PRIMARY KEY AUTOINCREMENT, slot INTEGER, epoch INTEGER)",
];
/// Rows that stand behind one of the same slot under a higher epoch.
const DISORDER: &str =
    "SELECT count(*) FROM (SELECT epoch, max(epoch) OVER (PARTITION BY slot ORDER BY number) AS top FROM work) WHERE epoch < top";

enum Servers {
    /// A file, without any server.
    None,
    Consul(ConsulCluster),
    Etcd(EtcdCluster),
}

pub(crate) struct Stage {
    servers: Servers,
    place: Place,
    python: PathBuf,
}

impl Stage {
    /// With that many servers, if the backend has any. Several of etcd wait for their disks, because a soak measures with them.
    pub(crate) async fn start(backend: &str, servers: usize) -> Self {
        let options = if servers > 1 { EtcdOptions::default().with_fsync() } else { EtcdOptions::default() };
        let servers = match backend {
            "consul" => Servers::Consul(ConsulCluster::start(servers, ConsulOptions::default()).await.unwrap()),
            "etcd" => Servers::Etcd(EtcdCluster::start(servers, options).await.unwrap()),
            _ => Servers::None,
        };
        let stage = Self { servers, place: Place::empty(), python: python_with(&PACKAGES).unwrap() };
        stage.place.write("keys.json", serde_json::to_string(&keys()).unwrap());
        let mut table = stage.table().await;
        for sql in TABLES {
            sqlx::raw_sql(sql).execute(&mut table).await.unwrap();
        }
        table.close().await.unwrap();
        stage
    }

    /// A file in the folder of this test.
    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.place.path(name)
    }

    /// Writes the settings of a sidecar. Returns the ways on which it reaches the servers: on Consul one agent, on etcd all members.
    pub(crate) async fn admit(&self, name: &str, number: usize) -> Vec<TcpProxy> {
        let reached: Vec<SocketAddr> = match &self.servers {
            Servers::None => Vec::new(),
            Servers::Consul(cluster) => vec![cluster.servers()[number % cluster.servers().len()].socket_addr()],
            Servers::Etcd(cluster) => cluster.members().iter().map(|member| member.socket_addr()).collect(),
        };
        let mut proxies = Vec::new();
        for address in reached {
            proxies.push(TcpProxy::start(address).await.unwrap());
        }
        let at = proxies.iter().map(|proxy| format!("\"http://{}\"", proxy.address())).collect::<Vec<_>>().join(", ");
        let (backend, at) = match &self.servers {
            Servers::None => ("local", format!("path = {:?}", self.file().display().to_string())),
            Servers::Consul(_) => ("consul", format!("address = {at}")),
            Servers::Etcd(_) => ("etcd", format!("endpoints = [{at}]")),
        };
        let (table, ttl) = ("[default.resilience.sharding", TTL.as_millis());
        let policy = format!("{table}.policies.workers]\ngroup_name = \"workers\"\nownership = \"exclusive\"\nslots = {SLOTS}\n");
        let discovery = format!("{table}.discovery]\nbackend = {backend:?}\nttl = \"{ttl}ms\"\n{table}.discovery.{backend}]\n{at}\n");
        self.place.write(&settings_of(name), policy + &discovery);
        proxies
    }

    /// Starts the sidecar of that name.
    pub(crate) fn start_sidecar(&self, name: &str, listen: SocketAddr) -> Child {
        let (settings, listen) = (settings_of(name), listen.to_string());
        let serve = self.place.command(&["serve", "--policy", "workers", "--id", name, "--listen", &listen, "--settings", &settings]);
        self.start_process(&serve, &format!("{name}-sidecar.log"), Stdio::null())
    }

    /// Starts a worker next to the sidecar at that address, which writes its lines to that file. It leaves when its input is closed.
    pub(crate) fn start_worker(&self, name: &str, sidecar: SocketAddr, lines: &Path) -> Child {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut worker = Command::new(&self.python);
        worker.arg(tests.join("tests/exclusive_python/worker.py")).arg(format!("http://{sidecar}"));
        worker.args([self.path("keys.json"), self.path("table.db")]).arg(lines);
        worker.env("PYTHONPATH", tests.join("../../clients/python/src")).env("PYTHONDONTWRITEBYTECODE", "1");
        self.start_process(&worker, &format!("{name}-worker.log"), Stdio::piped())
    }

    fn start_process(&self, command: &Command, log: &str, input: Stdio) -> Child {
        let log = File::options().create(true).append(true).open(self.path(log)).unwrap();
        kill_with_parent(command).stdin(input).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
    }

    /// Drains a member, or ends that.
    pub(crate) fn drain(&self, name: &str, drained: bool) {
        let verb = if drained { "drain" } else { "undrain" };
        // A member is fenced if the machine stalls for a TTL, and joins again.
        eventually("it is a member", PATIENCE, || {
            let ran = self.place.run(&[verb, name, "--policy", "workers", "--settings", &settings_of(name)]);
            assert!(matches!(ran.code, Some(0 | 4)), "{ran:?}");
            (ran.code == Some(0)).then_some(())
        });
    }

    /// The file of the backend `local`.
    fn file(&self) -> PathBuf {
        self.path("workers.db")
    }

    /// Blocks all writes to the file of the backend `local`, for as long as the connection lives.
    pub(crate) async fn lock(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::new().filename(self.file()).busy_timeout(Duration::from_secs(10));
        let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
        sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut connection).await.unwrap();
        connection
    }

    async fn table(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::new().filename(self.path("table.db")).create_if_missing(true);
        SqliteConnection::connect_with(&options.journal_mode(SqliteJournalMode::Wal)).await.unwrap()
    }

    /// How many rows of the fenced table stand behind one of the same slot under a higher epoch.
    pub(crate) async fn disorder(&self) -> i64 {
        sqlx::query_scalar(DISORDER).fetch_one(&mut self.table().await).await.unwrap()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.place.keep();
            println!("what the processes wrote is in {}", self.path("").display());
        }
    }
}

fn settings_of(name: &str) -> String {
    format!("{name}.toml")
}

/// A key in each slot.
fn keys() -> Vec<String> {
    let key_in = |slot: u32| (0..1_000_000_u64).map(|number| format!("key {number}")).find(|key| slot_of(key.key_hash(), SLOTS) == slot);
    (0..SLOTS).filter_map(key_in).collect()
}
