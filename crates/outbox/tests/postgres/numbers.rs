//! The numbers of events are drawn behind their aggregate's lock: they rise in the order of the commits, whatever a transaction does.

use std::sync::Arc;
use std::time::Duration;

use shardwise::{Incarnation, SlotSet};
use shardwise_outbox::exercise::{ScriptedSink, StoreHarness as _};
use shardwise_outbox::store::{FetchRequest, HeadUpdate, Outcome, PublisherRegistration};
use shardwise_outbox::{NewEvent, OutboxPublisher, PostgresStore, PublisherOptions, Store as _};
use shardwise_testkit::{Postgres, PostgresOptions};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

use crate::common::{LISTED, Outbox, insert};
use crate::publishing::delivered;
use crate::shared::{Running, SLOTS, TestSharding, events, eventually, within};

const LIMIT: Duration = Duration::from_mins(3);
/// Events of others must arrive within this time, whatever a large transaction does.
const IN_TIME: Duration = Duration::from_secs(20);

fn event(aggregate: &str, id: &str) -> NewEvent {
    NewEvent::new("order", aggregate, "OrderChanged", "{}").with_id(id)
}

/// The ids of an aggregate's events in the order of their numbers.
async fn in_order(outbox: &Outbox, aggregate: &str) -> Vec<String> {
    let sql = format!("SELECT id FROM outbox WHERE aggregateid = '{aggregate}' ORDER BY seq");
    outbox.execute(&sql).await.into_iter().map(|row| row[0].clone().unwrap()).collect()
}

async fn number(outbox: &Outbox, sql: &str) -> i64 {
    outbox.execute(sql).await[0][0].as_deref().unwrap().parse().unwrap()
}

async fn run(conn: &mut PgConnection, sql: String) {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.unwrap();
}

async fn publisher(outbox: &Outbox, sink: &ScriptedSink) -> Running {
    let options = PublisherOptions { poll: Duration::from_millis(100), ..PublisherOptions::default() };
    let sharding = Arc::new(TestSharding::full("one"));
    let publisher = OutboxPublisher::new(Arc::new(outbox.store().await), Arc::new(sink.clone()), sharding).unwrap();
    Running::start(publisher.options(options).unwrap())
}

async fn highest(outbox: &Outbox) -> i64 {
    number(outbox, "SELECT coalesce(max(seq), 0) FROM outbox").await
}

/// Waits until this many sessions of the database wait for a lock.
async fn waits(outbox: &Outbox, count: usize) {
    let sql = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    eventually("a session waits for a lock", LIMIT, async || outbox.execute(sql).await.len() == count).await;
}

/// Were the number drawn before the wait, the second writer's would be below that of an event that others wrote meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number_is_drawn_behind_the_wait() {
    for isolation in ["READ COMMITTED", "REPEATABLE READ"] {
        let outbox = Outbox::new().await;
        outbox.insert(events("a", 1..=1)).await;
        let (mut one, mut two) = (outbox.connection().await, outbox.connection().await);
        let mut first = one.begin().await.unwrap();
        insert(&mut first, event("a", "first")).await.unwrap();
        let second = tokio::spawn(async move {
            run(&mut two, format!("BEGIN ISOLATION LEVEL {isolation}")).await;
            insert(&mut two, event("a", "second")).await.unwrap();
            two.execute("COMMIT").await.unwrap();
        });
        waits(&outbox, 1).await;
        outbox.insert(events("b", 1..=3)).await;
        insert(&mut first, event("a", "third")).await.unwrap();
        first.commit().await.unwrap();
        within("the second writer", LIMIT, second).await.unwrap();
        assert_eq!(in_order(&outbox, "a").await, ["a-1", "first", "third", "second"], "{isolation}");
        let above = "SELECT count(*) FROM outbox WHERE aggregateid = 'b' AND seq < (SELECT seq FROM outbox WHERE id = 'second')";
        assert_eq!(number(&outbox, above).await, 3, "{isolation}");
        assert_eq!(delivered(&outbox).await.len(), 7, "{isolation}");
    }
}

/// A session that reserves numbers would take them out of its reserve behind a wait.
#[tokio::test]
async fn no_session_reserves_numbers() {
    let outbox = Outbox::new().await;
    let caches =
        "SELECT sequencename, cache_size, cycle FROM pg_sequences WHERE sequencename IN ('outbox_order', 'outbox_asleep', 'outbox_woken')
        ORDER BY sequencename";
    let expected = ["outbox_asleep", "outbox_order", "outbox_woken"].map(|name| [name, "1", "f"].map(|text| Some(text.to_owned())));
    assert_eq!(outbox.execute(caches).await, expected);
}

