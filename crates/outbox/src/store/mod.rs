//! What a publisher needs of the place where events wait.

mod dead_letters;
mod restored;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) mod sql;
mod status;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, BoxStream, StreamExt as _};
use shardwise::{Incarnation, Serves, SlotSet};

pub(crate) use self::dead_letters::too_many;
pub use self::dead_letters::{
    AuditEntry, DeadLetter, DeadLetters, DeadState, LIST_MAX, REPLAY_EVENTS_MAX, ReplayResult, ResendResult, Signature,
};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) use self::restored::checked;
pub use self::restored::{ABOVE_MAX, RestoreResult};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) use self::status::UNPUBLISHED_MAX;
pub use self::status::{Backlog, BlockedAggregate, ERROR_CHARS_MAX, PublisherStatus, Retrying, Status, Stuck, StuckCause};
use crate::{AggregateId, Delivery, Error, ErrorKind, Result};

/// A publisher that announces itself to a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublisherRegistration {
    /// The publisher's name, for people.
    pub publisher: String,
    /// Tells this start of it from every other.
    pub incarnation: Incarnation,
    /// How long it counts as alive after being seen.
    pub ttl: Duration,
    /// How many slots the circle has: 1 to 65,536.
    pub slots: u32,
}

/// A slot and the epoch under which it is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hold {
    /// The slot.
    pub slot: u32,
    /// The store's number of this holding; the next one's is larger, whoever takes it.
    pub epoch: u64,
}

/// The answer to a touch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TouchReply {
    /// Seen; these are the slots the store has under this incarnation.
    Seen(Vec<Hold>),
    /// The store does not know this incarnation (any more). Register again; nothing is held.
    Unknown,
}

/// Where an aggregate's head stands: how often sending it has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HeadTrouble {
    /// Attempts charged.
    pub attempts: u32,
    /// Sends failed in a row, charged or not.
    pub failures: u32,
    /// Time since the first of them; `None` if none has failed.
    pub failing_for: Option<Duration>,
    /// Time since the last of them.
    pub attempted_ago: Option<Duration>,
}

/// Pending events of one aggregate, in order and without a hole that could still be filled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRun {
    /// The aggregate.
    pub aggregate: AggregateId,
    /// Its slot and the epoch the store has for it.
    pub hold: Hold,
    /// How the event at the head fares.
    pub trouble: HeadTrouble,
    /// Everything up to here is accounted for by `events`: numbers that are missing were deleted by somebody and never come.
    pub through: u64,
    /// The newest event's sequence at the time of the reading.
    pub last: u64,
    /// The events; empty if all up to `through` were deleted.
    pub events: Vec<Delivery>,
}

/// What to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchRequest {
    /// Begin behind this hash of an aggregate, and come around to it again; `None` begins anywhere.
    pub after: Option<u64>,
    /// At most so many events, one or more.
    pub events_max: usize,
    /// Stop reading after about so many bytes; one event is read in any case.
    pub bytes_max: usize,
    /// Slots that are held and not to be read, because they are about to be released.
    pub except_slots: Vec<u32>,
    /// Aggregates not to be read, because their events are on their way.
    pub except_aggregates: Vec<AggregateId>,
}

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FetchResult {
    /// Runs of distinct aggregates.
    pub runs: Vec<EventRun>,
    /// Where to go on if a limit cut the reading short: the hash of the last aggregate read. `None`: there was no more.
    pub resume: Option<u64>,
}

/// What a step of deleting delivered events has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SweepResult {
    /// How many events are deleted.
    pub deleted: usize,
    /// The position to go on from under the same retention; `None` when there is nothing older to look at.
    pub resume: Option<i64>,
    /// For how long nobody else could write to the store because of it.
    pub shut: Duration,
}

/// What became of an aggregate's head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The aggregate.
    pub aggregate: AggregateId,
    /// The fence: nothing is written unless the store has this epoch for this slot and incarnation.
    pub hold: Hold,
    /// Everything up to this sequence is delivered (or was deleted); `None` if nothing new is.
    pub through: Option<u64>,
    /// What is written about the event after it.
    pub then: HeadUpdate,
}

