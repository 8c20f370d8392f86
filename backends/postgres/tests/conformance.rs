//! The public conformance suites over two backends of one real PostgreSQL, in real time. All cases share a server and its tables, each with
//! a separate group.

mod common;

use async_trait::async_trait;
use common::{prepared, scope_of, shared, waited_for};
use shardwise_discovery::conformance::{Fixture, Scope};
use shardwise_testkit::Database;
use tokio::sync::OnceCell;

static DATABASE: OnceCell<Database> = OnceCell::const_new();

struct OneServer;

#[async_trait]
impl Fixture for OneServer {
    async fn scope(&self) -> Scope {
        let database = waited_for(DATABASE.get_or_init(async || prepared(&shared().await).await));
        scope_of(&database.url())
    }
}

shardwise_discovery::conformance_tests!(OneServer);
shardwise_discovery::claims_conformance_tests!(OneServer);
shardwise_discovery::notes_conformance_tests!(OneServer);
