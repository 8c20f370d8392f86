//! Shared by the tests: an outbox in a temporary directory, a controllable sharding, and waiting for conditions.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]

use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use shardwise::discovery::Clock;
use shardwise::{GroupName, InstanceId, Moment, Ownership, Serves, ServiceState, Sharding, SlotSet, Timing};
use shardwise_outbox::exercise::StoreHarness;
use shardwise_outbox::{DeadLetters, NewEvent, OutboxPublisher, Payload, SqliteConfig, SqliteStore, Store};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::subscriber::DefaultGuard;

pub const SLOTS: u32 = 64;

/// A fresh outbox whose fence has a controllable clock.
pub struct Outbox {
    pub dir: TempDir,
    pub clock: Arc<AtomicU64>,
    pub stopped: bool,
}

impl Outbox {
    /// With the machine's clock.
    pub async fn new() -> Self {
        Self::with(false).await
    }

    /// With a clock that only `advance` moves.
    pub async fn stopped() -> Self {
        Self::with(true).await
    }

    async fn with(stopped: bool) -> Self {
        let outbox = Self { dir: tempfile::tempdir().unwrap(), clock: Arc::new(AtomicU64::new(1 << 40)), stopped };
        SqliteStore::init(outbox.config()).await.unwrap();
        outbox
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("app.db")
    }

    pub fn config(&self) -> SqliteConfig {
        let config = SqliteConfig::new(self.path());
        if self.stopped { config.clock(self.fence_clock(), "this boot") } else { config }
    }

    pub fn fence_clock(&self) -> Clock {
        let clock = Arc::clone(&self.clock);
        Clock::custom(move || Moment::from_nanos(clock.load(Ordering::SeqCst)))
    }

    pub async fn store(&self) -> SqliteStore {
        SqliteStore::open(self.config()).await.unwrap()
    }

    pub async fn connection(&self) -> SqliteConnection {
        SqliteConnectOptions::new().filename(self.path()).busy_timeout(Duration::from_secs(10)).connect().await.unwrap()
    }

    pub async fn insert_plainly(&self, events: Vec<NewEvent>) {
        let mut conn = self.connection().await;
        let mut tx = conn.begin_with("BEGIN IMMEDIATE").await.unwrap();
        for event in events {
            let columns = if event.id.is_some() { ("id, ", "?6, ") } else { ("", "") };
            let sql = format!(
                "INSERT INTO outbox ({}aggregatetype, aggregateid, type, payload, headers) VALUES ({}?1, ?2, ?3, ?4, ?5)",
                columns.0, columns.1
            );
            let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(event.aggregate_type).bind(event.aggregate_id).bind(event.event_type);
            let query = match event.payload {
                Payload::None => query.bind(None::<String>),
                Payload::Text(text) => query.bind(text),
                Payload::Binary(bytes) => query.bind(bytes),
            };
            let query = query.bind(event.headers.map(|headers| serde_json::Value::Object(headers).to_string()));
            let query = if let Some(id) = event.id { query.bind(id) } else { query };
            query.execute(&mut *tx).await.unwrap();
        }
        tx.commit().await.unwrap();
        conn.close().await.unwrap();
    }
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
        self.insert_plainly(events).await;
    }

    async fn advance(&self, by: Duration) {
        self.clock.fetch_add(u64::try_from(by.as_nanos()).unwrap(), Ordering::SeqCst);
    }
}

/// Events of one aggregate with ids `<aggregate>-<number>`, numbered from 1.
pub fn events(id: &str, numbers: impl IntoIterator<Item = u64>) -> Vec<NewEvent> {
    let event = |n| NewEvent::new("order", id, "OrderChanged", format!("{{\"n\":{n}}}")).with_id(format!("{id}-{n}"));
    numbers.into_iter().map(event).collect()
}

/// Long enough for a publisher to keep its slots even if the disk is busy for seconds.
pub const TTL: Duration = Duration::from_secs(10);

fn timing(ttl: Duration) -> Timing {
    Timing::new(ttl, None, Duration::from_millis(100)).unwrap()
}

