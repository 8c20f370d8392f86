//! The public conformance suite of claims over two backends of real servers, in real time: one server, and three members with passwords.
//! Each case has a separate group.

#![expect(clippy::expect_used, reason = "tests")]

mod common;

use async_trait::async_trait;
use common::{backend, members_with_passwords, scope_of, waited_for};
use shardwise_backend_etcd::TTL_MIN;
use shardwise_discovery::conformance::{Fixture, Scope};
use shardwise_testkit::Etcd;
use tokio::sync::OnceCell;

mod one_server {
    use super::*;

    static SHARED: OnceCell<Etcd> = OnceCell::const_new();

    struct OneServer;

    #[async_trait]
    impl Fixture for OneServer {
        async fn scope(&self) -> Scope {
            let server = waited_for(SHARED.get_or_try_init(Etcd::single)).expect("an etcd server");
            let backend = || backend(&[server.address()]);
            scope_of((backend(), backend()), TTL_MIN)
        }
    }

    shardwise_discovery::claims_conformance_tests!(OneServer);
}

/// The two connections are to different members, and none may do more than it has to.
mod three_servers_with_passwords {
    use super::*;

    struct OneCluster;

    #[async_trait]
    impl Fixture for OneCluster {
        async fn scope(&self) -> Scope {
            scope_of(waited_for(members_with_passwords()), TTL_MIN)
        }
    }

    shardwise_discovery::claims_conformance_tests!(OneCluster);
}
