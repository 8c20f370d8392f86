//! The public conformance suite over two backends of one real agent, as two processes would have them, in real time.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use shardwise_core::GroupName;
use shardwise_discovery::Clock;
use shardwise_discovery::conformance::{Fixture, Scope};
use shardwise_testkit::Consul;
use tokio::runtime::Handle;

/// A server for each case: a service's id can be there only once per agent, and the cases run in parallel with the same ids.
struct Single;

#[async_trait]
impl Fixture for Single {
    async fn scope(&self) -> Scope {
        // In place, since the compiler cannot see that this future may move between threads.
        let consul = tokio::task::block_in_place(|| Handle::current().block_on(Consul::single())).unwrap();
        Scope {
            backend: Arc::new(common::open(&consul.address())),
            peer: Arc::new(common::open(&consul.address())),
            group: GroupName::new("conformance").unwrap(),
            ttl: Duration::from_secs(1),
            clock: Clock::system(),
            guard: Box::new(consul),
        }
    }
}

shardwise_discovery::conformance_tests!(Single);
