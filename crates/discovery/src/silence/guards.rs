//! Which members guard a member: those with the highest hashes of both ids.
//!
//! Neighbours in any order of the ids often die together, because they run on one machine. A hash of both ids spreads each member's guards
//! over the group, and a member that comes or goes changes few of them. Each member decides for itself; the hash is part of no protocol.

use shardwise_core::{InstanceId, hash_bytes};

/// How many members guard each member; all others, if there are fewer.
pub const GUARDS: usize = 8;

pub(super) fn id_hash(id: &InstanceId) -> u64 {
    hash_bytes(id.as_str().as_bytes())
}

/// Whether `me` is one of the guards of the member with that hash. `others` are the members beside that one, each with its hash.
pub(super) fn is_chosen<'a>(me: &InstanceId, member: u64, others: impl Iterator<Item = (&'a InstanceId, u64)>) -> bool {
    let mine = rank(id_hash(me), member);
    let above = others.filter(|(other, hash)| *other != me && rank(*hash, member) > mine);
    above.take(GUARDS).count() < GUARDS
}

fn rank(guard: u64, member: u64) -> u64 {
    let mut both = [0; 16];
    both[..8].copy_from_slice(&guard.to_le_bytes());
    both[8..].copy_from_slice(&member.to_le_bytes());
    hash_bytes(&both)
}
