//! The cost of an outbox in a SQLite file: draining a full one into a file, and fetching while events of other publishers wait.
//!
//! Under `cargo test --benches` everything is a hundred times smaller, so that it runs in seconds.
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark reports by panicking; criterion's macros write undocumented functions")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use shardwise::discovery::Clock;
use shardwise::{GroupName, Incarnation, InstanceId, Moment, Ownership, ServiceState, Sharding, SlotSet, Timing};
use shardwise_outbox::store::{FetchRequest, PublisherRegistration};
use shardwise_outbox::{FileSink, NewEvent, OutboxPublisher, PublisherOptions, SqliteStore, Store};
use sqlx::ConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const SLOTS: u32 = 1_024;
const EVENTS_PER_AGGREGATE: u64 = 10;

/// The size of a benchmark, from its `full` size. In test mode, without cargo's `--bench`, criterion only checks whether it runs.
fn size(full: u64) -> u64 {
    if std::env::args().any(|argument| argument == "--bench") { full } else { full / 100 }
}

/// A directory on a file system that really flushes; a memory file system would give better figures.
fn directory() -> TempDir {
    tempfile::tempdir_in(std::env::var_os("CARGO_TARGET_TMPDIR").map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from))
        .unwrap()
}

struct Everything(InstanceId, GroupName, watch::Sender<Arc<Ownership>>);

impl Everything {
    fn new() -> Self {
        let ownership = Ownership::fixed(ServiceState::Unsharded, SlotSet::full(SLOTS), Arc::default(), Moment::ZERO);
        Self(InstanceId::new("bench").unwrap(), GroupName::new("bench").unwrap(), watch::Sender::new(Arc::new(ownership)))
    }
}

impl Sharding for Everything {
    fn ownership(&self) -> Arc<Ownership> {
        self.2.borrow().clone()
    }

    fn ownership_changes(&self) -> watch::Receiver<Arc<Ownership>> {
        self.2.subscribe()
    }

    fn now(&self) -> Moment {
        Clock::system().now()
    }

    fn instance_id(&self) -> &InstanceId {
        &self.0
    }

    fn group_name(&self) -> &GroupName {
        &self.1
    }

    fn timing(&self) -> Timing {
        Timing::default()
    }
}

/// Inserts `count` events with the one plain statement, round robin over aggregates `prefix0`, `prefix1`, …
async fn fill(path: &Path, prefix: &str, aggregates: u64, count: u64) {
    let mut conn = SqliteConnectOptions::new().filename(path).connect().await.unwrap();
    let insert = "INSERT INTO outbox (aggregatetype, aggregateid, type, payload)
        WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?3)
        SELECT 'order', ?1 || (i % ?2), 'OrderPlaced',
               '{\"order\":' || i || ',\"customer\":\"0b9f8a44-3b1c-4c1e-9b0a-2f6d1f2e7c55\",\"lines\":[{\"sku\":\"A-1\",\"amount\":2},{\"sku\":\"B-2\",\"amount\":1}],\"total\":1299}'
        FROM n";
    let (aggregates, count) = (i64::try_from(aggregates).unwrap(), i64::try_from(count).unwrap());
    sqlx::query(insert).bind(prefix).bind(aggregates).bind(count).execute(&mut conn).await.unwrap();
    sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut conn).await.unwrap();
}

async fn place(store: &SqliteStore) {
    while store.place_new(10_000).await.unwrap() > 0 {}
}

