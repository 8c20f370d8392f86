//! Writers under SERIALIZABLE: whichever is refused (40001) repeats its transaction, and no event is lost or out of order.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use shardwise_outbox::exercise::{ScriptedSink, StoreHarness as _};
use shardwise_outbox::{NewEvent, Store as _};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use tokio::task::JoinSet;

use crate::common::{LISTED, Outbox, insert};
use crate::publishing::{delivered, publisher};
use crate::shared::{TestSharding, events, eventually, within};
use crate::writers::{begin_at, code, waits};

const LIMIT: Duration = Duration::from_mins(3);
const LEVEL: &str = "SERIALIZABLE";

fn event(aggregate: &str, id: String) -> NewEvent {
    NewEvent::new("order", aggregate, "OrderChanged", "{}").with_id(id)
}

/// Both have their snapshots before the first one writes. The second waits; then it goes on if the aggregate's row is as its snapshot has
/// it, and is refused if the first one has made that row, or has put the aggregate back on the publishers' list.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_writers_of_an_aggregate_the_second_waits_or_is_refused_and_its_repetition_succeeds() {
    let outbox = Outbox::new().await;
    outbox.insert(events("struck", 1..=1)).await;
    assert_eq!(delivered(&outbox).await.len(), 1);
    assert_eq!(outbox.execute(LISTED).await.len(), 0, "struck off");
    outbox.insert(events("listed", 1..=1)).await;
    for (aggregate, refusal) in [("listed", None), ("struck", Some("40001")), ("new", Some("40001"))] {
        let (mut one, mut two) = (outbox.connection().await, outbox.connection().await);
        begin_at(&mut one, LEVEL).await;
        begin_at(&mut two, LEVEL).await;
        insert(&mut one, event(aggregate, format!("{aggregate}-2"))).await.unwrap();
        let second = tokio::spawn(async move {
            let written = insert(&mut two, event(aggregate, format!("{aggregate}-3"))).await;
            let done = if written.is_ok() { sqlx::query("COMMIT").execute(&mut two).await.map(drop) } else { written };
            (two, done)
        });
        waits(&outbox, 1).await;
        one.execute("COMMIT").await.unwrap();
        let (mut two, done) = within("the second comes", LIMIT, second).await.unwrap();
        assert_eq!(done.as_ref().err().map(code).as_deref(), refusal, "{aggregate}: {done:?}");
        if done.is_err() {
            two.execute("ROLLBACK").await.unwrap();
            begin_at(&mut two, LEVEL).await;
            insert(&mut two, event(aggregate, format!("{aggregate}-3"))).await.unwrap();
            two.execute("COMMIT").await.unwrap();
        }
    }
    let mut ids = BTreeMap::<String, Vec<String>>::new();
    for event in delivered(&outbox).await {
        ids.entry(event.aggregate_id).or_default().push(event.id);
    }
    let in_order = |aggregate: &str, numbers: &[u32]| (aggregate.to_owned(), numbers.iter().map(|n| format!("{aggregate}-{n}")).collect());
    assert_eq!(ids, BTreeMap::from([in_order("listed", &[1, 2, 3]), in_order("struck", &[2, 3]), in_order("new", &[2, 3])]));
}

const WRITERS: u64 = 6;
const TRANSACTIONS: u64 = 15;
/// Below ten, so that numbers and texts sort alike.
const AGGREGATES: u64 = 8;

/// One attempt at a transaction. Behind each event a counter shows its place in the order of the commits, without the outbox. Each counter
/// is a table, because the rows of one small table would be read as a whole, and transactions of different aggregates refused for that.
async fn write(conn: &mut PgConnection, aggregates: &BTreeSet<u64>, name: &str) -> Result<(), sqlx::Error> {
    let mut tx = conn.begin_with("BEGIN ISOLATION LEVEL SERIALIZABLE").await?;
    for aggregate in aggregates {
        let id = format!("{aggregate}-{name}");
        insert(&mut tx, event(&aggregate.to_string(), id.clone())).await?;
        let place = format!(
            "WITH place AS (UPDATE truth_{aggregate} SET n = n + 1 RETURNING n) INSERT INTO places (id, n) SELECT $1, n FROM place"
        );
        sqlx::query(AssertSqlSafe(place)).bind(id).execute(&mut *tx).await?;
    }
    tx.commit().await
}

