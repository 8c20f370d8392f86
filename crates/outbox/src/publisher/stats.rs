//! A publisher's numbers, readable while it runs.

use std::sync::{Arc, Mutex, PoisonError};

use crate::decide::Counters;

/// Reads a running publisher's numbers; cheap to clone and to ask.
#[derive(Debug, Clone, Default)]
pub struct PublisherStats(Arc<Mutex<Snapshot>>);

/// A publisher's numbers at one moment. Sums count since its start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Snapshot {
    /// Events accepted by the sink and marked.
    pub delivered: u64,
    /// Events sent again although an earlier send may have arrived, because it took too long or its slot was lost on the way.
    pub repeated: u64,
    /// Failed sends of events that are tried again.
    pub retried: u64,
    /// Aggregates blocked by this publisher.
    pub blocked: u64,
    /// Events set aside by this publisher.
    pub parked: u64,
    /// Slots found to be another's, by a refused write or by looking.
    pub fenced: u64,
    /// Times the publisher could not renew its fence in time and dropped everything.
    pub lapsed: u64,
    /// Slots held now.
    pub held_slots: u32,
    /// Slots the sharding gives to this worker now.
    pub wanted_slots: u32,
    /// Events in memory now.
    pub in_memory: usize,
    /// Whether the destination seems to be down: it refuses everything, and only single events are tried.
    pub destination_down: bool,
    /// The latest failure of the store or the sink, if the same thing has not succeeded since.
    pub last_error: Option<String>,
}

impl PublisherStats {
    /// The numbers now.
    pub fn snapshot(&self) -> Snapshot {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn publish(&self, counters: Counters) {
        let mut snapshot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last_error = snapshot.last_error.take();
        *snapshot = Snapshot {
            delivered: counters.delivered,
            repeated: counters.repeated,
            retried: counters.retried,
            blocked: counters.blocked,
            parked: counters.parked,
            fenced: counters.fenced,
            lapsed: counters.lapsed,
            held_slots: counters.held,
            wanted_slots: counters.wanted,
            in_memory: counters.in_memory,
            destination_down: counters.destination_down,
            last_error,
        };
    }

    pub(super) fn note_error(&self, error: Option<String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).last_error = error;
    }
}
