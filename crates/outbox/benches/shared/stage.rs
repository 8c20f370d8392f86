//! The server, and databases to start from.

use std::sync::Arc;

use shardwise_outbox::{PostgresConfig, PostgresStore, Store};
use shardwise_testkit::{Database, Postgres, PostgresOptions};

/// The number of events, and the number per aggregate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) events: u64,
    pub(crate) each: u64,
}

pub(crate) struct Stage {
    server: Arc<Postgres>,
}

impl Stage {
    /// A server with default settings, which flushes each commit.
    pub(crate) async fn new() -> Self {
        Self { server: Postgres::start(PostgresOptions::default().durable()).await.unwrap() }
    }

    /// Keeps a database, to which nothing may be connected any more, to make copies of it under that name.
    pub(crate) async fn keep(&self, database: &Database, name: &str) {
        self.server.execute(&format!("ALTER DATABASE {} RENAME TO kept_{name}", database.name())).await.unwrap();
    }

    /// A fresh copy of a database that was kept, flushed to disk.
    pub(crate) async fn copy(&self, name: &str) -> Database {
        self.clear().await;
        let database = self.server.database().await.unwrap();
        let sql = format!("DROP DATABASE {0}; CREATE DATABASE {0} TEMPLATE kept_{name} STRATEGY file_copy; CHECKPOINT", database.name());
        self.each(&sql).await;
        database
    }

    pub(crate) async fn empty(&self) -> Database {
        self.clear().await;
        self.server.database().await.unwrap()
    }

    /// Deletes the databases of earlier contestants, so that the disk holds one at a time.
    async fn clear(&self) {
        let databases = self.server.execute("SELECT datname FROM pg_database WHERE datname LIKE 'test\\_%'").await.unwrap();
        for name in databases.into_iter().filter_map(|row| row.into_iter().next().flatten()) {
            self.each(&format!("DROP DATABASE {name} WITH (FORCE)")).await;
        }
        self.each("CHECKPOINT").await;
    }

    /// Runs each statement in a separate transaction.
    async fn each(&self, sql: &str) {
        for statement in sql.split(';') {
            self.server.execute(statement).await.unwrap();
        }
    }
}

/// The columns of an event of about 150 bytes; `n` is its number.
pub(crate) const PAYLOAD: &str = r#"'{"order":' || n || ',"customer":"0b9f8a44-3b1c-4c1e-9b0a-2f6d1f2e7c55","lines":[{"sku":"A-1","amount":2},{"sku":"B-2","amount":1}],"total":1299}'"#;

/// Inserts events with the one plain statement, round robin over the aggregates.
pub(crate) async fn fill(database: &Database, shape: Shape) {
    let store = PostgresStore::init(PostgresConfig::from_url(&database.url()).unwrap()).await.unwrap();
    let aggregates = shape.events / shape.each;
    let insert = format!(
        "INSERT INTO outbox (aggregatetype, aggregateid, type, payload)
         SELECT 'order', (n % {aggregates})::text, 'OrderPlaced', {PAYLOAD} FROM generate_series(1, {}) AS n",
        shape.events
    );
    database.execute(&insert).await.unwrap();
    while store.place_new(1_000).await.unwrap() > 0 {}
    store.close().await;
    for table in ["outbox", "outbox_aggregate", "outbox_head"] {
        database.execute(&format!("VACUUM ANALYZE {table}")).await.unwrap();
    }
}
