//! Faults of a database while publishers work on it: they report the cause, and nothing is lost or out of order.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use shardwise::SlotSet;
use shardwise_outbox::exercise::{ScriptedReply, ScriptedSink, StoreHarness};
use shardwise_outbox::sink::Refusal;
use shardwise_outbox::{Delivery, ErrorKind, OutboxPublisher, PostgresConfig, PostgresStore, PublisherOptions, Store, postgres};
use shardwise_testkit::{Authority, Postgres, PostgresOptions, TcpProxy};
use sqlx::Connection;

use crate::common::{LISTED, Outbox};
use crate::publishing::delivered;
use crate::shared::{Running, SLOTS, TestSharding, events, eventually, within};

const LIMIT: Duration = Duration::from_mins(3);
/// Short, because the next publisher waits for it to expire.
const SHORT_TTL: Duration = Duration::from_secs(2);

async fn start(outbox: &Outbox, sink: &ScriptedSink, sharding: TestSharding) -> Running {
    publisher(outbox.store().await, sink, sharding)
}

fn publisher(store: PostgresStore, sink: &ScriptedSink, sharding: TestSharding) -> Running {
    let options = PublisherOptions { poll: Duration::from_millis(100), backoff: Duration::from_millis(50), ..PublisherOptions::default() };
    Running::start(OutboxPublisher::new(Arc::new(store), Arc::new(sink.clone()), Arc::new(sharding)).unwrap().options(options).unwrap())
}

/// Checks that each event arrived at least once, the first time in the order of its aggregate.
fn in_order(arrived: &[Delivery], events: usize) {
    let (mut last, mut seen) = (BTreeMap::new(), HashSet::new());
    for event in arrived.iter().filter(|event| seen.insert(event.id.clone())) {
        let before = last.insert(event.key(), event.sequence).unwrap_or(0);
        assert!(event.sequence > before, "{}: {} after {before}", event.key(), event.sequence);
    }
    assert_eq!(seen.len(), events);
}

fn of_many(numbers: std::ops::RangeInclusive<u64>) -> Vec<shardwise_outbox::NewEvent> {
    (0..20).flat_map(|aggregate| events(&aggregate.to_string(), numbers.clone())).collect()
}

/// Pending rows are deleted by hand: the rest of an aggregate arrives in order, and an empty aggregate blocks nothing.
#[tokio::test]
async fn rows_deleted_by_hand_leave_holes_that_are_not_waited_for() {
    let outbox = Outbox::new().await;
    outbox.insert(["first", "middle", "all", "none"].iter().flat_map(|id| events(id, 1..=5)).collect()).await;
    let deleted = "DELETE FROM outbox WHERE id IN ('first-1', 'middle-2', 'middle-3') OR aggregateid = 'all'";
    outbox.execute(deleted).await;
    let sink = ScriptedSink::accepting();
    let running = start(&outbox, &sink, TestSharding::full("one")).await;
    nothing_pending(&outbox).await;
    let mut arrived = BTreeMap::<String, Vec<u64>>::new();
    for event in sink.arrived() {
        let number = event.id.rsplit_once('-').unwrap().1.parse().unwrap();
        arrived.entry(event.aggregate_id.clone()).or_default().push(number);
    }
    let expected = [("first", vec![2, 3, 4, 5]), ("middle", vec![1, 4, 5]), ("none", vec![1, 2, 3, 4, 5])];
    assert_eq!(arrived, expected.map(|(id, numbers)| (id.to_owned(), numbers)).into());
    running.stop().await;
}

async fn nothing_pending(outbox: &Outbox) {
    eventually("nothing is pending", LIMIT, async || outbox.execute(LISTED).await.is_empty()).await;
}

