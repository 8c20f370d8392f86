//! Notifications of commits.

use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};
use shardwise_outbox::exercise::StoreHarness as _;
use shardwise_outbox::{PostgresStore, Store as _};
use sqlx::Connection as _;

use crate::common::{Outbox, insert};
use crate::shared::{events, within};

const LIMIT: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_is_reported_and_nothing_else_and_only_if_it_is_switched_on() {
    let outbox = Outbox::new().await;
    let notify = async || outbox.execute("SELECT notify FROM outbox_meta").await[0][0].clone();
    assert_eq!(notify().await.as_deref(), Some("f"), "off unless set");
    assert!(outbox.store().await.wakes().next().now_or_never().is_none());
    let store = PostgresStore::open(outbox.config().listen(true)).await.unwrap();
    assert_eq!(notify().await.as_deref(), Some("t"), "a publisher that listens switches it on");
    let mut wakes = store.wakes();
    within("it listens", LIMIT, wakes.next()).await.unwrap().unwrap();
    let mut conn = outbox.connection().await;
    let mut tx = conn.begin().await.unwrap();
    insert(&mut tx, events("a", 1..=1).remove(0)).await.unwrap();
    tx.rollback().await.unwrap();
    assert!(wakes.next().now_or_never().is_none(), "a rollback is not told");
    outbox.insert(events("a", 1..=3)).await;
    within("the commit is reported", LIMIT, wakes.next()).await.unwrap().unwrap();
    assert!(wakes.next().now_or_never().is_none(), "once for a transaction");
    // The listening connection is closed: it is reopened, and missed commits are looked for.
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'";
    assert_eq!(outbox.execute(end).await.len(), 1);
    within("the end is noticed", LIMIT, async { while wakes.next().await.unwrap().is_err() {} }).await;
    outbox.insert(events("b", 1..=1)).await;
    within("it listens again", LIMIT, async { while wakes.next().await.unwrap().is_err() {} }).await;
    PostgresStore::init(outbox.config()).await.unwrap().close().await;
    assert_eq!(notify().await.as_deref(), Some("f"), "init without it switches it off");
}
