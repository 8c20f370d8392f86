//! The servers, each alone on this machine; they flush before they acknowledge.

use std::sync::Arc;
use std::time::Duration;

use shardwise_backend_nats::{NatsBackend, NatsBackendConfig, SyncInterval};
use shardwise_backend_postgres::{PostgresBackend, PostgresBackendConfig};
use shardwise_backend_valkey::{ValkeyBackend, ValkeyConfig};
use shardwise_discovery::{Clock, Discovery};
use shardwise_testkit::{Database, Nats, NatsOptions, Postgres, PostgresOptions, Redis, RedisOptions};

/// The backends, by their names in the settings.
pub(crate) const NAMES: [&str; 3] = ["postgres", "nats", "valkey"];

pub(crate) enum Server {
    Postgres(Database),
    Nats(Box<Nats>),
    Valkey(Box<Redis>),
}

impl Server {
    pub(crate) async fn start(name: &str) -> Self {
        match name {
            "postgres" => {
                let server = Postgres::start(PostgresOptions::default().durable()).await.unwrap();
                let database = server.database().await.unwrap();
                PostgresBackend::init(&PostgresBackendConfig::new(database.url())).await.unwrap();
                Self::Postgres(database)
            }
            "nats" => Self::Nats(Box::new(Nats::start(NatsOptions::default().newest().durable()).await.unwrap())),
            "valkey" => Self::Valkey(Box::new(Redis::start(RedisOptions::default().valkey()).await.unwrap())),
            other => panic!("no server is called {other}"),
        }
    }

    /// The backend as another process opens it: with connections that nothing else uses.
    pub(crate) fn open(&self) -> Arc<dyn Discovery> {
        match self {
            Self::Postgres(database) => {
                Arc::new(PostgresBackend::open(&PostgresBackendConfig::new(database.url()), Clock::system()).unwrap())
            }
            Self::Nats(server) => Arc::new(nats(server)),
            Self::Valkey(server) => Arc::new(ValkeyBackend::open(&ValkeyConfig::new(server.address()), Clock::system()).unwrap()),
        }
    }

    /// The processor time of all its processes that there are now.
    pub(crate) fn processor(&self) -> Duration {
        let usage = match self {
            Self::Postgres(database) => database.server().usage(),
            Self::Nats(server) => server.usage(),
            Self::Valkey(server) => server.usage(),
        };
        usage.unwrap().processor
    }
}

pub(crate) fn nats(server: &Nats) -> NatsBackend {
    let config = NatsBackendConfig { urls: vec![server.address()], sync_interval: SyncInterval::Always, ..NatsBackendConfig::default() };
    NatsBackend::open(&config, Clock::system()).unwrap()
}
