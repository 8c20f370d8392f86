//! What it costs writers that commits wake a publisher (`listen = true`), and how long an event is on its way: from the return of the
//! writer's commit until the sink has it. Writers and publisher share this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;
use shardwise_outbox::sink::Acceptance;
use shardwise_outbox::{Delivery, OutboxPublisher, PostgresConfig, PostgresStore, Sink};
use sqlx::{Connection as _, PgConnection};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::contestants::EMPTY;
use crate::shared::figures::{in_earnest, print_figure};
use crate::shared::peers::connect;
use crate::shared::share::Share;
use crate::shared::stage::Stage;

/// The number of concurrent writers, each with one event per transaction, for the latencies.
const WRITERS: u32 = 16;
/// The number of writers for measuring the cost of notifications.
const MANY_WRITERS: u32 = 64;
const AGGREGATES: u64 = 1_000;
/// Events of an idle outbox in a round, and those before them, by which the publisher's new connections prepare their statements.
const IDLE: usize = 50;
const IDLE_WARM: usize = 5;
/// How long an event may take.
const ARRIVES_WITHIN: Duration = Duration::from_mins(1);

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

/// A publisher of an outbox in a new, empty database.
struct Publishing {
    url: String,
    stamps: Stamps,
    shutdown: CancellationToken,
    task: JoinHandle<shardwise_outbox::Result<()>>,
}

/// An event's id, and when its commit returned.
type Written = (String, Instant);

impl Publishing {
    async fn start(stage: &Stage, listen: bool) -> Self {
        let url = stage.copy(EMPTY).await.url();
        let config = PostgresConfig::from_url(&url).unwrap().listen(listen);
        PostgresStore::init(config.clone()).await.unwrap().close().await;
        let (stamps, shutdown) = (Stamps::default(), CancellationToken::new());
        let store = PostgresStore::open(config).await.unwrap();
        let share = Share::new(0, 1);
        share.begin();
        let publisher = OutboxPublisher::new(Arc::new(store), Arc::new(stamps.clone()), Arc::new(share)).unwrap();
        let task = tokio::spawn(publisher.run(shutdown.clone()));
        // By then the publisher has its slots, and has been idle for a while.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        Self { url, stamps, shutdown, task }
    }

    /// Waits until so many events are in the sink.
    async fn arrived(&self, events: usize) {
        let begun = Instant::now();
        while self.stamps.0.lock().unwrap().len() < events {
            assert!(!self.task.is_finished() && begun.elapsed() < ARRIVES_WITHIN, "not everything comes");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Stops the publisher. Returns the latency of each of these events, in milliseconds and in their order.
    async fn stop(self, written: &[Written]) -> Vec<f64> {
        self.shutdown.cancel();
        self.task.await.unwrap().unwrap();
        let stamps = self.stamps.0.lock().unwrap();
        // An event may arrive before its writer knows that it is committed.
        written.iter().map(|(id, committed)| stamps[id].saturating_duration_since(*committed).as_secs_f64() * 1e3).collect()
    }
}

async fn insert(conn: &mut PgConnection, id: &str, aggregate: u64) -> Instant {
    let insert =
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES ($1, 'order', $2, 'OrderPlaced', '{\"total\":12}')";
    sqlx::query(insert).bind(id).bind(aggregate.to_string()).execute(conn).await.unwrap();
    Instant::now()
}

/// Writes one event per transaction, at that pace or as fast as possible, for that time.
async fn write(url: String, writer: u32, every: Option<Duration>, during: Duration) -> Vec<Written> {
    let mut conn = connect(&url).await;
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
        let committed = insert(&mut conn, &id, aggregate).await;
        written.push((id, committed));
    }
    conn.close().await.unwrap();
    written
}

async fn write_all(url: &str, writers: u32, every: Option<Duration>, during: Duration) -> Vec<Written> {
    let tasks: Vec<_> = (0..writers).map(|writer| tokio::spawn(write(url.to_owned(), writer, every, during))).collect();
    let mut written = Vec::new();
    for task in tasks {
        written.extend(task.await.unwrap());
    }
    written
}

/// Writes while a publisher works, and waits until everything has arrived. Returns the events per second until then, and the latencies.
async fn measure(stage: &Stage, listen: bool, writers: u32, every: Option<Duration>, during: Duration) -> (f64, Vec<f64>) {
    let publishing = Publishing::start(stage, listen).await;
    let begun = Instant::now();
    let written = write_all(&publishing.url, writers, every, during).await;
    publishing.arrived(written.len()).await;
    let rate = written.len() as f64 / begun.elapsed().as_secs_f64();
    (rate, publishing.stop(&written).await)
}

/// Prints the percentiles of these latencies, and how many events came in a second.
fn print_latency(name: &str, rate: f64, mut latencies: Vec<f64>) {
    latencies.sort_by(f64::total_cmp);
    let percentile = |percent: usize| latencies[(latencies.len() * percent).div_ceil(100).max(1) - 1];
    print_figure(&json!({"latency": name, "rate": rate, "events": latencies.len(), "p50_ms": percentile(50), "p99_ms": percentile(99)}));
}

fn seconds(full: u64) -> Duration {
    if in_earnest() { Duration::from_secs(full) } else { Duration::from_millis(200) }
}

/// The rounds, and what they have in common.
pub(crate) struct Wake {
    chance: StdRng,
    /// The latencies of an idle outbox, of all rounds.
    idle: Vec<f64>,
    idle_took: Duration,
}

impl Wake {
    pub(crate) fn new(seed: u64) -> Self {
        Self { chance: StdRng::seed_from_u64(seed), idle: Vec::new(), idle_took: Duration::ZERO }
    }

