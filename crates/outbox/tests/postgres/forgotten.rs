//! An aggregate whose events are all delivered has no row: what follows for its events that are kept, its writers and parked events.

use std::time::Duration;

use shardwise_outbox::exercise::StoreHarness as _;
use shardwise_outbox::store::{DeadLetters as _, REPLAY_EVENTS_MAX, Signature};
use shardwise_outbox::{Store as _, postgres};
use sqlx::Executor as _;

use crate::common::{Outbox, insert};
use crate::publishing::delivered;
use crate::shared::events;
use crate::strikes::{holder, number, read};

const AGGREGATES: &str = "SELECT count(*) FROM outbox_aggregate";
const SOON: Duration = Duration::from_nanos(1);

/// Delivers everything, in one recording.
async fn deliver(outbox: &Outbox) {
    let (store, me) = holder(outbox).await;
    let outcomes = read(&store, &me).await;
    assert_eq!(store.record(&me, &outcomes, false).await.unwrap(), []);
    store.leave(&me).await.unwrap();
    store.close().await;
}

async fn migrate(outbox: &Outbox, sql: &str) {
    outbox.execute(&format!("BEGIN; {sql}; COMMIT")).await;
}

/// As logical replication brings them.
#[tokio::test]
async fn nothing_is_deleted_where_rows_came_without_their_aggregates() {
    let outbox = Outbox::new().await;
    outbox.insert(events("a", 1..=2)).await;
    deliver(&outbox).await;
    assert_eq!(number(&outbox, AGGREGATES).await, 0);
    let store = outbox.store().await;
    outbox.execute("SELECT setval('outbox_floor', last_value, false) FROM outbox_floor").await;
    for retention in [SOON, Duration::ZERO] {
        assert_eq!(store.sweep(retention, 0, 10).await.unwrap().deleted, 0);
    }
    outbox.execute("SELECT setval('outbox_floor', last_value) FROM outbox_floor").await;
    assert_eq!(store.sweep(SOON, 0, 1).await.unwrap().deleted, 1);
    assert_eq!(store.sweep(Duration::ZERO, 0, 10).await.unwrap().deleted, 1);
}

#[tokio::test]
async fn a_writer_with_an_older_snapshot_is_to_try_again() {
    let outbox = Outbox::new().await;
    outbox.insert(events("a", 1..=1)).await;
    let mut writer = outbox.connection().await;
    writer.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM outbox_aggregate").await.unwrap();
    deliver(&outbox).await;
    let error = insert(&mut writer, events("a", 2..=2).remove(0)).await.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("40001"), "{error}");
    writer.execute("ROLLBACK; BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    insert(&mut writer, events("a", 2..=2).remove(0)).await.unwrap();
    writer.execute("COMMIT").await.unwrap();
    assert!(
        number(&outbox, "SELECT seq FROM outbox WHERE id = 'a-2'").await > number(&outbox, "SELECT seq FROM outbox WHERE id = 'a-1'").await
    );
    let arrived: Vec<_> = delivered(&outbox).await.into_iter().map(|event| event.id).collect();
    assert_eq!(arrived, ["a-2"]);
}

#[tokio::test]
async fn on_the_way_down_kept_events_get_rows_by_which_they_are_deleted() {
    let outbox = Outbox::new().await;
    outbox.insert(events("a", 1..=2)).await;
    deliver(&outbox).await;
    outbox.insert(events("a", 3..=3)).await;
    let [.., forget, new_first] = &postgres::MIGRATIONS[..] else { panic!("schemas 7 and 8") };
    migrate(&outbox, new_first.down).await;
    migrate(&outbox, forget.down).await;
    // What a publisher of schema 6 deletes by.
    let old = "SELECT count(*) FROM outbox AS o JOIN outbox_aggregate AS a ON a.id = o.aggregate AND o.seq <= a.drained_seq";
    assert_eq!((number(&outbox, AGGREGATES).await, number(&outbox, old).await), (2, 2));
    let store = outbox.store().await;
    assert_eq!(store.sweep(SOON, 0, 10).await.unwrap().deleted, 2);
    assert_eq!(store.clean(SOON, 10).await.unwrap().forgotten, 1);
    migrate(&outbox, forget.up).await;
    migrate(&outbox, new_first.up).await;
    let arrived: Vec<_> = delivered(&outbox).await.into_iter().map(|event| event.id).collect();
    assert_eq!(arrived, ["a-3"]);
}

/// Publishers of schema 6 left some without a publishers' row.
#[tokio::test]
async fn what_was_parked_before_the_upgrade_is_sent_again_with_all_that_came_behind_it() {
    let outbox = Outbox::new().await;
    let [.., forget, new_first] = &postgres::MIGRATIONS[..] else { panic!("schemas 7 and 8") };
    migrate(&outbox, new_first.down).await;
    migrate(&outbox, forget.down).await;
    outbox.insert(events("a", 1..=2)).await;
    outbox.execute("UPDATE outbox SET parked_at = now(), parked_error = 'no' WHERE id = 'a-1'").await;
    outbox.execute("UPDATE outbox_aggregate SET last_seq = 2, drained_seq = 2").await;
    migrate(&outbox, forget.up).await;
    migrate(&outbox, new_first.up).await;
    outbox.insert(events("a", 3..=3)).await;
    deliver(&outbox).await;
    assert_eq!(number(&outbox, AGGREGATES).await, 1, "it is kept");
    let store = outbox.store().await;
    let by = Signature::new("me", "again").unwrap();
    let sent = store.replay_aggregate("order/a", None, REPLAY_EVENTS_MAX, &by).await.unwrap().unwrap();
    assert_eq!(sent.events, 3);
    let arrived: Vec<_> = delivered(&outbox).await.into_iter().map(|event| event.id).collect();
    assert_eq!(arrived, ["a-1", "a-2", "a-3"]);
}
