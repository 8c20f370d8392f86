//! From schema 4 to schema 8 and back, while writers write and publishers of both versions publish.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use shardwise::SlotSet;
use shardwise_outbox::exercise::{ScriptedReply, ScriptedSink, StoreHarness as _};
use shardwise_outbox::{ErrorKind, NewEvent, OutboxPublisher, Payload, PostgresStore, PublisherOptions, postgres};
use shardwise_testkit::Postgres;
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::common::{Outbox, insert};
use crate::shared::{Running, SLOTS, Said, TestSharding, events, eventually, within};
use crate::version_4::{Former, RunningFormer};

const LIMIT: Duration = Duration::from_mins(3);
const WRITERS: u64 = 6;
const AGGREGATES: u32 = 9;
/// How many more events must arrive before it is said that all goes on.
const MORE: usize = 40;

/// An event as it arrived; `place` is its place in the order of its aggregate's commits, counted without the outbox.
pub(crate) struct Arrival {
    pub(crate) id: String,
    pub(crate) key: String,
    pub(crate) sequence: u64,
    pub(crate) place: u64,
}

/// What arrived from all publishers, in order, repetitions included.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<Arrival>>>);

impl Log {
    pub(crate) fn add(&self, arrival: Arrival) {
        self.0.lock().unwrap().push(arrival);
    }

    fn sink(&self) -> ScriptedSink {
        let log = self.clone();
        ScriptedSink::new(move |event| {
            let Payload::Text(place) = &event.payload else { panic!("{event:?}") };
            let place = place.parse().unwrap();
            log.add(Arrival { id: event.id.clone(), key: event.key(), sequence: event.sequence, place });
            ScriptedReply::Accept
        })
    }

    pub(crate) fn different(&self) -> usize {
        self.0.lock().unwrap().iter().map(|arrival| arrival.id.as_str()).collect::<HashSet<_>>().len()
    }

    /// Waits for more events.
    async fn goes_on(&self, what: &str) {
        let before = self.different();
        eventually(what, LIMIT, async || self.different() >= before + MORE).await;
    }

    /// Waits until everything that was committed is there; each aggregate's events must have come in the order of their commits.
    pub(crate) async fn is_complete(&self, outbox: &Outbox) {
        let written = written(outbox).await;
        eventually("everything that was committed arrives", LIMIT, async || self.different() >= written).await;
        let (mut seen, mut orders) = (HashSet::new(), BTreeMap::<String, Vec<(u64, u64)>>::new());
        for arrival in self.0.lock().unwrap().iter().filter(|arrival| seen.insert(arrival.id.clone())) {
            orders.entry(arrival.key.clone()).or_default().push((arrival.sequence, arrival.place));
        }
        assert_eq!(seen.len(), written);
        for (key, order) in orders {
            assert!(order.iter().map(|(_, place)| *place).eq(1..=order.len() as u64), "{key}: {order:?}");
            assert!(order.windows(2).all(|pair| pair[0].0 < pair[1].0), "{key}: {order:?}");
        }
    }
}

/// How many events were committed.
async fn written(outbox: &Outbox) -> usize {
    outbox.execute("SELECT sum(n) FROM truth").await[0][0].as_deref().unwrap().parse().unwrap()
}

/// An event whose payload is its place in the order of the commits, which a second table counts behind the aggregate's lock.
pub(crate) async fn write(conn: &mut PgConnection, aggregate: &str) -> Result<(), sqlx::Error> {
    let id = format!("{aggregate}-{:032x}", rand::random::<u128>());
    insert(conn, NewEvent::new("order", aggregate, "OrderChanged", "0").with_id(id.clone())).await?;
    let place = "WITH place AS (INSERT INTO truth AS t (key, n) VALUES ($1, 1) ON CONFLICT (key) DO UPDATE SET n = t.n + 1 RETURNING n)
        UPDATE outbox SET payload = (SELECT n::text FROM place) WHERE id = $2";
    sqlx::query(place).bind(aggregate).bind(id).execute(conn).await.map(drop)
}

