//! Databases for each test, and waiting for conditions in them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use shardwise_outbox::exercise::StoreHarness;
use shardwise_outbox::{DeadLetters, NewEvent, Payload, PostgresConfig, PostgresStore, Store};
use shardwise_testkit::{Database, Postgres};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, PgConnection};

/// How often a call is repeated that a machine was too busy to answer within the statement's time limit.
const TRIES: u32 = 10;

/// The answer of a call that is repeated as a publisher repeats it: only if the store says that it may be.
pub(crate) async fn patiently<T>(what: &str, call: impl AsyncFn() -> shardwise_outbox::Result<T>) -> T {
    for _ in 1..TRIES {
        match call().await {
            Err(error) if error.is_retryable() => println!("{what}: {error}"),
            answer => return answer.unwrap(),
        }
    }
    call().await.unwrap()
}

/// The aggregates on the writers' list or on the publishers' list.
pub(crate) const LISTED: &str = "SELECT a.id FROM outbox_aggregate AS a LEFT JOIN outbox_head AS h ON h.aggregate = a.id
    WHERE a.last_seq <> a.drained_seq OR h.listed";

/// Puts all aggregates on the publishers' list, without their hashes.
pub(crate) const PLACE_ALL: &str =
    "INSERT INTO outbox_head (aggregate, done_seq) SELECT id, drained_seq FROM outbox_aggregate ON CONFLICT (aggregate) DO NOTHING";

/// A fresh outbox in a new database, or in a new schema of a shared database.
pub(crate) struct Outbox {
    pub(crate) database: Database,
    schema: Option<String>,
}

impl Outbox {
    /// With the server's clock.
    pub(crate) async fn new() -> Self {
        Self::on(&Postgres::shared().await.unwrap()).await
    }

    pub(crate) async fn on(server: &Arc<Postgres>) -> Self {
        let outbox = Self { database: server.database().await.unwrap(), schema: None };
        PostgresStore::init(outbox.config()).await.unwrap().close().await;
        outbox
    }

    /// The outbox that is, or will be, in this database.
    pub(crate) fn of(database: &Database) -> Self {
        Self { database: database.clone(), schema: None }
    }

    /// In a new schema, with a clock that only `advance` moves.
    pub(crate) async fn stopped(database: &Database) -> Self {
        static SCHEMAS: AtomicU32 = AtomicU32::new(1);
        let schema = format!("schema_{}", SCHEMAS.fetch_add(1, Ordering::Relaxed));
        database.execute(&format!("CREATE SCHEMA {schema}")).await.unwrap();
        let outbox = Self { database: database.clone(), schema: Some(schema) };
        PostgresStore::init(outbox.config()).await.unwrap().close().await;
        let clock = "CREATE TABLE test_clock AS SELECT now() AS at;
            CREATE OR REPLACE FUNCTION outbox_now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT at FROM test_clock'";
        outbox.execute(clock).await;
        outbox
    }

    pub(crate) fn config(&self) -> PostgresConfig {
        PostgresConfig::from_url(&self.url()).unwrap()
    }

    fn url(&self) -> String {
        let url = self.database.url();
        self.schema.as_ref().map_or_else(|| url.clone(), |schema| format!("{url}?options[search_path]={schema}"))
    }

    pub(crate) async fn store(&self) -> PostgresStore {
        PostgresStore::open(self.config()).await.unwrap()
    }

    pub(crate) async fn connection(&self) -> PgConnection {
        self.url().parse::<PgConnectOptions>().unwrap().connect().await.unwrap()
    }

    /// Runs statements with all rights; returns rows as text.
    pub(crate) async fn execute(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        let path = self.schema.as_ref().map_or_else(String::new, |schema| format!("SET search_path = {schema}; "));
        self.database.execute(&(path + sql)).await.unwrap()
    }
}

/// The one plain statement.
pub(crate) async fn insert(conn: &mut PgConnection, event: NewEvent) -> Result<(), sqlx::Error> {
    let sql =
        "INSERT INTO outbox (aggregatetype, aggregateid, type, payload, payload_bytes, headers, id) VALUES ($1, $2, $3, $4, $5, $6, $7)";
    let (text, bytes) = match event.payload {
        Payload::None => (None, None),
        Payload::Text(text) => (Some(text), None),
        Payload::Binary(bytes) => (None, Some(bytes)),
    };
    let query = sqlx::query(sql).bind(event.aggregate_type).bind(event.aggregate_id).bind(event.event_type).bind(text).bind(bytes);
    let headers = event.headers.map(|headers| serde_json::Value::Object(headers).to_string());
    query.bind(headers).bind(event.id).execute(conn).await.map(drop)
}

#[async_trait]
impl StoreHarness for Outbox {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.store().await)
    }

    async fn open_dead_letters(&self) -> Arc<dyn DeadLetters> {
        Arc::new(self.store().await)
    }

    async fn insert(&self, events: Vec<NewEvent>) {
        let mut conn = self.connection().await;
        let mut tx = conn.begin().await.unwrap();
        for event in events {
            insert(&mut tx, event).await.unwrap();
        }
        tx.commit().await.unwrap();
        conn.close().await.unwrap();
    }

    async fn advance(&self, by: Duration) {
        self.execute(&format!("UPDATE test_clock SET at = at + interval '{} microseconds'", by.as_micros())).await;
    }

    fn text_may_have_nul(&self) -> bool {
        false
    }
}
