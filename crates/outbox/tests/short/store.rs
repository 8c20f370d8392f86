//! The SQLite store beyond the suite: errors for writers and for wrong files, and the cost of a fetch.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Outbox, events, eventually};
use shardwise::SlotSet;
use shardwise::discovery::Clock;
use shardwise::{Incarnation, Moment};
use shardwise_outbox::exercise::StoreHarness;
use shardwise_outbox::store::{EventRun, FetchRequest, HeadUpdate, Outcome, PublisherRegistration, SweepResult};
use shardwise_outbox::{ErrorKind, NewEvent, PAYLOAD_BYTES_MAX, Payload, SqliteConfig, SqliteStore, Store, sqlite};
use sqlx::Connection;
use tokio_util::sync::CancellationToken;

fn me(number: u64) -> PublisherRegistration {
    PublisherRegistration { publisher: format!("w{number}"), incarnation: Incarnation::new(number), ttl: Duration::from_secs(10), slots: 8 }
}

fn request() -> FetchRequest {
    FetchRequest { after: None, events_max: 1_000, bytes_max: 1 << 24, except_slots: vec![], except_aggregates: vec![] }
}

async fn owner(store: &SqliteStore) -> PublisherRegistration {
    let me = me(1);
    store.register(&me).await.unwrap();
    assert_eq!(store.take(&me, &SlotSet::full(8)).await.unwrap().len(), 8);
    me
}

/// Removes the outbox from the database.
async fn revert(conn: &mut sqlx::SqliteConnection) {
    for migration in sqlite::MIGRATIONS.iter().rev() {
        sqlx::raw_sql(migration.down).execute(&mut *conn).await.unwrap();
    }
}

#[tokio::test]
async fn enqueue_is_part_of_the_applications_transaction() {
    let outbox = Outbox::new().await;
    let store = outbox.store().await;
    let mut conn = outbox.connection().await;
    let mut tx = conn.begin().await.unwrap();
    sqlite::enqueue(&mut tx, NewEvent::new("order", "1", "OrderPlaced", "{}")).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(store.status().await.unwrap().pending, 0);
    let mut tx = conn.begin().await.unwrap();
    let refused = sqlite::enqueue(&mut tx, NewEvent::new("", "1", "OrderPlaced", "{}")).await.unwrap_err();
    assert_eq!(
        (refused.kind(), refused.to_string().as_str()),
        (ErrorKind::Event, "aggregatetype is empty: give it at least one character")
    );
    let id = sqlite::enqueue(&mut tx, NewEvent::new("order", "1", "OrderPlaced", "{}")).await.unwrap();
    tx.commit().await.unwrap();
    let me = owner(&store).await;
    let runs = store.fetch(&me, &request()).await.unwrap().runs;
    assert_eq!((runs[0].events[0].id.as_str(), runs[0].events[0].sequence), (id.as_str(), 1), "no gap, and placed without a publisher");
    let twice = store.enqueue_all(events("x", [1, 1])).await.unwrap_err();
    assert_eq!(twice.to_string(), "an event with this id is in the outbox already");
    assert_eq!(store.status().await.unwrap().pending, 1, "all or nothing");
}

#[tokio::test]
async fn refused_inserts_say_why() {
    let outbox = Outbox::new().await;
    let mut conn = outbox.connection().await;
    for (row, message) in [
        ("('', '1', 't', 'x')", "aggregatetype must be text, not empty, without NUL, of at most 255 bytes"),
        ("(NULL, '1', 't', 'x')", "NOT NULL constraint failed: outbox.aggregatetype"),
        ("('a', '', 't', 'x')", "aggregateid must be text, not empty, without NUL, of at most 1024 bytes"),
        ("('a', 'b' || char(0), 't', 'x')", "aggregateid must be text, not empty, without NUL, of at most 1024 bytes"),
        ("('a', x'01', 't', 'x')", "aggregateid must be text"),
        ("('a', '1', '', 'x')", "type must be text, not empty, without NUL, of at most 255 bytes"),
        ("('a', '1', NULL, 'x')", "NOT NULL constraint failed: outbox.type"),
        ("('a', '1', 't', 5)", "payload must be text, a blob or NULL"),
        ("('a', '1', 't', zeroblob(1048577))", "the payload is larger than payload_bytes_max in outbox_meta"),
    ] {
        let sql = format!("INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES {row}");
        let error = sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut conn).await.unwrap_err().to_string();
        assert!(error.contains(message), "{row}: {error}");
    }
    for headers in ["'[]'", "'no json'"] {
        let sql = format!("INSERT INTO outbox (aggregatetype, aggregateid, type, headers) VALUES ('a', '1', 't', {headers})");
        let error = sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut conn).await.unwrap_err().to_string();
        assert!(error.contains("headers must be a JSON object"), "{error}");
    }
    sqlx::query("INSERT INTO outbox (aggregatetype, aggregateid, type) VALUES ('a', 7, 't')").execute(&mut conn).await.unwrap();
    let error = sqlx::query("UPDATE outbox SET aggregateid = '8'").execute(&mut conn).await.unwrap_err().to_string();
    assert!(error.contains("cannot be changed: insert another event"), "{error}");
}