/// Repeats each transaction until it is committed. Returns how many events that were, and how often it was refused.
async fn write_all(mut conn: PgConnection, writer: u64, mut chance: StdRng) -> (usize, u64) {
    let (mut written, mut refused) = (0, 0);
    for transaction in 0..TRANSACTIONS {
        let aggregates: BTreeSet<u64> = (0..chance.random_range(1..=2)).map(|_| chance.random_range(0..AGGREGATES)).collect();
        while let Err(error) = write(&mut conn, &aggregates, &format!("w{writer}-{transaction}")).await {
            // A deadlock with a publisher is possible on a busy machine, and is repeated as well.
            assert!(["40001", "40P01"].contains(&code(&error).as_str()), "{error}");
            refused += 1;
        }
        written += aggregates.len();
    }
    (written, refused)
}

/// The publisher strikes aggregates off while writers with older snapshots come to them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_that_serializable_writers_commit_beside_a_publisher_arrives_in_the_order_of_the_commits() {
    let seed = std::env::var("OUTBOX_SEED").ok().map_or_else(rand::random, |seed| seed.parse().unwrap());
    eprintln!("repeat with OUTBOX_SEED={seed}");
    let mut chance = StdRng::seed_from_u64(seed);
    let (outbox, sink) = (Outbox::new().await, ScriptedSink::accepting());
    outbox.execute("CREATE TABLE places (id text NOT NULL, n bigint NOT NULL)").await;
    for aggregate in 0..AGGREGATES {
        outbox.execute(&format!("CREATE TABLE truth_{aggregate} AS SELECT 0::bigint AS n")).await;
        outbox.insert(events(&aggregate.to_string(), 1..=1)).await;
    }
    let running = publisher(&outbox, &sink, TestSharding::full("one")).await;
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        writers.spawn(write_all(outbox.connection().await, writer, StdRng::seed_from_u64(chance.random())));
    }
    let (mut written, mut refused) = (0, 0);
    while let Some(done) = within("a writer has committed everything", LIMIT, writers.join_next()).await {
        let (events, refusals) = done.unwrap();
        written += events;
        refused += refusals;
    }
    eprintln!("{written} events, {refused} transactions refused and repeated");
    let store = outbox.store().await;
    eventually("all is delivered", LIMIT, async || store.status().await.unwrap().pending == 0).await;
    running.stop().await;
    let row = |row: Vec<Option<String>>| {
        let [Some(id), Some(n)] = row.as_slice() else { panic!("{row:?}") };
        (id.clone(), n.parse::<u64>().unwrap())
    };
    let places: HashMap<String, u64> = outbox.execute("SELECT id, n FROM places").await.into_iter().map(row).collect();
    assert_eq!(places.len(), written, "seed {seed}: a refused transaction leaves nothing, and a repeated one all");
    let (mut seen, mut orders) = (HashSet::new(), BTreeMap::<String, Vec<(u64, u64)>>::new());
    for event in sink.arrived().into_iter().filter(|event| seen.insert(event.id.clone())) {
        // The aggregate's first event was there before all counters.
        let place = places.get(&event.id).copied().unwrap_or(0);
        orders.entry(event.aggregate_id).or_default().push((event.sequence, place));
    }
    assert_eq!(orders.values().map(Vec::len).sum::<usize>(), written + orders.len(), "seed {seed}");
    assert_eq!(orders.len() as u64, AGGREGATES, "seed {seed}");
    for (aggregate, order) in orders {
        assert!(order.iter().map(|(_, place)| *place).eq(0..order.len() as u64), "seed {seed}: {aggregate} {order:?}");
        assert!(order.is_sorted_by(|one, next| one.0 < next.0), "seed {seed}: {aggregate} {order:?}");
    }
}
