//! Conflicts: between operators, between publishers and a writer with many aggregates, and between publishers and a missing right.

use std::sync::Arc;
use std::time::Duration;

use shardwise::SlotSet;
use shardwise_outbox::exercise::{ScriptedSink, StoreHarness as _};
use shardwise_outbox::store::{EventRun, FetchRequest, HeadUpdate, Outcome, PublisherRegistration, Signature};
use shardwise_outbox::{DeadLetters as _, NewEvent, OutboxPublisher, PostgresConfig, PostgresStore, PublisherOptions, Store};
use sqlx::Connection as _;

use crate::common::{LISTED, Outbox, PLACE_ALL, insert};
use crate::shared::{Running, TestSharding, events, eventually, within};

const LIMIT: Duration = Duration::from_secs(30);
/// A session of this database waits for a lock.
const WAITS: &str = "SELECT 1 FROM pg_locks AS l JOIN pg_database AS d ON true
    WHERE d.datname = current_database() AND NOT l.granted AND l.pid IN (SELECT pid FROM pg_stat_activity WHERE datname = d.datname)";

/// Aggregates whose rows a long transaction holds stay listed, although they have nothing to send: more of them than a reading fetches.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_aggregates_in_a_writers_hands_hide_no_event() {
    let outbox = Outbox::new().await;
    let held: Vec<String> = (0..100).map(|n| format!("held-{n:03}")).collect();
    outbox.insert(held.iter().flat_map(|id| events(id, 1..=1)).collect()).await;
    let mut writer = outbox.connection().await;
    let mut open = writer.begin().await.unwrap();
    for id in &held {
        insert(&mut open, NewEvent::new("order", id.as_str(), "OrderChanged", "{}")).await.unwrap();
    }
    let (sink, store) = (ScriptedSink::accepting(), outbox.store().await);
    let options = PublisherOptions { batch: 10, poll: Duration::from_millis(100), ..PublisherOptions::default() };
    let publisher =
        OutboxPublisher::new(Arc::new(outbox.store().await), Arc::new(sink.clone()), Arc::new(TestSharding::full("one"))).unwrap();
    let running = Running::start(publisher.options(options).unwrap());
    eventually("all that is committed arrives", LIMIT, async || sink.arrived().len() == 100).await;
    outbox.insert((0..5).flat_map(|n| events(&format!("free-{n}"), 1..=2)).collect()).await;
    eventually("others arrive beside them", LIMIT, async || sink.arrived().len() == 110).await;
    eventually("and are marked", LIMIT, async || store.status().await.unwrap().pending == 0).await;
    open.commit().await.unwrap();
    eventually("what was held comes", LIMIT, async || sink.arrived().len() == 210).await;
    running.stop().await;
}

/// A mark waits for a transaction that then needs a row of the mark. PostgreSQL sometimes makes a mark wait for a writer, whatever SKIP
/// LOCKED says; here the head's row is locked instead. If the mark did not give way, the server would stop the other transaction, which
/// looks for deadlocks first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_gives_way_before_a_writer_is_stopped_for_a_deadlock() {
    let outbox = Outbox::new().await;
    outbox.insert(events("a", 1..=1).into_iter().chain(events("b", 1..=1)).collect()).await;
    outbox.execute(PLACE_ALL).await;
    let (store, me) = holder(&outbox).await;
    let outcome = |run: &EventRun| Outcome { aggregate: run.aggregate, hold: run.hold, through: Some(run.through), then: HeadUpdate::Next };
    let outcomes: Vec<Outcome> = store.fetch(&me, &all()).await.unwrap().runs.iter().map(outcome).collect();
    assert_eq!(outcomes.len(), 2);

    let mut conn = outbox.connection().await;
    sqlx::raw_sql("SET deadlock_timeout = '600ms'").execute(&mut conn).await.unwrap();
    let mut writer = conn.begin().await.unwrap();
    let held = "SELECT 1 FROM outbox_head WHERE aggregate = (SELECT id FROM outbox_aggregate WHERE key = 'order/a') FOR UPDATE";
    sqlx::query(held).fetch_one(&mut *writer).await.unwrap();
    let mark = tokio::spawn(async move {
        // Repeated, as the publisher does.
        within("the mark", LIMIT, async { while store.record(&me, &outcomes, false).await.is_err() {} }).await;
        store
    });
    eventually("the mark waits", LIMIT, async || !outbox.execute(WAITS).await.is_empty()).await;
    insert(&mut writer, NewEvent::new("order", "b", "OrderChanged", "{}")).await.unwrap();
    writer.commit().await.unwrap();
    let status = mark.await.unwrap().status().await.unwrap();
    assert_eq!(status.pending, 1, "the writer's event is there, and the others are marked");
}

/// An outbox with two events of one aggregate, whose publisher holds all slots and has read them.
async fn two_events_read(outbox: &Outbox) -> (PostgresStore, PublisherRegistration, EventRun) {
    outbox.insert(events("a", 1..=2)).await;
    let (store, me) = holder(outbox).await;
    let run = store.fetch(&me, &all()).await.unwrap().runs.remove(0);
    (store, me, run)
}

