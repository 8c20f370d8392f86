//! The public conformance suite over two backends of one real etcd, in real time. All cases share the server, each with a separate group,
//! but for those that compare revisions: a revision of etcd counts the changes of all groups.

#![expect(clippy::expect_used, reason = "tests")]

mod common;

use async_trait::async_trait;
use common::{backend, scope_of, waited_for};
use shardwise_backend_etcd::TTL_MIN;
use shardwise_discovery::conformance::{Fixture, Scope};
use shardwise_testkit::Etcd;
use tokio::sync::OnceCell;

struct OneServer;

#[async_trait]
impl Fixture for OneServer {
    async fn scope(&self) -> Scope {
        static SHARED: OnceCell<Etcd> = OnceCell::const_new();
        let server = waited_for(SHARED.get_or_try_init(Etcd::single)).expect("an etcd server");
        let backend = || backend(&[server.address()]);
        scope_of((backend(), backend()), TTL_MIN)
    }

    async fn quiet_scope(&self) -> Scope {
        let server = waited_for(Etcd::single()).expect("an etcd server");
        let backend = || backend(&[server.address()]);
        let scope = scope_of((backend(), backend()), TTL_MIN);
        Scope { guard: Box::new(server), ..scope }
    }
}

shardwise_discovery::conformance_tests!(OneServer);
