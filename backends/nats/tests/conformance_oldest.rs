//! The public conformance suites over the oldest supported version of NATS, which has no exclusive ownership.

mod common;

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use common::{assert_message, backend, group, scope_of, waited_for};
use shardwise_discovery::conformance::{Fixture, Scope};
use shardwise_discovery::{Claims, ErrorKind};
use shardwise_testkit::{Nats, NatsOptions};
use tokio::sync::OnceCell;

static SERVER: OnceCell<Arc<Nats>> = OnceCell::const_new();

struct OldestServer;

async fn oldest() -> Arc<Nats> {
    Arc::new(Nats::start(NatsOptions::default()).await.unwrap_or_else(|error| unreachable!("{error}")))
}

#[async_trait]
impl Fixture for OldestServer {
    async fn scope(&self) -> Scope {
        scope_of(&waited_for(SERVER.get_or_init(oldest)).address())
    }
}

shardwise_discovery::conformance_tests!(OldestServer);
shardwise_discovery::notes_conformance_tests!(OldestServer);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_server_has_no_exclusive_ownership() {
    let url = waited_for(SERVER.get_or_init(oldest)).address();
    let begun = Instant::now();
    let error = backend(&url, "conformance").claim_store(&group(), 0).await.unwrap_err();
    assert_message(&error, &ErrorKind::Misconfigured, begun, &["2.12.3 or newer, and this one has 2.10.", "eventual"]);
}