/// A publisher at work meets `harm` and ends with an error of that kind and these words. After `repair` the next one delivers everything.
async fn ends_and_goes_on(harm: &str, kind: ErrorKind, words: &[&str], repair: &str) {
    let outbox = Outbox::new().await;
    let role = format!("pub_{}", outbox.database.name());
    let (harm, repair) = (harm.replace("<role>", &role), repair.replace("<role>", &role));
    let grants = format!(
        "CREATE ROLE {role} LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}"
    );
    outbox.execute(&grants).await;
    let url = outbox.database.url().replace("postgres@", &format!("{role}@"));
    let store = PostgresStore::open(PostgresConfig::from_url(&url).unwrap()).await.unwrap();
    let sink = ScriptedSink::accepting();
    let running = publisher(store, &sink, TestSharding::full("one").with_ttl(SHORT_TTL));
    outbox.insert(of_many(1..=3)).await;
    eventually("it is at work", LIMIT, async || !sink.arrived().is_empty()).await;
    outbox.execute(&harm).await;
    let error = within("it ends", LIMIT, running.task).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(&word.replace("<role>", &role)), "{word:?} is not in: {error}");
    }
    outbox.execute(&repair).await;
    outbox.insert(of_many(4..=5)).await;
    // Its slots become free after its TTL.
    let (mut arrived, rest) = (sink.arrived(), delivered(&outbox).await);
    arrived.extend(rest);
    in_order(&arrived, 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_is_gone() {
    // Renamed, so that the test can restore it; for everyone else it is dropped.
    let words = ["its tables are not what this version expects", "outbox_head", "run `shardwise outbox init`"];
    ends_and_goes_on(
        "ALTER TABLE outbox_head RENAME TO elsewhere",
        ErrorKind::Schema,
        &words,
        "ALTER TABLE elsewhere RENAME TO outbox_head",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_publishers_tables_dropped_and_made_again_lose_no_event() {
    let outbox = Outbox::new().await;
    let sink = ScriptedSink::accepting();
    let running = start(&outbox, &sink, TestSharding::full("one")).await;
    outbox.insert(of_many(1..=2)).await;
    eventually("it is at work", LIMIT, async || !sink.arrived().is_empty()).await;
    let definition = "SELECT 1 FROM outbox_slot";
    assert_eq!(outbox.execute(definition).await.len(), SLOTS as usize);
    outbox.execute("DROP TABLE outbox_slot").await;
    let error = within("it ends", LIMIT, running.task).await.unwrap().unwrap_err();
    assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("outbox_slot"), "{error}");
    // The statement from the migration; epochs begin again, and so must the number of slots.
    let up = postgres::MIGRATIONS[0].up;
    let table = &up[up.find("CREATE TABLE outbox_slot").unwrap()..];
    outbox.execute(&table[..table.find("-- The fence's clock").unwrap()]).await;
    outbox.execute("UPDATE outbox_meta SET slots = NULL; DELETE FROM outbox_publisher").await;
    outbox.insert(of_many(3..=4)).await;
    let (mut arrived, rest) = (sink.arrived(), delivered(&outbox).await);
    arrived.extend(rest);
    in_order(&arrived, 80);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_that_is_taken_away() {
    let words = ["permission denied for table outbox_head", "GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_head TO <role>"];
    ends_and_goes_on("REVOKE ALL ON outbox_head FROM <role>", ErrorKind::Denied, &words, "GRANT ALL ON outbox_head TO <role>").await;
}

/// Schema 1 with delivered and pending events: upgrade, downgrade, and upgrade again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_schema_with_rows_pending() {
    let server = Postgres::shared().await.unwrap();
    let database = server.database().await.unwrap();
    let outbox = Outbox::of(&database);
    let mut conn = outbox.connection().await;
    let run = async |conn: &mut sqlx::PgConnection, sql: &'static str| {
        let mut tx = conn.begin().await.unwrap();
        sqlx::raw_sql(sql).execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
    };
    run(&mut conn, postgres::MIGRATIONS[0].up).await;
    outbox.insert(of_many(1..=2)).await;
    let error = PostgresStore::open(outbox.config()).await.unwrap_err();
    assert!(
        error.kind() == ErrorKind::Schema
            && error
                .to_string()
                .contains(&format!("its schema is 1, this version needs {}: run `shardwise outbox init`", postgres::SCHEMA_VERSION))
    );
    PostgresStore::init(outbox.config()).await.unwrap().close().await;
    let mut arrived = delivered(&outbox).await;
    outbox.insert(of_many(3..=3)).await;
    for migration in postgres::MIGRATIONS[1..].iter().rev() {
        run(&mut conn, migration.down).await;
    }
    outbox.insert(of_many(4..=4)).await;
    for migration in &postgres::MIGRATIONS[1..] {
        run(&mut conn, migration.up).await;
    }
    arrived.extend(delivered(&outbox).await);
    in_order(&arrived, 80);
}

/// The database's clock jumps by an hour and back while a publisher works, and events fail and wait for their retry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_by_an_hour_at_work() {
    let outbox = Outbox::new().await;
    outbox
        .execute(
            "CREATE TABLE test_offset AS SELECT interval '0' AS by;
             CREATE OR REPLACE FUNCTION outbox_now() RETURNS timestamptz LANGUAGE sql STABLE
             AS 'SELECT statement_timestamp() + (SELECT by FROM test_offset)'",
        )
        .await;
    let tries = std::sync::atomic::AtomicU32::new(0);
    let sink = ScriptedSink::new(move |_| match tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 7 {
        3 => ScriptedReply::Refuse(Refusal::retryable("503")),
        _ => ScriptedReply::Accept,
    });
    let running = start(&outbox, &sink, TestSharding::full("one")).await;
    for (round, offset) in (1..).zip(["1 hour", "0", "-1 hour", "1 hour", "0"]) {
        outbox.insert(of_many(round..=round)).await;
        outbox.execute(&format!("UPDATE test_offset SET by = '{offset}'")).await;
        eventually("events arrive", LIMIT, async || sink.arrived().len() as u64 >= round * 10).await;
    }
    nothing_pending(&outbox).await;
    running.stop().await;
    in_order(&sink.arrived(), 100);
}

