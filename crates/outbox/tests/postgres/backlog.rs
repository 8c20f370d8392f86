//! An outbox with a large backlog: the cost of a poll does not depend on pending events here, elsewhere or behind a blocked head. A
//! hundred thousand rows in a test run, ten million in `cargo xtask soak outbox-backlog`.

use std::io::Write as _;
use std::time::{Duration, Instant};

use shardwise::{Incarnation, SlotSet};
use shardwise_outbox::store::{FetchRequest, PublisherRegistration};
use shardwise_outbox::{PostgresStore, PublisherOptions, Store, postgres};
use shardwise_testkit::{Postgres, PostgresOptions};
use sqlx::Connection as _;

use crate::common::Outbox;

const SLOTS: u32 = 1_024;
const HELD: [u32; 4] = [1, 16, 256, SLOTS];
/// The events of one reading: of a poll, and of a reading that follows full ones.
const BATCHES: [usize; 2] = [PublisherOptions::POLL_EVENTS, 1_000];
/// The events of each aggregate.
const EACH: u64 = 10;
/// The most blocks that a reading may touch for each event. Each event lies in a different block, and an aggregate takes three seeks.
const BLOCKS_AN_EVENT: u64 = 10;

/// Runs the statements one after the other, without a time limit.
async fn run(outbox: &Outbox, statements: impl IntoIterator<Item = String>) {
    let mut conn = outbox.connection().await;
    for sql in statements {
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut conn).await.unwrap();
    }
    conn.close().await.unwrap();
}

/// As publishers leave it: all aggregates are on their list, with hashes, and not on the writers' list. The writers' trigger, which is not
/// tested here, would take ten times as long.
async fn fill(outbox: &Outbox, rows: u64) {
    let aggregates = rows / EACH;
    run(outbox, [
        "ALTER TABLE outbox DISABLE TRIGGER outbox_sequence".to_owned(),
        format!("INSERT INTO outbox_aggregate (key, last_seq, drained_seq) SELECT 'order/' || n, {EACH}, {EACH} FROM generate_series(1, {aggregates}) AS n"),
        "INSERT INTO outbox_head (aggregate, hash) SELECT id, hashtextextended(key, 7) FROM outbox_aggregate".to_owned(),
        // In turn, so that the events of an aggregate are far apart.
        format!(
            "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, aggregate, seq)
             SELECT lpad(n::text, 12, '0'), 'order', (n % {aggregates} + 1)::text, 'OrderPlaced', repeat('x', 100), n % {aggregates} + 1, n / {aggregates} + 1
             FROM generate_series(0, {aggregates} * {EACH} - 1) AS n"
        ),
        "ALTER TABLE outbox ENABLE TRIGGER outbox_sequence".to_owned(),
        "VACUUM ANALYZE".to_owned(),
        // All data is on disk, as for an old backlog.
        "CHECKPOINT".to_owned(),
    ]).await;
}

/// Adds an aggregate in the first slot whose head is blocked.
async fn hold_back(outbox: &Outbox, rows: u64) {
    run(
        outbox,
        [
            "ALTER TABLE outbox DISABLE TRIGGER outbox_sequence".to_owned(),
            format!(
                "WITH a AS (INSERT INTO outbox_aggregate (key, last_seq, drained_seq) VALUES ('order/held', {rows}, {rows}) RETURNING id)
             INSERT INTO outbox_head (aggregate, hash, attempts, blocked_at) SELECT id, -9223372036854775807, 10, now() FROM a"
            ),
            format!(
                "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, aggregate, seq)
             SELECT 'held-' || lpad(n::text, 12, '0'), 'order', 'held', 'OrderPlaced', repeat('x', 100), a.id, n
             FROM outbox_aggregate AS a, generate_series(1, {rows}) AS n WHERE a.key = 'order/held'"
            ),
            "ALTER TABLE outbox ENABLE TRIGGER outbox_sequence".to_owned(),
            "VACUUM ANALYZE".to_owned(),
            "CHECKPOINT".to_owned(),
        ],
    )
    .await;
}

