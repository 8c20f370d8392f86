//! How an outbox stands, for people and for what watches it.

use std::time::Duration;

/// A blocked aggregate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockedAggregate {
    /// Its key, `aggregatetype/aggregateid`.
    pub key: String,
    /// Events that wait, the blocked one included.
    pub pending: u64,
    /// Since when.
    pub blocked_for: Duration,
    /// Why.
    pub error: String,
}

/// A publisher as the store knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublisherStatus {
    /// Its name.
    pub publisher: String,
    /// Its incarnation, in hexadecimal.
    pub incarnation: String,
    /// Whether it was seen within its TTL, in this boot of the machine.
    pub alive: bool,
    /// Time since it was seen; `None` if that was in another boot.
    pub seen_ago: Option<Duration>,
    /// How many slots it holds.
    pub slots: u32,
}

/// How an outbox stands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Status {
    /// Events not delivered yet, those behind a blocked head included, parked ones not.
    pub pending: u64,
    /// Age of the oldest of them by the writer's clock.
    pub oldest_pending_age: Option<Duration>,
    /// How many aggregates are blocked.
    pub blocked_aggregates: u64,
    /// The first hundred of them, the longest blocked first.
    pub blocked: Vec<BlockedAggregate>,
    /// Aggregates whose head failed and is tried again.
    pub retrying_aggregates: u64,
    /// Events set aside.
    pub parked: u64,
    /// Publishers, by name.
    pub publishers: Vec<PublisherStatus>,
    /// The number of slots publishers agreed on; `None` before the first one came.
    pub slots: Option<u32>,
    /// Slots that no living publisher holds.
    pub free_slots: u32,
}