#[tokio::test]
async fn the_payload_limit_is_the_stores() {
    let outbox = Outbox::new().await;
    let store = outbox.store().await;
    let event = |bytes: usize| vec![NewEvent::new("doc", "1", "Stored", vec![b'x'; bytes])];
    store.enqueue_all(event(PAYLOAD_BYTES_MAX)).await.unwrap();
    let error = store.enqueue_all(event(PAYLOAD_BYTES_MAX + 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Event);
    assert!(error.to_string().contains("the payload of doc/1 has 1048577 bytes; at most 1048576 are allowed"), "{error}");
    sqlx::query("UPDATE outbox_meta SET payload_bytes_max = 10").execute(&mut outbox.connection().await).await.unwrap();
    assert!(store.enqueue_all(event(11)).await.is_err());
    store.enqueue_all(event(10)).await.unwrap();
}

#[tokio::test]
async fn text_that_is_not_utf8_is_bytes_and_stops_no_event() {
    let outbox = Outbox::new().await;
    let mut conn = outbox.connection().await;
    let insert = "INSERT INTO outbox (aggregatetype, aggregateid, type, payload, created_at)
        VALUES ('a', CAST(x'ff31' AS TEXT), CAST(x'74ff' AS TEXT), CAST(x'00ff00' AS TEXT), 'yesterday')";
    sqlx::query(insert).execute(&mut conn).await.unwrap();
    let store = outbox.store().await;
    let me = owner(&store).await;
    store.place_new(10).await.unwrap();
    let runs = store.fetch(&me, &request()).await.unwrap().runs;
    let event = &runs[0].events[0];
    assert_eq!((event.payload.clone(), event.aggregate_id.as_str()), (Payload::Binary(vec![0, 0xff, 0]), "\u{fffd}1"));
    let hash = shardwise::ShardKey::key_hash(&b"a/\xff1"[..]);
    assert_eq!(runs[0].hold.slot, shardwise::slot_of(hash, 8), "the stored bytes decide");
}

/// Writers in other languages use a different, older SQLite.
#[tokio::test]
async fn another_language_writes_with_its_own_library() {
    let outbox = Outbox::new().await;
    let script = "import sqlite3, sys
c = sqlite3.connect(sys.argv[1])
c.execute('INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES (?, ?, ?, ?)', ('order', 42, 'OrderPlaced', '{}'))
c.execute('INSERT INTO outbox (aggregatetype, aggregateid, type, payload, id, headers) VALUES (?, ?, ?, ?, ?, ?)',
          ('order', '42', 'OrderPaid', b'x', 'my-id', '{\"a\": \"b\"}'))
c.commit()";
    let python = Command::new("python3").args(["-c", script]).arg(outbox.path()).output();
    let Ok(output) = python else { panic!("this test needs python3 with its sqlite3 module: install it") };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let store = outbox.store().await;
    let me = owner(&store).await;
    store.place_new(10).await.unwrap();
    let runs = store.fetch(&me, &request()).await.unwrap().runs;
    let ids: Vec<_> = runs[0].events.iter().map(|event| (event.sequence, event.id.len())).collect();
    assert_eq!(ids, [(1, 36), (2, 5)]);
}

#[tokio::test]
async fn wrong_files_have_one_clear_error_each() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let missing = SqliteStore::open(path("none.db")).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Missing);
    assert!(missing.to_string().contains("there is no such file: check the path, or run `shardwise outbox init`"), "{missing}");
    assert!(!path("none.db").exists(), "opening creates nothing");
    let no_dir = SqliteStore::init(path("no/dir.db")).await.unwrap_err();
    assert_eq!((no_dir.kind(), no_dir.to_string().contains("its directory does not exist: create it")), (ErrorKind::Missing, true));
    let directory = SqliteStore::init(dir.path()).await.unwrap_err();
    assert!(directory.to_string().contains("it is a directory: name a file in it"), "{directory}");
    std::fs::write(path("text.db"), "this is a text and certainly not a database, whatever its name may say").unwrap();
    let text = SqliteStore::init(path("text.db")).await.unwrap_err();
    assert_eq!(text.kind(), ErrorKind::NotADatabase);
    assert!(text.to_string().contains("text.db: the file is not an SQLite database: check the path"), "{text}");
    std::fs::write(path("empty.db"), "").unwrap();
    let empty = SqliteStore::open(path("empty.db")).await.unwrap_err();
    assert_eq!(empty.kind(), ErrorKind::Schema);
    assert!(empty.to_string().contains("it has no outbox: run `shardwise outbox init`"), "{empty}");
}

