//! The backend of the fault test's workers: a file, or servers that each worker reaches through separate proxies.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use shardwise_testkit::{ConsulCluster, ConsulOptions, Direction, EtcdCluster, EtcdOptions, NatsCluster, NatsOptions, Postgres, TcpProxy};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};
use tempfile::TempDir;

use super::{SLOTS, TTL};
use crate::meeting::{self, Kind};

/// The stream in which the workers meet.
const STREAM: &str = "KV_shardwise";

/// The workers' backend.
enum Ground {
    /// The file in the folder.
    Local,
    Consul(ConsulCluster),
    Etcd(EtcdCluster),
    Nats(NatsCluster),
    Postgres(Arc<Postgres>),
}

pub(crate) struct Stage {
    ground: Ground,
    folder: TempDir,
}

impl Stage {
    /// Of Consul and etcd so many servers, of NATS always three: one alone has no leaders.
    pub(crate) async fn start(kind: Option<Kind>, servers: usize) -> Self {
        let ground = match kind {
            Some(Kind::Consul) => Ground::Consul(ConsulCluster::start(servers, ConsulOptions::default()).await.unwrap()),
            Some(Kind::Etcd) => Ground::Etcd(EtcdCluster::start(servers, EtcdOptions::default()).await.unwrap()),
            Some(Kind::Nats) => {
                Ground::Nats(NatsCluster::start(3, NatsOptions::default().newest().durable().with_cuttable_routes()).await.unwrap())
            }
            Some(Kind::Postgres) => Ground::Postgres(with_false_clock(meeting::postgres().await).await),
            Some(Kind::Valkey) => panic!("there is no exclusive ownership"),
            None => Ground::Local,
        };
        let folder = TempDir::new().unwrap();
        super::worker::make_table(folder.path()).await;
        Self { ground, folder }
    }

