//! How an outbox stands, for people and for what watches it.

use std::time::Duration;

/// The most characters of a sink's words in a [`Status`].
pub const ERROR_CHARS_MAX: usize = 300;

/// A blocked aggregate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockedAggregate {
    /// Its key, `aggregatetype/aggregateid`.
    pub key: String,
    /// Events that wait, the blocked one included.
    pub pending: u64,
    /// Since when.
    pub blocked_for: Duration,
    /// Why: the sink's own words on one line, safe for a terminal, at most [`ERROR_CHARS_MAX`] characters.
    pub error: String,
}

/// Aggregates whose head failed and is tried again: why, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retrying {
    /// How many aggregates.
    pub aggregates: u64,
    /// Events that wait in them, the failing ones included.
    pub pending: u64,
    /// Since the first failure of the one that has failed for the longest time.
    pub failing_for: Duration,
    /// Until the next attempt at any of them; zero if one is due. While the destination seems to be down, publishers may wait a little
    /// longer; without a publisher nothing is tried.
    pub next_attempt_in: Duration,
    /// The latest failure: of which aggregate, `aggregatetype/aggregateid`.
    pub key: String,
    /// The latest failure: when.
    pub failed_ago: Duration,
    /// The latest failure: the sink's own words on one line, safe for a terminal, at most [`ERROR_CHARS_MAX`] characters.
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

/// How much waits, counted up to a limit so that it may be asked for often; see [`Store::backlog`](super::Store::backlog).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Backlog {
    /// Events not delivered yet, those behind a blocked head included, parked ones not.
    pub pending: u64,
    /// Age of the oldest of them by the writer's clock.
    pub oldest_pending_age: Option<Duration>,
    /// How many aggregates are blocked.
    pub blocked_aggregates: u64,
    /// Events set aside.
    pub parked: u64,
    /// Whether everything was counted; if not, each number is a lower bound.
    pub complete: bool,
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
    /// The aggregates whose head failed and is tried again, if there are any.
    pub retrying: Option<Retrying>,
    /// Events set aside.
    pub parked: u64,
    /// Publishers, by name.
    pub publishers: Vec<PublisherStatus>,
    /// The number of slots publishers agreed on; `None` before the first one came.
    pub slots: Option<u32>,
    /// Slots that no living publisher holds.
    pub free_slots: u32,
}