#[tokio::test]
async fn a_newer_schema_and_another_programs_table_are_refused() {
    let outbox = Outbox::new().await;
    sqlx::query("UPDATE outbox_meta SET schema_version = 99").execute(&mut outbox.connection().await).await.unwrap();
    for result in [SqliteStore::open(outbox.config()).await, SqliteStore::init(outbox.config()).await] {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema);
        assert!(error.to_string().contains("its schema is 99, newer than this version's 3: use a newer shardwise"), "{error}");
    }
    let outbox = Outbox::new().await;
    let mut conn = outbox.connection().await;
    revert(&mut conn).await;
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM sqlite_schema").fetch_one(&mut conn).await.unwrap();
    assert_eq!(left, 0, "the way back leaves nothing");
    sqlx::query("CREATE TABLE outbox (x)").execute(&mut conn).await.unwrap();
    let error = SqliteStore::init(outbox.config()).await.unwrap_err();
    assert!(error.to_string().contains("table outbox already exists, and it is not ours: rename it"), "{error}");
    sqlx::query("DROP TABLE outbox").execute(&mut conn).await.unwrap();
    SqliteStore::init(outbox.config()).await.unwrap();
    SqliteStore::init(outbox.config()).await.unwrap();
}

/// SQLite does not wait for its turn when a new file is switched to WAL.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn publishers_that_start_together_make_the_outbox_together() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..40 {
        let path = folder.path().join(format!("{round}.db"));
        let inits: Vec<_> = (0..8).map(|_| tokio::spawn(SqliteStore::init(path.clone()))).collect();
        for init in inits {
            init.await.unwrap().unwrap();
        }
    }
}