/// The time from the start of a publisher to the last event marked.
async fn drain(path: &Path, events: u64, options: PublisherOptions) -> Duration {
    let store = SqliteStore::open(path).await.unwrap();
    let sink = FileSink::new(path.with_extension("jsonl"), "/outbox/bench");
    let publisher = OutboxPublisher::new(Arc::new(store), Arc::new(sink), Arc::new(Everything::new())).unwrap().options(options).unwrap();
    let (stats, shutdown) = (publisher.stats(), CancellationToken::new());
    let begun = Instant::now();
    let task = tokio::spawn(publisher.run(shutdown.clone()));
    while stats.snapshot().delivered < events {
        assert!(!task.is_finished(), "the publisher ended by itself");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let took = begun.elapsed();
    shutdown.cancel();
    task.await.unwrap().unwrap();
    took
}

fn draining(c: &mut Criterion) {
    let runtime = Runtime::new().unwrap();
    let events = size(100_000);
    let dir = directory();
    let full = dir.path().join("full.db");
    runtime.block_on(async {
        let store = SqliteStore::init(&*full).await.unwrap();
        fill(&full, "a", events / EVENTS_PER_AGGREGATE, events).await;
        place(&store).await;
        store.close().await;
    });
    let mut group = c.benchmark_group("drain into a flushed file");
    group.sample_size(10).throughput(Throughput::Elements(events));
    for (name, retention) in [("marked", Duration::from_hours(1)), ("deleted", Duration::ZERO)] {
        let options = PublisherOptions { retention, ..PublisherOptions::default() };
        group.bench_function(name, |b| {
            b.iter_custom(|rounds| {
                let mut took = Duration::ZERO;
                for _ in 0..rounds {
                    let copy = directory();
                    let path = copy.path().join("app.db");
                    std::fs::copy(&full, &path).unwrap();
                    took += runtime.block_on(drain(&path, events, options.clone()));
                }
                took
            });
        });
    }
    group.finish();
}

/// A holder of the lower half of the slots, and the hundred events it has to read.
async fn reader(path: &Path) -> (SqliteStore, PublisherRegistration) {
    let store = SqliteStore::init(path).await.unwrap();
    let me =
        PublisherRegistration { publisher: "bench".into(), incarnation: Incarnation::new(1), ttl: Duration::from_hours(1), slots: SLOTS };
    store.register(&me).await.unwrap();
    store.take(&me, &SlotSet::from_slots(SLOTS, 0..SLOTS / 2)).await.unwrap();
    (store, me)
}

fn request() -> FetchRequest {
    FetchRequest { after: None, events_max: 1_000, bytes_max: 1 << 24, except_slots: vec![], except_aggregates: vec![] }
}

/// Whether an aggregate of this id is in the lower half of the slots.
fn is_mine(id: &str) -> bool {
    shardwise::slot_of(shardwise::ShardKey::key_hash(&format!("order/{id}")), SLOTS) < SLOTS / 2
}

fn mine(count: usize) -> Vec<NewEvent> {
    let ids = (0..).map(|n: u32| format!("mine{n}")).filter(|id| is_mine(id)).take(count);
    ids.map(|id| NewEvent::new("order", id, "OrderPlaced", "{}")).collect()
}

fn fetching(c: &mut Criterion) {
    let runtime = Runtime::new().unwrap();
    let mut group = c.benchmark_group("fetch 100 events");
    group.sample_size(30);
    for others in [1_000, 1_000_000].map(size) {
        let dir = directory();
        let path = dir.path().join("app.db");
        let (store, me) = runtime.block_on(async {
            let (store, me) = reader(&path).await;
            store.enqueue_all(mine(100)).await.unwrap();
            fill(&path, "other", others.div_ceil(EVENTS_PER_AGGREGATE), others).await;
            place(&store).await;
            // Aggregates in the lower half are moved to the upper half: one bit of the stored hash.
            let mut conn = SqliteConnectOptions::new().filename(&path).connect().await.unwrap();
            let move_up = "UPDATE outbox_aggregate SET hash = hash + (1 << 62) + (1 << 62) WHERE hash < 0 AND key LIKE 'order/other%'";
            sqlx::query(move_up).execute(&mut conn).await.unwrap();
            (store, me)
        });
        assert_eq!(fetched(&runtime, &store, &me), 100);
        group.bench_function(BenchmarkId::new("rows of other slots", others), |b| b.iter(|| fetched(&runtime, &store, &me)));
    }
    for held_back in [1_000, 1_000_000].map(size) {
        let dir = directory();
        let path = dir.path().join("app.db");
        let (store, me) = runtime.block_on(async {
            let (store, me) = reader(&path).await;
            store.enqueue_all(mine(100)).await.unwrap();
            let blocked = (0..1_000).map(|n| format!("blocked{n}")).find(|id| is_mine(&format!("{id}0"))).unwrap();
            fill(&path, &blocked, 1, held_back).await;
            place(&store).await;
            let mut conn = SqliteConnectOptions::new().filename(&path).connect().await.unwrap();
            let block = "UPDATE outbox_aggregate SET blocked_at = 1 WHERE key LIKE 'order/blocked%'";
            sqlx::query(block).execute(&mut conn).await.unwrap();
            (store, me)
        });
        assert_eq!(fetched(&runtime, &store, &me), 100);
        group.bench_function(BenchmarkId::new("rows behind a blocked head", held_back), |b| b.iter(|| fetched(&runtime, &store, &me)));
    }
    group.finish();
}

fn fetched(runtime: &Runtime, store: &SqliteStore, me: &PublisherRegistration) -> usize {
    runtime.block_on(store.fetch(me, &request())).unwrap().runs.iter().map(|run| run.events.len()).sum()
}

criterion_group!(benches, draining, fetching);
criterion_main!(benches);