/// The number of blocks that a reading of a thousand events touches, from the server.
async fn blocks(outbox: &Outbox, me: &PublisherRegistration, from: i64) -> u64 {
    let sql = format!(
        "{}; PREPARE f (text, bigint, bigint, bigint[], bigint[], bigint, bigint, bigint, bigint, bigint) AS {};
         EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, SUMMARY OFF)
         EXECUTE f ('{}', {from}, 9223372036854775807, '{{}}', '{{}}', 1000, 600000, 16777216, 500, {SLOTS})",
        postgres::SESSION,
        postgres::FETCH,
        me.incarnation
    );
    let plan: Vec<String> = outbox.execute(&sql).await.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect();
    let buffers = plan.iter().find(|line| line.contains("Buffers: ")).unwrap_or_else(|| panic!("{plan:#?}"));
    let number = |word: &str| buffers.split_once(word).map_or(0, |(_, rest)| rest.split(' ').next().unwrap().parse().unwrap());
    number("hit=") + number(" read=")
}

/// Polls like a publisher that goes around the ring; returns milliseconds, sorted.
async fn poll(store: &PostgresStore, me: &PublisherRegistration, batch: usize, polls: usize) -> Vec<f64> {
    let (mut after, mut took) = (None, Vec::with_capacity(polls));
    // The first polls prepare the statement.
    for poll in 0..polls + 5 {
        let request = FetchRequest { after, events_max: batch, bytes_max: 16 << 20, except_slots: vec![], except_aggregates: vec![] };
        let begun = Instant::now();
        let fetched = store.fetch(me, &request).await.unwrap();
        if poll >= 5 {
            took.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        after = fetched.resume;
        let events = fetched.runs.iter().flat_map(|run| &run.events);
        assert!(events.clone().count() == batch || fetched.resume.is_none(), "a reading is full, or it was all");
        assert!(events.clone().next().is_some(), "there is something in every slot");
        assert!(events.clone().all(|event| event.aggregate_id != "held"), "what is behind a blocked head");
    }
    took.sort_by(f64::total_cmp);
    took
}

async fn measure(outbox: &Outbox, held_back: u64, incarnation: u64, polls: usize) {
    let store = outbox.store().await;
    let me = PublisherRegistration {
        publisher: "w".into(),
        incarnation: Incarnation::new(incarnation),
        ttl: Duration::from_hours(24),
        slots: SLOTS,
    };
    store.register(&me).await.unwrap();
    for held in HELD {
        // Each set of slots contains the one before.
        store.take(&me, &SlotSet::from_slots(SLOTS, (0..held).map(|n| n * (SLOTS / held)))).await.unwrap();
        let mut most = 0;
        for from in [i64::MIN, -(1 << 40), 1 << 62] {
            let blocks = blocks(outbox, &me, from).await;
            assert!(blocks <= BLOCKS_AN_EVENT * 1_000, "{blocks} blocks for a thousand events of {held} slots from {from} on");
            most = most.max(blocks);
        }
        for batch in BATCHES {
            let took = poll(&store, &me, batch, polls).await;
            let percentile = |percent: usize| took[(took.len() * percent).div_ceil(100).max(1) - 1];
            let figures = serde_json::json!({
                "held": held, "batch": batch, "held_back": held_back, "polls": polls, "blocks": most, "p50_ms": percentile(50), "p99_ms": percentile(99), "worst_ms": percentile(100),
            });
            eprintln!("{figures}");
            if let Ok(path) = std::env::var("SHARDWISE_SOAK_FIGURES") {
                writeln!(std::fs::OpenOptions::new().append(true).open(path).unwrap(), "{figures}").unwrap();
            }
        }
    }
    store.leave(&me).await.unwrap();
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poll_costs_the_same_however_much_waits() {
    let rows = std::env::var("SHARDWISE_SOAK_ROWS").ok().map(|rows| rows.parse::<u64>().unwrap());
    // A soak uses a server that flushes; a test shares its server with others.
    let outbox = match rows {
        Some(_) => Outbox::on(&Postgres::start(PostgresOptions::default().durable()).await.unwrap()).await,
        None => Outbox::new().await,
    };
    let polls = if rows.is_some() { 300 } else { 10 };
    let rows = rows.unwrap_or(100_000);
    fill(&outbox, rows).await;
    measure(&outbox, 0, 1, polls).await;
    hold_back(&outbox, rows / 10).await;
    measure(&outbox, rows / 10, 2, polls).await;
}