#[tokio::test]
async fn a_lock_that_is_held_too_long_is_reported_and_passes() {
    let outbox = Outbox::new().await;
    let store = SqliteStore::open(outbox.config().busy_timeout(Duration::from_millis(50))).await.unwrap();
    let mut conn = outbox.connection().await;
    let tx = conn.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let error = store.register(&me(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.is_retryable() && error.to_string().contains("locked by another process"), "{error}");
    tx.rollback().await.unwrap();
    store.register(&me(1)).await.unwrap();
}

#[tokio::test]
async fn a_reading_of_another_boot_never_counts_as_recent() {
    let outbox = Outbox::new().await;
    let at = |nanos: u64, boot: &str| SqliteConfig::new(outbox.path()).clock(Clock::custom(move || Moment::from_nanos(nanos)), boot);
    let hour = 3_600 * 1_000_000_000;
    let before = SqliteStore::open(at(hour, "boot 1")).await.unwrap();
    owner(&before).await;
    // The machine restarts: its clock begins again and happens to show the same time.
    let after = SqliteStore::open(at(hour, "boot 2")).await.unwrap();
    after.register(&me(2)).await.unwrap();
    assert_eq!(after.take(&me(2), &SlotSet::full(8)).await.unwrap().len(), 8);
    // Without boot ids, a time in the future belongs to another boot.
    let outbox = Outbox::new().await;
    let at = |nanos: u64| SqliteConfig::new(outbox.path()).clock(Clock::custom(move || Moment::from_nanos(nanos)), "unknown");
    owner(&SqliteStore::open(at(hour)).await.unwrap()).await;
    let after = SqliteStore::open(at(1_000_000_000)).await.unwrap();
    after.register(&me(2)).await.unwrap();
    assert_eq!(after.take(&me(2), &SlotSet::full(8)).await.unwrap().len(), 8);
}

#[tokio::test]
async fn events_behind_a_hole_larger_than_what_is_left_of_the_limit_are_kept() {
    let outbox = Outbox::new().await;
    outbox.insert_plainly([events("a", 1..=5), events("b", 1..=5)].concat()).await;
    let (store, mut conn) = (outbox.store().await, outbox.connection().await);
    let me = owner(&store).await;
    store.place_new(10).await.unwrap();
    let both = store.fetch(&me, &request()).await.unwrap().runs;
    let [first, second] = &both[..] else { panic!("{both:?}") };
    // Behind the cursor all but one event of the limit is used up; the gap is in the aggregate after the wrap to the cursor.
    sqlx::query("DELETE FROM outbox WHERE aggregate = ? AND seq <= 2").bind(first.aggregate).execute(&mut conn).await.unwrap();
    let key = format!("order/{}", first.events[0].aggregate_id);
    let after = Some(shardwise::ShardKey::key_hash(key.as_bytes()));
    let fetched = store.fetch(&me, &FetchRequest { after, events_max: 6, ..request() }).await.unwrap();
    let read: Vec<_> = fetched.runs.iter().map(|run| (run.aggregate, run.through, run.more, run.events.len())).collect();
    assert_eq!(read, [(second.aggregate, 5, false, 5), (first.aggregate, 2, true, 0)]);
    // From the start, with a limit of one.
    let fetched = store.fetch(&me, &FetchRequest { events_max: 1, ..request() }).await.unwrap();
    assert_eq!((fetched.runs[0].aggregate, fetched.runs[0].through), (first.aggregate, 2));
    sqlx::query("DELETE FROM outbox WHERE aggregate = ?").bind(first.aggregate).execute(&mut conn).await.unwrap();
    let fetched = store.fetch(&me, &FetchRequest { events_max: 1, ..request() }).await.unwrap();
    assert_eq!((fetched.runs[0].through, fetched.runs[0].events.len()), (5, 0), "nothing is left of it");
}

/// As after a long pause between reading the clock and taking the slots.
#[tokio::test]
async fn a_holder_seen_after_the_takers_reading_is_alive() {
    let outbox = Outbox::stopped().await;
    let behind = outbox.store().await;
    behind.register(&me(2)).await.unwrap();
    let ahead = (1 << 40) + 20 * 1_000_000_000;
    let clock = Clock::custom(move || Moment::from_nanos(ahead));
    owner(&SqliteStore::open(outbox.config().clock(clock, "this boot")).await.unwrap()).await;
    assert!(behind.take(&me(2), &SlotSet::full(8)).await.unwrap().is_empty());
    let status = behind.status().await.unwrap();
    assert!(status.free_slots == 0 && status.publishers.iter().all(|publisher| publisher.alive), "{status:?}");
    let other = PublisherRegistration { slots: 16, ..me(3) };
    assert_eq!(behind.register(&other).await.unwrap_err().kind(), ErrorKind::OtherSlots);
}

#[tokio::test]
async fn a_taking_that_waits_for_the_lock_reads_the_clock_after_the_wait() {
    let outbox = Outbox::stopped().await;
    let (store, second) = (outbox.store().await, Duration::from_secs(1));
    store.register(&me(1)).await.unwrap();
    assert_eq!(store.take(&me(1), &SlotSet::from_slots(8, [0])).await.unwrap().len(), 1);
    outbox.advance(9 * second).await;
    store.register(&me(2)).await.unwrap();
    let mut conn = outbox.connection().await;
    let tx = conn.begin_with("BEGIN IMMEDIATE").await.unwrap();
    // A taking reads the clock once before its first check and then for each attempt; the counter shows that it waits.
    let (reads, time) = (Arc::new(AtomicU64::new(0)), Arc::clone(&outbox.clock));
    let counted = Arc::clone(&reads);
    let clock = Clock::custom(move || {
        counted.fetch_add(1, Ordering::SeqCst);
        Moment::from_nanos(time.load(Ordering::SeqCst))
    });
    let turns = async |what: &str, more: u64| {
        let before = reads.load(Ordering::SeqCst);
        eventually(what, 10 * second, async || reads.load(Ordering::SeqCst) >= before + more).await;
    };
    let taker = SqliteStore::open(outbox.config().clock(clock, "this boot")).await.unwrap();
    let taking = tokio::spawn(async move { taker.take(&me(2), &SlotSet::full(8)).await.unwrap() });
    turns("it waits for the lock", 3).await;
    outbox.advance(2 * second).await;
    turns("it has waited on", 2).await;
    assert!(!taking.is_finished(), "the lock is still held");
    tx.rollback().await.unwrap();
    assert_eq!(taking.await.unwrap().len(), 8, "the holder's time was over by then");
}

/// SQLite's own wait retries after 228 ms and then after 328 ms (docs/adr/0008): a lock released in between would be found 80 ms late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_comes_free_is_found_at_once_by_every_call_of_the_fence() {
    const HELD: Duration = Duration::from_millis(240);
    let outbox = Outbox::new().await;
    let store = outbox.store().await;
    owner(&store).await;
    let mut conn = outbox.connection().await;
    for call in ["register", "touch", "release"] {
        let mut late = Vec::new();
        // Any of twenty, since the machine may be busy and the disk slow: SQLite's own wait would be late each time.
        while late.len() < 20 && late.iter().min().is_none_or(|late| *late >= Duration::from_millis(50)) {
            let tx = conn.begin_with("BEGIN IMMEDIATE").await.unwrap();
            let store = store.clone();
            let waiting = tokio::spawn(async move {
                match call {
                    "register" => store.register(&me(1)).await.unwrap(),
                    "touch" => drop(store.touch(&me(1)).await.unwrap()),
                    _ => store.release(&me(1), &[]).await.unwrap(),
                }
                Instant::now()
            });
            tokio::time::sleep(HELD).await;
            assert!(!waiting.is_finished(), "{call}: the lock is still held");
            let free = Instant::now();
            tx.rollback().await.unwrap();
            late.push(waiting.await.unwrap() - free);
        }
        assert!(late.iter().min() < Some(&Duration::from_millis(50)), "{call}: {late:?}");
    }
}