/// All publishers stop, the number of slots changes, and they start again, while writers continue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_number_of_slots_with_rows_pending() {
    let outbox = Outbox::new().await;
    let sink = ScriptedSink::accepting();
    let running = start(&outbox, &sink, TestSharding::full("one").with_ttl(SHORT_TTL)).await;
    outbox.insert(of_many(1..=2)).await;
    eventually("it is at work", LIMIT, async || !sink.arrived().is_empty()).await;
    let early = start(&outbox, &sink, TestSharding::of("early", SlotSet::full(16))).await;
    let error = within("it is refused", LIMIT, early.task).await.unwrap().unwrap_err();
    assert!(error.kind() == ErrorKind::OtherSlots && error.to_string().contains("use 64 slots (one is alive), this one has 16"), "{error}");
    // Killed, so that events in flight remain unmarked.
    running.crash().await;
    outbox.insert(of_many(3..=4)).await;
    eventually("a publisher with another number comes in after the TTL", LIMIT, async || {
        let attempt = start(&outbox, &sink, TestSharding::of("late", SlotSet::full(16))).await;
        let came = eventually_or(async || outbox.execute(LISTED).await.is_empty(), &attempt).await;
        if came {
            attempt.stop().await;
        }
        came
    })
    .await;
    in_order(&sink.arrived(), 80);
}

