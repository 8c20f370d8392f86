//! Aggregates come off the publishers' list and numbers go on: no event is left behind, and no number comes twice.

use std::time::Duration;

use shardwise::{Incarnation, SlotSet};
use shardwise_outbox::exercise::StoreHarness as _;
use shardwise_outbox::store::{EventRun, FetchRequest, HeadUpdate, Outcome, PublisherRegistration};
use shardwise_outbox::{PostgresStore, Store as _, postgres};
use shardwise_testkit::Postgres;
use sqlx::{Connection as _, Executor as _, PgConnection};

use crate::common::{LISTED, Outbox, insert, patiently};
use crate::publishing::delivered;
use crate::shared::{events, eventually, within};

const LIMIT: Duration = Duration::from_mins(3);
/// A session of this database waits for a lock.
pub(crate) const WAITS: &str = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";

pub(crate) async fn number(outbox: &Outbox, sql: &str) -> i64 {
    outbox.execute(sql).await[0][0].as_deref().unwrap().parse().unwrap()
}

/// A publisher that holds all slots and has hashed all aggregates.
pub(crate) async fn holder(outbox: &Outbox) -> (PostgresStore, PublisherRegistration) {
    let store = outbox.store().await;
    let me = PublisherRegistration { publisher: "w".into(), incarnation: Incarnation::new(1), ttl: LIMIT, slots: 8 };
    store.register(&me).await.unwrap();
    store.take(&me, &SlotSet::full(me.slots)).await.unwrap();
    while store.place_new(1_000).await.unwrap() > 0 {}
    (store, me)
}

pub(crate) async fn read(store: &PostgresStore, me: &PublisherRegistration) -> Vec<Outcome> {
    let request = FetchRequest { after: None, events_max: 1_000, bytes_max: 1 << 24, except_slots: vec![], except_aggregates: vec![] };
    let outcome = |run: &EventRun| Outcome { aggregate: run.aggregate, hold: run.hold, through: Some(run.through), then: HeadUpdate::Next };
    patiently("fetch", async || store.fetch(me, &request).await).await.runs.iter().map(outcome).collect()
}

/// A writer that comes and goes between a mark's read and its lock leaves no new version of the aggregate's row. The mark looks at the
/// outbox, and then waits for its slot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_strikes_nothing_off_that_a_writer_has_added_to_since_it_looked() {
    for delete in [false, true] {
        let outbox = Outbox::new().await;
        outbox.insert(events("a", 1..=2)).await;
        let (store, me) = holder(&outbox).await;
        let outcomes = read(&store, &me).await;
        let mut taker = outbox.connection().await;
        taker.execute("BEGIN; SELECT 1 FROM outbox_slot FOR UPDATE").await.unwrap();
        let mark = tokio::spawn({
            let (store, me) = (store.clone(), me.clone());
            async move {
                loop {
                    match store.record(&me, &outcomes, delete).await {
                        Err(error) if error.is_retryable() => {}
                        answer => return answer.unwrap(),
                    }
                }
            }
        });
        eventually("the mark waits", LIMIT, async || !outbox.execute(WAITS).await.is_empty()).await;
        outbox.insert(events("a", 3..=3)).await;
        taker.execute("COMMIT").await.unwrap();
        assert_eq!(within("the mark", LIMIT, mark).await.unwrap(), []);
        assert_eq!(outbox.execute(LISTED).await.len(), 1, "it stays listed");
        let left = read(&store, &me).await;
        assert_eq!(left.len(), 1, "and is read");
        assert_eq!(patiently("record", async || store.record(&me, &left, delete).await).await, []);
        assert_eq!(outbox.execute(LISTED).await.len(), 0, "then it comes off");
    }
}