/// The plan must stay the one that the benchmark measured, whatever statistics say.
#[tokio::test]
async fn a_fetch_seeks_and_never_sorts_or_scans() {
    let outbox = Outbox::new().await;
    let mut conn = outbox.connection().await;
    for analyzed in [false, true] {
        if analyzed {
            outbox.insert_plainly((0..500).flat_map(|n| events(&n.to_string(), 1..=3)).collect()).await;
            outbox.store().await.place_new(1_000).await.unwrap();
            sqlx::query("ANALYZE").execute(&mut conn).await.unwrap();
        }
        let due = [
            "SEARCH a USING INDEX outbox_aggregate_waiting (retry_at>? AND retry_at<?)",
            "SEARCH s USING INTEGER PRIMARY KEY (rowid=?)",
            "SEARCH b USING COVERING INDEX outbox_slot_at (hash_from<?)",
            "SEARCH o USING INDEX outbox_in_order (aggregate=? AND seq=?) LEFT-JOIN",
            "SEARCH n USING COVERING INDEX outbox_in_order (aggregate=? AND seq>? AND seq<?)",
        ];
        let pending = [
            "SEARCH s USING INDEX outbox_slot_of (incarnation=?)",
            "SEARCH a USING INDEX outbox_aggregate_pending (hash>? AND hash<?)",
            "SEARCH o USING INDEX outbox_in_order (aggregate=? AND seq>? AND seq<?) LEFT-JOIN",
            "SEARCH n USING COVERING INDEX outbox_in_order (aggregate=? AND seq>? AND seq<?)",
        ];
        for (statement, expected) in [(sqlite::FETCH, &pending[..]), (sqlite::DUE, &due[..])] {
            let query = sqlx::query_as(sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {statement}")));
            let query = query.bind("x").bind(0i64).bind(1i64).bind("[]").bind("[]").bind(10i64);
            let plan: Vec<(i64, i64, i64, String)> = query.fetch_all(&mut conn).await.unwrap();
            let steps: Vec<&str> = plan.iter().map(|step| step.3.as_str()).filter(|step| step.contains("SEARCH")).collect();
            assert_eq!(steps, expected, "{plan:?}");
            assert!(!plan.iter().any(|step| step.3.contains("TEMP B-TREE")), "{plan:?}");
        }
    }
}

async fn count(outbox: &Outbox) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM outbox").fetch_one(&mut outbox.connection().await).await.unwrap()
}

