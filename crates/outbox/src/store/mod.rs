//! The store of events, from a publisher's point of view.

mod dead_letters;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) mod rows;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) mod sql;
mod status;

use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, BoxStream, StreamExt as _};
use shardwise::{Incarnation, Serves, SlotSet};

pub(crate) use self::dead_letters::too_many;
pub use self::dead_letters::{
    AuditEntry, DeadLetter, DeadLetters, DeadState, LIST_MAX, REPLAY_EVENTS_MAX, ReplayResult, ResendResult, Signature,
};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) use self::status::UNPUBLISHED_MAX;
pub use self::status::{Backlog, BlockedAggregate, ERROR_CHARS_MAX, PublisherStatus, Retrying, Status, Stuck, StuckCause};
use crate::{AggregateId, Delivery, Error, ErrorKind, Result};

/// The highest number accepted: it leaves as many numbers above it, up to the largest whole number that JSON readers accept.
pub const ABOVE_MAX: u64 = 1 << 52;

/// A publisher's registration in a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublisherRegistration {
    /// The publisher's name, for messages.
    pub publisher: String,
    /// Distinguishes this start of the publisher from every other.
    pub incarnation: Incarnation,
    /// How long it counts as alive after it was seen.
    pub ttl: Duration,
    /// The number of slots of the ring: 1 to 65,536.
    pub slots: u32,
}

/// A slot and the epoch under which it is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hold {
    /// The slot.
    pub slot: u32,
    /// The store's number for this period of holding; it increases whenever any publisher takes the slot.
    pub epoch: u64,
}

/// The answer to a touch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TouchReply {
    /// The publisher was seen; the store has these slots under this incarnation.
    Seen(Vec<Hold>),
    /// The store does not know this incarnation, or no longer. Register again; nothing is held.
    Unknown,
}

/// How often sending an aggregate's head has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HeadTrouble {
    /// The number of charged attempts.
    pub attempts: u32,
    /// The number of consecutive failed sends, charged or not.
    pub failures: u32,
    /// Time since the first of these failures; `None` if there is none.
    pub failing_for: Option<Duration>,
    /// Time since the last of these failures.
    pub attempted_ago: Option<Duration>,
}

/// Pending events of one aggregate, in order; missing numbers are final.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRun {
    /// The aggregate.
    pub aggregate: AggregateId,
    /// Its slot and the epoch the store has for it.
    pub hold: Hold,
    /// The failures of the event at the head.
    pub trouble: HeadTrouble,
    /// Everything up to here is accounted for by `events`: missing numbers were deleted and never come.
    pub through: u64,
    /// Whether the aggregate may have events behind `through` already: the reading was cut short there. If it has none nevertheless, the
    /// next reading finds that out.
    pub more: bool,
    /// The events; empty if all up to `through` were deleted.
    pub events: Vec<Delivery>,
}

/// What to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchRequest {
    /// Begin behind this hash of an aggregate, and wrap around to it; `None` begins anywhere.
    pub after: Option<u64>,
    /// The most events to read, one or more.
    pub events_max: usize,
    /// The approximate most bytes to read; one event is read whatever its size.
    pub bytes_max: usize,
    /// Held slots that must not be read, because they are about to be released.
    pub except_slots: Vec<u32>,
    /// Aggregates that must not be read, because their events are in flight.
    pub except_aggregates: Vec<AggregateId>,
}

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FetchResult {
    /// Runs of distinct aggregates.
    pub runs: Vec<EventRun>,
    /// Where to continue if a limit cut the reading short, as `after` of the next request: the hash of the last aggregate read, or what the
    /// request had if the store keeps its place by something else. `None`: there was no more.
    pub resume: Option<u64>,
    /// Whether there is more to look at behind a place that the store keeps. Then the next reading follows at once, even if this one
    /// brought nothing.
    pub more: bool,
}

/// The result of one step of deleting delivered events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SweepResult {
    /// The number of events deleted.
    pub deleted: usize,
    /// The position to continue from under the same retention; `None` if there is nothing older to visit.
    pub resume: Option<i64>,
    /// How long this step blocked all other writers of the store.
    pub shut: Duration,
}

