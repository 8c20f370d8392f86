//! An outbox in the sidecar: its status, and replay of its dead letters. The program that starts the sidecar implements it.

use futures::future::BoxFuture;
use serde::Serialize;
use utoipa::ToSchema;

/// An outbox whose status is shown and whose dead letters can be replayed.
pub trait Outbox: Send + Sync {
    /// Its name in the settings.
    fn name(&self) -> &str;

    /// Its present status. The error is a message.
    fn status(&self) -> BoxFuture<'_, std::result::Result<OutboxStatus, String>>;

    /// Replays a dead letter. `who` and `why` are written to the outbox's audit table; neither is empty.
    fn replay<'a>(&'a self, event: &'a str, who: &'a str, why: &'a str) -> BoxFuture<'a, std::result::Result<OutboxReplay, String>>;
}

/// The status of an outbox.
#[derive(Debug, Serialize, ToSchema)]
pub struct OutboxStatus {
    /// Its name in the settings.
    pub outbox: String,
    /// What is stuck: events that no living publisher sends, or a backlog that is too old. Empty if nothing is.
    pub stuck: Vec<OutboxStuck>,
    /// Events not delivered yet, parked ones not counted.
    pub pending: u64,
    /// Age of the oldest of them in milliseconds; null if there is none.
    pub oldest_pending_age_ms: Option<u64>,
    /// How many aggregates wait for an operator.
    pub blocked_aggregates: u64,
    /// How many aggregates retry an event that failed.
    pub retrying_aggregates: u64,
    /// Events set aside.
    pub parked: u64,
    /// Slots that no living publisher holds.
    pub free_slots: u32,
    /// Publishers that are alive.
    pub publishers: usize,
    /// The oldest dead letters: parked, or at the head of a blocked aggregate.
    pub dead: Vec<OutboxLetter>,
    /// There are more of them.
    pub more: bool,
}

/// Why events wait that should have been delivered.
#[derive(Debug, Serialize, ToSchema)]
pub struct OutboxStuck {
    /// `no_publisher`: events are pending in slots that no living publisher holds; `old_backlog`: the oldest pending event is older than a
    /// minute and than ten polls; `not_restored`: every event is refused until `shardwise outbox restored` has run.
    pub cause: String,
    /// What is stuck and what to do, for people.
    pub detail: String,
}

/// An event that is parked or that blocks its aggregate.
#[derive(Debug, Serialize, ToSchema)]
pub struct OutboxLetter {
    /// The event's id.
    pub id: String,
    /// Its aggregate: type, slash, id.
    pub key: String,
    /// The event's type.
    pub event_type: String,
    /// Its place in the aggregate's order.
    pub sequence: u64,
    /// parked or blocked.
    pub state: String,
    /// For how many milliseconds.
    pub dead_for_ms: u64,
    /// The sink's message.
    pub error: String,
}

/// The outcome of a replay.
#[derive(Debug, Serialize, ToSchema)]
pub struct OutboxReplay {
    /// The event's id.
    pub id: String,
    /// replayed, unblocked, or null: it is not a dead letter.
    pub done: Option<String>,
    /// Its new sequence, if it has one.
    pub sequence: Option<u64>,
}
