//! A restored copy: the SQL of `operations.md` raises the numbers that consumers compare. The statements come from the document.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Outbox, Running, SLOTS, TestSharding, events, eventually};
use shardwise_outbox::exercise::ScriptedSink;
use shardwise_outbox::{Delivery, NewEvent, OutboxPublisher, PublisherOptions, Store};

const DOCUMENT: &str = include_str!("../../operations.md");
const LIMIT: Duration = Duration::from_mins(3);

/// The document's first SQL blocks: raising numbers with the replaced file; raising the epochs, and a key, by numbers.
fn sql_of_the_document() -> [&'static str; 4] {
    let blocks: Vec<_> = DOCUMENT.split("```sql\n").skip(1).take(4).map(|rest| rest.split_once("```").unwrap().0).collect();
    blocks.try_into().unwrap_or_else(|blocks| panic!("four blocks of SQL were there: {blocks:?}"))
}

/// Puts `new` where the document has `old`.
fn with(sql: &str, old: &str, new: &str) -> String {
    assert_eq!(sql.matches(old).count(), 1, "the document has {old} once: {sql}");
    sql.replace(old, new)
}

async fn execute(outbox: &Outbox, sql: String) {
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut outbox.connection().await).await.unwrap();
}

/// Delivers the pending events; returns those that arrived.
async fn published(outbox: &Outbox) -> Vec<Delivery> {
    let (sink, store) = (ScriptedSink::accepting(), outbox.store().await);
    let options = PublisherOptions { poll: Duration::from_millis(200), ..PublisherOptions::default() };
    let publisher = OutboxPublisher::new(Arc::new(store.clone()), Arc::new(sink.clone()), Arc::new(TestSharding::full("one"))).unwrap();
    let running = Running::start(publisher.options(options).unwrap());
    eventually("it holds all slots", LIMIT, async || running.stats.snapshot().held_slots == SLOTS).await;
    eventually("nothing is pending", LIMIT, async || store.status().await.unwrap().pending == 0).await;
    running.stop().await;
    store.close().await;
    sink.arrived()
}

/// The numbers that a consumer keeps to drop older events.
#[derive(Default)]
struct Consumer {
    epoch: u64,
    sequences: BTreeMap<String, u64>,
}

impl Consumer {
    fn reads(&mut self, events: &[Delivery]) {
        for event in events {
            self.epoch = self.epoch.max(event.epoch);
            let sequence = self.sequences.entry(event.key()).or_default();
            *sequence = event.sequence.max(*sequence);
        }
    }

    fn would_take(&self, event: &Delivery) -> bool {
        event.epoch > self.epoch && self.sequences.get(&event.key()).is_none_or(|seen| event.sequence > *seen)
    }
}

/// An outbox and its consumer; then the outbox's file is replaced by an older copy, from after a publisher's first start or from before
/// it.
async fn restored(from_before_the_first_publisher: bool) -> (Outbox, Consumer) {
    let (outbox, mut consumer) = (Outbox::new().await, Consumer::default());
    let copy = outbox.dir.path().join("copy.db");
    let copied = async || execute(&outbox, format!("VACUUM INTO '{}'", copy.display())).await;
    outbox.insert_plainly([events("old", 1..=3), events("waits", 1..=1)].concat()).await;
    if from_before_the_first_publisher {
        copied().await;
    }
    consumer.reads(&published(&outbox).await);
    outbox.insert_plainly(events("waits", 2..=2)).await;
    if !from_before_the_first_publisher {
        copied().await;
    }
    for round in 0..3 {
        outbox.insert_plainly([events("old", [4 + round]), events("new", [1 + round])].concat()).await;
        consumer.reads(&published(&outbox).await);
    }
    std::fs::create_dir(outbox.dir.path().join("replaced")).unwrap();
    std::fs::rename(outbox.path(), outbox.dir.path().join("replaced/app.db")).unwrap();
    for beside in ["app.db-wal", "app.db-shm"] {
        let _ = std::fs::rename(outbox.dir.path().join(beside), outbox.dir.path().join("replaced").join(beside));
    }
    std::fs::rename(copy, outbox.path()).unwrap();
    (outbox, consumer)
}

