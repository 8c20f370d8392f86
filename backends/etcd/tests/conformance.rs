//! The public conformance suite over two backends of one real etcd, in real time. Each case has a separate server, so that revisions
//! move only with the case.

#![expect(clippy::expect_used, reason = "tests")]

use std::sync::Arc;

use async_trait::async_trait;
use shardwise_backend_etcd::{EtcdBackend, EtcdConfig, TTL_LEAST};
use shardwise_core::GroupName;
use shardwise_discovery::Clock;
use shardwise_discovery::conformance::{Fixture, Scope};
use shardwise_testkit::Etcd;
use tokio::runtime::Handle;
use tokio::task::block_in_place;

struct OwnServer;

#[async_trait]
impl Fixture for OwnServer {
    async fn scope(&self) -> Scope {
        // Waiting for it is no future that may change threads.
        let server = block_in_place(|| Handle::current().block_on(Etcd::single())).expect("an etcd server");
        let open = || {
            let config = EtcdConfig { endpoints: vec![server.address()], ..EtcdConfig::default() };
            Arc::new(EtcdBackend::open(&config, Clock::system()).expect("valid settings"))
        };
        Scope {
            backend: open(),
            peer: open(),
            group: GroupName::new("conformance").expect("a valid name"),
            ttl: TTL_LEAST,
            clock: Clock::system(),
            guard: Box::new(server),
        }
    }
}

shardwise_discovery::conformance_tests!(OwnServer);
