//! Publishers while writers write: nothing is lost, the order is that of the commits, and an open transaction delays no other.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use shardwise::SlotSet;
use shardwise_outbox::exercise::{ScriptedSink, StoreHarness};
use shardwise_outbox::{Delivery, NewEvent, OutboxPublisher, Payload, PublisherOptions, Store};
use shardwise_testkit::{Postgres, PostgresOptions};
use sqlx::{Connection, PgConnection};
use tokio::time::{Instant, interval};

use crate::common::{LISTED, Outbox, insert};
use crate::shared::{Running, SLOTS, TestSharding, events, eventually, within};

const LIMIT: Duration = Duration::from_mins(3);

pub(crate) async fn publisher(outbox: &Outbox, sink: &ScriptedSink, sharding: TestSharding) -> Running {
    let options = PublisherOptions { poll: Duration::from_millis(100), ..PublisherOptions::default() };
    Running::start(
        OutboxPublisher::new(Arc::new(outbox.store().await), Arc::new(sink.clone()), Arc::new(sharding)).unwrap().options(options).unwrap(),
    )
}

/// Delivers the pending events; returns those that arrived.
pub(crate) async fn delivered(outbox: &Outbox) -> Vec<Delivery> {
    let (sink, store) = (ScriptedSink::accepting(), outbox.store().await);
    let running = publisher(outbox, &sink, TestSharding::full("one")).await;
    eventually("nothing is pending", LIMIT, async || store.status().await.unwrap().pending == 0).await;
    running.stop().await;
    sink.arrived()
}

/// Two transactions stay open: a writer's, in an aggregate that has events to deliver, and one with an old snapshot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_stays_open_delays_no_event() {
    let outbox = Outbox::new().await;
    let (mut writer, mut reader) = (outbox.connection().await, outbox.connection().await);
    let mut snapshot = reader.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    sqlx::query("SELECT pg_current_xact_id()::text, count(*) FROM outbox").fetch_one(&mut *snapshot).await.unwrap();
    outbox.insert([events("held", 1..=2), events("free", 1..=2)].concat()).await;
    let mut open = writer.begin().await.unwrap();
    insert(&mut open, NewEvent::new("order", "held", "OrderChanged", "{}").with_id("held-3")).await.unwrap();
    insert(&mut open, NewEvent::new("order", "new", "OrderChanged", "{}")).await.unwrap();
    let (sink, store) = (ScriptedSink::accepting(), outbox.store().await);
    let running = publisher(&outbox, &sink, TestSharding::full("one")).await;
    let pending = async || store.status().await.unwrap().pending;
    eventually("all that is committed is delivered and marked", LIMIT, async || pending().await == 0).await;
    assert_eq!(sink.arrived().len(), 4);
    outbox.insert(events("free", 3..=4)).await;
    eventually("and what comes later", LIMIT, async || sink.arrived().len() == 6 && pending().await == 0).await;
    assert_eq!(running.stats.snapshot().fenced, 0);
    open.rollback().await.unwrap();
    // The aggregate could not be removed from the list while the writer held its row. After the rollback it is removed.
    eventually("it is struck off", LIMIT, async || outbox.execute(LISTED).await.is_empty()).await;
    outbox.insert(events("held", 3..=3)).await;
    eventually("it is listed again", LIMIT, async || sink.arrived().len() == 7 && pending().await == 0).await;
    snapshot.rollback().await.unwrap();
    running.stop().await;
}

/// How long a transaction stays open. Other commits must meanwhile be delivered faster than any call's lock timeout (5 s).
const OPEN_FOR: Duration = Duration::from_mins(1);
const IN_TIME: Duration = Duration::from_secs(4);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_is_open_for_a_minute_delays_no_event_of_others() {
    // A separate server, because dead rows in its other databases cannot be vacuumed meanwhile either.
    let outbox = Outbox::on(&Postgres::start(PostgresOptions::default()).await.unwrap()).await;
    let (mut writer, store, sink) = (outbox.connection().await, outbox.store().await, ScriptedSink::accepting());
    let running = publisher(&outbox, &sink, TestSharding::full("one")).await;
    let mut open = writer.begin().await.unwrap();
    insert(&mut open, NewEvent::new("order", "held", "OrderChanged", "{}").with_id("held-1")).await.unwrap();
    let (begun, mut turns, mut written, mut longest) = (Instant::now(), interval(Duration::from_millis(250)), 0, Duration::ZERO);
    while begun.elapsed() < OPEN_FOR {
        turns.tick().await;
        written += 1;
        outbox.insert(events(&format!("free-{}", written % 20), written..=written)).await;
        let took = eventually("what was committed meanwhile is there", IN_TIME, async || sink.arrived().len() as u64 == written).await;
        longest = longest.max(took);
    }
    eprintln!("{written} events beside a transaction of {OPEN_FOR:?}, each delivered after at most {longest:?}");
    eventually("and marked", IN_TIME, async || store.status().await.unwrap().pending == 0).await;
    open.commit().await.unwrap();
    eventually("its own event comes behind its commit", IN_TIME, async || sink.arrived().last().is_some_and(|event| event.id == "held-1"))
        .await;
    running.stop().await;
}

const WRITERS: u64 = 64;
const TRANSACTIONS: u64 = 12;
const AGGREGATES: u64 = 24;

