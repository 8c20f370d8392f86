//! Why a member owns nothing though its backend works.

use std::fmt;
use std::sync::Arc;

use crate::holdings::StoreRefusal;
use crate::{Address, Fingerprint, GroupName, InstanceId, Policy, PolicyError, Serves, TooManyPoints};

/// Why a member is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemberRefusal {
    /// The backend refuses it, and a retry fails until the cause is fixed.
    #[error("{message}")]
    Backend {
        /// The cause, in one line.
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
        /// The address in the other member's record.
        address: Option<Address>,
    },
    /// The group agrees on other constants.
    #[error("{}", mismatch("this worker", .mine, .next.as_ref(), .group))]
    OtherPolicy {
        /// What this member serves.
        mine: Fingerprint,
        /// The other fingerprint it can serve, if its policy has a `next`.
        next: Option<Fingerprint>,
        /// What the group serves.
        group: Fingerprint,
    },
    /// The group does other work. Such a member deregisters and retries slowly.
    #[error(transparent)]
    OtherWork(#[from] Box<OtherWork>),
    /// The group's weights need more points than its key placement allows.
    #[error(transparent)]
    TooManyPoints(#[from] TooManyPoints),
    /// The granted lease ends before its first renewal.
    #[error("discovery.{0}")]
    Lease(PolicyError),
    /// This member may not claim in the present store of claims.
    #[error(transparent)]
    Store(#[from] StoreRefusal),
}

/// Refusal by a group that does other work.
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

/// The message for a command or program, named by `whose`, that does not join and whose policy does not match the group's.
pub fn policy_mismatch(whose: &str, policy: &Policy, group: Fingerprint) -> String {
    mismatch(whose, policy.fingerprint(), policy.fingerprints().get(1), group)
}

fn mismatch(whose: &str, mine: impl fmt::Display, next: Option<impl fmt::Display>, group: impl fmt::Display) -> String {
    let next = next.map(|next| format!(", and with next {next}")).unwrap_or_default();
    format!(
        "the policy of {whose} does not match the group: {whose} has fingerprint {mine}{next}, the members of the group serve {group}; compare \
         these keys with the settings of a member and make them equal: placement, slots, virtual_nodes, load_margin, ownership, version_rule, \
         min_members, rejoin_grace and next"
    )
}

impl MemberRefusal {
    /// The refusal of `policy` by a group that serves `group`.
    pub fn other_policy(policy: &Policy, group: Fingerprint) -> Self {
        Self::OtherPolicy { mine: policy.fingerprint(), next: policy.fingerprints().get(1).copied(), group }
    }
}
