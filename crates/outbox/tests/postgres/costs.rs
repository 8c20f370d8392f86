//! The cost of calls, by their plans and by the server's counters.

use std::time::Duration;

use shardwise::{Incarnation, SlotSet};
use shardwise_outbox::exercise::StoreHarness;
use shardwise_outbox::store::{FetchRequest, PublisherRegistration, Signature};
use shardwise_outbox::{DeadLetters as _, Store, postgres};
use sqlx::Connection;

use crate::common::{LISTED, Outbox, PLACE_ALL, insert};
use crate::shared::{events, eventually};

/// The plan must consist of seeks, whatever statistics say.
#[tokio::test]
async fn a_fetch_seeks_and_never_scans() {
    let outbox = Outbox::new().await;
    for analyzed in [false, true] {
        if analyzed {
            outbox.insert((0..500).flat_map(|n| events(&n.to_string(), 1..=3)).collect()).await;
            outbox.execute(PLACE_ALL).await;
            outbox.store().await.place_new(1_000).await.unwrap();
            outbox.execute("ANALYZE").await;
        }
        let sql = format!(
            "{}; PREPARE f (text, bigint, bigint, bigint[], bigint[], bigint, bigint, bigint, bigint, bigint) AS {};
             EXPLAIN EXECUTE f ('x', 0, 1, '{{}}', '{{}}', 10, 0, 1000, 5, 8)",
            postgres::SESSION,
            postgres::FETCH
        );
        let plan: Vec<String> = outbox.execute(&sql).await.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect();
        let scans: Vec<&str> = plan.iter().filter(|step| step.contains("Scan")).filter_map(|step| step.split("->").nth(1)).collect();
        let apart = format!("{}; PREPARE l (bigint[]) AS {}; EXPLAIN EXECUTE l ('{{1,2}}')", postgres::SESSION, postgres::LARGE);
        let apart: Vec<String> = outbox.execute(&apart).await.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect();
        assert!(apart[0].contains("Index Scan using outbox_pkey"), "{apart:#?}");
        // The held slots come in order from either index: with so few rows the server may use either.
        let expected = [("outbox_slot_", 2), ("outbox_head_ready ", 1), ("outbox_head_waiting ", 2), ("outbox_in_order ", 1)];
        for (index, count) in expected {
            assert_eq!(scans.iter().filter(|step| step.contains(&format!("using {index}"))).count(), count, "{index}: {plan:#?}");
        }
        assert!(!scans.iter().any(|step| step.contains("Seq Scan") || step.contains("Bitmap")), "{plan:#?}");
        assert!(
            !plan.iter().any(|step| ["WindowAgg", "Hash", "Merge", "Memoize", "Materialize"].iter().any(|word| step.contains(word))),
            "each row is copied, or in no order: {plan:#?}"
        );
    }
}

/// The writers' list is read by its index, and each of its aggregates by seeks in their order.
#[tokio::test]
async fn a_reading_of_the_writers_list_seeks_and_keeps_its_order() {
    let outbox = Outbox::new().await;
    for analyzed in [false, true] {
        if analyzed {
            outbox.insert((0..500).flat_map(|n| events(&n.to_string(), 1..=3)).collect()).await;
            outbox.execute("ANALYZE").await;
        }
        let calls = [
            ("i (bigint, bigint, bigint)", postgres::LISTED, "(0, 0, 10)", &["outbox_aggregate_listed", "outbox_head_pkey"][..]),
            ("d (bigint[], bigint[], bigint, bigint)", postgres::DIRECT, "('{1}', '{1}', 10, 1000)", &["outbox_in_order"][..]),
        ];
        for (signature, statement, arguments, expected) in calls {
            let name = signature.split(' ').next().unwrap();
            let sql = format!("{}; PREPARE {signature} AS {statement}; EXPLAIN EXECUTE {name} {arguments}", postgres::SESSION);
            let plan: Vec<String> = outbox.execute(&sql).await.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect();
            for index in expected {
                assert!(plan.iter().any(|step| step.contains(&format!("using {index}"))), "{index}: {plan:#?}");
            }
            let scans = plan.iter().filter(|step| step.contains("Seq Scan") && !step.contains("outbox_meta")).count();
            assert_eq!(scans, 0, "{plan:#?}");
            let moved = ["Sort", "Hash", "Merge", "Bitmap"].iter().any(|word| plan.iter().any(|step| step.contains(word)));
            assert!(!moved, "in no order: {plan:#?}");
        }
    }
}

