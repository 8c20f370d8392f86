//! The public conformance suites over the oldest supported Redis.

mod common;

use async_trait::async_trait;
use common::{scope_of, waited_for};
use shardwise_discovery::conformance::{Fixture, Scope};
use shardwise_testkit::{Redis, RedisOptions};
use tokio::sync::OnceCell;

struct OldestServer;

async fn oldest() -> Redis {
    Redis::start(RedisOptions::default()).await.unwrap_or_else(|error| unreachable!("{error}"))
}

#[async_trait]
impl Fixture for OldestServer {
    async fn scope(&self) -> Scope {
        static SERVER: OnceCell<Redis> = OnceCell::const_new();
        scope_of(&waited_for(SERVER.get_or_init(oldest)).address())
    }
}

shardwise_discovery::conformance_tests!(OldestServer);
shardwise_discovery::notes_conformance_tests!(OldestServer);