/// Writers without a pause, with transactions over up to three aggregates, some of which are rolled back.
struct Writers {
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Writers {
    async fn start(outbox: &Outbox) -> Self {
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        for seed in 0..WRITERS {
            let (mut conn, mut chance, stopped) = (outbox.connection().await, StdRng::seed_from_u64(seed), stop.clone());
            tasks.spawn(async move {
                while !stopped.is_cancelled() {
                    let aggregates: BTreeSet<String> =
                        (0..chance.random_range(1..=3)).map(|_| format!("k{}", chance.random_range(0..AGGREGATES))).collect();
                    let mut tx = conn.begin().await.unwrap();
                    for aggregate in &aggregates {
                        write(&mut tx, aggregate).await.unwrap();
                    }
                    tokio::time::sleep(Duration::from_millis(chance.random_range(0..8))).await;
                    if chance.random_bool(0.15) {
                        tx.rollback().await.unwrap();
                    } else {
                        tx.commit().await.unwrap();
                    }
                    tokio::time::sleep(Duration::from_millis(chance.random_range(0..20))).await;
                }
            });
        }
        Self { stop, tasks }
    }

    async fn stop(mut self) {
        self.stop.cancel();
        while let Some(done) = within("a writer ends", LIMIT, self.tasks.join_next()).await {
            done.unwrap();
        }
    }
}

/// Runs a file as another migration tool does.
pub(crate) fn migrating(outbox: &Outbox, sql: &str) -> JoinHandle<Result<(), String>> {
    let (database, sql) = (outbox.database.clone(), format!("BEGIN; {sql}; COMMIT"));
    tokio::spawn(async move { database.execute(&sql).await.map(drop).map_err(|error| error.to_string()) })
}

pub(crate) async fn migrated(what: &str, migration: JoinHandle<Result<(), String>>) {
    within(what, LIMIT, migration).await.unwrap().unwrap_or_else(|error| panic!("{what}: {error}"));
}

pub(crate) async fn of_schema_4() -> Outbox {
    of_schema_4_on(&Postgres::shared().await.unwrap()).await
}

pub(crate) async fn of_schema_4_on(server: &Arc<Postgres>) -> Outbox {
    let outbox = Outbox::of(&server.database().await.unwrap());
    for migration in &postgres::MIGRATIONS[..4] {
        migrated("the schema until 4", migrating(&outbox, migration.up)).await;
    }
    outbox.execute("CREATE TABLE truth (key text PRIMARY KEY, n bigint NOT NULL)").await;
    outbox
}

pub(crate) async fn newer(outbox: &Outbox, name: &str, slots: SlotSet, log: &Log, retention: Duration) -> Running {
    let options = PublisherOptions { poll: Duration::from_millis(100), retention, ..PublisherOptions::default() };
    let sharding = TestSharding::of(name, slots);
    let publisher = OutboxPublisher::new(Arc::new(outbox.store().await), Arc::new(log.sink()), Arc::new(sharding)).unwrap();
    Running::start(publisher.options(options).unwrap())
}

/// A transaction that has written and stays open.
pub(crate) async fn stays_open(outbox: &Outbox, aggregate: &str) -> PgConnection {
    let mut conn = outbox.connection().await;
    conn.execute("BEGIN").await.unwrap();
    write(&mut conn, aggregate).await.unwrap();
    conn
}

/// It writes once more, and commits.
async fn ends(mut conn: PgConnection, aggregate: &str) {
    write(&mut conn, aggregate).await.unwrap();
    conn.execute("COMMIT").await.unwrap();
}

/// From 4 to 8: a publisher of version 4 hands over to a new one, and one transaction stays open all the way.
async fn up(outbox: &Outbox, log: &Log, former: RunningFormer, retention: Duration) -> Running {
    let [both, numbers, forget, new_first] = &postgres::MIGRATIONS[4..] else { panic!("schemas 5 to 8") };
    let open = stays_open(outbox, "open-up").await;
    migrated("up to 5", migrating(outbox, both.up)).await;
    log.goes_on("with the former publisher at schema 5").await;
    former.own(0..SLOTS / 2);
    let newer = newer(outbox, "newer", SlotSet::full(SLOTS), log, retention).await;
    log.goes_on("with both publishers").await;
    let refused = migrating(outbox, numbers.up).await.unwrap().unwrap_err();
    assert!(refused.contains("publishers of an earlier version are alive (former). The outbox stays at schema 5"), "{refused}");
    former.stop().await;
    // A dump, say: its lock keeps the migration's away, and no transaction may wait behind that for long.
    let mut reader = outbox.connection().await;
    reader.execute("BEGIN; SELECT 1 FROM outbox LIMIT 1").await.unwrap();
    let migration = migrating(outbox, numbers.up);
    log.goes_on("while schema 6 waits for the open transaction").await;
    assert!(!migration.is_finished(), "it waits");
    ends(open, "open-up").await;
    log.goes_on("while schema 6 waits for the reader").await;
    assert!(!migration.is_finished(), "it waits");
    reader.execute("COMMIT").await.unwrap();
    migrated("up to 6", migration).await;
    log.goes_on("at schema 6").await;
    migrated("up to 7", migrating(outbox, forget.up)).await;
    log.goes_on("at schema 7").await;
    let open = stays_open(outbox, "open-new-first").await;
    let migration = migrating(outbox, new_first.up);
    log.goes_on("while schema 8 waits for the open transaction").await;
    assert!(!migration.is_finished(), "it waits");
    ends(open, "open-new-first").await;
    migrated("up to 8", migration).await;
    log.goes_on("at schema 8").await;
    newer
}

/// From 8 to 4: the new publisher hands over to one of version 4.
async fn down(outbox: &Outbox, log: &Log, newer: Running, incarnation: &str) -> RunningFormer {
    let [both, numbers, forget, new_first] = &postgres::MIGRATIONS[4..] else { panic!("schemas 5 to 8") };
    migrated("down to 7", migrating(outbox, new_first.down)).await;
    log.goes_on("at schema 7 again").await;
    migrated("down to 6", migrating(outbox, forget.down)).await;
    log.goes_on("at schema 6 again").await;
    let open = stays_open(outbox, "open-numbers").await;
    let migration = migrating(outbox, numbers.down);
    log.goes_on("while the way to schema 5 waits for the open transaction").await;
    assert!(!migration.is_finished(), "it waits");
    ends(open, "open-numbers").await;
    migrated("down to 5", migration).await;
    let open = stays_open(outbox, "open-down").await;
    log.goes_on("at schema 5 again").await;
    assert!(Former::register(outbox, "too early", log).await.is_err(), "last_seq is not exact yet");
    let refused = migrating(outbox, both.down).await.unwrap().unwrap_err();
    assert!(refused.contains("publishers that need schema 5 or newer are alive (newer)"), "{refused}");
    newer.stop().await;
    let migration = migrating(outbox, both.down);
    let before = written(outbox).await;
    eventually("writers go on meanwhile", LIMIT, async || written(outbox).await >= before + MORE).await;
    assert!(!migration.is_finished(), "it waits");
    ends(open, "open-down").await;
    migrated("down to 4", migration).await;
    let former = RunningFormer::start(outbox, incarnation, log).await;
    log.goes_on("at schema 4 again").await;
    former
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn up_and_down_and_up_again_nothing_is_lost_and_the_order_is_that_of_the_commits() {
    let (outbox, log) = (of_schema_4().await, Log::default());
    let writers = Writers::start(&outbox).await;
    let former = RunningFormer::start(&outbox, "first", &log).await;
    log.goes_on("at schema 4").await;
    let running = up(&outbox, &log, former, Duration::ZERO).await;
    let former = down(&outbox, &log, running, "second").await;
    let running = up(&outbox, &log, former, Duration::from_hours(1)).await;
    writers.stop().await;
    log.is_complete(&outbox).await;
    running.stop().await;
    assert_eq!(outbox.execute("SELECT schema_version FROM outbox_meta").await[0][0].as_deref(), Some("8"));
}

/// `init` goes as far as it can, and says what is in its way; a half migrated outbox works, and says so.
#[tokio::test]
async fn an_outbox_stays_half_migrated_while_a_former_publisher_lives_and_says_what_to_do() {
    let (outbox, log) = (of_schema_4().await, Log::default());
    outbox.insert(events("a", 1..=2)).await;
    let refused = PostgresStore::open(outbox.config()).await.unwrap_err();
    assert!(refused.to_string().ends_with("its schema is 4, this version needs 8: run `shardwise outbox init`"), "{refused}");
    let former = Former::register(&outbox, "first", &log).await.unwrap();
    let refused = PostgresStore::init(outbox.config()).await.unwrap_err();
    let said = "publishers of an earlier version are alive (former). The outbox stays at schema 5, where writers and all publishers go on: \
                upgrade these publishers, then run `shardwise outbox init` again";
    assert!(refused.kind() == ErrorKind::Schema && refused.to_string().contains(said), "{refused}");
    let (lines, guard) = Said::start();
    let store = PostgresStore::open(outbox.config()).await.unwrap();
    drop(guard);
    let told = "half migrated, at schema 5. All goes on, but writers pay more than before: upgrade the publishers of earlier versions, \
                then run `shardwise outbox init`";
    assert!(lines.lines().iter().any(|line| line.contains("WARN") && line.contains(told)), "{:?}", lines.lines());
    outbox.insert(events("a", 3..=3)).await;
    assert_eq!(crate::publishing::delivered(&outbox).await.len(), 3);
    drop(former);
    outbox.execute("DELETE FROM outbox_publisher").await;
    // As a publisher of schema 6 announces itself.
    let older = "INSERT INTO outbox_publisher (incarnation, publisher, seen_at, ttl, schema) VALUES ('x', 'older', now(), '1 hour', 6)";
    outbox.execute(older).await;
    let refused = PostgresStore::init(outbox.config()).await.unwrap_err();
    let said = "publishers of an earlier version are alive (older). The outbox stays at schema 6, where writers and all publishers go on: \
                upgrade these publishers, then run `shardwise outbox init` again";
    assert!(refused.kind() == ErrorKind::Schema && refused.to_string().contains(said), "{refused}");
    let (lines, guard) = Said::start();
    outbox.store().await.close().await;
    drop(guard);
    let told = "half migrated, at schema 6. All goes on, but publishers are slower than they could be";
    assert!(lines.lines().iter().any(|line| line.contains("WARN") && line.contains(told)), "{:?}", lines.lines());
    outbox.execute("UPDATE outbox_publisher SET seen_at = now() - interval '2 hours'").await;
    PostgresStore::init(outbox.config()).await.unwrap().close().await;
    let refused = outbox.database.execute(older).await.unwrap_err().to_string();
    assert!(refused.contains("this publisher is older than the outbox: upgrade it"), "{refused}");
    let (lines, guard) = Said::start();
    outbox.store().await.close().await;
    drop(guard);
    assert!(!lines.lines().iter().any(|line| line.contains("half migrated")), "{:?}", lines.lines());
    store.close().await;
}

/// It was stopped in the middle of a turn for longer than its TTL, and comes back to an outbox that was upgraded meanwhile.
#[tokio::test]
async fn a_former_publisher_that_comes_back_after_the_upgrade_does_no_harm() {
    let (outbox, log) = (of_schema_4().await, Log::default());
    let mut conn = outbox.connection().await;
    write(&mut conn, "struck").await.unwrap();
    write(&mut conn, "marked").await.unwrap();
    let mut former = Former::register(&outbox, "paused", &log).await.unwrap();
    assert!(former.hold(0..SLOTS).await.unwrap());
    let first = former.fetch().await.unwrap();
    assert_eq!(former.mark(&first, false).await.unwrap(), 2);
    // A writer has the row, so that it stays listed with nothing to send.
    outbox.execute("UPDATE outbox_head SET listed = true; UPDATE outbox_aggregate SET drained_seq = 0").await;
    let drained = former.fetch().await.unwrap();
    write(&mut conn, "marked").await.unwrap();
    let read = former.fetch().await.unwrap();
    outbox.execute("UPDATE outbox_publisher SET seen_at = seen_at - interval '1 hour'").await;
    PostgresStore::init(outbox.config()).await.unwrap().close().await;
    write(&mut conn, "struck").await.unwrap();
    assert_eq!(former.mark(&read, true).await.unwrap(), 0, "it is fenced");
    let refused = former.strike_off(&drained).await.unwrap_err().to_string();
    assert!(refused.contains("this publisher is older than the outbox: upgrade it"), "{refused}");
    assert!(!former.hold(0..SLOTS).await.unwrap(), "it is forgotten");
    let refused = former.comes_back().await.err().unwrap().to_string();
    assert!(refused.contains("this publisher is older than the outbox: upgrade it"), "{refused}");
    let running = newer(&outbox, "newer", SlotSet::full(SLOTS), &log, Duration::from_hours(1)).await;
    log.is_complete(&outbox).await;
    running.stop().await;
}
