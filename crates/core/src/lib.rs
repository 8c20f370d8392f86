//! The pure core of `shardwise`: the owners of keys, and when their ownership ends.
//!
//! Nothing in this crate reads a clock, draws a random number, touches a file or a socket, or awaits. Time is a [`Moment`], randomness an
//! [`Incarnation`] or a number, and the group a [`View`]; all of them are arguments. Results are values: a [`SlotOwners`], an
//! [`Ownership`], a list of [`machine::Action`]s. The same inputs give the same outputs on every machine, so workers agree without
//! communicating.
//!
//! From key to answer: [`ShardKey`] -> 64-bit hash -> [`slot_of`] -> one bit of the [`Ownership`] bitmap.
//! From member to owner: [`Member`] in a [`View`] -> [`SlotOwners::place`] -> owner of every slot; an [`IncrementalRing`] places
//! successive views.

mod backoff;
mod causes;
mod change;
mod claim;
mod duration;
mod explain;
mod filter;
mod fingerprint;
mod grants;
mod health;
mod hex;
mod holders;
pub mod holdings;
mod incremental_ring;
mod key;
mod key_placements;
pub mod machine;
mod member;
#[doc(hidden)]
pub mod mistakes;
mod moment;
mod name_owners;
mod names;
mod ownership;
mod placement;
mod placer;
mod plan;
mod policy;
mod quota;
mod rebalance;
mod refusal;
mod replicas;
mod ring;
pub mod routing;
mod serves;
mod side_by_side;
mod slots;
mod succession;
mod text;
mod version;
mod view;
mod walk;

pub use backoff::{Backoff, exponential};
pub use causes::write_with_causes;
pub use change::{PlacementChange, Sample, ShareMove, Side};
pub use claim::{AcquireOutcome, Claim, ClaimStore, Epoch, EpochError, Fence, Holder, Resource, StoreId};
pub use duration::{DurationError, format_duration, parse_duration};
pub use explain::{Explanation, WalkStep};
pub use fingerprint::Fingerprint;
pub use health::{CHECKS_IN_A_ROW, WorkerChecks};
pub use holders::{HeldClaim, Holders, Holding, Mismatch};
pub use incremental_ring::IncrementalRing;
pub use key::{KEY_BYTES_MAX, Key, OwnedKey, ShardKey, hash_bytes};
pub use key_placements::{KeyExplanation, KeyOwners, KeyShare, TooManyPoints};
pub use member::{Address, Incarnation, Loss, Member, MemberState, Missing, WEIGHT_MAX, Weight, WorkerHealth};
pub use moment::Moment;
pub use name_owners::NameOwners;
pub use names::{ClaimName, GroupName, InstanceId, NAME_BYTES_MAX, NameError, PolicyName};
pub use ownership::{NotHeld, NotOwning, Ownership, ServiceState};
pub use placement::SlotOwners;
pub use placer::{Placer, ViewPlacement};
pub use plan::{Balance, Move, Plan};
pub use policy::{
    BackendLoss, DRAIN_TIMEOUT_MAX, KEEP_FOR_MAX, KeyPlacement, LoadMargin, MaxLoss, OwnershipMode, PlacementKind, PlacementParams, Policy,
    PolicyError, REJOIN_GRACE_MAX, REJOIN_GRACE_MIN, SLOTS_DEFAULT, SLOTS_MAX, SLOTS_OUTBOX, Timing, VIRTUAL_NODES_DEFAULT,
    VIRTUAL_NODES_MAX, VersionRule,
};
pub use quota::WeightClassLoad;
pub use rebalance::{Cause, Rebalance};
pub use replicas::{REPLICAS_MAX, Replicas};
pub use ring::{POINTS_MAX, slot_of, slot_start};
pub use serves::Serves;
pub use side_by_side::side_by_side;
pub use slots::SlotSet;
pub use succession::Succession;
pub use text::{Escaped, is_terminal_control, one_line};
pub use version::Version;
pub use view::{Duplicate, MEMBERS_MAX, MemberChange, View};
