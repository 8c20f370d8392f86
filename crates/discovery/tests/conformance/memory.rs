//! The conformance suite over the memory backend, bare and with faults, on paused time.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use shardwise_core::GroupName;
use shardwise_discovery::conformance::{Fixture, Scope};
use shardwise_discovery::{Clock, Discovery, FaultRates, Faults, MemoryBackend};

type Wrap = fn(MemoryBackend) -> Arc<dyn Discovery>;

struct Memory(Wrap);

#[async_trait]
impl Fixture for Memory {
    async fn scope(&self) -> Scope {
        let clock = Clock::tokio();
        let store = MemoryBackend::new(clock.clone());
        Scope {
            backend: self.0(store.clone()),
            peer: self.0(store.link()),
            group: GroupName::new("conformance").expect("a valid name"),
            ttl: Duration::from_secs(3),
            clock,
            guard: Box::new(()),
        }
    }
}

mod bare {
    use super::*;
    shardwise_discovery::conformance_tests!(Memory(|m| Arc::new(m)); start_paused = true);
    shardwise_discovery::claims_conformance_tests!(Memory(|m| Arc::new(m)); start_paused = true);
    shardwise_discovery::notes_conformance_tests!(Memory(|m| Arc::new(m)); start_paused = true);
}

/// Late, merged and repeated events are within the contract; calls that fail are not what the suite is about.
const AWKWARD: FaultRates =
    FaultRates { delay: 0.5, delay_max: Duration::from_millis(20), drop_event: 0.2, repeat_event: 0.5, ..FaultRates::NONE };

mod with_faults {
    use super::*;
    shardwise_discovery::conformance_tests!(Memory(|m| Arc::new(Faults::new(Arc::new(m), 7, AWKWARD))); start_paused = true);
    shardwise_discovery::claims_conformance_tests!(Memory(|m| Arc::new(Faults::new(Arc::new(m), 7, AWKWARD))); start_paused = true);
    shardwise_discovery::notes_conformance_tests!(Memory(|m| Arc::new(Faults::new(Arc::new(m), 7, AWKWARD))); start_paused = true);
}
