//! A publisher's numbers, readable while it runs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::decide::Counters;

/// Reads a running publisher's numbers; cheap to clone and to query.
#[derive(Debug, Clone, Default)]
pub struct PublisherStats(Arc<Mutex<StatsState>>);

#[derive(Debug, Default)]
struct StatsState {
    snapshot: PublisherSnapshot,
    turned: Option<Instant>,
}

/// A publisher's numbers at one moment. Sums count since its start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PublisherSnapshot {
    /// Events accepted by the sink and marked.
    pub delivered: u64,
    /// Events sent again although an earlier send may have arrived, because it timed out or its slot was lost during the send.
    pub repeated: u64,
    /// Heads that failed, or whose destination was down, and that will be retried.
    pub retried: u64,
    /// Aggregates blocked by this publisher.
    pub blocked: u64,
    /// Events parked by this publisher.
    pub parked: u64,
    /// Events given up permanently by this publisher (poison = "discard").
    pub discarded: u64,
    /// Slots found to be held by another publisher, by a refused write or by a touch.
    pub fenced: u64,
    /// How often the publisher failed to renew its fence in time and dropped everything.
    pub lapsed: u64,
    /// The number of slots held now.
    pub held_slots: u32,
    /// The number of slots that the sharding assigns to this worker now.
    pub wanted_slots: u32,
    /// The number of events in memory now.
    pub in_memory: usize,
    /// Whether the destination, or one of several, seems to be down: it refuses everything, and only single events are tried there.
    pub destination_down: bool,
    /// The latest failure of the store or the sink, unless the same operation has succeeded since.
    pub last_error: Option<String>,
    /// The kind of that failure, for readers who must not see a destination's messages.
    pub trouble: Option<Trouble>,
}

/// What has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Trouble {
    /// The store has failed.
    Store,
    /// The destination does not accept an event, but may later.
    Destination,
    /// The destination will never accept an event: it is too large or malformed for this destination.
    Event,
}

impl Trouble {
    /// The name in lower case.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Destination => "destination",
            Self::Event => "event",
        }
    }
}

impl PublisherStats {
    /// The current numbers.
    pub fn snapshot(&self) -> PublisherSnapshot {
        self.kept().snapshot.clone()
    }

    /// Time since the publisher's loop last ran, which happens several times per TTL; `None` before the first time. A publisher whose loop
    /// has not run for many TTLs hangs.
    pub fn turned_ago(&self) -> Option<Duration> {
        self.kept().turned.map(|turned| turned.elapsed())
    }

    fn kept(&self) -> MutexGuard<'_, StatsState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn publish(&self, counters: Counters) {
        let mut kept = self.kept();
        let (last_error, trouble) = (kept.snapshot.last_error.take(), kept.snapshot.trouble);
        kept.turned = Some(Instant::now());
        kept.snapshot = PublisherSnapshot {
            delivered: counters.delivered,
            repeated: counters.repeated,
            retried: counters.retried,
            blocked: counters.blocked,
            parked: counters.parked,
            discarded: counters.discarded,
            fenced: counters.fenced,
            lapsed: counters.lapsed,
            held_slots: counters.held,
            wanted_slots: counters.wanted,
            in_memory: counters.in_memory,
            destination_down: counters.destinations_down > 0,
            last_error,
            trouble,
        };
    }

    /// `None` clears the last error.
    pub(super) fn note_error(&self, error: Option<(Trouble, String)>) {
        let (trouble, text) = error.unzip();
        let mut kept = self.kept();
        (kept.snapshot.trouble, kept.snapshot.last_error) = (trouble, text);
    }
}