/// Delivers the pending events up to `through` of each aggregate.
async fn deliver(store: &SqliteStore, me: &PublisherRegistration, through: u64) {
    store.place_new(1_000).await.unwrap();
    let runs = store.fetch(me, &request()).await.unwrap().runs;
    let outcome = |run: &EventRun| Outcome { aggregate: run.aggregate, hold: run.hold, through: Some(through), then: HeadUpdate::Next };
    assert_eq!(store.record(me, &runs.iter().map(outcome).collect::<Vec<_>>(), false).await.unwrap(), []);
}

#[tokio::test]
async fn a_sweep_deletes_a_few_rows_at_a_time_and_all_that_is_delivered() {
    for retention in [Duration::ZERO, Duration::from_nanos(1)] {
        let outbox = Outbox::new().await;
        let store = outbox.store().await;
        outbox.insert_plainly((0..20).flat_map(|n| events(&n.to_string(), 1..=5)).collect()).await;
        // Whatever a writer stores as a time, the row counts as old and stops nothing.
        let time = "UPDATE outbox SET created_at = iif(seq = 5 OR position <= 50, '2026-01-02 03:04:05', created_at - 10)";
        sqlx::query(time).execute(&mut outbox.connection().await).await.unwrap();
        let me = owner(&store).await;
        deliver(&store, &me, 4).await;
        let (mut position, mut left) = (0, count(&outbox).await);
        loop {
            let swept = store.sweep(retention, position, 7).await.unwrap();
            let now = count(&outbox).await;
            assert!((left - 7..=left).contains(&now), "{retention:?}: from {left} to {now}");
            assert_eq!(i64::try_from(swept.deleted).unwrap(), left - now, "{retention:?}: it says how many");
            let Some(next) = swept.resume else { break };
            assert!(next > position || now < left, "{retention:?}: it goes on");
            (position, left) = (next, now);
        }
        assert_eq!(count(&outbox).await, 20, "{retention:?}: what waits is kept");
        let status = store.status().await.unwrap();
        assert_eq!(status.pending, 20, "{retention:?}");
        assert_eq!(status.oldest_pending_age, None, "{retention:?}: nobody can tell");
    }
}

/// Positions rise with time, except for writers whose clock is ahead: behind their rows there are older ones.
#[tokio::test]
async fn a_sweep_passes_over_rows_of_a_clock_that_is_ahead() {
    // By hours, so that the rows are soon in the past but still young, and by years.
    for ahead in ["+10 minutes", "+3 hours", "+2 years"] {
        let outbox = Outbox::new().await;
        let store = outbox.store().await;
        outbox.insert_plainly((0..40).flat_map(|n| events(&n.to_string(), 1..=5)).collect()).await;
        let time = format!(
            "UPDATE outbox SET created_at = CAST((julianday('now', iif(position <= 50, '{ahead}', iif(position <= 150, '-2 hours', '0 hours'))) - 2440587.5) * 86400000 AS INTEGER)"
        );
        sqlx::query(sqlx::AssertSqlSafe(time)).execute(&mut outbox.connection().await).await.unwrap();
        let me = owner(&store).await;
        deliver(&store, &me, 5).await;
        let (mut position, mut rounds) = (0, 0);
        while let Some(next) = store.sweep(Duration::from_hours(1), position, 10).await.unwrap().resume {
            (position, rounds) = (next, rounds + 1);
            assert!(rounds < 100, "{ahead}: it comes to an end");
        }
        let left: Vec<(i64, i64)> = sqlx::query_as("SELECT position <= 50, count(*) FROM outbox GROUP BY 1 ORDER BY 1 DESC")
            .fetch_all(&mut outbox.connection().await)
            .await
            .unwrap();
        assert_eq!(left, [(1, 50), (0, 50)], "{ahead}: what is old is gone, what is young by its own time is kept");
        assert!(position < 180, "{ahead}: behind the last old row it stops soon, at {position}");
    }
}

