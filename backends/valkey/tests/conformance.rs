//! The public conformance suites over two backends of one real Valkey, in real time. All cases share a server, each with a separate group.

mod common;

use async_trait::async_trait;
use common::{scope_of, valkey, waited_for};
use shardwise_discovery::conformance::{Fixture, Scope};
use shardwise_testkit::Redis;
use tokio::sync::OnceCell;

struct OneServer;

#[async_trait]
impl Fixture for OneServer {
    async fn scope(&self) -> Scope {
        static SERVER: OnceCell<Redis> = OnceCell::const_new();
        scope_of(&waited_for(SERVER.get_or_init(valkey)).address())
    }
}

shardwise_discovery::conformance_tests!(OneServer);
shardwise_discovery::notes_conformance_tests!(OneServer);