    pub(crate) async fn round(&mut self, stage: &Stage, round: u64) {
        let mut both = [("`listen = false`", false), ("`listen = true`", true)];
        both.rotate_left(usize::from(round % 2 == 1));
        for (name, listen) in both {
            commits(stage, name, listen).await;
        }
        let (full, _) = measure(stage, true, WRITERS, None, seconds(3)).await;
        print_figure(&json!({"full_load": full}));
        let every = Duration::from_secs_f64(2.0 * f64::from(WRITERS) / full);
        let (rate, latencies) = measure(stage, true, WRITERS, Some(every), seconds(4)).await;
        print_latency("woken, half load", rate, latencies);
        self.idle(stage, if in_earnest() { IDLE } else { 3 }).await;
    }

    /// One event at a time, each long after the one before has arrived.
    async fn idle(&mut self, stage: &Stage, events: usize) {
        let publishing = Publishing::start(stage, true).await;
        let mut conn = connect(&publishing.url).await;
        let (begun, mut written) = (Instant::now(), Vec::new());
        for number in 0..IDLE_WARM + events {
            // In no step with what the publisher does at regular intervals.
            tokio::time::sleep(Duration::from_millis(self.chance.random_range(150..350))).await;
            let id = format!("idle-{number}");
            let committed = insert(&mut conn, &id, number as u64 % AGGREGATES).await;
            written.push((id, committed));
            publishing.arrived(written.len()).await;
        }
        self.idle_took += begun.elapsed();
        conn.close().await.unwrap();
        self.idle.extend(publishing.stop(&written[IDLE_WARM..]).await);
    }

    /// What needs all rounds, or only one.
    pub(crate) async fn end(self, stage: &Stage) {
        let rate = self.idle.len() as f64 / self.idle_took.as_secs_f64();
        print_latency("woken, idle", rate, self.idle);
        let (rate, latencies) = measure(stage, false, 1, Some(Duration::from_millis(1_900)), seconds(30)).await;
        print_latency("polling, idle", rate, latencies);
    }
}

/// Many writers that commit as fast as they can while a publisher works. Every event arrives, but the rate is that of the commits alone.
async fn commits(stage: &Stage, name: &str, listen: bool) {
    let (publishing, during) = (Publishing::start(stage, listen).await, seconds(3));
    let written = write_all(&publishing.url, MANY_WRITERS, None, during).await;
    publishing.arrived(written.len()).await;
    publishing.stop(&[]).await;
    print_figure(&json!({"writers": name, "rate": written.len() as f64 / during.as_secs_f64()}));
}