/// One transaction: events of up to three aggregates in sorted order, a pause, and sometimes a rollback. With each event a counter is
/// increased in the same transaction, after the insert; it shows the order of the commits without the outbox.
async fn write(conn: &mut PgConnection, chance: &mut StdRng) -> u64 {
    let mut aggregates: Vec<u64> = (0..chance.random_range(1..=3)).map(|_| chance.random_range(0..AGGREGATES)).collect();
    aggregates.sort_by_key(|aggregate| format!("order/{aggregate}"));
    let mut tx = conn.begin().await.unwrap();
    for aggregate in &aggregates {
        let id = format!("{aggregate}-{:032x}", chance.random::<u128>());
        insert(&mut tx, NewEvent::new("order", aggregate.to_string(), "OrderChanged", "{}").with_id(id.clone())).await.unwrap();
        let truth = "WITH t AS (UPDATE truth SET n = n + 1 WHERE aggregate = $1 RETURNING n)
            UPDATE outbox SET payload = (SELECT n FROM t) WHERE id = $2";
        sqlx::query(truth).bind(i64::try_from(*aggregate).unwrap()).bind(id).execute(&mut *tx).await.unwrap();
    }
    tokio::time::sleep(Duration::from_micros(chance.random_range(0..4_000))).await;
    if chance.random_bool(0.2) {
        tx.rollback().await.unwrap();
        return 0;
    }
    tx.commit().await.unwrap();
    aggregates.len() as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_and_the_order_is_that_of_the_commits() {
    let seed = std::env::var("OUTBOX_SEED").ok().map_or_else(rand::random, |seed| seed.parse().unwrap());
    eprintln!("repeat with OUTBOX_SEED={seed}");
    let mut chance = StdRng::seed_from_u64(seed);
    let outbox = Outbox::new().await;
    outbox
        .execute(&format!("CREATE TABLE truth AS SELECT n::bigint AS aggregate, 0::bigint AS n FROM generate_series(0, {AGGREGATES}) AS n"))
        .await;
    let sink = ScriptedSink::accepting();
    let halves = [SlotSet::from_slots(SLOTS, 0..SLOTS / 2), SlotSet::from_slots(SLOTS, SLOTS / 2..SLOTS)];
    let shardings = [TestSharding::of("one", halves[0].clone()), TestSharding::of("two", halves[1].clone())];
    let mut publishers = Vec::new();
    for sharding in &shardings {
        publishers.push(publisher(&outbox, &sink, sharding.clone()).await);
    }
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..WRITERS {
        let (mut conn, mut chance) = (outbox.connection().await, StdRng::seed_from_u64(chance.random()));
        writers.spawn(async move {
            let mut written = 0;
            for _ in 0..TRANSACTIONS {
                written += write(&mut conn, &mut chance).await;
            }
            conn.close().await.unwrap();
            written
        });
    }
    let (mut written, mut swaps, mut swap) = (0, 0usize, tokio::time::interval(Duration::from_millis(400)));
    loop {
        tokio::select! {
            done = within("a writer", LIMIT, writers.join_next()) => match done {
                Some(done) => written += done.unwrap(),
                None => break,
            },
            _ = swap.tick() => {
                swaps += 1;
                shardings[0].own(halves[swaps % 2].clone());
                shardings[1].own(halves[(swaps + 1) % 2].clone());
            }
        }
    }
    let store = outbox.store().await;
    eventually("all is delivered", LIMIT, async || store.status().await.unwrap().pending == 0).await;
    let fenced: u64 = publishers.iter().map(|publisher| publisher.stats.snapshot().fenced).sum();
    for publisher in publishers {
        publisher.stop().await;
    }
    let arrived = sink.arrived();
    let (mut seen, mut orders) = (HashSet::new(), BTreeMap::<String, Vec<(u64, u64)>>::new());
    for event in arrived.iter().filter(|event| seen.insert(event.id.clone())) {
        let Payload::Text(number) = &event.payload else { panic!("{event:?}") };
        orders.entry(event.key()).or_default().push((event.sequence, number.parse().unwrap()));
    }
    eprintln!(
        "{written} events written, {} delivered, {} of them again, {swaps} handovers, {fenced} fenced",
        arrived.len(),
        arrived.len() - seen.len()
    );
    assert_eq!(seen.len() as u64, written, "seed {seed}");
    for (key, order) in orders {
        let commits: Vec<u64> = order.iter().map(|(_, commit)| *commit).collect();
        assert_eq!(commits, (1..=order.len() as u64).collect::<Vec<_>>(), "seed {seed}: {key}");
        assert!(order.is_sorted_by(|one, next| one.0 < next.0), "seed {seed}: {key} {order:?}");
    }
}

/// The server restarts in the middle, and single connections of publishers are broken as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_restarts_in_the_middle_loses_nothing() {
    let server = shardwise_testkit::Postgres::start(shardwise_testkit::PostgresOptions::default()).await.unwrap();
    let outbox = Outbox::on(&server).await;
    let sink = ScriptedSink::accepting();
    let running = publisher(&outbox, &sink, TestSharding::full("one")).await;
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    for round in 0..4 {
        outbox.insert((0..40).flat_map(|n| events(&n.to_string(), round * 5 + 1..=round * 5 + 5)).collect()).await;
        if round % 2 == 1 {
            server.restart().await.unwrap();
        } else {
            outbox.execute(end).await;
        }
    }
    let ids = || sink.arrived().into_iter().map(|event| event.id).collect::<HashSet<_>>();
    eventually("all events arrive", LIMIT, async || ids().len() == 40 * 20).await;
    eventually("and are marked", LIMIT, async || outbox.execute(LISTED).await.is_empty()).await;
    running.stop().await;
    let mut last = BTreeMap::new();
    let mut seen = HashSet::new();
    for event in sink.arrived().into_iter().filter(|event| seen.insert(event.id.clone())) {
        let before = last.insert(event.key(), event.sequence).unwrap_or(0);
        assert!(event.sequence > before, "{} {} after {before}", event.key(), event.sequence);
    }
}
