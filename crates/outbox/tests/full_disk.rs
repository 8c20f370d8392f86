//! A disk that is full or reports errors for a while: everything that was in a transaction then continues in the same process, without a
//! restart.
//!
//! Each test runs itself once more on a separate small disk.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Outbox, Running, TestSharding, eventually};
use shardwise_outbox::exercise::{ScriptedReply, ScriptedSink};
use shardwise_outbox::{ErrorKind, NewEvent, OutboxPublisher, PublisherOptions, SqliteStore, Store, sqlite};
use shardwise_testkit::SmallDisk;

const DISK: u64 = 8 << 20;
const LIMIT: Duration = Duration::from_mins(3);
/// Enough events for a transaction to be written to the disk before its commit.
const HEAVY: usize = 64;

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(test)
}

fn event(aggregate: &str) -> NewEvent {
    NewEvent::new("order", aggregate, "OrderChanged", "{}")
}

fn heavy() -> Vec<NewEvent> {
    let text = format!("\"{}\"", "x".repeat(256 << 10));
    (0..HEAVY).map(|n| NewEvent::new("order", format!("heavy {n}"), "OrderChanged", text.as_str())).collect()
}

/// A temporary fault of the disk, and its error message.
#[derive(Clone, Copy)]
struct Trouble {
    begin: fn(&SmallDisk),
    end: fn(&SmallDisk),
    says: &'static str,
}

const FULL: Trouble =
    Trouble { begin: |disk| disk.fill().unwrap(), end: |disk| disk.empty().unwrap(), says: "the disk is full: free some space" };
const BROKEN: Trouble = Trouble {
    begin: |disk| disk.limit_files(Some(1)).unwrap(),
    end: |disk| disk.limit_files(None).unwrap(),
    says: "the disk reports an error",
};

/// A transaction as an application makes it.
async fn own(store: &SqliteStore, aggregate: &str) -> shardwise_outbox::Result<()> {
    let mut tx = store.begin().await?;
    sqlite::enqueue(&mut tx, event(aggregate)).await?;
    store.commit(tx).await
}

/// The application's transactions fail during the fault, with its cause in the message, and succeed after it.
async fn fails_and_goes_on(disk: SmallDisk, Trouble { begin, end, says }: Trouble) {
    let outbox = Outbox::new().await;
    let store = outbox.store().await;
    own(&store, "before").await.unwrap();
    begin(&disk);
    for round in 0..3 {
        // In the middle of the transaction, or at its commit.
        for events in [heavy(), vec![event("meanwhile")]] {
            let error = store.enqueue_all(events).await.unwrap_err();
            assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains(says), "{round}: {error}");
        }
        let error = own(&store, "meanwhile").await.unwrap_err();
        assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains(says), "{round}: {error}");
        assert_eq!(store.status().await.unwrap().pending, 1, "reading goes on");
    }
    end(&disk);
    own(&store, "after").await.unwrap();
    store.enqueue_all(vec![event("after")]).await.unwrap();
    assert_eq!(store.status().await.unwrap().pending, 3, "what failed is not there");
}

#[test]
fn transactions_of_the_application_go_on_after_a_full_disk() {
    let test = "transactions_of_the_application_go_on_after_a_full_disk";
    let Some(disk) = SmallDisk::of_test(test, DISK).unwrap() else { return };
    run(fails_and_goes_on(disk, FULL));
}

#[test]
fn transactions_of_the_application_go_on_after_errors_of_the_disk() {
    let test = "transactions_of_the_application_go_on_after_errors_of_the_disk";
    let Some(disk) = SmallDisk::of_test(test, DISK).unwrap() else { return };
    run(fails_and_goes_on(disk, BROKEN));
}

/// A publisher that cannot mark what it has sent reports it, and afterwards sends nothing twice.
async fn a_publisher_goes_on(disk: SmallDisk, Trouble { begin, end, says }: Trouble) {
    let outbox = Outbox::new().await;
    let (store, disk, begun) = (outbox.store().await, Arc::new(disk), AtomicBool::new(false));
    let script = Arc::clone(&disk);
    let sink = ScriptedSink::new(move |_| {
        // Between the sending of an event and its mark.
        if !begun.swap(true, Ordering::SeqCst) {
            begin(&script);
        }
        ScriptedReply::Accept
    });
    // Without retention each mark is a transaction.
    let (poll, retention) = (Duration::from_millis(100), Duration::ZERO);
    let options = PublisherOptions { backoff: Duration::from_millis(10), poll, retention, ..PublisherOptions::default() };
    let publisher = OutboxPublisher::new(Arc::new(store.clone()), Arc::new(sink.clone()), Arc::new(TestSharding::full("one"))).unwrap();
    let running = Running::start(publisher.options(options).unwrap());
    store.enqueue_all(vec![event("a")]).await.unwrap();
    let failing = async || running.stats.snapshot().last_error.is_some_and(|error| error.contains(says));
    eventually("it says what is wrong", LIMIT, failing).await;
    end(&disk);
    eventually("nothing is pending", LIMIT, async || store.status().await.unwrap().pending == 0).await;
    let sent = sink.arrived().len();
    for n in 2..=20 {
        store.enqueue_all(vec![event("a")]).await.unwrap();
        eventually("it is delivered", LIMIT, async || store.status().await.unwrap().pending == 0).await;
        let arrived = sink.arrived().split_off(sent);
        assert_eq!(arrived.iter().map(|event| event.sequence).collect::<Vec<_>>(), (2..=n).collect::<Vec<_>>(), "each once");
    }
    running.stop().await;
}

#[test]
fn a_publisher_goes_on_after_a_full_disk() {
    let Some(disk) = SmallDisk::of_test("a_publisher_goes_on_after_a_full_disk", DISK).unwrap() else { return };
    run(a_publisher_goes_on(disk, FULL));
}

#[test]
fn a_publisher_goes_on_after_errors_of_the_disk() {
    let Some(disk) = SmallDisk::of_test("a_publisher_goes_on_after_errors_of_the_disk", DISK).unwrap() else { return };
    run(a_publisher_goes_on(disk, BROKEN));
}
