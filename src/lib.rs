//! Which keys are mine? Consistent-hash sharding for fleets of background workers.

mod error;
pub mod settings;
mod sharding;

pub use error::{Error, ErrorKind, Result};
pub use settings::Settings;
pub use sharding::Sharding;
pub use shardwise_core as core;
pub use shardwise_core::{
    Address, Cause, Fingerprint, GroupName, Incarnation, InstanceId, LoadMargin, Member, MemberState, Moment, NotOwning, Ownership,
    OwnershipMode, PlacementKind, PlacementParams, Policy, PolicyName, Rebalance, ServiceState, ShardKey, SlotOwners, SlotSet, Timing,
    View, Weight, slot_of,
};
pub use shardwise_discovery as discovery;
