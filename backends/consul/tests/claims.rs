//! The conformance cases of claims over real agents, in real time.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use common::{here, settle};
use shardwise_core::GroupName;
use shardwise_discovery::Clock;
use shardwise_discovery::conformance::{Fixture, Scope};
use shardwise_testkit::Consul;

/// The check has half of it, and a busy machine has to renew within that.
const TTL: Duration = Duration::from_secs(2);

fn scope(backend: &Consul, peer: &Consul) -> Scope {
    Scope {
        backend: Arc::new(common::open(&backend.address())),
        peer: Arc::new(common::open(&peer.address())),
        group: GroupName::new("conformance").unwrap(),
        ttl: TTL,
        clock: Clock::system(),
        guard: Box::new(()),
    }
}

/// Two backends of one agent, as two processes of a machine have them.
struct OneAgent;

#[async_trait]
impl Fixture for OneAgent {
    async fn scope(&self) -> Scope {
        let consul = here(Consul::single()).unwrap();
        here(settle(&consul));
        let scope = scope(&consul, &consul);
        Scope { guard: Box::new(consul), ..scope }
    }
}

shardwise_discovery::claims_conformance_tests!(OneAgent);
