//! The database, the publishers and the writers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use shardwise_testkit::{Database, Postgres, PostgresOptions};
use sqlx::{Connection as _, PgConnection};
use tokio::runtime::Runtime;

use crate::BATCH;
use crate::common::chance::Chance;
use crate::common::process::Process;
use crate::common::{Place, eventually, workers};
use crate::destinations::{self, COPIED_WITHIN, Destination};

const WRITERS: u64 = 64;
pub(crate) const AGGREGATES: u64 = 500;
const TOGETHER: u64 = 10;
pub(crate) const PUBLISHERS: usize = 4;
/// One in this many transactions has an event that is large enough to be read separately.
const LARGE_ONE_IN: u64 = 100;

/// The events that some writers have committed so far.
#[derive(Clone, Default)]
pub(crate) struct Written {
    events: Arc<AtomicU64>,
    all: Arc<AtomicBool>,
    /// When the writer learned that the event was committed.
    committed: Arc<Mutex<HashMap<String, Instant>>>,
}

impl Written {
    pub(crate) fn events(&self) -> u64 {
        self.events.load(Ordering::SeqCst)
    }

    pub(crate) fn all(&self) -> bool {
        self.all.load(Ordering::SeqCst)
    }

    /// How long ago the event with this id was committed; `None` if its writer does not know yet, or the event is not one of these.
    pub(crate) fn age(&self, event: &str) -> Option<Duration> {
        let (transaction, _) = event.rsplit_once('-')?;
        self.committed.lock().unwrap().get(transaction).map(Instant::elapsed)
    }

    fn commit(&self, transaction: String) {
        self.committed.lock().unwrap().insert(transaction, Instant::now());
        self.events.fetch_add(TOGETHER, Ordering::SeqCst);
    }
}

pub(crate) struct Stage {
    pub(crate) runtime: Runtime,
    database: Database,
    pub(crate) place: Place,
    /// `None`: the file sink.
    destination: Option<Box<dyn Destination>>,
}

impl Stage {
    pub(crate) fn new(sink: &str) -> Self {
        let runtime = Runtime::new().unwrap();
        let database = runtime.block_on(async {
            let options = PostgresOptions::default().with_setting("max_connections", "300");
            Postgres::start(options).await.unwrap().database().await.unwrap()
        });
        let destination = runtime.block_on(destinations::start(sink));
        let settings = destination.as_ref().map_or_else(|| "sink = \"file:delivered.jsonl\"\n".to_owned(), |to| to.settings());
        let place = Place::with_settings(
            &(workers("3s", "slots = 64")
                + &format!(
                    "[default.outbox.orders]\npolicy = \"workers\"\nstore = \"{}\"\nbatch = {BATCH}\npoll = \"100ms\"\n{}",
                    database.url(),
                    settings
                )),
        );
        place.run(&["outbox", "init"]).well();
        if let Some(destination) = &destination {
            destination.copy_to(&runtime, place.path("delivered.jsonl"));
        }
        Self { runtime, database, place, destination }
    }

    /// Whether the sink drops repeated events.
    pub(crate) fn drops_repeats(&self) -> bool {
        self.destination.as_ref().is_some_and(|destination| destination.drops_repeats())
    }

    /// Kills the sink's server every few seconds while `work` is done, if it can be killed. Returns how often.
    pub(crate) fn kills_of_the_sink<T>(&self, work: impl FnOnce() -> T) -> (T, u64) {
        let Some(destination) = &self.destination else { return (work(), 0) };
        let killing = destination.kill_often(self.runtime.handle().clone());
        let done = work();
        destination.be_calm();
        (done, killing.map_or(0, |killing| killing.join().unwrap()))
    }

    pub(crate) fn publisher(&self, number: usize) -> Process {
        let mut command = self.place.command(&["outbox", "run"]);
        command.env("SHARDWISE__RESILIENCE__SHARDING__INSTANCE__ID", format!("p{number}"));
        Process::start(command)
    }