#[tokio::test]
async fn an_insert_that_does_nothing_leaves_a_gap_and_an_aggregate_without_events() {
    let outbox = Outbox::new().await;
    outbox.insert(events("a", 1..=1)).await;
    let again = |aggregate: &str| {
        format!(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type) VALUES ('a-1', 'order', '{aggregate}', 't') ON CONFLICT (id) DO NOTHING"
        )
    };
    outbox.execute(&again("a")).await;
    outbox.execute(&again("never")).await;
    outbox.insert(events("a", 2..=2)).await;
    assert!(highest(&outbox).await > 3, "the numbers are gone");
    let sink = ScriptedSink::accepting();
    let running = publisher(&outbox, &sink).await;
    eventually("neither is read for ever", LIMIT, async || outbox.execute(LISTED).await.is_empty()).await;
    outbox.insert(events("never", 1..=1)).await;
    eventually("what comes later arrives", LIMIT, async || sink.arrived().len() == 3).await;
    running.stop().await;
    let ids: Vec<_> = sink.arrived().into_iter().map(|event| event.id).collect();
    assert_eq!(ids, ["a-1", "a-2", "never-1"]);
}

#[tokio::test]
async fn a_rollback_to_a_savepoint_gives_the_lock_back_with_the_event() {
    let outbox = Outbox::new().await;
    for known in [false, true] {
        let aggregate = if known { "known" } else { "new" };
        if known {
            outbox.insert(vec![event(aggregate, "known-0")]).await;
            assert_eq!(delivered(&outbox).await.len(), 1 + 2, "those of the other aggregate too");
        }
        let (mut one, mut two) = (outbox.connection().await, outbox.connection().await);
        one.execute("BEGIN; SAVEPOINT s").await.unwrap();
        insert(&mut one, event(aggregate, "undone")).await.unwrap();
        one.execute("ROLLBACK TO SAVEPOINT s").await.unwrap();
        let between = format!("{aggregate}-between");
        within("the lock is free", LIMIT, insert(&mut two, event(aggregate, &between))).await.unwrap();
        let again = format!("{aggregate}-again");
        insert(&mut one, event(aggregate, &again)).await.unwrap();
        // A lock that is older than the savepoint stays.
        one.execute("SAVEPOINT s").await.unwrap();
        insert(&mut one, event(aggregate, "undone")).await.unwrap();
        one.execute("ROLLBACK TO SAVEPOINT s").await.unwrap();
        two.execute("SET lock_timeout = '100ms'").await.unwrap();
        let refused = insert(&mut two, event(aggregate, "too early")).await.unwrap_err();
        assert_eq!(refused.as_database_error().unwrap().code().as_deref(), Some("55P03"));
        one.execute("COMMIT").await.unwrap();
        let ids = in_order(&outbox, aggregate).await;
        assert_eq!(&ids[ids.len() - 2..], [between, again]);
    }
    assert_eq!(delivered(&outbox).await.len(), 2, "of the second aggregate");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prepared_transaction_keeps_the_lock_and_cannot_be_had_with_notifications() {
    let server = Postgres::start(PostgresOptions::default().with_setting("max_prepared_transactions", "5")).await.unwrap();
    let outbox = Outbox::on(&server).await;
    outbox.insert(events("a", 1..=1)).await;
    let (mut one, mut two) = (outbox.connection().await, outbox.connection().await);
    one.execute("BEGIN").await.unwrap();
    insert(&mut one, event("a", "prepared")).await.unwrap();
    one.execute("PREPARE TRANSACTION 'p'").await.unwrap();
    one.close().await.unwrap();
    let later = tokio::spawn(async move { insert(&mut two, event("a", "later")).await });
    waits(&outbox, 1).await;
    let (store, me) = holder(&outbox).await;
    deliver(&store, &me).await;
    assert_eq!(outbox.execute(LISTED).await.len(), 1, "what is delivered stays listed");
    outbox.execute("COMMIT PREPARED 'p'").await;
    within("the later one", LIMIT, later).await.unwrap().unwrap();
    assert_eq!(in_order(&outbox, "a").await, ["a-1", "prepared", "later"]);
    store.leave(&me).await.unwrap();
    assert_eq!(delivered(&outbox).await.len(), 2);
    outbox.execute("UPDATE outbox_meta SET notify = true; SELECT nextval('outbox_asleep')").await;
    let mut three = outbox.connection().await;
    three.execute("BEGIN").await.unwrap();
    insert(&mut three, event("a", "told")).await.unwrap();
    let refused = three.execute("PREPARE TRANSACTION 'q'").await.unwrap_err().to_string();
    assert!(refused.contains("cannot PREPARE a transaction that has executed LISTEN, UNLISTEN, or NOTIFY"), "{refused}");
}

/// A publisher that holds all slots and has hashed all aggregates.
async fn holder(outbox: &Outbox) -> (PostgresStore, PublisherRegistration) {
    let store = outbox.store().await;
    let me = PublisherRegistration { publisher: "w".into(), incarnation: Incarnation::new(1), ttl: LIMIT, slots: SLOTS };
    store.register(&me).await.unwrap();
    store.take(&me, &SlotSet::full(me.slots)).await.unwrap();
    while store.place_new(1_000).await.unwrap() > 0 {}
    (store, me)
}

/// Reads once, and marks what was read.
async fn deliver(store: &PostgresStore, me: &PublisherRegistration) {
    let request = FetchRequest { after: None, events_max: 1_000, bytes_max: 1 << 24, except_slots: vec![], except_aggregates: vec![] };
    let runs = store.fetch(me, &request).await.unwrap().runs;
    let marked = |run: &shardwise_outbox::store::EventRun| Outcome {
        aggregate: run.aggregate,
        hold: run.hold,
        through: Some(run.through),
        then: HeadUpdate::Next,
    };
    let outcomes: Vec<Outcome> = runs.iter().map(marked).collect();
    assert_eq!(store.record(me, &outcomes, false).await.unwrap(), []);
}

/// With a hash of the key as the lock, some of these would share one.
#[tokio::test]
async fn two_aggregates_never_share_a_lock() {
    let outbox = Outbox::new().await;
    let (mut one, mut two) = (outbox.connection().await, outbox.connection().await);
    let many = |from: u32| {
        format!("INSERT INTO outbox (aggregatetype, aggregateid, type) SELECT 'order', n, 't' FROM generate_series({from}, 20000, 2) AS n")
    };
    for known in [false, true] {
        run(&mut one, format!("BEGIN; {}", many(1))).await;
        run(&mut two, format!("SET lock_timeout = '500ms'; BEGIN; {}", many(2))).await;
        for conn in [&mut one, &mut two] {
            conn.execute("COMMIT").await.unwrap();
        }
        assert_eq!(number(&outbox, "SELECT count(*) FROM outbox").await, if known { 40_000 } else { 20_000 });
    }
}

/// Whatever advisory locks the application takes, the outbox takes none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lock_of_the_users_meets_ours() {
    let outbox = Outbox::new().await;
    let mut user = outbox.connection().await;
    outbox.insert(events("a", 1..=2)).await;
    user.execute("SELECT pg_advisory_lock(n) FROM generate_series(0, 500) AS n; SELECT pg_advisory_lock(id) FROM outbox_aggregate")
        .await
        .unwrap();
    user.execute("SELECT pg_advisory_lock(hashtextextended(key, 0)), pg_advisory_lock(hashtext(key)) FROM outbox_aggregate").await.unwrap();
    let mut writer = outbox.connection().await;
    writer.execute("SET lock_timeout = '5s'; BEGIN").await.unwrap();
    for id in ["a", "b"] {
        insert(&mut writer, event(id, &format!("{id}-more"))).await.unwrap();
    }
    let held: i64 = sqlx::query_scalar("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
        .fetch_one(&mut writer)
        .await
        .unwrap();
    assert_eq!(held, 0);
    writer.execute("COMMIT").await.unwrap();
    assert_eq!(delivered(&outbox).await.len(), 4);
}

/// Locks that are kept in the server's table of locks would fill it, and then no transaction gets one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_aggregates_in_one_transaction_starve_nobody() {
    let server = Postgres::start(PostgresOptions::default().with_setting("max_locks_per_transaction", "64")).await.unwrap();
    let (outbox, sink) = (Outbox::on(&server).await, ScriptedSink::accepting());
    let running = publisher(&outbox, &sink).await;
    let mut large = outbox.connection().await;
    large.execute("BEGIN").await.unwrap();
    let all = "INSERT INTO outbox (aggregatetype, aggregateid, type) SELECT 'large', n, 't' FROM generate_series(1, 100000) AS n";
    let writing = tokio::spawn(async move {
        // New ones, and then the same ones again.
        for _ in 0..2 {
            large.execute(all).await.unwrap();
        }
        large
    });
    let mut others = 0;
    while !writing.is_finished() || others < 10 {
        others += 1;
        outbox.insert(events("other", others..=others)).await;
        eventually("an event of others arrives", IN_TIME, async || sink.arrived().len() as u64 == others).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let mut large = within("the large transaction", LIMIT, writing).await.unwrap();
    let held: i64 = sqlx::query_scalar("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()").fetch_one(&mut large).await.unwrap();
    assert!(held < 64, "{held} locks in the server's table");
    running.stop().await;
    large.execute("COMMIT").await.unwrap();
    assert_eq!(number(&outbox, "SELECT count(DISTINCT seq) FROM outbox WHERE aggregatetype = 'large'").await, 200_000);
    let listed = format!("SELECT count(*) FROM ({LISTED}) AS l JOIN outbox_aggregate AS a ON a.id = l.id WHERE a.key LIKE 'large/%'");
    assert_eq!(number(&outbox, &listed).await, 100_000);
}

/// An update of a row that has no identity would be refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publication_of_all_tables_refuses_no_write() {
    let server = Postgres::start(PostgresOptions::default().with_setting("wal_level", "logical")).await.unwrap();
    let outbox = Outbox::on(&server).await;
    outbox.execute("CREATE PUBLICATION everything FOR ALL TABLES").await;
    outbox.insert([events("a", 1..=2), events("b", 1..=1)].concat()).await;
    assert_eq!(delivered(&outbox).await.len(), 3);
    outbox.insert(events("a", 3..=3)).await;
    assert_eq!(delivered(&outbox).await.len(), 1);
}
