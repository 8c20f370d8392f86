//! Publishers that sleep: every writer that commits wakes them, whatever was open when they fell asleep, and whichever process is killed.

use std::sync::Arc;
use std::time::Duration;

use shardwise::SlotSet;
use shardwise_outbox::exercise::{ScriptedReply, ScriptedSink, StoreHarness as _};
use shardwise_outbox::{ErrorKind, NewEvent, OutboxPublisher, PostgresConfig, PostgresStore, PublisherOptions, Store as _};
use shardwise_testkit::{Postgres, PostgresOptions};
use sqlx::{Connection as _, PgConnection};

use super::{LIMIT, Observer, tickets};
use crate::common::{Outbox, insert};
use crate::shared::{Running, SLOTS, Said, TestSharding, events, eventually};

/// The publishers' `poll`, so long that what arrives within `PROMPT` was not found by it.
const POLL: Duration = Duration::from_mins(5);
const PROMPT: Duration = Duration::from_secs(15);

/// An outbox whose writers notify.
async fn notifying() -> Outbox {
    let outbox = Outbox::new().await;
    PostgresStore::init(outbox.config().listen(true)).await.unwrap().close().await;
    outbox
}

async fn start(outbox: &Outbox, sink: &ScriptedSink, sharding: TestSharding, batch: usize) -> Running {
    let store = PostgresStore::open(outbox.config().listen(true)).await.unwrap();
    let options = PublisherOptions { poll: POLL, batch, send_timeout: POLL, ..PublisherOptions::default() };
    let publisher = OutboxPublisher::new(Arc::new(store), Arc::new(sink.clone()), Arc::new(sharding)).unwrap();
    Running::start(publisher.options(options).unwrap())
}

/// Waits until some publisher has announced that it sleeps and is not woken.
async fn asleep(outbox: &Outbox, above: i64) {
    let sleeps = async || {
        let (last, woken) = tickets(outbox).await;
        last > above && last > woken
    };
    eventually("a publisher announces that it sleeps", LIMIT, sleeps).await;
}

async fn arrives(what: &str, sink: &ScriptedSink, events: usize) {
    let took = eventually(what, PROMPT, async || sink.arrived().len() == events).await;
    println!("{what}: after {took:?}");
}

async fn run(conn: &mut PgConnection, sql: &'static str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(sql).execute(conn).await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_commit_notifies_while_a_publisher_is_awake() {
    let outbox = notifying().await;
    let mut observer = Observer::of(&outbox).await;
    // Its destination hangs, and it has read ahead all that it may: there is always more to read.
    let sink = ScriptedSink::new(|_| ScriptedReply::Hang);
    let running = start(&outbox, &sink, TestSharding::full("one"), 1).await;
    asleep(&outbox, 0).await;
    outbox.insert((0..20).flat_map(|n| events(&format!("first-{n}"), 1..=1)).collect()).await;
    let at_work = async || {
        let (last, woken) = tickets(&outbox).await;
        last == woken && !sink.tried().is_empty()
    };
    eventually("it is woken and at work", LIMIT, at_work).await;
    assert_eq!(observer.payloads(&outbox).await.len(), 1, "the one that woke it");
    let before = tickets(&outbox).await;
    let mut conn = outbox.connection().await;
    for n in 1..=200 {
        insert(&mut conn, events(&format!("more-{}", n % 50), n..=n).remove(0)).await.unwrap();
    }
    assert_eq!(observer.payloads(&outbox).await, Vec::<String>::new());
    assert_eq!(tickets(&outbox).await, before, "nothing was announced meanwhile");
    running.crash().await;
}

