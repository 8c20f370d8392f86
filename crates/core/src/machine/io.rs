//! What goes into the machine and what comes out.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::holdings::{CallFailure, ClaimAction, StoreRefusal};
use crate::{
    AcquireOutcome, Address, Claim, ClaimName, ClaimStore, Fingerprint, GroupName, Incarnation, InstanceId, Missing, Moment, Ownership,
    Policy, PolicyError, Rebalance, Resource, Serves, TooManyPoints, View,
};

/// Something that happened. `attempt` names the call it answers; answers to calls that are no longer waited for fall away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The user wants to be a member.
    Join,
    /// The user wants to leave.
    Leave,
    /// The same, without keeping a place; also of a worker that has left and is away.
    LeaveForGood,
    /// The time of [`super::Machine::wake_at`] has come.
    Woken,
    /// The record is in the backend, for `ttl` from `started` on.
    Registered {
        /// Of which call.
        attempt: u64,
        /// When the request that counted began.
        started: Moment,
        /// What the backend granted.
        ttl: Duration,
    },
    /// The record lives on, for `ttl` from `started` on.
    Renewed {
        /// Of which call.
        attempt: u64,
        /// When the request that counted began.
        started: Moment,
        /// What the backend granted.
        ttl: Duration,
    },
    /// Registering or renewing failed.
    Failed {
        /// Of which call.
        attempt: u64,
        /// How.
        failure: OpFailure,
    },
    /// The backend has no record of ours any more.
    RecordLost {
        /// Of which call.
        attempt: u64,
    },
    /// The group, as the backend's authority had it at `proven`.
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
    /// News of claims, under exclusive ownership.
    Claims(ClaimInput),
    /// The names that this worker can serve from now on, under exclusive ownership: singletons, daemons, timers.
    Names(BTreeSet<ClaimName>),
    /// Nothing of the user's work is in flight any more.
    InFlightDone,
    /// The record is gone, or was given up.
    Deregistered,
}

/// What happened to claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimInput {
    /// The group's store of claims is this one.
    Opened {
        /// Of which call.
        attempt: u64,
        /// The store.
        store: ClaimStore,
    },
    /// What became of each resource that was asked for.
    Acquired {
        /// Of which call.
        attempt: u64,
        /// By resource.
        answers: Vec<(Resource, AcquireOutcome)>,
    },
    /// They are given back.
    Released {
        /// Of which call.
        attempt: u64,
    },
    /// A call about claims failed.
    Failed {
        /// Of which call.
        attempt: u64,
        /// How.
        failure: CallFailure,
    },
    /// Every claim of the group: what is not listed is free.
    All(Vec<(Resource, Claim)>),
    /// What has changed since; `None`: nobody holds it.
    Changed(Vec<(Resource, Option<Claim>)>),
    /// Nothing is in flight any more on these, which drain.
    Idle(Vec<Resource>),
}

/// A call that is answered later, by its attempt's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Write the member's record, without a mark: what stood in an earlier one belongs to a past that counts no more.
    Register,
    /// Keep it alive.
    Renew,
}

/// Something for the driver to carry out, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Register under this incarnation from now on. What was asked for before goes on under the former one.
    BeginLife(Incarnation),
    /// Call the backend; answer with `Registered`, `Renewed`, `RecordLost` or `Failed` under this attempt.
    Call {
        /// Which call.
        op: Op,
        /// Its number.
        attempt: u64,
    },
    /// Follow the group's members.
    StartWatch,
    /// Read the group once and answer with `Viewed`: a watch may have seen the record before its registration was answered, and what
    /// it saw counts only when it is proven anew.
    Look,
    /// Stop following them.
    StopWatch,
    /// Show the record as draining; whether that succeeds changes nothing here.
    MarkDraining,
    /// Show the record as that of a member that leaves for a while; whether that succeeds changes nothing here.
    MarkPausing,
    /// Show in the record, until the next registration, whom this member has seen vanish beyond what `max_loss` allows; nobody takes the
    /// mark back. To be tried until it is written, unless another one comes first: the others go by it.
    MarkLoss(Vec<Missing>),
    /// Tell the runners to finish and answer with `InFlightDone`.
    AwaitInFlight,
    /// Delete the record; answer with `Deregistered`, whatever came of it.
    Deregister,
    /// Put in the place of the record one that lives for so long without anybody renewing it, or else delete it; answer with `Deregistered`,
    /// whatever came of it.
    StepAway {
        /// For how long at most the member is away.
        grace: Duration,
    },
    /// Do this about claims.
    Claim(ClaimAction),
    /// Make this snapshot the one that readers see.
    Publish(Arc<Ownership>),
    /// Tell the listeners.
    Rebalanced(Rebalance),
}

/// Why a call failed, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpFailure {
    /// May work later.
    Retryable,
    /// Will not work until somebody changes something.
    Permanent {
        /// What, in one line.
        message: Arc<str>,
    },
    /// Another incarnation holds the id.
    InUse {
        /// Where it says it is.
        address: Option<Address>,
        /// Changes whenever the other one renews.
        stamp: u64,
    },
}

/// Why a member is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemberRefusal {
    /// The backend refuses it for good.
    #[error("{message}")]
    Backend {
        /// What, in one line.
        message: Arc<str>,
    },
    /// A living member has the same id.
    #[error(
        "instance id {instance_id:?} is in use by a living member{}; stop that one or choose another id",
        .address.as_ref().map(|a| format!(" at {a}")).unwrap_or_default()
    )]
    InUse {
        /// The id.
        instance_id: InstanceId,
        /// Where the other one says it is.
        address: Option<Address>,
    },
    /// The group has agreed on other constants.
    #[error(
        "this worker's policy has fingerprint {mine}{}, the group serves {group}; \
         make placement, slots, virtual_nodes, load_margin, ownership, version_rule, min_members, rejoin_grace and next equal to the others'",
        .next.map(|next| format!(" and next {next}")).unwrap_or_default()
    )]
    OtherPolicy {
        /// What this member serves.
        mine: Fingerprint,
        /// What else it can serve, if its policy has a `next`.
        next: Option<Fingerprint>,
        /// What the group serves.
        group: Fingerprint,
    },
    /// The group works for something else. Such a member deregisters, and asks again slowly.
    #[error(transparent)]
    OtherWork(#[from] Box<OtherWork>),
    /// The group's weights make more points than its key placement can keep.
    #[error(transparent)]
    TooManyPoints(#[from] TooManyPoints),
    /// What the backend grants of the TTL is over before it would be renewed.
    #[error("discovery.{0}")]
    Lease(PolicyError),
    /// The store of claims is not one in which this member may claim.
    #[error(transparent)]
    Store(#[from] StoreRefusal),
}

/// Why a member is refused by a group that works for something else.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "this worker serves {mine}, but the group {group_name:?} serves {group}, as member {member:?} does: each would own slots whose work it never \
     does; give each its own policy with its own group_name"
)]
pub struct OtherWork {
    /// What this member serves.
    pub mine: Serves,
    /// The group.
    pub group_name: GroupName,
    /// What the group serves.
    pub group: Serves,
    /// A member that serves it.
    pub member: InstanceId,
}

impl MemberRefusal {
    /// The group serves `group`, and `policy` cannot.
    pub fn other_policy(policy: &Policy, group: Fingerprint) -> Self {
        Self::OtherPolicy { mine: policy.fingerprint(), next: policy.fingerprints().get(1).copied(), group }
    }
}