/// A sharding that the test controls.
#[derive(Clone)]
pub struct TestSharding {
    id: InstanceId,
    group: GroupName,
    timing: Timing,
    serves: Option<Serves>,
    sender: Arc<watch::Sender<Arc<Ownership>>>,
}

impl TestSharding {
    pub fn of(name: &str, slots: SlotSet) -> Self {
        Self {
            id: InstanceId::new(name).unwrap(),
            group: GroupName::new("publishers").unwrap(),
            timing: timing(TTL),
            serves: None,
            sender: Arc::new(watch::Sender::new(Arc::new(active(slots)))),
        }
    }

    /// For tests that wait for the TTL's end.
    pub fn with_ttl(mut self, ttl: Duration) -> Self {
        self.timing = timing(ttl);
        self
    }

    pub fn serving(mut self, serves: Serves) -> Self {
        self.serves = Some(serves);
        self
    }

    pub fn full(name: &str) -> Self {
        Self::of(name, SlotSet::full(SLOTS))
    }

    pub fn own(&self, slots: SlotSet) {
        self.sender.send_replace(Arc::new(active(slots)));
    }
}

/// `Unsharded` is the state that owns its slots without limit and needs no view.
fn active(slots: SlotSet) -> Ownership {
    Ownership::fixed(ServiceState::Unsharded, slots, Arc::default(), Moment::ZERO)
}

impl Sharding for TestSharding {
    fn ownership(&self) -> Arc<Ownership> {
        self.sender.borrow().clone()
    }

    fn ownership_changes(&self) -> watch::Receiver<Arc<Ownership>> {
        self.sender.subscribe()
    }

    fn now(&self) -> Moment {
        Clock::system().now()
    }

    fn instance_id(&self) -> &InstanceId {
        &self.id
    }

    fn group_name(&self) -> &GroupName {
        &self.group
    }

    fn timing(&self) -> Timing {
        self.timing
    }

    fn serves(&self) -> Option<Serves> {
        self.serves.clone()
    }
}

/// A publisher that runs in the background.
pub struct Running {
    pub stats: shardwise_outbox::PublisherStats,
    pub shutdown: CancellationToken,
    pub task: JoinHandle<shardwise_outbox::Result<()>>,
}

impl Running {
    pub fn start(publisher: OutboxPublisher) -> Self {
        let (stats, shutdown) = (publisher.stats(), CancellationToken::new());
        let task = tokio::spawn(publisher.run(shutdown.clone()));
        Self { stats, shutdown, task }
    }

    /// Stops it gracefully.
    pub async fn stop(self) {
        self.shutdown.cancel();
        within("the publisher stops", Duration::from_secs(20), self.task).await.unwrap().unwrap();
    }

    /// A crash: everything in memory is lost, and nothing is released.
    pub async fn crash(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// Waits for a future with a time limit.
pub async fn within<T>(what: &str, limit: Duration, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(limit, future).await.unwrap_or_else(|_| panic!("not within {limit:?}: {what}"))
}

/// Waits until a condition holds, and returns how long it took.
pub async fn eventually(what: &str, limit: Duration, mut holds: impl AsyncFnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    begun.elapsed()
}

/// The log at the default level, line by line.
#[derive(Clone, Default)]
pub struct Said(Arc<Mutex<Vec<u8>>>);

impl Said {
    /// Begins with what this thread logs.
    pub fn start() -> (Self, DefaultGuard) {
        static ELSEWHERE: Once = Once::new();
        // A thread without any subscriber could switch the same line off for the others: it registers the line as unwanted.
        ELSEWHERE.call_once(|| {
            let nowhere = tracing_subscriber::fmt().with_writer(std::io::sink).finish();
            tracing::subscriber::set_global_default(nowhere).unwrap();
        });
        let said = Self::default();
        let to_said = said.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || to_said.clone()).finish();
        (said, tracing::subscriber::set_default(subscriber))
    }

    pub fn lines(&self) -> Vec<String> {
        String::from_utf8_lossy(&self.0.lock().unwrap()).lines().map(str::to_owned).collect()
    }
}

impl std::io::Write for Said {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
