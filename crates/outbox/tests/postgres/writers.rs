//! Concurrent writers: which one waits, and which one is refused.

use std::time::Duration;

use shardwise_outbox::exercise::StoreHarness;
use shardwise_outbox::{ErrorKind, NewEvent, Store, postgres};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use crate::common::{LISTED, Outbox, insert};
use crate::shared::{events, eventually, within};

const LIMIT: Duration = Duration::from_mins(3);

fn event(id: &str) -> NewEvent {
    NewEvent::new("order", id, "OrderChanged", "{}")
}

pub(crate) fn code(error: &sqlx::Error) -> String {
    error.as_database_error().and_then(|error| error.code().map(std::borrow::Cow::into_owned)).unwrap()
}

pub(crate) async fn waits(outbox: &Outbox, count: usize) {
    let sql = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    eventually("a writer waits", LIMIT, async || outbox.execute(sql).await.len() == count).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_wait_for_those_of_the_same_aggregate_only() {
    let outbox = Outbox::new().await;
    let (mut one, mut two, mut three) = (outbox.connection().await, outbox.connection().await, outbox.connection().await);
    let mut first = one.begin().await.unwrap();
    insert(&mut first, event("a").with_id("first")).await.unwrap();
    within("another aggregate", LIMIT, insert(&mut two, event("b"))).await.unwrap();
    let second = tokio::spawn(async move { insert(&mut three, event("a").with_id("second")).await });
    waits(&outbox, 1).await;
    first.commit().await.unwrap();
    within("the second comes", LIMIT, second).await.unwrap().unwrap();
    let order = outbox.execute("SELECT id FROM outbox WHERE aggregateid = 'a' ORDER BY seq").await;
    assert_eq!(order, [["first"], ["second"]].map(|row| row.map(|text| Some(text.to_owned()))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_aggregates_in_one_order_never_meet_a_deadlock_and_in_another_one_is_reported() {
    let outbox = Outbox::new().await;
    let (mut one, mut two) = (outbox.connection().await, outbox.connection().await);
    let mut first = one.begin().await.unwrap();
    insert(&mut first, event("a")).await.unwrap();
    let second = tokio::spawn(async move {
        let mut tx = two.begin().await.unwrap();
        insert(&mut tx, event("b")).await.unwrap();
        let done = insert(&mut tx, event("a")).await;
        if done.is_ok() { tx.commit().await } else { done }
    });
    waits(&outbox, 1).await;
    let done = insert(&mut first, event("b")).await;
    let done = if done.is_ok() { first.commit().await } else { done };
    let results = [done, within("the other one", LIMIT, second).await.unwrap()];
    let codes: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).map(code).collect();
    assert_eq!(codes, ["40P01"], "one of them goes through");
    // In sorted order the second transaction waits, and both succeed.
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let mut conn = outbox.connection().await;
        writers.spawn(async move {
            for _ in 0..10 {
                let mut tx = conn.begin().await.unwrap();
                for id in ["a", "b", "c"] {
                    insert(&mut tx, event(id)).await.unwrap();
                }
                tx.commit().await.unwrap();
            }
        });
    }
    while let Some(done) = within("a sorted writer", LIMIT, writers.join_next()).await {
        done.unwrap();
    }
}

/// Begins a transaction whose snapshot is that of this moment.
pub(crate) async fn begin_at(conn: &mut PgConnection, level: &'static str) {
    conn.execute(AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"))).await.unwrap();
    conn.execute("SELECT 1 FROM outbox_meta").await.unwrap();
}

/// Above READ COMMITTED a writer may come behind others: its number is drawn, and not read from its snapshot. It is refused if publishers
/// have removed the aggregate from the list since, because its event would be on no list, and if the aggregate is newer than its snapshot.
#[tokio::test]
async fn a_repeatable_read_that_comes_second_gets_its_number_or_is_refused_and_loses_nothing() {
    comes_second("REPEATABLE READ").await;
}

/// Beside writers under READ COMMITTED the strictest level sees no more than that.
#[tokio::test]
async fn a_serializable_transaction_that_comes_second_gets_its_number_or_is_refused_and_loses_nothing() {
    comes_second("SERIALIZABLE").await;
}

async fn comes_second(level: &'static str) {
    let outbox = Outbox::new().await;
    outbox.insert(events("a", 1..=1)).await;
    let (mut old, mut other) = (outbox.connection().await, outbox.connection().await);
    begin_at(&mut old, level).await;
    insert(&mut other, event("a").with_id("other")).await.unwrap();
    postgres::enqueue(&mut old, event("a").with_id("old")).await.unwrap();
    old.execute("COMMIT").await.unwrap();
    let order = outbox.execute("SELECT id FROM outbox ORDER BY seq").await;
    assert_eq!(order, [["a-1"], ["other"], ["old"]].map(|row| row.map(|text| Some(text.to_owned()))));
    begin_at(&mut old, level).await;
    assert_eq!(crate::publishing::delivered(&outbox).await.len(), 3);
    assert_eq!(outbox.execute(LISTED).await.len(), 0, "struck off");
    let refused = postgres::enqueue(&mut old, event("a")).await.unwrap_err();
    assert!(refused.kind() == ErrorKind::Unavailable && refused.is_retryable(), "{refused}");
    old.execute("ROLLBACK").await.unwrap();
    begin_at(&mut old, level).await;
    insert(&mut other, event("new")).await.unwrap();
    assert_eq!(code(&insert(&mut old, event("new")).await.unwrap_err()), "40001");
    old.execute("ROLLBACK").await.unwrap();
    begin_at(&mut old, level).await;
    for id in ["a", "new"] {
        insert(&mut old, event(id)).await.unwrap();
    }
    old.execute("COMMIT").await.unwrap();
    assert_eq!(outbox.store().await.status().await.unwrap().pending, 3);
    assert_eq!(crate::publishing::delivered(&outbox).await.len(), 3);
}
