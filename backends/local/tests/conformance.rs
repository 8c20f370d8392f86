//! The public conformance suites over two backends of one file, in real time.

#![expect(clippy::expect_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use shardwise_backend_local::{LocalBackend, LocalConfig};
use shardwise_core::GroupName;
use shardwise_discovery::Clock;
use shardwise_discovery::conformance::{Fixture, Scope};

struct Local;

#[async_trait]
impl Fixture for Local {
    async fn scope(&self) -> Scope {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let open = || {
            let config = LocalConfig { path: scratch.path().join("members.db") };
            Arc::new(LocalBackend::open(config, Clock::system()).expect("a valid path"))
        };
        Scope {
            backend: open(),
            peer: open(),
            group: GroupName::new("conformance").expect("a valid name"),
            ttl: Duration::from_secs(1),
            clock: Clock::system(),
            guard: Box::new(scratch),
        }
    }
}

shardwise_discovery::conformance_tests!(Local);
shardwise_discovery::claims_conformance_tests!(Local);
shardwise_discovery::notes_conformance_tests!(Local);
