//! The public conformance suite of claims over two backends of real servers, in real time: one server for each case, and three members with
//! passwords for all of them.

#![expect(clippy::expect_used, reason = "tests")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use common::{config, open, with_user};
use shardwise_backend_etcd::{EtcdConfig, TTL_LEAST};
use shardwise_core::GroupName;
use shardwise_discovery::Clock;
use shardwise_discovery::conformance::{Fixture, Scope};
use shardwise_testkit::{Etcd, EtcdCluster, EtcdOptions, KeyAccess, SharedServer};
use tokio::runtime::Handle;
use tokio::task::block_in_place;

fn scope(here: &EtcdConfig, there: &EtcdConfig, group: &str, ttl: Duration, guard: impl Send + Sync + 'static) -> Scope {
    let group = GroupName::new(group).expect("a valid name");
    Scope { backend: open(here), peer: open(there), group, ttl, clock: Clock::system(), guard: Box::new(guard) }
}

/// Waits for a server: that is no future that may change threads.
fn now<T>(starting: impl Future<Output = T>) -> T {
    block_in_place(|| Handle::current().block_on(starting))
}

mod one_server {
    use super::*;

    struct OwnServer;

    #[async_trait]
    impl Fixture for OwnServer {
        async fn scope(&self) -> Scope {
            let server = now(Etcd::single()).expect("an etcd server");
            let config = config(&[server.address()]);
            scope(&config, &config, "conformance", TTL_LEAST, server)
        }
    }

    shardwise_discovery::claims_conformance_tests!(OwnServer);
}

/// The two connections are to different members, and none may do more than it has to.
mod three_servers_with_passwords {
    use super::*;

    static SHARED: SharedServer<EtcdCluster> = SharedServer::new();
    static GROUPS: AtomicU64 = AtomicU64::new(0);

    async fn shared() -> Arc<EtcdCluster> {
        let start = async || {
            let cluster = EtcdCluster::start(3, EtcdOptions::default().with_auth()).await?;
            cluster.members()[0].add_user("worker", "right", &[(KeyAccess::ReadWrite, "/shardwise/")]).await?;
            Ok(Arc::new(cluster))
        };
        SHARED.get(start).await.expect("three etcd servers")
    }

    struct OneCluster;

    #[async_trait]
    impl Fixture for OneCluster {
        async fn scope(&self) -> Scope {
            let cluster = now(shared());
            let mut addresses = cluster.addresses();
            let here = with_user(&addresses, "worker", "right");
            addresses.rotate_left(1);
            let there = with_user(&addresses, "worker", "right");
            let group = format!("conformance {}", GROUPS.fetch_add(1, Ordering::Relaxed));
            scope(&here, &there, &group, TTL_LEAST, cluster)
        }
    }

    shardwise_discovery::claims_conformance_tests!(OneCluster);
}