/// A server without statistics of the slots' table compared each slot with each outcome: a quarter of a second for a thousand of both.
#[tokio::test]
async fn a_mark_and_a_release_look_each_slot_up_without_statistics_too() {
    let outbox = Outbox::new().await;
    outbox.insert((0..500).flat_map(|n| events(&n.to_string(), 1..=1)).collect()).await;
    let slots = "INSERT INTO outbox_slot (slot, epoch, incarnation, hash_from, hash_to)
        SELECT n, 1, 'me', n, n FROM generate_series(0, 1023) AS n";
    outbox.execute(slots).await;
    // Parameters of EXECUTE cannot be subqueries.
    let array = |numbers: &mut dyn Iterator<Item = String>| format!("'{{{}}}'", numbers.collect::<Vec<_>>().join(","));
    let events = outbox.execute("SELECT aggregate, seq FROM outbox ORDER BY position").await;
    let column = |n: usize| array(&mut events.iter().map(|row| row[n].clone().unwrap()));
    let (ids, sequences) = (column(0), column(1));
    let slots = |count: u32| array(&mut (0..count).map(|slot| slot.to_string()));
    let ones = |count| array(&mut std::iter::repeat_n("1".to_owned(), count));
    let calls = [
        (
            "m (bigint[], bigint[], bigint[], text, bigint[], bigint[], boolean[])",
            postgres::MARK,
            format!("({ids}, {}, {}, 'me', {sequences}, {ids}, {})", slots(500), ones(500), ones(500)),
            500,
        ),
        ("r (bigint[], bigint[], text)", postgres::RELEASE, format!("({}, {}, 'me')", slots(1_024), ones(1_024)), 1_024),
    ];
    for (signature, statement, arguments, changed) in calls {
        let name = signature.split(' ').next().unwrap();
        let sql = format!(
            "{}; PREPARE {signature} AS {statement}; EXPLAIN (ANALYZE, TIMING OFF, SUMMARY OFF) EXECUTE {name} {arguments}",
            postgres::SESSION
        );
        let plan: Vec<String> = outbox.execute(&sql).await.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect();
        let after = |line: &str, label: &str| line.split_once(label).map(|(_, rest)| rest.trim().parse::<u64>().unwrap());
        let compared: u64 = plan.iter().filter_map(|line| after(line, "Rows Removed by Join Filter:")).sum();
        assert!(compared <= changed, "{compared} comparisons in vain for {changed} rows: {plan:#?}");
        assert!(plan.iter().any(|line| line.contains(&format!("rows={changed}"))), "{plan:#?}");
    }
    assert_eq!(outbox.execute(LISTED).await.len(), 0, "they were marked and struck off");
}

/// A session keeps the plans that it made while the tables were empty, as they are where publishers keep up. None may compare all with all.
#[tokio::test]
async fn plans_that_were_made_for_empty_tables_look_each_aggregate_up() {
    let outbox = Outbox::new().await;
    for table in ["outbox", "outbox_aggregate", "outbox_head"] {
        outbox.execute(&format!("VACUUM ANALYZE {table}")).await;
    }
    let strike = postgres::MIGRATIONS[6].up;
    let between = |from: &str, to: &str| strike.split_once(from).unwrap().1.split_once(to).unwrap().0.to_owned();
    let locks = format!("SELECT array_agg(f.ctid){};", between("SELECT array_agg(f.ctid)", ";").replace(" INTO places, free, behind", ""));
    let strikes = between("RETURN QUERY", "PERFORM set_config('shardwise.strike', '', true)");
    let as_parameters = |sql: String| {
        [("aggregates, through", "$1, $2"), ("places, free, behind", "$3, $1, $2")].iter().fold(sql, |sql, (name, n)| sql.replace(name, n))
    };
    let calls = [
        ("i (bigint, bigint, bigint)", postgres::LISTED.to_owned(), "(0, 0, 10)"),
        ("d (bigint[], bigint[], bigint, bigint)", postgres::DIRECT.to_owned(), "('{1}', '{1}', 10, 1000)"),
        ("l (bigint[], bigint[])", as_parameters(locks), "('{1}', '{1}')"),
        ("s (bigint[], bigint[], tid[])", as_parameters(strikes), "('{1}', '{1}', '{}')"),
    ];
    for (signature, statement, arguments) in calls {
        let name = signature.split(' ').next().unwrap();
        let statement = statement.trim().trim_end_matches(';');
        let sql = format!("{}; PREPARE {signature} AS {statement}; EXPLAIN EXECUTE {name} {arguments}", postgres::SESSION);
        let plan: Vec<String> = outbox.execute(&sql).await.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect();
        let compares = plan.iter().any(|step| ["Materialize", "Join Filter", "Hash", "Merge"].iter().any(|word| step.contains(word)));
        assert!(!compares, "{signature}: {plan:#?}");
        let scans = plan.iter().filter(|step| step.contains("Seq Scan") && !step.contains("outbox_meta")).count();
        assert_eq!(scans, 0, "{plan:#?}");
    }
}