/// Insert, some work, commit; the publisher falls asleep in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_was_open_when_the_publisher_fell_asleep_is_delivered_at_once() {
    for (begin, inserts_first) in
        [("BEGIN", true), ("BEGIN ISOLATION LEVEL REPEATABLE READ", true), ("BEGIN ISOLATION LEVEL REPEATABLE READ", false)]
    {
        let (outbox, sink) = (notifying().await, ScriptedSink::accepting());
        let mut conn = outbox.connection().await;
        run(&mut conn, begin).await.unwrap();
        // Under REPEATABLE READ this takes the snapshot.
        run(&mut conn, "SELECT count(*) FROM outbox").await.unwrap();
        if inserts_first {
            insert(&mut conn, events("a", 1..=1).remove(0)).await.unwrap();
        }
        let running = start(&outbox, &sink, TestSharding::full("one"), 1_000).await;
        asleep(&outbox, 0).await;
        if !inserts_first {
            insert(&mut conn, events("a", 1..=1).remove(0)).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(sink.arrived().is_empty(), "{begin}");
        run(&mut conn, "COMMIT").await.unwrap();
        arrives(&format!("{begin}, before its sleep: {inserts_first}"), &sink, 1).await;
        // And the one behind it, by a notification or a poll.
        asleep(&outbox, 0).await;
        insert(&mut conn, events("new", 1..=1).remove(0)).await.unwrap();
        arrives("the next one", &sink, 2).await;
        running.stop().await;
        let (last, woken) = tickets(&outbox).await;
        assert_eq!(last, woken, "it withdraws its announcement");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_that_sleep_one_is_woken_and_killed_and_the_other_is_woken_again() {
    let outbox = notifying().await;
    let sinks = [ScriptedSink::accepting(), ScriptedSink::accepting()];
    let halves = [SlotSet::from_slots(SLOTS, 0..SLOTS / 2), SlotSet::from_slots(SLOTS, SLOTS / 2..SLOTS)];
    let shardings = [TestSharding::of("one", halves[0].clone()), TestSharding::of("two", halves[1].clone())];
    let one = start(&outbox, &sinks[0], shardings[0].clone(), 1_000).await;
    asleep(&outbox, 0).await;
    let two = start(&outbox, &sinks[1], shardings[1].clone(), 1_000).await;
    asleep(&outbox, 1).await;
    outbox.insert((0..40).flat_map(|n| events(&n.to_string(), 1..=1)).collect()).await;
    let arrived = || sinks.each_ref().map(|sink| sink.arrived().len());
    eventually("the first is woken", PROMPT, async || arrived()[0] > 0).await;
    one.crash().await;
    eventually("the second is woken too", PROMPT, async || arrived()[1] > 0).await;
    asleep(&outbox, 2).await;
    let key = sinks[1].arrived()[0].aggregate_id.clone();
    outbox.insert(vec![NewEvent::new("order", key, "OrderChanged", "{}").with_id("again")]).await;
    let again = async || sinks[1].arrived().iter().any(|event| event.id == "again");
    eventually("the second is woken again", PROMPT, again).await;
    // What the first had not marked arrives again, when its lease has expired.
    shardings[1].own(SlotSet::full(SLOTS));
    let store = outbox.store().await;
    eventually("nothing is pending", LIMIT, async || store.status().await.unwrap().pending == 0).await;
    two.stop().await;
}

/// Its own announcement is the last: with it, that of the other counts as answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_that_leaves_wakes_the_others() {
    let outbox = notifying().await;
    let sink = ScriptedSink::accepting();
    let stays = start(&outbox, &sink, TestSharding::of("stays", SlotSet::from_slots(SLOTS, 0..SLOTS / 2)), 1_000).await;
    asleep(&outbox, 0).await;
    let other = TestSharding::of("leaves", SlotSet::from_slots(SLOTS, SLOTS / 2..SLOTS));
    let leaves = start(&outbox, &ScriptedSink::accepting(), other, 1_000).await;
    asleep(&outbox, 1).await;
    leaves.stop().await;
    assert!(tickets(&outbox).await.1 >= 2);
    asleep(&outbox, 2).await;
    outbox.insert((0..40).flat_map(|n| events(&n.to_string(), 1..=1)).collect()).await;
    eventually("the one that stays is woken", PROMPT, async || !sink.arrived().is_empty()).await;
    stays.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notifier_that_rolls_back_takes_nothing_from_the_next_one() {
    let (outbox, sink) = (notifying().await, ScriptedSink::accepting());
    let running = start(&outbox, &sink, TestSharding::full("one"), 1_000).await;
    asleep(&outbox, 0).await;
    let (mut one, mut two) = (outbox.connection().await, outbox.connection().await);
    let before = tickets(&outbox).await;
    let mut first = one.begin().await.unwrap();
    insert(&mut first, events("a", 1..=1).remove(0)).await.unwrap();
    first.rollback().await.unwrap();
    assert_eq!(tickets(&outbox).await, before);
    insert(&mut two, events("b", 1..=1).remove(0)).await.unwrap();
    arrives("the one behind the rollback", &sink, 1).await;
    asleep(&outbox, before.0).await;
    let mut first = one.begin().await.unwrap();
    insert(&mut first, events("a", 2..=2).remove(0)).await.unwrap();
    insert(&mut two, events("b", 2..=2).remove(0)).await.unwrap();
    arrives("the one beside it", &sink, 2).await;
    first.rollback().await.unwrap();
    insert(&mut two, events("a", 3..=3).remove(0)).await.unwrap();
    arrives("the next one", &sink, 3).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_killed_asleep_leaves_its_announcement_and_the_next_one_answers_it() {
    let outbox = notifying().await;
    let mut observer = Observer::of(&outbox).await;
    let running = start(&outbox, &ScriptedSink::accepting(), TestSharding::full("one"), 1_000).await;
    asleep(&outbox, 0).await;
    running.crash().await;
    let (last, _) = tickets(&outbox).await;
    for n in 1..=2 {
        outbox.insert(events("a", n..=n)).await;
    }
    let in_vain = vec![last.to_string(); 2];
    assert_eq!(observer.payloads(&outbox).await, in_vain, "nobody is there to answer");
    let sink = ScriptedSink::accepting();
    let running = start(&outbox, &sink, TestSharding::full("two"), 1_000).await;
    let mut written = 2;
    let answered = async || {
        written += 1;
        outbox.insert(events("a", written..=written)).await;
        tickets(&outbox).await.1 >= last
    };
    eventually("the next one answers it", LIMIT, answered).await;
    eventually("all arrive", LIMIT, async || sink.arrived().len() as u64 == written).await;
    running.stop().await;
    let (last, woken) = tickets(&outbox).await;
    assert_eq!(last, woken);
    outbox.insert(events("b", 1..=1)).await;
    observer.payloads(&outbox).await;
    outbox.insert(events("b", 2..=2)).await;
    assert!(observer.payloads(&outbox).await.is_empty());
}

/// `listen` and two-phase commit exclude each other while a publisher sleeps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_notifies_cannot_be_prepared() {
    let server = Postgres::start(PostgresOptions::default().with_setting("max_prepared_transactions", "10")).await.unwrap();
    let (outbox, sink) = (Outbox::on(&server).await, ScriptedSink::accepting());
    PostgresStore::init(outbox.config().listen(true)).await.unwrap().close().await;
    let mut conn = outbox.connection().await;
    run(&mut conn, "BEGIN").await.unwrap();
    insert(&mut conn, events("a", 1..=1).remove(0)).await.unwrap();
    run(&mut conn, "PREPARE TRANSACTION 'nobody sleeps'").await.unwrap();
    let running = start(&outbox, &sink, TestSharding::full("one"), 1_000).await;
    asleep(&outbox, 0).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    run(&mut conn, "COMMIT PREPARED 'nobody sleeps'").await.unwrap();
    arrives("the prepared one", &sink, 1).await;
    asleep(&outbox, 0).await;
    run(&mut conn, "BEGIN").await.unwrap();
    insert(&mut conn, events("a", 2..=2).remove(0)).await.unwrap();
    let refused = run(&mut conn, "PREPARE TRANSACTION 'one sleeps'").await.unwrap_err().to_string();
    assert!(refused.contains("cannot PREPARE a transaction that has executed LISTEN, UNLISTEN, or NOTIFY"), "{refused}");
    run(&mut conn, "ROLLBACK").await.unwrap();
    insert(&mut conn, events("a", 3..=3).remove(0)).await.unwrap();
    arrives("the next one", &sink, 2).await;
    running.stop().await;
}

/// On one thread, whose log is read.
#[tokio::test]
async fn without_the_rights_it_polls_says_so_once_and_names_the_grant() {
    let outbox = notifying().await;
    let role = format!("sleeper_{}", outbox.database.name());
    let grants = format!("GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}");
    outbox.execute(&format!("CREATE ROLE {role} LOGIN; {grants}")).await;
    let url = outbox.database.url().replace("postgres@", &format!("{role}@"));
    let store = PostgresStore::open(PostgresConfig::from_url(&url).unwrap().listen(true)).await.unwrap();
    for (sequence, right) in [("outbox_woken", "UPDATE"), ("outbox_woken", "ALL"), ("outbox_asleep", "ALL")] {
        outbox.execute(&format!("REVOKE {right} ON SEQUENCE {sequence} FROM {role}")).await;
        let error = store.fall_asleep().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        let grant = format!("GRANT SELECT, UPDATE ON SEQUENCE {sequence} TO {role}");
        assert!(error.to_string().contains(&grant), "{error}");
        assert_eq!(tickets(&outbox).await.0, 0, "{right} on {sequence}: nobody is notified in vain");
        outbox.execute(&grants).await;
    }
    outbox.execute(&format!("REVOKE UPDATE ON SEQUENCE outbox_woken FROM {role}")).await;
    let (said, _guard) = Said::start();
    let sink = ScriptedSink::accepting();
    let publisher = OutboxPublisher::new(Arc::new(store), Arc::new(sink.clone()), Arc::new(TestSharding::full("one"))).unwrap();
    let running = Running::start(publisher);
    let warned = || said.lines().iter().filter(|line| line.contains("cannot announce that it sleeps")).count();
    eventually("it says so", LIMIT, async || warned() > 0).await;
    for n in 1..=3 {
        outbox.insert(events("a", n..=n)).await;
        eventually("a poll finds it", LIMIT, async || sink.arrived().len() as u64 == n).await;
    }
    let lines = said.lines();
    assert!(warned() == 1 && lines.iter().any(|line| line.contains("GRANT SELECT, UPDATE ON SEQUENCE outbox_woken")), "{lines:#?}");
    assert_eq!(tickets(&outbox).await.0, 0);
    running.stop().await;
}
