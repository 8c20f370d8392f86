//! Latency from commit to sink: from the return of the writer's commit until the sink has the event. Writers and publisher share this
//! process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::json;
use shardwise_outbox::sink::Acceptance;
use shardwise_outbox::{Delivery, OutboxPublisher, PostgresConfig, PostgresStore, Sink};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection as _, PgConnection};
use tokio_util::sync::CancellationToken;

use crate::ours::Share;
use crate::stage::Stage;
use crate::{in_earnest, print_figure};

/// The number of concurrent writers, each with one event per transaction, for the latencies.
const WRITERS: u32 = 16;
/// The number of writers for measuring the cost of notifications.
const MANY_WRITERS: u32 = 64;
const AGGREGATES: u64 = 1_000;

/// Notes when each event arrived.
#[derive(Clone, Default)]
struct Stamps(Arc<Mutex<HashMap<String, Instant>>>);

#[async_trait]
impl Sink for Stamps {
    fn name(&self) -> &'static str {
        "stamps"
    }

    async fn deliver(&self, batch: Arc<[Delivery]>) -> Acceptance {
        let now = Instant::now();
        self.0.lock().unwrap().extend(batch.iter().map(|event| (event.id.clone(), now)));
        Acceptance::all(&batch)
    }
}

/// An outbox in a new, empty database.
async fn outbox(stage: &Stage, listen: bool) -> (String, PostgresConfig) {
    let url = stage.empty().await.url();
    let config = PostgresConfig::from_url(&url).unwrap().listen(listen);
    PostgresStore::init(config.clone()).await.unwrap().close().await;
    (url, config)
}

/// Writes one event per transaction, at that pace or as fast as possible, for that time. Returns each event's id and when its commit
/// returned.
async fn write(url: String, writer: u32, every: Option<Duration>, during: Duration) -> Vec<(String, Instant)> {
    let options: PgConnectOptions = url.parse().unwrap();
    let mut conn = PgConnection::connect_with(&options).await.unwrap();
    let begun = tokio::time::Instant::now();
    // Not all writers at the same moment.
    let mut due = begun + every.unwrap_or_default() * writer / WRITERS;
    let mut written = Vec::new();
    while begun.elapsed() < during {
        if let Some(every) = every {
            tokio::time::sleep_until(due).await;
            due += every;
        }
        let id = format!("{writer}-{}", written.len());
        let aggregate = (u64::from(writer) + written.len() as u64 * 61) % AGGREGATES;
        let insert =
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES ($1, 'order', $2, 'OrderPlaced', '{\"total\":12}')";
        sqlx::query(insert).bind(&id).bind(aggregate.to_string()).execute(&mut conn).await.unwrap();
        written.push((id, Instant::now()));
    }
    conn.close().await.unwrap();
    written
}

async fn write_all(url: &str, writers: u32, every: Option<Duration>, during: Duration) -> Vec<(String, Instant)> {
    let tasks: Vec<_> = (0..writers).map(|writer| tokio::spawn(write(url.to_owned(), writer, every, during))).collect();
    let mut written = Vec::new();
    for task in tasks {
        written.extend(task.await.unwrap());
    }
    written
}

/// Writes while a publisher works, and waits until everything has arrived. Returns events per second and the sorted latencies, in
/// milliseconds.
async fn measure(stage: &Stage, listen: bool, writers: u32, every: Option<Duration>, during: Duration) -> (f64, Vec<f64>) {
    let (url, config) = outbox(stage, listen).await;
    let (stamps, shutdown) = (Stamps::default(), CancellationToken::new());
    let store = PostgresStore::open(config).await.unwrap();
    let share = Share::new(0, 1);
    share.begin();
    let publisher = OutboxPublisher::new(Arc::new(store), Arc::new(stamps.clone()), Arc::new(share)).unwrap();
    let task = tokio::spawn(publisher.run(shutdown.clone()));
    // By then the publisher has its slots, and has been idle for a while.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let begun = Instant::now();
    let written = write_all(&url, writers, every, during).await;
    while stamps.0.lock().unwrap().len() < written.len() {
        assert!(!task.is_finished() && begun.elapsed() < during + Duration::from_mins(1), "not everything comes");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let rate = written.len() as f64 / begun.elapsed().as_secs_f64();
    shutdown.cancel();
    task.await.unwrap().unwrap();
    let stamps = stamps.0.lock().unwrap();
    // An event may arrive before its writer knows that it is committed.
    let mut latencies: Vec<f64> =
        written.iter().map(|(id, committed)| stamps[id].saturating_duration_since(*committed).as_secs_f64() * 1e3).collect();
    latencies.sort_by(f64::total_cmp);
    (rate, latencies)
}

fn print_latency(name: &str, rate: f64, latencies: &[f64]) {
    let percentile = |percent: usize| latencies[(latencies.len() * percent).div_ceil(100).max(1) - 1];
    print_figure(&json!({"latency": name, "rate": rate, "events": latencies.len(), "p50_ms": percentile(50), "p99_ms": percentile(99)}));
}

pub(crate) async fn run(stage: &Stage, rounds: u32) {
    let seconds = |full: u64| if in_earnest() { Duration::from_secs(full) } else { Duration::from_millis(200) };
    for (name, listen, every, during) in [("woken, idle", true, 400, 10), ("polling, idle", false, 1_900, 30)] {
        let (rate, latencies) = measure(stage, listen, 1, Some(Duration::from_millis(every)), seconds(during)).await;
        print_latency(name, rate, &latencies);
    }
    for _ in 0..rounds {
        let (full, _) = measure(stage, true, WRITERS, None, seconds(4)).await;
        print_figure(&json!({"full_load": full}));
        let every = Duration::from_secs_f64(2.0 * f64::from(WRITERS) / full);
        for (name, listen) in [("woken, half load", true), ("polling, half load", false)] {
            let (rate, latencies) = measure(stage, listen, WRITERS, Some(every), seconds(5)).await;
            print_latency(name, rate, &latencies);
        }
        for (name, listen) in [("`listen = false`", false), ("`listen = true`", true)] {
            let (url, _) = outbox(stage, listen).await;
            let begun = Instant::now();
            let written = write_all(&url, MANY_WRITERS, None, seconds(4)).await.len();
            print_figure(&json!({"writers": name, "rate": written as f64 / begun.elapsed().as_secs_f64()}));
        }
    }
}
