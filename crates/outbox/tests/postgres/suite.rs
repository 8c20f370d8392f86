//! The suite that every store passes.

use shardwise_outbox::exercise;
use shardwise_testkit::{Postgres, PostgresOptions};

use crate::common::Outbox;

#[tokio::test]
async fn the_newest_postgres_is_a_store() {
    let database = Postgres::shared().await.unwrap().database().await.unwrap();
    exercise::store(|| Outbox::stopped(&database)).await;
}

#[tokio::test]
async fn the_oldest_postgres_is_a_store() {
    let server = Postgres::start(PostgresOptions::default().oldest()).await.unwrap();
    let database = server.database().await.unwrap();
    exercise::store(|| Outbox::stopped(&database)).await;
}