/// Whether an aggregate has a newer event is one seek in `outbox_strike`, however many delivered events it keeps.
#[tokio::test]
async fn a_mark_costs_the_same_however_many_delivered_events_are_kept() {
    const AGGREGATES: u64 = 50;
    let outbox = Outbox::new().await;
    let slots = "INSERT INTO outbox_slot (slot, epoch, incarnation, hash_from, hash_to) VALUES (0, 1, 'me', 0, 1)";
    outbox.execute(slots).await;
    let all = async |numbers: std::ops::RangeInclusive<u64>| {
        outbox.insert((0..AGGREGATES).flat_map(|n| events(&n.to_string(), numbers.clone())).collect()).await;
    };
    // Marks the newest event of each aggregate; returns the blocks that this touches.
    let mark = async || {
        let newest = "SELECT string_agg(aggregate::text, ',' ORDER BY aggregate), string_agg(seq::text, ',' ORDER BY aggregate),
            string_agg('0', ','), string_agg('1', ',') FROM (SELECT aggregate, max(seq) AS seq FROM outbox GROUP BY aggregate) AS n";
        let row = outbox.execute(newest).await.remove(0);
        let [ids, sequences, zeros, ones] = [0, 1, 2, 3].map(|n: usize| format!("'{{{}}}'", row[n].as_deref().unwrap()));
        let sql = format!(
            "{}; PREPARE m (bigint[], bigint[], bigint[], text, bigint[], bigint[], boolean[]) AS {};
             EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, SUMMARY OFF) EXECUTE m ({ids}, {zeros}, {ones}, 'me', {sequences}, {ids}, {ones})",
            postgres::SESSION,
            postgres::MARK
        );
        let plan: Vec<String> = outbox.execute(&sql).await.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect();
        assert_eq!(outbox.execute(LISTED).await.len(), 0, "{plan:#?}");
        let hit = plan.iter().find_map(|line| line.split_once("shared hit=")).unwrap().1.to_owned();
        hit.split(' ').next().unwrap().parse::<u32>().unwrap()
    };
    // As a server that has never counted the rows, and as one that counted few.
    for analyzed in [false, true] {
        outbox.execute("TRUNCATE outbox, outbox_head, outbox_aggregate").await;
        all(1..=1).await;
        if analyzed {
            outbox.execute("ANALYZE").await;
        }
        let before = mark().await;
        all(2..=100).await;
        let after = mark().await;
        assert!(after <= before * 3, "{before} blocks with one event an aggregate, {after} with 100: analyzed {analyzed}");
    }
}