    /// Writes this many events with 64 concurrent writers, within about that time. Their ids begin with `run`.
    pub(crate) fn write(&self, run: &'static str, events: u64, within: Duration, seed: u64) -> Written {
        let written = Written::default();
        let transactions = events / WRITERS / TOGETHER;
        let every = within / u32::try_from(transactions).unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        for writer in 0..WRITERS {
            let (database, written, mut chance) = (self.database.url(), written.clone(), Chance(seed ^ (writer + 1)));
            tasks.spawn_on(
                async move {
                    // One connection for all transactions, as with a pool: otherwise the server would be busy with connections.
                    let mut connection = PgConnection::connect(&database).await.unwrap();
                    // Not all at the same moment, because the burst would be measured as a gap.
                    tokio::time::sleep(every * u32::try_from(writer).unwrap() / u32::try_from(WRITERS).unwrap()).await;
                    for number in 0..transactions {
                        let due = tokio::time::Instant::now() + every;
                        let transaction = format!("{run}-{writer}-{number}");
                        let (sql, commits) = sql(&transaction, &mut chance);
                        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
                        if commits {
                            written.commit(transaction);
                        }
                        tokio::time::sleep_until(due).await;
                    }
                },
                self.runtime.handle(),
            );
        }
        let all = Arc::clone(&written.all);
        self.runtime.spawn(async move {
            // If a writer fails, `all` stays false, and the test's wait fails.
            while let Some(ended) = tasks.join_next().await {
                ended.unwrap();
            }
            all.store(true, Ordering::SeqCst);
        });
        written
    }

    pub(crate) fn execute(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        self.runtime.block_on(self.database.execute(sql)).unwrap()
    }

    pub(crate) fn holds_slots(&self, publisher: usize) {
        let holds = format!(
            "SELECT 1 FROM outbox_slot AS s JOIN outbox_publisher AS p ON p.incarnation = s.incarnation WHERE p.publisher = 'p{publisher}' LIMIT 1"
        );
        eventually("the new one has slots", Duration::from_mins(3), || (!self.execute(&holds).is_empty()).then_some(()));
    }

    /// Waits until no dead publisher holds slots: an event of each aggregate is delivered. Returns the number of these events.
    pub(crate) fn all_are_served(&self, run: &str) -> u64 {
        let insert = format!(
            "INSERT INTO outbox (aggregatetype, aggregateid, type, payload, id)
             SELECT 'order', n::text, 'Changed', '{{}}', '{run}-' || n FROM generate_series(0, {AGGREGATES} - 1) AS n ORDER BY n::text RETURNING id"
        );
        let written = self.execute(&insert).len() as u64;
        self.all_is_delivered();
        written
    }

    /// Waits until nothing is pending, and all sent events are in the file.
    pub(crate) fn all_is_delivered(&self) {
        let pending = "SELECT 1 FROM outbox_aggregate AS a LEFT JOIN outbox_head AS h ON h.aggregate = a.id
            JOIN outbox AS o ON o.aggregate = a.id AND o.seq > coalesce(h.done_seq, a.drained_seq)
            WHERE a.last_seq <> a.drained_seq OR h.listed LIMIT 1";
        eventually("nothing is pending", Duration::from_mins(2), || self.execute(pending).is_empty().then_some(()));
        if let Some(destination) = &self.destination {
            eventually("what has arrived is in the file", COPIED_WITHIN, || destination.is_copied(&self.runtime).then_some(()));
        }
    }
}

/// A transaction of ten events, one of which is sometimes large, that sometimes waits before its end; returns whether it commits.
fn sql(transaction: &str, chance: &mut Chance) -> (String, bool) {
    let mut aggregates: Vec<u64> = (0..TOGETHER).map(|_| chance.below(AGGREGATES)).collect();
    aggregates.sort_by_key(u64::to_string);
    let large = (chance.below(LARGE_ONE_IN) == 0).then(|| chance.below(TOGETHER));
    let row = |(place, id): (usize, &u64)| {
        let payload = if large == Some(place as u64) { "'\"' || repeat('x', 100000) || '\"'" } else { "'{}'" };
        format!("('{transaction}-{place}', 'order', '{id}', 'Changed', {payload})")
    };
    let rows: Vec<_> = aggregates.iter().enumerate().map(row).collect();
    let pause = if chance.below(4) == 0 { format!("SELECT pg_sleep({});", chance.below(20) as f64 / 1e3) } else { String::new() };
    let commits = chance.below(10) != 0;
    let end = if commits { "COMMIT" } else { "ROLLBACK" };
    let insert = "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES";
    (format!("BEGIN; {insert} {}; {pause} {end}", rows.join(", ")), commits)
}
