//! Inputs and actions of the member's state machine.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::holdings::{CallFailure, ClaimAction};
use crate::{AcquireOutcome, Address, Claim, ClaimName, ClaimStore, Incarnation, Missing, Moment, Ownership, Rebalance, Resource, View};

/// An event. `attempt` is the number of the call that it answers; answers to abandoned calls are ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The user asks to join.
    Join,
    /// The user asks to leave.
    Leave,
    /// Like `Leave`, without keeping a place; also for a worker that has left and is away.
    LeaveForGood,
    /// The moment of [`super::Machine::wake_at`] has come.
    Woken,
    /// The record is in the backend and lives for `ttl` from `started` on.
    Registered {
        /// The number of the call.
        attempt: u64,
        /// When the request that succeeded began.
        started: Moment,
        /// The TTL that the backend granted.
        ttl: Duration,
    },
    /// The record was renewed and lives for `ttl` from `started` on.
    Renewed {
        /// The number of the call.
        attempt: u64,
        /// When the request that succeeded began.
        started: Moment,
        /// The TTL that the backend granted.
        ttl: Duration,
    },
    /// Registering or renewing failed.
    Failed {
        /// The number of the call.
        attempt: u64,
        /// The failure.
        failure: OpFailure,
    },
    /// The backend has no record of this member any more.
    RecordLost {
        /// The number of the call.
        attempt: u64,
    },
    /// The group, as read from the backend's authority at `proven`.
    Viewed {
        /// The whole view.
        view: Arc<View>,
        /// When the request that proved it began.
        proven: Moment,
    },
    /// The last view was still current at this moment.
    Proven {
        /// When the request that proved it began.
        at: Moment,
    },
    /// Changes of claims (exclusive ownership).
    Claims(ClaimInput),
    /// The names that this worker can serve from now on: singletons, daemons, timers (exclusive ownership).
    Names(BTreeSet<ClaimName>),
    /// No work of the user is in flight any more.
    InFlightDone,
    /// The record was deleted, or the attempt was abandoned.
    Deregistered,
}

/// What happened to claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimInput {
    /// The group's store of claims.
    Opened {
        /// The number of the call.
        attempt: u64,
        /// The store.
        store: ClaimStore,
    },
    /// The answer for each resource that was asked for.
    Acquired {
        /// The number of the call.
        attempt: u64,
        /// One answer for each resource.
        answers: Vec<(Resource, AcquireOutcome)>,
    },
    /// The claims were released.
    Released {
        /// The number of the call.
        attempt: u64,
    },
    /// A call about claims failed.
    Failed {
        /// The number of the call.
        attempt: u64,
        /// The failure.
        failure: CallFailure,
    },
    /// Every claim of the group; a resource that is not listed is free.
    All(Vec<(Resource, Claim)>),
    /// What has changed since; `None` means that no member holds the resource.
    Changed(Vec<(Resource, Option<Claim>)>),
    /// No work is in flight any more on these draining resources.
    Idle(Vec<Resource>),
}

/// A call whose answer names its attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Write the member's record without a mark: marks of an earlier record do not apply any more.
    Register,
    /// Renew the record.
    Renew,
}

/// Something that the driver must do, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Register under this incarnation from now on. Calls made before continue under the former one.
    BeginLife(Incarnation),
    /// Call the backend; answer with `Registered`, `Renewed`, `RecordLost` or `Failed` under this attempt.
    Call {
        /// The call.
        op: Op,
        /// Its number.
        attempt: u64,
    },
    /// Follow the group's members.
    StartWatch,
    /// Read the group once and answer with `Viewed`. A watch may have seen the record before its registration was answered, and such a
    /// view counts only after a new proof.
    ReadGroup,
    /// Stop following them.
    StopWatch,
    /// Mark the record as draining; the outcome does not matter here.
    MarkDraining,
    /// Mark the record as leaving for a while; the outcome does not matter here.
    MarkPausing,
    /// List in the record, until the next registration, the members that this one has seen vanish beyond `max_loss`. No input removes the
    /// mark. Retry until it is written or another `MarkLoss` follows: other members act on it.
    MarkLoss(Vec<Missing>),
    /// Show this number in the record, across registrations: others hold this member's share in its place and are to give it back. Retry
    /// until it is written.
    Reclaim(u64),
    /// Ask the runners to finish, and answer with `InFlightDone`.
    AwaitInFlight,
    /// Delete the record; answer with `Deregistered`, whatever the outcome.
    Deregister,
    /// Replace the record with one that lives for `rejoin_grace` without renewals, or delete it; answer with `Deregistered` in any case.
    StepAway {
        /// The longest time for which the member is away.
        rejoin_grace: Duration,
    },
    /// Carry out this action on claims.
    Claim(ClaimAction),
    /// Publish this snapshot to readers.
    Publish(Arc<Ownership>),
    /// Notify the listeners.
    Rebalanced(Rebalance),
}

/// Why a call failed, as far as this state machine needs to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpFailure {
    /// A retry may succeed.
    Retryable,
    /// A retry fails until the cause is fixed.
    Permanent {
        /// The cause, in one line.
        message: Arc<str>,
    },
    /// Another incarnation holds the id.
    InUse {
        /// The address in the other record.
        address: Option<Address>,
        /// Changes with each renewal of the other record.
        stamp: u64,
    },
}