/// Between two statements of a reading, an operator or a late call changes when an aggregate is due.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_event_comes_twice_in_one_reading() {
    let outbox = Outbox::new().await;
    let store = outbox.store().await;
    outbox.insert_plainly(events("a", 1..=3)).await;
    let me = owner(&store).await;
    store.place_new(10).await.unwrap();
    let stop = CancellationToken::new();
    let (ends, mut conn) = (stop.clone(), outbox.connection().await);
    let toggling = tokio::spawn(async move {
        let mut toggles = 0;
        while !ends.is_cancelled() {
            for retry_at in ["1", "NULL"] {
                let sql = format!("UPDATE outbox_aggregate SET retry_at = {retry_at}");
                sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut conn).await.unwrap();
                toggles += 1;
            }
        }
        toggles
    });
    let begun = Instant::now();
    let (mut readings, mut both) = (0, [0, 0]);
    // Until both states were read often, however busy the machine is.
    while both.iter().any(|times| *times < 300) {
        assert!(begun.elapsed() < Duration::from_mins(2), "{readings} readings, {both:?}");
        let runs = store.fetch(&me, &request()).await.unwrap().runs;
        readings += 1;
        assert!(runs.len() <= 1, "{runs:?}");
        for run in &runs {
            let sequences: Vec<_> = run.events.iter().map(|event| event.sequence).collect();
            assert!(sequences == [1] || sequences == [1, 2, 3], "{sequences:?} after {readings} readings");
            both[usize::from(sequences.len() == 3)] += 1;
        }
    }
    stop.cancel();
    assert!(toggling.await.unwrap() > 0);
}

/// There may be a million pending rows, with payloads before every other column.
#[tokio::test]
async fn a_sweep_without_retention_does_not_look_at_what_waits() {
    let outbox = Outbox::new().await;
    let sql = format!("EXPLAIN QUERY PLAN {}", sqlite::DELIVERED);
    let query = sqlx::query_as(sqlx::AssertSqlSafe(sql)).bind(0i64).bind(1_000i64).bind(1_000i64);
    let plan: Vec<(i64, i64, i64, String)> = query.fetch_all(&mut outbox.connection().await).await.unwrap();
    assert_eq!(
        plan.iter().map(|step| step.3.as_str()).collect::<Vec<_>>(),
        ["SEARCH a USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)", "SEARCH o USING INDEX outbox_in_order (aggregate=? AND seq<?)",]
    );
}

/// The call does not wait for a writer in the middle of its transaction.
#[tokio::test]
async fn a_sweep_that_finds_nothing_takes_no_lock() {
    let outbox = Outbox::new().await;
    outbox.insert_plainly(events("a", 1..=3)).await;
    let store = SqliteStore::open(outbox.config().busy_timeout(Duration::from_millis(50))).await.unwrap();
    owner(&store).await;
    // A row is old a millisecond after it was written.
    eventually("the rows are old", Duration::from_secs(10), async || {
        store.sweep(Duration::from_nanos(1), 0, 3).await.unwrap().resume.is_some()
    })
    .await;
    let mut conn = outbox.connection().await;
    let tx = conn.begin_with("BEGIN IMMEDIATE").await.unwrap();
    assert!(store.sweep(Duration::from_nanos(1), 0, 3).await.unwrap().resume.is_some());
    assert_eq!(store.sweep(Duration::ZERO, 0, 3).await.unwrap(), SweepResult::default());
    tx.rollback().await.unwrap();
}

/// A writer may store any value there; it must not make readers fail.
#[tokio::test]
async fn times_at_the_end_of_numbers_stop_no_call() {
    for time in [i64::MIN, i64::MAX] {
        let outbox = Outbox::new().await;
        outbox.insert_plainly(events("a", 1..=2)).await;
        let mut conn = outbox.connection().await;
        sqlx::query("UPDATE outbox SET created_at = ?").bind(time).execute(&mut conn).await.unwrap();
        let store = outbox.store().await;
        let me = owner(&store).await;
        assert_eq!(store.status().await.unwrap().pending, 2);
        store.place_new(10).await.unwrap();
        let batch = store.fetch(&me, &request()).await.unwrap().runs.remove(0).events;
        for event in &batch {
            let mut line = Vec::new();
            shardwise_outbox::sink::encode(event, "/outbox/test", &mut line);
            assert!(shardwise_outbox::sink::parse_line(&line).is_some(), "{time}");
        }
        deliver(&store, &me, 1).await;
        store.sweep(Duration::from_secs(1), 0, 10).await.unwrap();
    }
}