/// The same for the function alone, with a statement whose snapshot is older than the writer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_strike_sees_what_was_committed_after_its_callers_snapshot() {
    let outbox = Outbox::new().await;
    outbox.insert(events("a", 1..=1)).await;
    let (mut holder, mut striker, mut writer) = (outbox.connection().await, outbox.connection().await, outbox.connection().await);
    let strike = "WITH late AS MATERIALIZED (SELECT 1::bigint AS one, pg_advisory_xact_lock(1))
        SELECT count(s.id) FROM late CROSS JOIN outbox_aggregate AS a CROSS JOIN LATERAL outbox_strike(ARRAY[a.id], ARRAY[late.one]) AS s (id)";
    holder.execute("BEGIN; SELECT pg_advisory_xact_lock(1)").await.unwrap();
    let striking = tokio::spawn(async move { sqlx::query_scalar::<_, i64>(strike).fetch_one(&mut striker).await });
    eventually("the strike waits", LIMIT, async || !outbox.execute(WAITS).await.is_empty()).await;
    insert(&mut writer, events("a", 2..=2).remove(0)).await.unwrap();
    holder.execute("COMMIT").await.unwrap();
    assert_eq!(within("the strike", LIMIT, striking).await.unwrap().unwrap(), 0);
    // A writer that is still there keeps the row, and no transaction waits for it.
    writer.execute("BEGIN").await.unwrap();
    insert(&mut writer, events("a", 3..=3).remove(0)).await.unwrap();
    let none = within("the strike", LIMIT, outbox.execute("SELECT outbox_strike(array_agg(id), '{9}') FROM outbox_aggregate")).await;
    assert!(none.is_empty(), "{none:?}");
    writer.execute("ROLLBACK").await.unwrap();
    assert_eq!(outbox.execute("SELECT outbox_strike(array_agg(id), '{9}') FROM outbox_aggregate").await.len(), 1);
    writer.execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    let refused = writer.execute("SELECT outbox_strike('{1}', '{1}')").await.unwrap_err().to_string();
    assert!(refused.contains("needs READ COMMITTED"), "{refused}");
}