/// Whether the condition held before the publisher ended.
async fn eventually_or(mut holds: impl AsyncFnMut() -> bool, running: &Running) -> bool {
    let begun = std::time::Instant::now();
    while begun.elapsed() < LIMIT {
        if running.task.is_finished() {
            return false;
        }
        if holds().await {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    false
}

/// A standby takes over while batches are in flight: the connections break, and the address leads to the other server. Committed changes
/// are on both servers, and everything else is sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_in_the_middle_of_a_batch() {
    let primary = Postgres::start(PostgresOptions::default()).await.unwrap();
    let outbox = Outbox::on(&primary).await;
    let standby = primary.standby(primary.socket_addr()).await.unwrap();
    primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'").await.unwrap();
    primary.execute("SELECT pg_reload_conf()").await.unwrap();
    let synchronous = "SELECT 1 FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')";
    eventually("every commit waits for the standby", LIMIT, async || !primary.execute(synchronous).await.unwrap().is_empty()).await;
    let proxy = TcpProxy::start(primary.socket_addr()).await.unwrap();
    let url = outbox.database.url_at(proxy.address());
    let sink = ScriptedSink::accepting();
    let store = PostgresStore::open(PostgresConfig::from_url(&url).unwrap()).await.unwrap();
    let running = publisher(store, &sink, TestSharding::full("one"));
    outbox.insert(of_many(1..=5)).await;
    eventually("it is at work", LIMIT, async || !sink.arrived().is_empty()).await;
    primary.kill().unwrap();
    proxy.lead_to(standby.socket_addr());
    // Until it is promoted, the other server is read-only: a temporary error.
    standby.execute("SELECT pg_promote()").await.unwrap();
    let after = Outbox::of(&outbox.database.on(&standby));
    after.insert(of_many(6..=8)).await;
    nothing_pending(&after).await;
    running.stop().await;
    in_order(&sink.arrived(), 160);
}

#[tokio::test]
async fn a_login_with_password_over_tls() {
    let (authority, folder) = (Authority::new().unwrap(), tempfile::tempdir().unwrap());
    let place = |name: &str| folder.path().join(name);
    let options = PostgresOptions::default().with_tls(&authority.server().unwrap());
    let server = Postgres::start(options.with_rules("hostssl all app 127.0.0.1/32 scram-sha-256")).await.unwrap();
    let outbox = Outbox::on(&server).await;
    outbox.execute("CREATE ROLE app LOGIN PASSWORD 'hush 1'; GRANT ALL ON ALL TABLES IN SCHEMA public TO app; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO app").await;
    std::fs::write(place("password"), "hush 1\n").unwrap();
    let url = |parameters: &str| format!("{}?{parameters}", outbox.database.url().replace("postgres@", "app@"));
    let open =
        async |url: String| PostgresStore::open(PostgresConfig::from_url(&url).unwrap().password_file(&place("password")).unwrap()).await;
    let root = format!("sslmode=verify-full&sslrootcert={}", authority.file().display());
    let store = open(url(&root)).await.unwrap();
    outbox.insert(events("a", 1..=1)).await;
    assert_eq!(store.status().await.unwrap().pending, 1);
    store.close().await;
    // Private keys that lost their line breaks, in a separate file and next to a certificate.
    let client = authority.client("worker").unwrap();
    let whole = std::fs::read_to_string(client.key()).unwrap();
    let secret = &whole.lines().nth(1).unwrap()[..40];
    for text in [whole.replace('\n', " "), whole.replace('\n', ""), whole.replacen("END", "FIN", 1), format!("-----BEGIN {whole}")] {
        std::fs::write(place("damaged.pem"), text).unwrap();
        let damaged = place("damaged.pem");
        for (cert, key) in [(client.certificate(), damaged.clone()), (damaged.clone(), client.key())] {
            let refused = open(url(&format!("{root}&sslcert={}&sslkey={}", cert.display(), key.display()))).await.unwrap_err();
            let said = format!("{refused} {refused:?}");
            let numbers = said.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse::<u8>().ok());
            let decoded: String = numbers.map(char::from).collect();
            assert!(refused.kind() == ErrorKind::Settings && said.contains("must be PEM files"), "{said}");
            assert!(!said.contains(secret) && !decoded.contains(secret), "the private key stands in the error: {said}");
        }
    }
    let other = Authority::new().unwrap();
    let stranger = open(url(&format!("sslmode=verify-full&sslrootcert={}", other.file().display()))).await.unwrap_err();
    assert!(stranger.kind() == ErrorKind::Denied && stranger.to_string().contains("TLS fails: check sslmode"), "{stranger}");
    let plain = open(url("sslmode=disable")).await.unwrap_err();
    assert!(plain.kind() == ErrorKind::Denied && plain.to_string().contains("check the user, the password and pg_hba.conf"), "{plain}");
    std::fs::write(place("password"), "wrong").unwrap();
    let wrong = open(url(&root)).await.unwrap_err();
    assert!(wrong.kind() == ErrorKind::Denied && wrong.to_string().contains("check the user, the password"), "{wrong}");
    assert!(!wrong.to_string().contains("hush") && !wrong.to_string().contains("\"wrong\""), "{wrong}");
}
