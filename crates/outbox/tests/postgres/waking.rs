//! Notifications of commits: only where a publisher sleeps, and then nothing waits for its next poll.

use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};
use shardwise_outbox::exercise::StoreHarness as _;
use shardwise_outbox::{PostgresStore, Store as _};
use shardwise_testkit::{Postgres, PostgresOptions};
use sqlx::Connection as _;
use sqlx::postgres::PgListener;

use crate::common::{Outbox, insert};
use crate::shared::{events, eventually, within};

mod publishers;

const LIMIT: Duration = Duration::from_mins(1);

/// The last announcement, and the last that was answered.
async fn tickets(outbox: &Outbox) -> (i64, i64) {
    let rows = outbox.execute("SELECT a.last_value, w.last_value FROM outbox_asleep AS a, outbox_woken AS w").await;
    let number = |at: usize| rows[0][at].as_ref().unwrap().parse().unwrap();
    (number(0), number(1))
}

/// A connection of the test's own that listens to what writers send.
struct Observer {
    listener: PgListener,
    channel: String,
}

const MARKER: &str = "test_marker";

impl Observer {
    async fn of(outbox: &Outbox) -> Self {
        let rows = outbox.execute("SELECT 'shardwise_outbox_' || 'outbox_meta'::regclass::oid").await;
        let channel = rows[0][0].clone().unwrap();
        let mut listener = PgListener::connect(&outbox.database.url()).await.unwrap();
        listener.listen_all([channel.as_str(), MARKER]).await.unwrap();
        Self { listener, channel }
    }

    /// The payloads since the last call. Notifications arrive in the order of their commits.
    async fn payloads(&mut self, outbox: &Outbox) -> Vec<String> {
        outbox.execute(&format!("NOTIFY {MARKER}")).await;
        let mut payloads = Vec::new();
        loop {
            let notification = within("the marker is received", LIMIT, self.listener.recv()).await.unwrap();
            if notification.channel() == MARKER {
                return payloads;
            }
            assert_eq!(notification.channel(), self.channel);
            payloads.push(notification.payload().to_owned());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_is_reported_only_if_it_is_switched_on_and_to_one_that_sleeps() {
    let outbox = Outbox::new().await;
    let notify = async || outbox.execute("SELECT notify FROM outbox_meta").await[0][0].clone();
    assert_eq!(notify().await.as_deref(), Some("f"), "off unless set");
    assert!(outbox.store().await.wakes().next().now_or_never().is_none());
    let store = PostgresStore::open(outbox.config().listen(true)).await.unwrap();
    assert_eq!(notify().await.as_deref(), Some("t"), "a publisher that listens switches it on");
    let mut wakes = store.wakes();
    within("it listens", LIMIT, wakes.next()).await.unwrap().unwrap();
    // The listening connection is closed: it is reopened, and missed commits are looked for.
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'";
    assert_eq!(outbox.execute(end).await.len(), 1);
    within("it listens again", LIMIT, async { while wakes.next().await.unwrap().is_err() {} }).await;

    let mut observer = Observer::of(&outbox).await;
    outbox.insert(events("a", 1..=2)).await;
    assert!(observer.payloads(&outbox).await.is_empty(), "nobody sleeps");
    let ticket = store.fall_asleep().await.unwrap().unwrap();
    assert_eq!((ticket.number, tickets(&outbox).await), (1, (1, 0)));
    let mut conn = outbox.connection().await;
    let mut tx = conn.begin().await.unwrap();
    insert(&mut tx, events("b", 1..=1).remove(0)).await.unwrap();
    tx.rollback().await.unwrap();
    assert!(observer.payloads(&outbox).await.is_empty(), "a rollback is not told");
    outbox.insert(events("a", 3..=5)).await;
    within("the commit is reported", LIMIT, wakes.next()).await.unwrap().unwrap();
    assert_eq!(observer.payloads(&outbox).await, ["1"], "once for a transaction");
    let answered = async || {
        // The stream answers while it waits for the next notification.
        let _ = tokio::time::timeout(Duration::from_millis(20), wakes.next()).await;
        tickets(&outbox).await == (1, 1)
    };
    eventually("it is answered", LIMIT, answered).await;
    outbox.insert(events("a", 6..=6)).await;
    assert!(observer.payloads(&outbox).await.is_empty(), "everyone is awake");

    // Anyone can notify: a number that was not announced is not answered.
    store.fall_asleep().await.unwrap().unwrap();
    outbox.execute(&format!("SELECT pg_notify('{}', '9223372036854775807'), pg_notify('{0}', 'x')", observer.channel)).await;
    for _ in 0..10 {
        let _ = tokio::time::timeout(Duration::from_millis(20), wakes.next()).await;
    }
    assert_eq!(tickets(&outbox).await, (2, 1));
    drop(wakes);
    PostgresStore::init(outbox.config()).await.unwrap().close().await;
    assert_eq!(notify().await.as_deref(), Some("f"), "init without it switches it off");
    outbox.insert(events("a", 7..=7)).await;
    assert_eq!(observer.payloads(&outbox).await.iter().filter(|payload| *payload == "2").count(), 0);
}

/// On a server of its own, whose transactions are all of this test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_announcement_is_bounded_by_every_transaction_that_may_not_have_seen_it() {
    let outbox = Outbox::on(&Postgres::start(PostgresOptions::default()).await.unwrap()).await;
    let store = PostgresStore::open(outbox.config().listen(true)).await.unwrap();
    let (mut one, mut two, mut three) = (outbox.connection().await, outbox.connection().await, outbox.connection().await);
    // Newer than every transaction that has ended: the end of a snapshot would not include it.
    let mut open = one.begin().await.unwrap();
    insert(&mut open, events("a", 1..=1).remove(0)).await.unwrap();
    let ticket = store.fall_asleep().await.unwrap().unwrap();
    let mut later = two.begin().await.unwrap();
    insert(&mut later, events("b", 1..=1).remove(0)).await.unwrap();
    assert!(!store.all_ended(ticket).await.unwrap());
    insert(&mut three, events("c", 1..=1).remove(0)).await.unwrap();
    assert!(!store.all_ended(ticket).await.unwrap(), "whatever ends meanwhile");
    open.commit().await.unwrap();
    // The server's own transactions may be among them.
    eventually("those that came later have seen it", LIMIT, async || store.all_ended(ticket).await.unwrap()).await;
    later.commit().await.unwrap();

    // The sequence objects of a dump are not of one moment.
    outbox.execute("SELECT setval('outbox_woken', 500)").await;
    let ticket = store.fall_asleep().await.unwrap().unwrap();
    assert_eq!(tickets(&outbox).await, (2, 1));
    store.withdraw(ticket).await.unwrap();
    assert_eq!(tickets(&outbox).await, (2, 2));
}