/// Rows of other slots, rows behind a blocked head, and heads that wait for a retry must not be visited: the server counts the blocks it
/// touched.
#[tokio::test]
async fn what_waits_elsewhere_costs_a_fetch_nothing() {
    let outbox = Outbox::new().await;
    outbox.insert((0..20).flat_map(|n| events(&n.to_string(), 1..=2)).collect()).await;
    outbox.execute(PLACE_ALL).await;
    let store = outbox.store().await;
    store.place_new(100).await.unwrap();
    outbox
        .execute(
            "INSERT INTO outbox_slot (slot, epoch, incarnation, hash_from, hash_to) VALUES
                (0, 1, 'me', -9223372036854775808, -1), (1, 1, 'other', 0, 9223372036854775807)",
        )
        .await;
    let blocks = async || {
        outbox.execute("VACUUM ANALYZE").await;
        let sql = format!(
            "{}; PREPARE f (text, bigint, bigint, bigint[], bigint[], bigint, bigint, bigint, bigint, bigint) AS {};
             EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, SUMMARY OFF)
             EXECUTE f ('me', -9223372036854775808, 9223372036854775807, '{{}}', '{{}}', 1000, 600000, 16777, 500, 2)",
            postgres::SESSION,
            postgres::FETCH
        );
        let plan: Vec<String> = outbox.execute(&sql).await.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect();
        let hit = plan.iter().find_map(|line| line.split_once("shared hit=")).unwrap().1.to_owned();
        hit.split(' ').next().unwrap().parse::<u32>().unwrap()
    };
    let before = blocks().await;
    let sql = "
        INSERT INTO outbox_aggregate (key, last_seq) SELECT 'other/' || n, 1 FROM generate_series(1, 20000) AS n;
        INSERT INTO outbox_head (aggregate, hash) SELECT id, id FROM outbox_aggregate WHERE key LIKE 'other/%';
        INSERT INTO outbox (aggregatetype, aggregateid, type) SELECT 'order', 'blocked', 't' FROM generate_series(1, 20000);
        INSERT INTO outbox_head (aggregate, hash, blocked_at) SELECT id, -5, now() FROM outbox_aggregate WHERE key = 'order/blocked'";
    outbox.execute(sql).await;
    let after = blocks().await;
    // The indexes may have grown by a level.
    assert!(after <= before * 2, "{before} blocks before, {after} with 40,000 rows more that are none of mine");
    let sql = "
        INSERT INTO outbox_aggregate (key, last_seq) SELECT 'late/' || n, 1 FROM generate_series(1, 20000) AS n;
        INSERT INTO outbox_head (aggregate, hash, retry_at)
            SELECT id, -id, now() + interval '5 minutes' FROM outbox_aggregate WHERE key LIKE 'late/%'";
    outbox.execute(sql).await;
    let waiting = blocks().await;
    assert!(waiting <= before * 2, "{before} blocks before, {waiting} with 20,000 heads more that wait for a retry");
}

/// Each held slot costs a seek, so one call visits 1,024 of them, and the next call the following ones.
#[tokio::test]
async fn more_slots_than_a_thousand_are_visited_in_turns() {
    const SLOTS: u32 = 16_384;
    let outbox = Outbox::new().await;
    outbox.insert(events("a", 1..=1)).await;
    let store = outbox.store().await;
    outbox.execute(PLACE_ALL).await;
    // On the publishers' list alone: from the writers' list it would get its own hash.
    let struck = "PERFORM set_config('shardwise.strike', 'on', true); UPDATE outbox_aggregate SET drained_seq = last_seq";
    outbox.execute(&format!("DO $$ BEGIN {struck}; END $$")).await;
    outbox.execute("UPDATE outbox_head SET hash = 9223372036854775807").await;
    let me = PublisherRegistration { publisher: "w".into(), incarnation: Incarnation::new(1), ttl: Duration::from_hours(1), slots: SLOTS };
    store.register(&me).await.unwrap();
    store.take(&me, &SlotSet::full(SLOTS)).await.unwrap();
    let (mut after, mut turns) = (None, Vec::new());
    for turn in 1..=16_u64 {
        let request = FetchRequest { after, events_max: 10, bytes_max: 1 << 20, except_slots: vec![], except_aggregates: vec![] };
        let fetched = store.fetch(&me, &request).await.unwrap();
        turns.push(fetched.runs.len());
        after = fetched.resume;
        // The hash at which the slots of this turn end.
        let end = (1_024 * turn).wrapping_mul(u64::MAX / u64::from(SLOTS) + 1).wrapping_sub(1);
        assert_eq!(after, Some(end), "turn {turn}");
    }
    assert_eq!(turns, [vec![0; 15], vec![1]].concat(), "the event is in the last slot");
}

