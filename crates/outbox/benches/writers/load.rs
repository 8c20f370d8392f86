//! One run: clients that commit as fast as they can, and what that costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use shardwise_testkit::{Database, Usage};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Postgres};
use tokio_util::sync::CancellationToken;

use crate::contestants::Run;
use crate::shared::peers::connect;
use crate::shared::stage::Stage;

/// Clients, each with a connection and a prepared statement.
const CLIENTS: u64 = 16;

/// How long a run takes, and of how many aggregates its events are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) aggregates: u64,
    /// Before the clock starts: clients connect and prepare their statements.
    pub(crate) warm: Duration,
    pub(crate) window: Duration,
}

/// What one client does.
#[derive(Debug, Clone)]
struct Work {
    run: Run,
    aggregates: u64,
    sql: Arc<str>,
    /// Events that are committed, of all clients.
    written: Arc<AtomicU64>,
    stop: CancellationToken,
}

/// What was used and written up to a moment.
#[derive(Debug, Clone, Copy)]
struct Reading {
    at: Instant,
    events: u64,
    wal: i64,
    disk: i64,
    server: Duration,
    clients: Duration,
}

impl Load {
    /// Runs it on a fresh copy. The figure has transactions a second, and for each event the bytes of WAL and of the database's files, and
    /// the processor time of the server and of the clients, in microseconds.
    pub(crate) async fn measure(&self, stage: &Stage, run: Run, seed: u64) -> Value {
        let database = stage.copy(run.contestant.database).await;
        let events = run.pattern.events();
        let (written, stop) = (Arc::new(AtomicU64::new(0)), CancellationToken::new());
        let sql = run.contestant.sql(events).into();
        let work = Work { run, aggregates: self.aggregates, sql, written: written.clone(), stop: stop.clone() };
        let mut control = connect(&database.url()).await;
        let before = count(&mut control, run).await;
        // The same draws for every contestant of a round.
        let seeds = (0..CLIENTS).map(|client| seed.wrapping_mul(CLIENTS).wrapping_add(client));
        let clients: Vec<_> = seeds.map(|seed| tokio::spawn(client(database.url(), work.clone(), seed))).collect();
        tokio::time::sleep(self.warm).await;
        let begin = Reading::take(&mut control, &database, &written).await;
        tokio::time::sleep(self.window).await;
        let end = Reading::take(&mut control, &database, &written).await;
        stop.cancel();
        for client in clients {
            client.await.unwrap();
        }
        let rows = count(&mut control, run).await - before;
        assert_eq!(rows.cast_unsigned(), written.load(Ordering::Relaxed), "{} does not have what was written", run.contestant.name);
        control.close().await.unwrap();
        figure(run, &begin, &end)
    }
}

fn figure(run: Run, begin: &Reading, end: &Reading) -> Value {
    let events = (end.events - begin.events) as f64;
    let transactions = events / run.pattern.events() as f64;
    let micros = |end: Duration, begin: Duration| end.saturating_sub(begin).as_secs_f64() * 1e6 / events;
    json!({
        "writer": format!("{}: {}", run.pattern.name(), run.contestant.name),
        "transactions": transactions / (end.at - begin.at).as_secs_f64(),
        "wal_bytes": (end.wal - begin.wal) as f64 / events,
        "disk_bytes": (end.disk - begin.disk) as f64 / events,
        "server_us": micros(end.server, begin.server),
        "clients_us": micros(end.clients, begin.clients),
    })
}

impl Reading {
    /// The size of the whole database, so that it does not matter which tables a contestant has.
    async fn take(control: &mut PgConnection, database: &Database, written: &AtomicU64) -> Self {
        let size = "SELECT pg_database_size(current_database())";
        let disk: i64 = sqlx::query_scalar(size).fetch_one(&mut *control).await.unwrap();
        let position = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint";
        let wal: i64 = sqlx::query_scalar(position).fetch_one(control).await.unwrap();
        let (at, events) = (Instant::now(), written.load(Ordering::Relaxed));
        let (server, clients) = (database.server().usage().unwrap().processor, Usage::of_threads("").unwrap().processor);
        Self { at, events, wal, disk, server, clients }
    }
}

async fn count(control: &mut PgConnection, run: Run) -> i64 {
    let sql = format!("SELECT count(*) FROM {}", run.contestant.table);
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(control).await.unwrap()
}

async fn client(url: String, work: Work, seed: u64) {
    let mut conn = connect(&url).await;
    let mut chance = StdRng::seed_from_u64(seed);
    while !work.stop.is_cancelled() {
        let aggregates = work.run.pattern.draw(&mut chance, work.aggregates);
        let mut query = sqlx::query::<Postgres>(AssertSqlSafe(work.sql.clone()));
        for aggregate in &aggregates {
            if work.run.contestant.takes_aggregates() {
                query = query.bind(aggregate.to_string());
            }
            query = query.bind(payload(*aggregate));
        }
        query.execute(&mut conn).await.unwrap();
        work.written.fetch_add(aggregates.len() as u64, Ordering::Relaxed);
    }
    conn.close().await.unwrap();
}

/// The payload of the other benchmark, about 150 bytes.
fn payload(order: u64) -> String {
    let rest =
        r#""customer":"0b9f8a44-3b1c-4c1e-9b0a-2f6d1f2e7c55","lines":[{"sku":"A-1","amount":2},{"sku":"B-2","amount":1}],"total":1299"#;
    format!(r#"{{"order":{order},{rest}}}"#)
}