#[tokio::test]
async fn an_inbox_sees_each_event_once() {
    use shardwise_outbox::inbox::sqlite::{create_table, forget, seen};
    let outbox = Outbox::new().await;
    let mut conn = outbox.connection().await;
    create_table(&mut conn).await.unwrap();
    create_table(&mut conn).await.unwrap();
    let mut tx = conn.begin().await.unwrap();
    assert!(!seen(&mut tx, "billing", "e-1").await.unwrap());
    tx.rollback().await.unwrap();
    assert!(!seen(&mut conn, "billing", "e-1").await.unwrap(), "what is rolled back was not seen");
    assert!(seen(&mut conn, "billing", "e-1").await.unwrap());
    assert!(!seen(&mut conn, "shipping", "e-1").await.unwrap(), "another consumer has not seen it");
    assert_eq!(forget(&mut conn, Duration::from_hours(1), 10).await.unwrap(), 0);
    sqlx::query("UPDATE outbox_inbox SET seen_at = seen_at - 7200").execute(&mut conn).await.unwrap();
    assert_eq!(forget(&mut conn, Duration::from_hours(1), 1).await.unwrap(), 1, "a batch at a time");
    assert_eq!(forget(&mut conn, Duration::from_hours(1), 10).await.unwrap(), 1);
}

/// A part that `0001` contained for a while, and that `0002` contains now.
const FOR_A_WHILE: &str = "DROP INDEX outbox_aggregate_pending;
    CREATE INDEX outbox_aggregate_pending ON outbox_aggregate (hash) WHERE done_seq < last_seq AND blocked_at IS NULL AND retry_at IS NULL;
    CREATE INDEX outbox_aggregate_waiting ON outbox_aggregate (retry_at) WHERE done_seq < last_seq AND blocked_at IS NULL AND retry_at IS NOT NULL;
    CREATE INDEX outbox_slot_at ON outbox_slot (hash_from);";

#[tokio::test]
async fn an_outbox_of_schema_1_goes_on_with_what_is_pending() {
    for also in ["", FOR_A_WHILE] {
        let outbox = Outbox::new().await;
        let mut conn = outbox.connection().await;
        revert(&mut conn).await;
        sqlx::raw_sql(include_str!("../../migrations/sqlite/0001_outbox.up.sql")).execute(&mut conn).await.unwrap();
        sqlx::raw_sql(also).execute(&mut conn).await.unwrap();
        outbox.insert_plainly([events("a", 1..=3), events("b", 1..=1)].concat()).await;
        sqlx::query("UPDATE outbox_aggregate SET retry_at = 1 WHERE key = 'order/b'").execute(&mut conn).await.unwrap();
        let store = SqliteStore::init(outbox.config()).await.unwrap();
        outbox.insert_plainly(events("a", 4..=4)).await;
        let me = owner(&store).await;
        store.place_new(10).await.unwrap();
        let mut found: Vec<_> =
            store.fetch(&me, &request()).await.unwrap().runs.into_iter().flat_map(|run| run.events).map(|e| e.id).collect();
        found.sort();
        assert_eq!(found, ["a-1", "a-2", "a-3", "a-4", "b-1"], "{also}");
        // Back to the older schema, where writers continue.
        let id = store.id().await.unwrap().unwrap();
        assert_eq!((id.len(), id.bytes().all(|byte| byte.is_ascii_hexdigit())), (32, true), "{id}");
        // Opened before the downgrade, so it knows the current columns.
        let mut conn = outbox.connection().await;
        sqlx::raw_sql(include_str!("../../migrations/sqlite/0003_identity.down.sql")).execute(&mut conn).await.unwrap();
        sqlx::raw_sql(include_str!("../../migrations/sqlite/0002_dead_letters.down.sql")).execute(&mut conn).await.unwrap();
        outbox.insert_plainly(events("a", 5..=5)).await;
        assert_eq!(SqliteStore::init(outbox.config()).await.unwrap().status().await.unwrap().pending, 6, "{also}");
    }
}