const OF_A: &str = "SELECT max(seq) FROM outbox WHERE aggregateid = 'a'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_an_upgrade_every_number_is_above_all_earlier_ones() {
    let outbox = Outbox::of(&Postgres::shared().await.unwrap().database().await.unwrap());
    for migration in &postgres::MIGRATIONS[..4] {
        outbox.execute(&format!("BEGIN; {}; COMMIT", migration.up)).await;
    }
    outbox.insert([events("a", 1..=40), events("b", 1..=3)].concat()).await;
    // As it is after `restored`, and after aggregates were forgotten.
    outbox.execute("SELECT setval('outbox_floor', 30)").await;
    // One that began under schema 4 and has come further than everybody else.
    let mut open = outbox.connection().await;
    open.execute("BEGIN").await.unwrap();
    for event in events("b", 4..=60) {
        insert(&mut open, event).await.unwrap();
    }
    outbox.execute(&format!("BEGIN; {}; COMMIT", postgres::MIGRATIONS[4].up)).await;
    open.execute("COMMIT").await.unwrap();
    outbox.insert(events("b", 61..=61)).await;
    PostgresStore::init(outbox.config()).await.unwrap().close().await;
    outbox.insert([events("b", 62..=62), events("a", 41..=41), events("forgotten", 1..=1)].concat()).await;
    let orders = "SELECT aggregateid FROM outbox GROUP BY 1 HAVING array_agg(id ORDER BY seq) <> array_agg(id ORDER BY position)";
    assert_eq!(outbox.execute(orders).await, Vec::<Vec<Option<String>>>::new());
    assert!(number(&outbox, "SELECT min(seq) FROM outbox WHERE aggregateid = 'forgotten'").await > 60);
    assert!(number(&outbox, OF_A).await > 60);
    assert_eq!(delivered(&outbox).await.len(), 41 + 62 + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_go_on_above_a_restore_and_after_an_aggregate_was_forgotten() {
    let outbox = Outbox::new().await;
    outbox.insert(events("a", 1..=3)).await;
    let store = outbox.store().await;
    store.restored(0, 1_000_000).await.unwrap();
    outbox.insert([events("a", 4..=4), events("new", 1..=1)].concat()).await;
    assert_eq!(number(&outbox, "SELECT count(*) FROM outbox WHERE seq > 1000000").await, 2);
    assert_eq!(delivered(&outbox).await.len(), 5);
    let before = number(&outbox, OF_A).await;
    store.close().await;
    let (store, me) = holder(&outbox).await;
    while store.sweep(Duration::from_nanos(1), 0, 1_000).await.unwrap().deleted > 0 {}
    eventually("it is forgotten", LIMIT, async || {
        read(&store, &me).await;
        store.clean(Duration::from_hours(1), 1_000).await.unwrap();
        outbox.execute("SELECT 1 FROM outbox_aggregate").await.is_empty()
    })
    .await;
    store.leave(&me).await.unwrap();
    outbox.insert(events("a", 5..=5)).await;
    assert!(number(&outbox, OF_A).await > before, "above what consumers have seen");
    assert_eq!(delivered(&outbox).await.len(), 1);
}

pub(crate) const NOT_SET: &str = "the sequence outbox_floor is not set, as in a copy by logical replication, which has no values of sequences: run `shardwise \
                       outbox restored`";

/// As after a copy of the rows by hand: writers must not write what no publisher sends. Each refused attempt takes a number, so from the
/// first one on all are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sequence_that_fell_back_refuses_writers_until_it_is_restored() {
    let outbox = Outbox::new().await;
    outbox.insert(events("a", 1..=30)).await;
    let (store, me) = holder(&outbox).await;
    let outcomes = read(&store, &me).await;
    // As after a failure: with a publishers' row it is not forgotten.
    outbox.execute("INSERT INTO outbox_head (aggregate, listed, done_seq) SELECT id, false, drained_seq FROM outbox_aggregate").await;
    assert_eq!(store.record(&me, &outcomes, false).await.unwrap(), []);
    store.leave(&me).await.unwrap();
    outbox.insert(events("listed", 1..=30)).await;
    outbox.execute("ALTER SEQUENCE outbox_order RESTART").await;
    let mut writer: PgConnection = outbox.connection().await;
    let fell_back = "the sequence outbox_order fell back, as in a copy without the values of sequences: run `shardwise outbox restored`";
    for (aggregate, told) in [("a", fell_back), ("a", NOT_SET), ("listed", NOT_SET), ("new", NOT_SET)] {
        let refused = insert(&mut writer, events(aggregate, 31..=31).remove(0)).await.unwrap_err().to_string();
        assert!(refused.contains(told), "{aggregate}: {refused}");
        outbox.execute("SELECT setval('outbox_order', 500)").await;
    }
    for migration in postgres::MIGRATIONS[6..].iter().rev() {
        outbox.execute(&format!("BEGIN; {}; COMMIT", migration.down)).await;
    }
    let down = format!("BEGIN; {}; COMMIT", postgres::MIGRATIONS[5].down);
    let refused = outbox.database.execute(&down).await.unwrap_err().to_string();
    assert!(refused.contains("run `shardwise outbox restored` first"), "{refused}");
    store.restored(0, 1_000).await.unwrap();
    for aggregate in ["a", "listed"] {
        insert(&mut writer, events(aggregate, 31..=31).remove(0)).await.unwrap();
    }
    writer.close().await.unwrap();
    assert_eq!(delivered(&outbox).await.len(), 30 + 2);
}

/// A copy by logical replication whose tables a dump of the schema made: the floor was never set, which is noticed at any event, and
/// `restored` sets it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_without_the_values_of_sequences_takes_no_event_before_it_is_restored() {
    let outbox = Outbox::new().await;
    outbox.insert(events("a", 1..=30)).await;
    let never_set = "ALTER SEQUENCE outbox_floor RESTART; ALTER SEQUENCE outbox_order RESTART;
        ALTER SEQUENCE outbox_asleep RESTART; ALTER SEQUENCE outbox_woken RESTART";
    outbox.execute(never_set).await;
    // Far above what the row of the listed aggregate knows.
    outbox.execute("SELECT setval('outbox_order', 20)").await;
    let mut writer: PgConnection = outbox.connection().await;
    for aggregate in ["a", "new"] {
        let refused = insert(&mut writer, events(aggregate, 31..=31).remove(0)).await.unwrap_err().to_string();
        assert!(refused.contains(NOT_SET), "{refused}");
    }
    outbox.store().await.restored(0, 0).await.unwrap();
    for aggregate in ["a", "new"] {
        insert(&mut writer, events(aggregate, 31..=31).remove(0)).await.unwrap();
    }
    assert_eq!(number(&outbox, "SELECT count(*) FROM outbox WHERE id = 'a-31' AND seq > 30").await, 1, "above all that are there");
    writer.close().await.unwrap();
    assert_eq!(delivered(&outbox).await.len(), 32);
}
