//! What the decisions are told, and what they ask for.

use std::sync::Arc;
use std::time::Duration;

use shardwise::{Moment, SlotSet};

use crate::Delivery;
use crate::sink::Acceptance;
use crate::store::{FetchRequest, FetchResult, Hold, Outcome, SweepResult, TouchReply};

/// Tells one send from every other of the same publisher.
pub(crate) type SendId = u64;

/// Something that happened. Every action but `Cancel` is answered by exactly one input.
#[derive(Debug)]
pub(crate) enum EngineInput {
    /// What the sharding says: these slots, until then (`None`: for ever).
    Wanted { slots: SlotSet, until: Option<Moment> },
    /// The publisher is announced; the request started then.
    Registered { started: Moment },
    /// The answer to `TouchReply`, which started then.
    Touched { started: Moment, touch: TouchReply },
    /// The answer to `Take`.
    Taken(Vec<Hold>),
    /// The answer to `Release`.
    Released,
    /// The answer to `Leave`.
    Gone,
    /// The answer to `Look`.
    Looked(Option<u64>),
    /// The answer to `Place`: so many aggregates had no hash.
    Placed(usize),
    /// The answer to `Fetch`.
    Fetched(FetchResult),
    /// The answer to `Send`. With `unknown_end` (it took too long, or broke) more may have arrived than was accepted.
    Sent { id: SendId, accepted: Acceptance, unknown_end: bool },
    /// The answer to `Record`: these holds were fenced.
    Recorded { fenced: Vec<Hold> },
    /// The answer to `Sweep`.
    Swept(SweepResult),
    /// The answer to `Clean`: whether the same may find more at once.
    Cleaned { more: bool },
    /// The store failed on that one, and nothing is known to have happened.
    Failed(StoreCall),
    /// Somebody in this process says that there is something new.
    Nudged,
    /// Stop: finish or give back what is in flight until then.
    Stop { by: Moment },
}

/// The calls to the store that can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum StoreCall {
    /// Register, touch, take, release, leave: one at a time.
    Fence,
    Look,
    Place,
    Fetch,
    Record,
    Sweep,
    Clean,
}

/// Something to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EngineAction {
    Register,
    Touch,
    Take(SlotSet),
    Release(Vec<Hold>),
    Leave,
    Look,
    Place {
        limit: usize,
    },
    Fetch(FetchRequest),
    Send {
        id: SendId,
        batch: Arc<[Delivery]>,
    },
    /// Drop a send; there will be no answer.
    Cancel(SendId),
    Record(Vec<Outcome>),
    Sweep {
        retention: Duration,
        position: i64,
        limit: usize,
    },
    /// What falls due now and then. It goes wrong or well without anything else.
    Clean {
        parked_retention: Duration,
        limit: usize,
    },
    /// The publisher is done.
    Finish,
}

/// Sums since the start, and how things stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counters {
    /// Events accepted by the sink and marked.
    pub(crate) delivered: u64,
    /// Events sent again after a send whose end is not known.
    pub(crate) repeated: u64,
    /// Heads that failed, or whose destination was down, and that are tried later.
    pub(crate) retried: u64,
    /// Aggregates blocked.
    pub(crate) blocked: u64,
    /// Events set aside.
    pub(crate) parked: u64,
    /// Events given up for good.
    pub(crate) discarded: u64,
    /// Slots found to be another's at a write or a touch.
    pub(crate) fenced: u64,
    /// Times the own fence ran out before it could be renewed.
    pub(crate) lapsed: u64,
    /// Slots held now.
    pub(crate) held: u32,
    /// Slots the sharding gives now.
    pub(crate) wanted: u32,
    /// Events in memory now, on their way or waiting.
    pub(crate) in_memory: usize,
    /// Destinations that are taken to be down.
    pub(crate) destinations_down: usize,
}