/// The outcome of an aggregate's head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The aggregate.
    pub aggregate: AggregateId,
    /// The fence: nothing is written unless the store has this epoch for this slot and incarnation.
    pub hold: Hold,
    /// Everything up to this sequence is delivered (or was deleted); `None` if nothing new is delivered.
    pub through: Option<u64>,
    /// The update of the event after it.
    pub then: HeadUpdate,
}

/// The update of the event that follows the delivered ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeadUpdate {
    /// None: it has not been tried.
    Next,
    /// It failed and will be retried.
    Retry {
        /// Its sequence; nothing is written if the head is a later one by now, for example in a repeated call.
        sequence: u64,
        /// The number of charged attempts so far.
        attempts: u32,
        /// The number of consecutive failed sends.
        failures: u32,
        /// Time until the next attempt.
        retry_in: Duration,
        /// The sink's message.
        error: String,
    },
    /// It stays at the head, and the aggregate waits for an operator.
    Block {
        /// Its sequence; nothing is written if the head is a later one by now, for example in a repeated call.
        sequence: u64,
        /// The number of charged attempts.
        attempts: u32,
        /// The sink's message.
        error: String,
    },
    /// It is parked (set aside); the aggregate continues behind it.
    Park {
        /// Its sequence; everything up to it is done.
        sequence: u64,
        /// The sink's message.
        error: String,
    },
    /// It is given up permanently, with an audit entry; the aggregate continues behind it.
    Discard {
        /// Its sequence; everything up to it is done.
        sequence: u64,
        /// The sink's message.
        error: String,
    },
}

/// The result of [`Store::clean`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CleanResult {
    /// The number of expired parked events that were deleted; each has an audit entry.
    pub expired: u64,
    /// The number of aggregates forgotten because they had no event any more.
    pub forgotten: u64,
    /// Something was found, and one call did not visit everything: call again soon.
    pub more: bool,
}

/// The result of raising epochs and sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestoreResult {
    /// Every epoch from now on is above this one.
    pub epoch: u64,
    /// How many aggregates were raised, 0 if their next sequences were above the given number already. Keys without an aggregate also begin
    /// above it.
    pub aggregates: u64,
    /// The most events that wait with sequences not above the given number. They keep them. Events that were delivered before come again
    /// unchanged; for events written since the loss, consumers may have seen other events with the same numbers.
    pub waiting: u64,
    /// How many publishers were alive. They take their slots again, and events in flight may arrive twice.
    pub publishers: u64,
}

/// The announcement of a publisher that falls asleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SleepTicket {
    /// The announcement's number; later ones have higher numbers.
    pub number: u64,
    /// Transactions with numbers below this one may not have seen it; in the store's own count.
    pub unseen_below: u64,
}