/// What is written about the event that follows the delivered ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeadUpdate {
    /// Nothing: it has not been tried.
    Next,
    /// It failed and is tried again.
    Retry {
        /// Its sequence; nothing is written if the head is a later one by now, as when this comes twice.
        sequence: u64,
        /// Attempts charged so far.
        attempts: u32,
        /// Sends failed in a row.
        failures: u32,
        /// Time until the next attempt.
        retry_in: Duration,
        /// The sink's own words.
        error: String,
    },
    /// It stays at the head, and the aggregate waits for an operator.
    Block {
        /// Its sequence; nothing is written if the head is a later one by now, as when this comes twice.
        sequence: u64,
        /// Attempts charged.
        attempts: u32,
        /// The sink's own words.
        error: String,
    },
    /// It is set aside; the aggregate goes on behind it.
    Park {
        /// Its sequence; everything up to it is done.
        sequence: u64,
        /// The sink's own words.
        error: String,
    },
    /// It is given up for good, with a line in the record; the aggregate goes on behind it.
    Discard {
        /// Its sequence; everything up to it is done.
        sequence: u64,
        /// The sink's own words.
        error: String,
    },
}

/// What [`Store::clean`] has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CleanResult {
    /// Events deleted that had been set aside for too long; each has a line in the record.
    pub expired: u64,
    /// Aggregates forgotten that have no event any more.
    pub forgotten: u64,
    /// Something was found, and there was more to look at than one call looks at: call again soon.
    pub more: bool,
}

/// The place where events wait, and the fence that says who may send and mark.
///
/// The fence (every implementation passes `exercise::store`):
///
/// 1. A slot has at most one holder, and every taking raises its epoch. Epochs never fall or repeat, whatever happens.
/// 2. A slot is taken only if it is free, already the taker's own, or its holder has not been seen within its TTL; and only by a taker
///    that has itself been seen within its own.
/// 3. "Seen" is measured by the store's own clock: it does not jump, and a reading of another boot or machine never counts as recent.
///    What counts is the time at which the touch *started*.
/// 4. [`Store::record`] writes nothing for a hold that is not the store's current one, and says which.
/// 5. Nothing is locked between two calls.
///
/// Calls may be dropped half-way (a timeout) and be executed later all the same, behind what was asked since; that, and repeating them, must be
/// harmless.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The random id of the outbox, which `outbox init` wrote into the store: what its publishers show each other, so that another outbox never
    /// shares their slots. `None` for a store that has none; the shipped ones always have one.
    async fn id(&self) -> Result<Option<String>> {
        Ok(None)
    }

    /// Announces a publisher, as seen now. Fails with `OtherSlots` while a living publisher uses another number of slots.
    async fn register(&self, me: &PublisherRegistration) -> Result<()>;

    /// Says that the publisher is alive, and reads what it holds.
    async fn touch(&self, me: &PublisherRegistration) -> Result<TouchReply>;

    /// Takes those of `slots` that may be taken; the others are left out of the answer.
    async fn take(&self, me: &PublisherRegistration, slots: &SlotSet) -> Result<Vec<Hold>>;

    /// Gives slots back. Holds that are not current are passed over.
    async fn release(&self, me: &PublisherRegistration, holds: &[Hold]) -> Result<()>;

    /// Gives everything back and takes the publisher out.
    async fn leave(&self, me: &PublisherRegistration) -> Result<()>;

    /// Reads pending events of slots held by this incarnation whose aggregates are neither blocked nor waiting for a retry. The cost
    /// depends on what is returned, not on what waits elsewhere.
    async fn fetch(&self, me: &PublisherRegistration, request: &FetchRequest) -> Result<FetchResult>;

    /// Writes outcomes in one transaction, at most one an aggregate, and returns the holds that were fenced: nothing was written for
    /// those. With `delete`, delivered events are deleted with it.
    async fn record(&self, me: &PublisherRegistration, outcomes: &[Outcome], delete: bool) -> Result<Vec<Hold>>;

    /// Fills in the hashes of at most `limit` aggregates that have none, and returns how many had none. Needs no slot.
    async fn place_new(&self, limit: usize) -> Result<usize>;

    /// Deletes delivered events written longer than `retention` ago, at most `limit` of them, in the store's own order from `position` on; 0
    /// is the beginning.
    async fn sweep(&self, retention: Duration, position: i64, limit: usize) -> Result<SweepResult>;

    /// Bounded work that falls due now and then, in batches of at most `limit`: deletes events that have been set aside for longer than
    /// `parked_retention`, forgets aggregates without events (their sequences go on where they stopped, should they come back), and drops
    /// lines of the record that are older than a year. Needs no slot.
    async fn clean(&self, parked_retention: Duration, limit: usize) -> Result<CleanResult> {
        let _ = (parked_retention, limit);
        Ok(CleanResult::default())
    }

    /// A number that differs after any change to the store, cheap to ask for; `None` if the store has no such thing. Must be asked
    /// before a fetch to be of use for it.
    async fn change_mark(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Tells of writes as they are committed, one item for one or more of them, if the store is told; by default nothing ever comes. A
    /// publisher looks at once then, instead of at its next poll; an item that gets lost costs no more than that poll. After an error it goes
    /// on by itself.
    fn wakes(&self) -> BoxStream<'static, Result<()>> {
        stream::pending().boxed()
    }

    /// How the outbox stands. May take time in proportion to the number of pending aggregates.
    async fn status(&self) -> Result<Status>;

    /// How much waits. Looks at `most` aggregates with something to send, blocked aggregates and parked events, of each, and no more, so
    /// that its cost has a bound. `None` if the store does not count.
    async fn backlog(&self, most: usize) -> Result<Option<Backlog>> {
        let _ = most;
        Ok(None)
    }

    /// Lets blocked aggregates go on with their heads, attempts forgotten: the one of `key`, or all. Returns how many.
    async fn unblock(&self, key: Option<&str>) -> Result<u64>;
}

