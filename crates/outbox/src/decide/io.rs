//! The inputs and actions of the engine.

use std::sync::Arc;
use std::time::Duration;

use shardwise::{Moment, SlotSet};

use crate::Delivery;
use crate::sink::Acceptance;
use crate::store::{FetchRequest, FetchResult, Hold, Outcome, SleepTicket, SweepResult, TouchReply};

/// Identifies a send within one publisher.
pub(crate) type SendId = u64;

/// An event for the engine. Every action except `Cancel` is answered by exactly one input.
#[derive(Debug)]
pub(crate) enum EngineInput {
    /// The slots that the sharding assigns until that time (`None`: without limit).
    Wanted {
        slots: SlotSet,
        until: Option<Moment>,
    },
    /// `started` is when the request began.
    Registered {
        started: Moment,
    },
    Touched {
        started: Moment,
        touch: TouchReply,
    },
    Taken(Vec<Hold>),
    Released,
    /// The answer to `Leave`.
    Gone,
    MarkRead(Option<u64>),
    /// The number of aggregates that had no hash.
    Placed(usize),
    Fetched(FetchResult),
    /// If `unknown_end` (timeout or broken connection), more events may have arrived than were accepted.
    Sent {
        id: SendId,
        accepted: Acceptance,
        unknown_end: bool,
    },
    Recorded {
        fenced: Vec<Hold>,
    },
    Swept(SweepResult),
    /// `more`: whether the same step may find more immediately.
    Cleaned {
        more: bool,
    },
    /// This call to the store failed; it may have taken effect.
    Failed(StoreCall),
    /// Another part of this process reports that there is something new: read soon.
    ReadSoon,
    /// The store's notifications arrive, and there may be something new.
    Woken,
    /// The store's notifications do not arrive at present.
    NotificationsLost,
    /// The sleep is announced; `None` if the store takes no announcements.
    FellAsleep(Option<SleepTicket>),
    /// The answer to `AskEnded`.
    Ended(bool),
    Withdrawn,
    /// Stop: finish or return what is in flight by that time.
    Stop {
        by: Moment,
    },
}

/// The kinds of call to the store that can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum StoreCall {
    /// Register, touch, take, release and leave, of which one runs at a time.
    Fence,
    ReadMark,
    Place,
    Fetch,
    Record,
    Sweep,
    Clean,
    /// Announcing the sleep, asking whether it may begin, and withdrawing it, of which one runs at a time.
    Sleep,
}

/// An action for the runner to carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EngineAction {
    Register,
    Touch,
    Take(SlotSet),
    Release(Vec<Hold>),
    Leave,
    ReadMark,
    Place {
        limit: usize,
    },
    Fetch(FetchRequest),
    Send {
        id: SendId,
        batch: Arc<[Delivery]>,
    },
    /// Drop a send; no answer follows.
    Cancel(SendId),
    Record(Vec<Outcome>),
    Sweep {
        retention: Duration,
        position: i64,
        limit: usize,
    },
    /// Periodic cleaning. Its failure affects nothing else.
    Clean {
        parked_retention: Duration,
        limit: usize,
    },
    FallAsleep,
    /// Whether the transactions have ended that may not know of the announced sleep.
    AskEnded(SleepTicket),
    Withdraw(SleepTicket),
    /// The publisher is done.
    Finish,
}

/// A publisher's numbers at one moment. Sums count since its start. The engine sets everything but the last failure.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PublisherSnapshot {
    /// Events accepted by the sink and marked.
    pub delivered: u64,
    /// Events sent again although an earlier send may have arrived, because it timed out or its slot was lost during the send.
    pub repeated: u64,
    /// Heads that failed, or whose destination was down or slow, and that will be retried.
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
    /// The number of events in memory now, waiting or being sent.
    pub in_memory: usize,
    /// The number of destinations that refuse everything: three refusals in a row, or for ten seconds. If these were of three or more
    /// aggregates, only single events are tried there. One that was not tried for ten minutes, such as after its last event was given
    /// up, does not count.
    pub destinations_down: usize,
    /// The number of destinations that are slow: within the last minute an event waited for a second or more for a send there, while no
    /// further events could be read. Up to 1,024 are counted.
    pub destinations_slow: usize,
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
