//! The public conformance suites over two backends of one real NATS server, in real time. All cases share a server and its bucket, each
//! with a separate group.

mod common;

use std::sync::Arc;

use async_trait::async_trait;
use common::{durable, scope_of, waited_for};
use shardwise_discovery::conformance::{Fixture, Scope};
use shardwise_testkit::Nats;
use tokio::sync::OnceCell;

static SERVER: OnceCell<Arc<Nats>> = OnceCell::const_new();

struct OneServer;

#[async_trait]
impl Fixture for OneServer {
    async fn scope(&self) -> Scope {
        scope_of(&waited_for(SERVER.get_or_init(durable)).address())
    }
}

shardwise_discovery::conformance_tests!(OneServer);
shardwise_discovery::claims_conformance_tests!(OneServer);
shardwise_discovery::notes_conformance_tests!(OneServer);
