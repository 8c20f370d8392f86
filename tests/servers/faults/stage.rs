//! The backend of the fault test's workers: a file, or servers that each worker reaches through separate proxies.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use shardwise_testkit::{ConsulCluster, ConsulOptions, EtcdCluster, EtcdOptions, TcpProxy};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};
use tempfile::TempDir;

use super::{SLOTS, TTL};

/// The workers' backend.
enum Ground {
    /// The file in the folder.
    Local,
    Consul(ConsulCluster),
    Etcd(EtcdCluster),
}

pub(crate) struct Stage {
    ground: Ground,
    folder: TempDir,
}

impl Stage {
    pub(crate) async fn start(backend: &str, servers: usize) -> Self {
        let ground = match backend {
            "consul" => Ground::Consul(ConsulCluster::start(servers, ConsulOptions::default()).await.unwrap()),
            "etcd" => Ground::Etcd(EtcdCluster::start(servers, EtcdOptions::default()).await.unwrap()),
            _ => Ground::Local,
        };
        let folder = TempDir::new().unwrap();
        super::worker::make_table(folder.path()).await;
        Self { ground, folder }
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
        }
    }

    /// The settings of a worker, and the ways on which it reaches the servers: on Consul one agent, on etcd all members.
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
        let at = proxies.iter().map(|proxy| format!("\"http://{}\"", proxy.address())).collect::<Vec<_>>().join(", ");
        let (backend, at) = match &self.ground {
            Ground::Local => ("local", format!("path = {:?}", self.file().display().to_string())),
            Ground::Consul(_) => ("consul", format!("address = {at}")),
            Ground::Etcd(_) => ("etcd", format!("endpoints = [{at}]")),
        };
        let table = "[default.resilience.sharding";
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

    /// Kills the server that leads, and returns its number.
    pub(crate) async fn kill_leader(&self) -> usize {
        match &self.ground {
            Ground::Local => 0,
            Ground::Consul(cluster) => {
                let leader = cluster.leader().await.unwrap();
                cluster.servers()[leader].kill().unwrap();
                leader
            }
            Ground::Etcd(cluster) => {
                let leader = cluster.leader().await.unwrap();
                cluster.members()[leader].kill().unwrap();
                leader
            }
        }
    }

    /// Starts a killed server with what it had stored.
    pub(crate) async fn revive(&self, server: usize) {
        match &self.ground {
            Ground::Local => {}
            Ground::Consul(cluster) => cluster.servers()[server].restart(true).await.unwrap(),
            Ground::Etcd(cluster) => cluster.members()[server].restart(true).await.unwrap(),
        }
    }

    /// Keeps everybody from writing to the file, for as long as the connection lives.
    pub(crate) async fn lock(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::new().filename(self.file()).busy_timeout(Duration::from_secs(10));
        let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
        sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut connection).await.unwrap();
        connection
    }
}