/// A store of events, and the fence that decides which publisher may send and mark them.
///
/// The fence (every implementation passes `exercise::store`):
///
/// 1. A slot has at most one holder, and every taking raises its epoch. Epochs never decrease or repeat, whatever happens.
/// 2. A slot is taken only if it is free, already the taker's own, or its holder has not been seen within its TTL; and only by a taker
///    that has itself been seen within its own.
/// 3. "Seen" is measured by the store's own clock: it does not jump, and a time from another boot or machine never counts as recent. The
///    time at which the touch *started* counts.
/// 4. [`Store::record`] writes nothing for a hold that is not the store's current one, and returns that hold.
/// 5. Nothing is locked between two calls.
///
/// A call may be dropped half-way (a timeout) and still be executed later, after newer calls. This, and repeating a call, must be
/// harmless.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The random id of the outbox, written by `outbox init`. Its publishers show it to each other, so that publishers of another outbox
    /// never share their slots. `None` for a store without an id; the stores of this crate always have one.
    async fn id(&self) -> Result<Option<String>> {
        Ok(None)
    }

    /// Registers a publisher as seen now. Fails with `OtherSlots` while a live publisher uses another number of slots.
    async fn register(&self, me: &PublisherRegistration) -> Result<()>;

    /// Renews the publisher's registration and reads its holds.
    async fn touch(&self, me: &PublisherRegistration) -> Result<TouchReply>;

    /// Takes those of `slots` that may be taken; the answer omits the others.
    async fn take(&self, me: &PublisherRegistration, slots: &SlotSet) -> Result<Vec<Hold>>;

    /// Releases slots. Holds that are not current are skipped.
    async fn release(&self, me: &PublisherRegistration, holds: &[Hold]) -> Result<()>;

    /// Releases everything and removes the publisher.
    async fn leave(&self, me: &PublisherRegistration) -> Result<()>;

    /// Reads pending events of slots held by this incarnation whose aggregates are neither blocked nor waiting for a retry. The cost
    /// depends on what is returned, not on other pending events.
    async fn fetch(&self, me: &PublisherRegistration, request: &FetchRequest) -> Result<FetchResult>;

    /// Writes outcomes in one transaction, at most one for each aggregate, and returns the fenced holds, for which nothing was written.
    /// With `delete`, delivered events are deleted in the same transaction.
    async fn record(&self, me: &PublisherRegistration, outcomes: &[Outcome], delete: bool) -> Result<Vec<Hold>>;

    /// Fills in the hashes of at most `limit` aggregates that have none, and returns how many had none. Needs no slot.
    async fn place_new(&self, limit: usize) -> Result<usize>;

    /// Deletes delivered events written longer than `retention` ago, at most `limit` of them, in the store's own order from `position` on;
    /// 0 is the beginning.
    async fn sweep(&self, retention: Duration, position: i64, limit: usize) -> Result<SweepResult>;

    /// Periodic cleaning, in batches of at most `limit`: deletes events that have been parked for longer than `parked_retention`,
    /// forgets aggregates without events (if they come back, their sequences are above all former ones), and deletes audit entries older
    /// than a year. Needs no slot.
    async fn clean(&self, parked_retention: Duration, limit: usize) -> Result<CleanResult>;

    /// A number that changes with every change to the store and is cheap to read; `None` if the store has none. It is useful for a fetch
    /// only if it is read before it.
    async fn change_mark(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Yields an item for one or more commits, if the store is notified of them; by default it yields nothing. A publisher then reads at
    /// once instead of at its next poll; a lost item costs no more than that poll. After an error the stream continues by itself, and its
    /// next item says that notifications arrive again.
    fn wakes(&self) -> BoxStream<'static, Result<()>> {
        stream::pending().boxed()
    }

    /// Announces that the caller has found nothing and is about to sleep until [`Store::wakes`] yields an item; it must be yielding before.
    /// Until then writers need not notify anyone. Transactions that are open may not see the announcement: see [`Store::all_ended`].
    /// Every item ends the sleep, and the next one needs another announcement. `None`, the default: the store takes no announcements;
    /// either it always notifies, or never.
    async fn fall_asleep(&self) -> Result<Option<SleepTicket>> {
        Ok(None)
    }

    /// Whether every transaction has ended that may not have seen this announcement. If so, a reading that begins afterwards shows what
    /// these committed, and whatever commits later is notified.
    async fn all_ended(&self, ticket: SleepTicket) -> Result<bool> {
        let _ = ticket;
        Ok(true)
    }

    /// Withdraws the announcement of a publisher that ends, so that writers do not notify it in vain. Others that sleep are woken.
    async fn withdraw(&self, ticket: SleepTicket) -> Result<()> {
        let _ = ticket;
        Ok(())
    }

    /// The status of the outbox. May take time in proportion to the number of pending events.
    async fn status(&self) -> Result<Status>;

    /// The size of the backlog. Visits at most `most` aggregates with something to send, `most` blocked aggregates and `most` parked
    /// events, and counts at most `most` events of each kind where the store must count them one by one, so that its cost is bounded.
    /// `None` if the store does not count.
    async fn backlog(&self, most: usize) -> Result<Option<Backlog>> {
        let _ = most;
        Ok(None)
    }

    /// Unblocks the aggregate of `key`, or all: they continue with their heads and no charged attempts. Returns how many.
    async fn unblock(&self, key: Option<&str>) -> Result<u64>;
}

/// The work that publishers of the outbox in `store` serve, for [`shardwise::ShardingFactory::create_serving`]. `name` is the outbox's
/// name, for messages only.
///
/// # Errors
///
/// Those of [`Store::id`]; [`ErrorKind::Settings`] if the store has no id.
pub async fn serves(store: &dyn Store, name: &str) -> Result<Serves> {
    let id = store.id().await?;
    let id = id.ok_or_else(|| Error::new(ErrorKind::Settings, "this outbox's store has no id: implement Store::id"))?;
    Ok(Serves::Outbox { id, name: name.to_owned() })
}
