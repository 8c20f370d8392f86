//! The backend of the fault test's workers: a file, or servers that each worker reaches through separate proxies.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use shardwise_testkit::TcpProxy;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};
use tempfile::TempDir;

use super::{SLOTS, TTL};
use crate::cluster::Servers;
use crate::meeting::Kind;

pub(crate) struct Stage {
    /// None where workers meet in the file in the folder.
    servers: Option<Servers>,
    folder: TempDir,
}

impl Stage {
    pub(crate) async fn start(kind: Option<Kind>, servers: usize) -> Self {
        let servers = match kind {
            Some(kind) => Some(Servers::to_strike(kind, servers).await),
            None => None,
        };
        if let Some(postgres @ Servers::Postgres(_)) = &servers {
            postgres.replace_clock().await;
        }
        let folder = TempDir::new().unwrap();
        super::worker::make_table(folder.path()).await;
        Self { servers, folder }
    }

    /// The servers, which a fault that is for them finds.
    pub(crate) fn servers(&self) -> &Servers {
        self.servers.as_ref().unwrap()
    }

    pub(crate) fn backend(&self) -> &'static str {
        self.servers.as_ref().map_or("local", |servers| servers.kind().name())
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Keeps the workers' logs for the analysis of a failure.
    pub(crate) fn keep(&mut self) {
        self.folder.disable_cleanup(true);
    }

    /// The settings of a worker, and the ways on which it reaches the servers: on Consul one agent, otherwise all.
    pub(crate) async fn admit(&self, name: &str) -> Vec<TcpProxy> {
        let mut proxies = Vec::new();
        for address in self.servers.iter().flat_map(|servers| servers.reached_by(name)) {
            proxies.push(TcpProxy::start(address).await.unwrap());
        }
        let at = match &self.servers {
            None => format!("path = {:?}", self.file().display().to_string()),
            Some(servers) => servers.kind().servers_at(&proxies.iter().map(TcpProxy::address).collect::<Vec<_>>()),
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

    /// Keeps everybody from writing to the file, for as long as the connection lives.
    pub(crate) async fn lock(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::new().filename(self.file()).busy_timeout(Duration::from_secs(10));
        let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
        sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut connection).await.unwrap();
        connection
    }
}