/// A publisher that holds all slots and has hashed all aggregates.
async fn holder(outbox: &Outbox) -> (PostgresStore, PublisherRegistration) {
    let store = outbox.store().await;
    let me = PublisherRegistration { publisher: "w".into(), incarnation: shardwise::Incarnation::new(1), ttl: LIMIT, slots: 8 };
    store.register(&me).await.unwrap();
    store.take(&me, &SlotSet::full(8)).await.unwrap();
    store.place_new(10).await.unwrap();
    (store, me)
}

const fn all() -> FetchRequest {
    FetchRequest { after: None, events_max: 10, bytes_max: 1 << 20, except_slots: vec![], except_aggregates: vec![] }
}

/// `discard` waits for the aggregate's row, and meanwhile the event is replayed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_discard_that_had_to_wait_leaves_what_was_replayed() {
    let outbox = Outbox::new().await;
    let (store, me, run) = two_events_read(&outbox).await;
    let then = HeadUpdate::Park { sequence: run.events[0].sequence, error: "422".into() };
    store.record(&me, &[Outcome { aggregate: run.aggregate, hold: run.hold, through: None, then }], false).await.unwrap();
    let mut conn = outbox.connection().await;
    let mut other = conn.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM outbox_aggregate FOR UPDATE").fetch_one(&mut *other).await.unwrap();
    let by = Signature::new("ann", "not needed").unwrap();
    let discard = tokio::spawn({
        let store = store.clone();
        async move { store.discard("a-1", &by).await }
    });
    eventually("the discard waits", LIMIT, async || !outbox.execute(WAITS).await.is_empty()).await;
    // The statement of `replay`.
    let replay = "WITH gone AS (DELETE FROM outbox WHERE id = 'a-1' AND parked_at IS NOT NULL RETURNING *)
        INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, created_at, replayed)
        SELECT id, aggregatetype, aggregateid, type, payload, created_at, seq FROM gone";
    sqlx::query(replay).execute(&mut *other).await.unwrap();
    other.commit().await.unwrap();
    assert!(!within("the discard", LIMIT, discard).await.unwrap().unwrap(), "it is no longer a dead letter");
    let newest = format!("SELECT 1 FROM outbox WHERE id = 'a-1' AND seq > {}", run.through);
    assert_eq!(outbox.execute(&newest).await.len(), 1, "it is there, as the newest");
}

/// Another publisher takes the slot while a mark waits for the slot's row; the mark then sees the new holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_that_waited_for_another_taker_is_fenced() {
    let outbox = Outbox::new().await;
    let (store, me, run) = two_events_read(&outbox).await;
    let mut conn = outbox.connection().await;
    let mut taker = conn.begin().await.unwrap();
    let take = "UPDATE outbox_slot SET epoch = epoch + 1, incarnation = 'another' WHERE slot = $1";
    sqlx::query(take).bind(i64::from(run.hold.slot)).execute(&mut *taker).await.unwrap();
    let mark = tokio::spawn({
        let (store, me) = (store.clone(), me.clone());
        let outcome = Outcome { aggregate: run.aggregate, hold: run.hold, through: Some(run.through), then: HeadUpdate::Next };
        async move { store.record(&me, &[outcome], false).await }
    });
    eventually("the mark waits", LIMIT, async || !outbox.execute(WAITS).await.is_empty()).await;
    taker.commit().await.unwrap();
    assert_eq!(within("the mark", LIMIT, mark).await.unwrap().unwrap(), [run.hold], "it is fenced");
    assert_eq!(outbox.execute("SELECT 1 FROM outbox_aggregate WHERE drained_seq > 0").await.len(), 0, "nothing was marked");
    assert_eq!(outbox.execute(LISTED).await.len(), 1, "nothing was marked");
}

/// Only the cleaning needs this right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_that_only_the_cleaning_needs_ends_no_publisher() {
    let outbox = Outbox::new().await;
    let role = format!("cleaner_{}", outbox.database.name());
    outbox
        .execute(&format!(
            "CREATE ROLE {role} LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}; REVOKE ALL ON outbox_audit FROM {role};
             GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}"
        ))
        .await;
    let config = PostgresConfig::from_url(&outbox.database.url().replace("postgres@", &format!("{role}@"))).unwrap();
    outbox.insert(events("a", 1..=3)).await;
    let sink = ScriptedSink::accepting();
    let store = PostgresStore::open(config).await.unwrap();
    let options = PublisherOptions { retention: Duration::from_nanos(1), poll: Duration::from_millis(100), ..PublisherOptions::default() };
    let publisher = OutboxPublisher::new(Arc::new(store), Arc::new(sink.clone()), Arc::new(TestSharding::full("one")))
        .unwrap()
        .options(options)
        .unwrap();
    let running = Running::start(publisher);
    let last_error = || running.stats.snapshot().last_error.unwrap_or_default();
    eventually("events arrive", LIMIT, async || sink.arrived().len() == 3).await;
    let mut heard = false;
    eventually("the missing grant is reported", LIMIT, async || {
        heard |= last_error().contains("outbox_audit");
        heard || running.task.is_finished()
    })
    .await;
    assert!(!running.task.is_finished(), "it goes on");
    running.stop().await;
}