/// Writes one event for each aggregate and delivers them; returns how many the consumer accepts.
async fn taken_of_three(outbox: &Outbox, consumer: &Consumer) -> usize {
    let event = |aggregate: &str| NewEvent::new("order", aggregate, "OrderChanged", "{}").with_id(format!("{aggregate}-after"));
    outbox.insert_plainly(["old", "new", "waits"].map(event).into()).await;
    let arrived = published(outbox).await;
    let after: Vec<_> = arrived.iter().filter(|event| event.id.ends_with("-after")).collect();
    assert_eq!(after.len(), 3, "{arrived:?}");
    assert!(arrived.iter().any(|event| event.id == "waits-1" || event.id == "waits-2"), "what waits in the copy comes again");
    after.into_iter().filter(|event| consumer.would_take(event)).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_copy_without_the_documents_sql_is_taken_for_the_past() {
    for early in [false, true] {
        let (outbox, consumer) = restored(early).await;
        assert_eq!(taken_of_three(&outbox, &consumer).await, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_replaced_file_lifts_a_restored_copy() {
    for early in [false, true] {
        let (outbox, consumer) = restored(early).await;
        let replaced = outbox.dir.path().join("replaced/app.db");
        execute(&outbox, with(sql_of_the_document()[0], "replaced/app.db", &replaced.display().to_string())).await;
        assert_eq!(taken_of_three(&outbox, &consumer).await, 3);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_consumers_know_lifts_a_restored_copy() {
    for early in [false, true] {
        let (outbox, consumer) = restored(early).await;
        execute(&outbox, with(sql_of_the_document()[1], "1000000", &consumer.epoch.to_string())).await;
        let highest = consumer.sequences.values().max().unwrap().to_string();
        execute(&outbox, with(sql_of_the_document()[2], "1000)", &format!("{highest})"))).await;
        for (key, sequence) in &consumer.sequences {
            execute(&outbox, with(sql_of_the_document()[3], "('order/42', 17, 17)", &format!("('{key}', {sequence}, {sequence})"))).await;
        }
        assert_eq!(taken_of_three(&outbox, &consumer).await, 3);
    }
}

/// The document offers this for the case that no number is known; the statement must accept it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_lifts_the_epochs_where_the_highest_is_unknown() {
    assert!(DOCUMENT.contains("`unixepoch()` will do"));
    let (outbox, consumer) = restored(false).await;
    execute(&outbox, with(sql_of_the_document()[1], "1000000", "unixepoch()")).await;
    outbox.insert_plainly(events("other", 1..=1)).await;
    let arrived = published(&outbox).await;
    assert!(arrived.iter().all(|event| event.epoch > consumer.epoch.max(1_700_000_000)), "{arrived:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_call_lifts_a_restored_copy() {
    for early in [false, true] {
        let (outbox, consumer) = restored(early).await;
        let (highest, store) = (*consumer.sequences.values().max().unwrap(), outbox.store().await);
        let lifted = store.restored(consumer.epoch, highest).await.unwrap();
        assert!(lifted.epoch > consumer.epoch && lifted.aggregates == 2, "{lifted:?}");
        assert_eq!(lifted.publishers, 0);
        assert_eq!(lifted.waiting, if early { 4 } else { 1 }, "what waits in the copy keeps its sequences");
        let again = store.restored(consumer.epoch, highest).await.unwrap();
        assert!(again.epoch > lifted.epoch && again.aggregates == 0, "{again:?}");
        store.close().await;
        assert_eq!(taken_of_three(&outbox, &consumer).await, 3);
    }
}

#[tokio::test]
async fn numbers_without_room_above_them_are_refused() {
    let outbox = Outbox::new().await;
    let store = outbox.store().await;
    for (epoch, sequence) in [(u64::MAX, 0), (0, 1 << 53)] {
        assert_eq!(store.restored(epoch, sequence).await.unwrap_err().kind(), shardwise_outbox::ErrorKind::Settings);
    }
}