/// What the publishers of the outbox in `store` work for, for [`shardwise::ShardingFactory::create_serving`]. `name` is the outbox's name, for messages
/// alone.
///
/// # Errors
///
/// Those of [`Store::id`]; [`ErrorKind::Settings`] if the store has no id.
pub async fn serves(store: &impl Store, name: &str) -> Result<Serves> {
    let id = store.id().await?;
    let id = id.ok_or_else(|| Error::new(ErrorKind::Settings, "this outbox's store has no id: implement Store::id"))?;
    Ok(Serves::Outbox { id, name: name.to_owned() })
}

#[async_trait]
impl<S: Store + ?Sized> Store for Arc<S> {
    async fn id(&self) -> Result<Option<String>> {
        (**self).id().await
    }

    async fn register(&self, me: &PublisherRegistration) -> Result<()> {
        (**self).register(me).await
    }

    async fn touch(&self, me: &PublisherRegistration) -> Result<TouchReply> {
        (**self).touch(me).await
    }

    async fn take(&self, me: &PublisherRegistration, slots: &SlotSet) -> Result<Vec<Hold>> {
        (**self).take(me, slots).await
    }

    async fn release(&self, me: &PublisherRegistration, holds: &[Hold]) -> Result<()> {
        (**self).release(me, holds).await
    }

    async fn leave(&self, me: &PublisherRegistration) -> Result<()> {
        (**self).leave(me).await
    }

    async fn fetch(&self, me: &PublisherRegistration, request: &FetchRequest) -> Result<FetchResult> {
        (**self).fetch(me, request).await
    }

    async fn record(&self, me: &PublisherRegistration, outcomes: &[Outcome], delete: bool) -> Result<Vec<Hold>> {
        (**self).record(me, outcomes, delete).await
    }

    async fn place_new(&self, limit: usize) -> Result<usize> {
        (**self).place_new(limit).await
    }

    async fn sweep(&self, retention: Duration, position: i64, limit: usize) -> Result<SweepResult> {
        (**self).sweep(retention, position, limit).await
    }

    async fn clean(&self, parked_retention: Duration, limit: usize) -> Result<CleanResult> {
        (**self).clean(parked_retention, limit).await
    }

    async fn change_mark(&self) -> Result<Option<u64>> {
        (**self).change_mark().await
    }

    fn wakes(&self) -> BoxStream<'static, Result<()>> {
        (**self).wakes()
    }

    async fn status(&self) -> Result<Status> {
        (**self).status().await
    }

    async fn backlog(&self, most: usize) -> Result<Option<Backlog>> {
        (**self).backlog(most).await
    }

    async fn unblock(&self, key: Option<&str>) -> Result<u64> {
        (**self).unblock(key).await
    }
}