    pub(crate) fn backend(&self) -> &'static str {
        self.kind().map_or("local", Kind::name)
    }

    fn kind(&self) -> Option<Kind> {
        match &self.ground {
            Ground::Local => None,
            Ground::Consul(_) => Some(Kind::Consul),
            Ground::Etcd(_) => Some(Kind::Etcd),
            Ground::Nats(_) => Some(Kind::Nats),
            Ground::Postgres(_) => Some(Kind::Postgres),
        }
    }

    /// Where no other server goes on meanwhile.
    pub(crate) fn has_one_server(&self) -> bool {
        self.addresses().len() == 1
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Keeps the workers' logs for the analysis of a failure.
    pub(crate) fn keep(&mut self) {
        self.folder.disable_cleanup(true);
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        match &self.ground {
            Ground::Local => Vec::new(),
            Ground::Consul(cluster) => cluster.servers().iter().map(|server| server.socket_addr()).collect(),
            Ground::Etcd(cluster) => cluster.members().iter().map(|member| member.socket_addr()).collect(),
            Ground::Nats(cluster) => cluster.servers().iter().map(|server| server.socket_addr()).collect(),
            Ground::Postgres(server) => vec![server.socket_addr()],
        }
    }

    /// The settings of a worker, and the ways on which it reaches the servers: on Consul one agent, otherwise all.
    pub(crate) async fn admit(&self, name: &str, number: usize) -> Vec<TcpProxy> {
        let addresses = self.addresses();
        let reached = match &self.ground {
            Ground::Consul(_) => vec![addresses[number % addresses.len()]],
            _ => addresses,
        };
        let mut proxies = Vec::new();
        for address in reached {
            proxies.push(TcpProxy::start(address).await.unwrap());
        }
        let at = match self.kind() {
            None => format!("path = {:?}", self.file().display().to_string()),
            Some(kind) => kind.servers_at(&proxies.iter().map(TcpProxy::address).collect::<Vec<_>>()),
        };
        let (backend, table) = (self.backend(), "[default.resilience.sharding");
        let mut text = format!("{table}.policies.workers]\ngroup_name = \"workers\"\nownership = \"exclusive\"\nslots = {SLOTS}\n");
        // Writing to a String cannot fail.
        let _ =
            write!(text, "{table}.instance]\nid = {name:?}\n{table}.discovery]\nbackend = {backend:?}\nttl = \"{}ms\"\n", TTL.as_millis());
        let _ = write!(text, "{table}.discovery.{backend}]\n{at}\n");
        std::fs::write(self.folder().join(format!("{name}.toml")), text).unwrap();
        proxies
    }

    fn file(&self) -> PathBuf {
        self.folder().join("workers.db")
    }

    /// The number of the server that leads; of NATS the one that leads the stream, or a consumer of it.
    pub(crate) async fn leader(&self, of_consumer: bool) -> usize {
        match &self.ground {
            Ground::Local | Ground::Postgres(_) => 0,
            Ground::Consul(cluster) => cluster.leader().await.unwrap(),
            Ground::Etcd(cluster) => cluster.leader().await.unwrap(),
            Ground::Nats(cluster) if of_consumer => cluster.leader_of_consumer(STREAM).await.unwrap(),
            Ground::Nats(cluster) => cluster.leader_of(STREAM).await.unwrap(),
        }
    }

    pub(crate) fn kill(&self, server: usize) {
        match &self.ground {
            Ground::Local => {}
            Ground::Consul(cluster) => cluster.servers()[server].kill().unwrap(),
            Ground::Etcd(cluster) => cluster.members()[server].kill().unwrap(),
            Ground::Nats(cluster) => cluster.servers()[server].kill().unwrap(),
            Ground::Postgres(server) => server.kill().unwrap(),
        }
    }

    /// Starts a killed server with what it had stored.
    pub(crate) async fn revive(&self, server: usize) {
        match &self.ground {
            Ground::Local => {}
            Ground::Consul(cluster) => cluster.servers()[server].restart(true).await.unwrap(),
            Ground::Etcd(cluster) => cluster.members()[server].restart(true).await.unwrap(),
            Ground::Nats(cluster) => cluster.servers()[server].restart().await.unwrap(),
            Ground::Postgres(server) => server.restart().await.unwrap(),
        }
    }

    /// Stops a server: connections stay, answers do not come.
    pub(crate) fn pause(&self, server: usize) {
        match &self.ground {
            Ground::Nats(cluster) => cluster.servers()[server].pause().unwrap(),
            Ground::Postgres(server) => server.freeze().unwrap(),
            _ => panic!("this server is not stopped"),
        }
    }

    pub(crate) fn resume(&self, server: usize) {
        match &self.ground {
            Ground::Nats(cluster) => cluster.servers()[server].resume().unwrap(),
            Ground::Postgres(server) => server.thaw().unwrap(),
            _ => panic!("this server is not stopped"),
        }
    }

    /// Cuts the routes that others have opened to one server of three, or to each; one way, the other or both.
    pub(crate) fn cut_routes(&self, which: usize, direction: u32) {
        let Ground::Nats(cluster) = &self.ground else { panic!("there are no routes") };
        for (number, route) in cluster.routes().enumerate() {
            match direction {
                _ if which < 3 && which != number => {}
                0 => route.cut(Direction::ToServer),
                1 => route.cut(Direction::ToClient),
                _ => route.cut_both(),
            }
        }
    }

    pub(crate) async fn heal_routes(&self) {
        let Ground::Nats(cluster) = &self.ground else { panic!("there are no routes") };
        for route in cluster.routes() {
            route.heal().await.unwrap();
        }
    }

    /// The server's clock is that far from ours.
    pub(crate) async fn set_clock(&self, hours: i32) {
        let Ground::Postgres(server) = &self.ground else { panic!("this clock is not set") };
        set_clock(server, hours).await;
    }

    /// Keeps everybody from writing to the file, for as long as the connection lives.
    pub(crate) async fn lock(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::new().filename(self.file()).busy_timeout(Duration::from_secs(10));
        let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
        sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut connection).await.unwrap();
        connection
    }
}

/// From now on [`set_clock`] can set the time that its statements see: the name of the function that reads the clock is given to another.
async fn with_false_clock(server: Arc<Postgres>) -> Arc<Postgres> {
    server.execute("ALTER FUNCTION pg_catalog.clock_timestamp() RENAME TO true_clock").await.unwrap();
    set_clock(&server, 0).await;
    server
}

async fn set_clock(server: &Postgres, hours: i32) {
    let function = "CREATE OR REPLACE FUNCTION pg_catalog.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE";
    let body = format!("SELECT pg_catalog.true_clock() + interval '{hours} hours'");
    server.execute(&format!("{function} AS $$ {body} $$")).await.unwrap();
}