/// Each slot costs a seek, and many slots need many statements, so a publisher without work sends one statement only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poll_of_many_slots_that_finds_nothing_asks_once() {
    const SLOTS: u32 = 16_384;
    let outbox = Outbox::new().await;
    let store = outbox.store().await;
    let me = PublisherRegistration { publisher: "w".into(), incarnation: Incarnation::new(1), ttl: Duration::from_hours(1), slots: SLOTS };
    store.register(&me).await.unwrap();
    store.take(&me, &SlotSet::full(SLOTS)).await.unwrap();
    // All the way around, as a publisher does.
    let poll = async || {
        let (begun, mut after, mut calls, mut found) = (std::time::Instant::now(), None, 0, 0);
        loop {
            let request = FetchRequest { after, events_max: 1_000, bytes_max: 1 << 20, except_slots: vec![], except_aggregates: vec![] };
            let fetched = store.fetch(&me, &request).await.unwrap();
            calls += 1;
            found += fetched.runs.len();
            after = fetched.resume;
            if after.is_none_or(|after| after == u64::MAX) {
                return (calls, found, begun.elapsed());
            }
        }
    };
    poll().await;
    let (calls, found, took) = poll().await;
    eprintln!("a poll of {SLOTS} slots that finds nothing: {calls} calls, {:.1} ms", took.as_secs_f64() * 1e3);
    assert_eq!((calls, found), (1, 0));
    outbox.insert(events("a", 1..=1)).await;
    outbox.execute(PLACE_ALL).await;
    outbox.execute("UPDATE outbox_head SET hash = 9223372036854775807").await;
    let (calls, found, took) = poll().await;
    eprintln!("the same with one event in the last slot: {calls} calls, {:.1} ms", took.as_secs_f64() * 1e3);
    assert_eq!((calls, found), (16, 1));
    // A head whose retry is due counts, and one that still waits does not.
    for (retry, something) in
        [("now() + interval '5 minutes'", false), ("now() - interval '1 second'", true), ("now() + interval '1 day'", true)]
    {
        outbox.execute(&format!("UPDATE outbox_head SET retry_at = {retry}")).await;
        let (_, found, _) = poll().await;
        assert_eq!(found > 0, something, "{retry}");
    }
}

/// The call holds the row of the aggregate's slot, and the slot's publisher waits for it. `SHARDWISE_SOAK_ROWS=10000` tests the allowed
/// maximum.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sending_many_events_of_an_aggregate_again_takes() {
    let count: u64 = std::env::var("SHARDWISE_SOAK_ROWS").map_or(2_000, |rows| rows.parse().unwrap());
    let outbox = Outbox::new().await;
    for from in (1..=count).step_by(1_000) {
        outbox.insert(events("a", from..from + 1_000)).await;
    }
    outbox
        .execute(
            "UPDATE outbox SET parked_at = now(), parked_error = 'no' WHERE seq = (SELECT min(seq) FROM outbox);
             INSERT INTO outbox_head (aggregate, done_seq) SELECT aggregate, min(seq) FROM outbox GROUP BY aggregate",
        )
        .await;
    let by = Signature::new("ann", "measured").unwrap();
    let begun = std::time::Instant::now();
    let resent = outbox.store().await.replay_aggregate("order/a", None, 10_000, &by).await.unwrap().unwrap();
    eprintln!("replay-aggregate of {count} events: {:.0} ms", begun.elapsed().as_secs_f64() * 1e3);
    assert!(resent.events == count && resent.from > count, "{resent:?}");
}

/// A busy aggregate must not fill its tables with old versions of its rows.
#[tokio::test]
async fn events_of_an_aggregate_that_waits_change_none_of_its_rows() {
    let outbox = Outbox::new().await;
    let mut conn = outbox.connection().await;
    for event in events("a", 1..=200) {
        insert(&mut conn, event).await.unwrap();
    }
    conn.close().await.unwrap();
    let count = "SELECT n_tup_ins, n_tup_upd FROM pg_stat_user_tables
        WHERE relname IN ('outbox', 'outbox_aggregate', 'outbox_head') ORDER BY relname";
    let expected = [["200", "0"], ["1", "0"], ["0", "0"]].map(|row| row.map(|text| Some(text.to_owned())));
    let mut counted = Vec::new();
    eventually("the server has counted", Duration::from_secs(30), async || {
        counted = outbox.execute(count).await;
        counted[0][0].as_deref() == Some("200")
    })
    .await;
    assert_eq!(counted, expected, "the events, and the one row of their aggregate");
}
