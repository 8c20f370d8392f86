//! Delivered events are deleted, and so are aggregates without events: tables and indexes stay in proportion to the kept data. A few
//! rounds in a test run, many in `cargo xtask soak outbox-retention`.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use shardwise::{Incarnation, SlotSet};
use shardwise_outbox::exercise::ScriptedSink;
use shardwise_outbox::store::{FetchRequest, HeadUpdate, Outcome, PublisherRegistration};
use shardwise_outbox::{OutboxPublisher, PostgresStore, Store};
use shardwise_testkit::{Postgres, PostgresOptions};

use crate::common::{Outbox, patiently};
use crate::shared::{Running, TestSharding, eventually};

/// Each round: two events for each of 400 new keys, and twenty for each of 20 recurring keys.
const WRITE: &str = "INSERT INTO outbox (aggregatetype, aggregateid, type, payload)
        SELECT 'once', ROUND || '-' || n % 400, 't', repeat('x', 200) FROM generate_series(1, 800) AS n;
    INSERT INTO outbox (aggregatetype, aggregateid, type, payload)
        SELECT 'often', n % 20, 't', repeat('x', 200) FROM generate_series(1, 400) AS n";
const TABLES: [&str; 3] = ["outbox", "outbox_aggregate", "outbox_head"];
/// The number of rounds until all sizes are stable.
const SETTLED: usize = 4;
/// A difference of a few pages is not significant.
const SLACK: u64 = 256 * 1024;

async fn deliver(store: &PostgresStore, me: &PublisherRegistration) {
    while patiently("place", async || store.place_new(1_000).await).await > 0 {}
    loop {
        let request = FetchRequest { after: None, events_max: 1_000, bytes_max: 1 << 24, except_slots: vec![], except_aggregates: vec![] };
        let runs = patiently("fetch", async || store.fetch(me, &request).await).await.runs;
        if runs.is_empty() {
            return;
        }
        let next = |run: &shardwise_outbox::store::EventRun| Outcome {
            aggregate: run.aggregate,
            hold: run.hold,
            through: Some(run.through),
            then: HeadUpdate::Next,
        };
        let outcomes: Vec<_> = runs.iter().map(next).collect();
        assert_eq!(patiently("record", async || store.record(me, &outcomes, false).await).await, []);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_and_indexes_stay_as_large_as_what_is_kept() {
    let rounds = std::env::var("SHARDWISE_SOAK_RUNS").map_or(8, |rounds| rounds.parse::<usize>().unwrap().max(SETTLED + 2));
    let outbox = Outbox::new().await;
    let store = outbox.store().await;
    let me = PublisherRegistration { publisher: "w".into(), incarnation: Incarnation::new(1), ttl: Duration::from_hours(24), slots: 8 };
    store.register(&me).await.unwrap();
    store.take(&me, &SlotSet::full(8)).await.unwrap();
    let mut sizes: Vec<[u64; 3]> = Vec::new();
    for round in 0..rounds {
        outbox.execute(&WRITE.replace("ROUND", &round.to_string())).await;
        deliver(&store, &me).await;
        let (mut position, mut deleted) = (0, 0);
        loop {
            let swept = patiently("sweep", async || store.sweep(Duration::from_nanos(1), position, 1_000).await).await;
            deleted += swept.deleted;
            let Some(next) = swept.resume else { break };
            position = next;
        }
        assert!(deleted > 0, "what was delivered is deleted, and it says so");
        while patiently("clean", async || store.clean(Duration::from_hours(1), 1_000).await).await.forgotten > 0 {}
        let known = outbox.execute("SELECT count(*) FROM outbox_aggregate").await[0][0].as_deref().unwrap().parse::<u32>().unwrap();
        assert!(known <= 20, "{known} aggregates are known in round {round}: none of the 400 keys that never come again may be among them");
        let mut size = [0; 3];
        for (table, size) in TABLES.into_iter().zip(&mut size) {
            outbox.execute(&format!("VACUUM {table}")).await;
            let found = outbox.execute(&format!("SELECT pg_total_relation_size('{table}')")).await;
            *size = found[0][0].as_deref().unwrap().parse().unwrap();
        }
        sizes.push(size);
    }
    let (settled, last) = (sizes[SETTLED - 1], sizes[rounds - 1]);
    if let Ok(path) = std::env::var("SHARDWISE_SOAK_FIGURES") {
        let mut file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
        for ((table, settled), last) in TABLES.into_iter().zip(settled).zip(last) {
            writeln!(file, "{}", serde_json::json!({"table": table, "rounds": rounds, "settled": settled, "last": last})).unwrap();
        }
    }
    for ((table, settled), last) in TABLES.into_iter().zip(settled).zip(last) {
        assert!(last <= settled + settled / 4 + SLACK, "{table}: {settled} bytes after {SETTLED} rounds, {last} after {rounds}: {sizes:?}");
    }
}

/// Delivered long ago, and as many as a publisher delivers in a few seconds.
const DELIVERED: &str = "ALTER TABLE outbox DISABLE TRIGGER outbox_sequence;
    INSERT INTO outbox_aggregate (key, last_seq, drained_seq) SELECT 'order/' || n, 100, 100 FROM generate_series(1, 2000) AS n;
    INSERT INTO outbox_head (aggregate, hash, listed, done_seq) SELECT id, id, false, 100 FROM outbox_aggregate;
    INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, created_at, aggregate, seq)
        SELECT a.id || '-' || n, 'order', split_part(a.key, '/', 2), 't', repeat('x', 200), now() - interval '7 hours', a.id, n
        FROM generate_series(1, 100) AS n, outbox_aggregate AS a;
    ALTER TABLE outbox ENABLE TRIGGER outbox_sequence;
    INSERT INTO outbox (aggregatetype, aggregateid, type) SELECT 'fresh', n, 't' FROM generate_series(1, 100) AS n";

/// The rate is printed; a test in `decide` shows without a clock that it is no slower than a publisher delivers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_deletes_a_backlog_of_what_is_delivered_and_nothing_else() {
    // A separate server: long transactions during the test above would prevent the removal that it measures.
    let server = Postgres::start(PostgresOptions::default()).await.unwrap();
    let (outbox, sink) = (Outbox::on(&server).await, ScriptedSink::accepting());
    outbox.execute(DELIVERED).await;
    outbox.execute("VACUUM ANALYZE").await;
    let publisher =
        OutboxPublisher::new(Arc::new(outbox.store().await), Arc::new(sink.clone()), Arc::new(TestSharding::full("one"))).unwrap();
    let running = Running::start(publisher);
    let old = "SELECT 1 FROM outbox WHERE aggregatetype = 'order' LIMIT 1";
    let took = eventually("what is old is gone", Duration::from_mins(3), async || outbox.execute(old).await.is_empty()).await;
    eprintln!("200,000 delivered rows deleted beside a publisher at work: {:.0} a second", 200_000.0 / took.as_secs_f64());
    eventually("what is new is delivered", Duration::from_mins(3), async || sink.arrived().len() == 100).await;
    running.stop().await;
    assert_eq!(outbox.execute("SELECT count(*) FROM outbox").await[0][0].as_deref(), Some("100"), "and kept");
}

