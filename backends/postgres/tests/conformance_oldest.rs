//! The public conformance suites over the oldest supported version of PostgreSQL.

mod common;

use std::sync::Arc;

use async_trait::async_trait;
use common::{prepared, scope_of, waited_for};
use shardwise_discovery::conformance::{Fixture, Scope};
use shardwise_testkit::{Database, Postgres, PostgresOptions};
use tokio::sync::OnceCell;

struct OldestServer;

async fn oldest() -> Arc<Postgres> {
    Postgres::start(PostgresOptions::default().oldest().durable()).await.unwrap_or_else(|error| unreachable!("{error}"))
}

#[async_trait]
impl Fixture for OldestServer {
    async fn scope(&self) -> Scope {
        static DATABASE: OnceCell<Database> = OnceCell::const_new();
        let database = waited_for(DATABASE.get_or_init(async || prepared(&oldest().await).await));
        scope_of(&database.url())
    }
}

shardwise_discovery::conformance_tests!(OldestServer);
shardwise_discovery::claims_conformance_tests!(OldestServer);
shardwise_discovery::notes_conformance_tests!(OldestServer);