/// Positions rise with time, except for writers whose clock is ahead: behind their rows there are older ones.
#[tokio::test]
async fn a_sweep_passes_over_rows_of_a_clock_that_is_ahead() {
    for ahead in ["10 minutes", "3 hours", "2 years"] {
        let outbox = Outbox::new().await;
        let store = outbox.store().await;
        let me = PublisherRegistration { publisher: "w".into(), incarnation: Incarnation::new(1), ttl: Duration::from_hours(24), slots: 8 };
        store.register(&me).await.unwrap();
        store.take(&me, &SlotSet::full(8)).await.unwrap();
        let rows = format!(
            "INSERT INTO outbox (aggregatetype, aggregateid, type, payload, created_at)
             SELECT 'a', n, 't', 'x', statement_timestamp() + CASE WHEN n <= 50 THEN interval '{ahead}' WHEN n <= 150 THEN interval '-2 hours' ELSE interval '0' END
             FROM generate_series(1, 200) AS n"
        );
        outbox.execute(&rows).await;
        deliver(&store, &me).await;
        let (mut position, mut rounds) = (0, 0);
        while let Some(next) = store.sweep(Duration::from_hours(1), position, 10).await.unwrap().resume {
            (position, rounds) = (next, rounds + 1);
            assert!(rounds < 100, "{ahead}: it comes to an end");
        }
        let left = outbox.execute("SELECT count(*) FILTER (WHERE created_at > now()), count(*) FROM outbox").await;
        assert_eq!(
            left,
            [["50", "100"].map(|n| Some(n.to_owned()))],
            "{ahead}: what is old is gone, what is young by its own time is kept"
        );
        assert!(position < 180, "{ahead}: behind the last old row it stops soon, at {position}");
    }
}
