//! Key placements: other fleets' rules, applied to each key without slots, so that our workers and theirs share one group.
//!
//! They count what the other fleet counts: every member, draining or not and whatever it serves, and every instance without a record of
//! ours, with weight 1. The rules are in `docs/reference/key-placements.md` and must never change.

mod hashring;
mod modulo;
mod points;
mod share;
#[cfg(test)]
mod tests;
mod uhashring;

use std::sync::Arc;

use points::Points;
pub use share::KeyShare;

use crate::ring::in_order;
use crate::{InstanceId, Key, KeyPlacement, POINTS_MAX, ShardKey, View, Weight};

/// More points than a worker keeps. There is no answer then: with fewer points it would differ from the other fleet's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "placement {placement} with these weights has {points} points on its ring, at most {POINTS_MAX} are allowed; \
     lower the weights{}", if *.placement == KeyPlacement::Hashring { " or virtual_nodes" } else { "" }
)]
pub struct TooManyPoints {
    /// The placement.
    pub placement: KeyPlacement,
    /// The number of points.
    pub points: u64,
}

/// The owner of each key under a key placement.
///
/// ```
/// use shardwise_core::{InstanceId, KeyOwners, KeyPlacement, Weight};
///
/// let members = ["worker-1", "worker-2", "worker-3"].map(|id| (InstanceId::new(id).unwrap(), Weight::ONE));
/// let owners = KeyOwners::place(members, KeyPlacement::Uhashring, 1).unwrap();
/// // As HashRing(["worker-1", "worker-2", "worker-3"]).get_node("tenant-a") in Python.
/// assert_eq!(owners.owner("tenant-a").unwrap().as_str(), "worker-2");
/// ```
#[derive(Debug)]
pub struct KeyOwners {
    placement: KeyPlacement,
    per_weight: u32,
    members: Vec<(InstanceId, Weight)>,
    table: KeyTable,
}

#[derive(Debug)]
enum KeyTable {
    Modulo,
    Uhashring(Points<uhashring::UhashringPosition>),
    Hashring(Points<hashring::HashringPosition>),
}

/// How a key got its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyExplanation {
    /// The key's hash in hexadecimal, at full width: 32 digits for `uhashring`, 8 for `modulo`, 16 for `hashring`.
    pub hash: String,
    /// The place of the owner's point, with as many digits; `None` without members and for `modulo`.
    pub point: Option<String>,
    /// The owner's position among the members sorted by the bytes of their ids, from 0: for `modulo` the hash modulo their number.
    pub position: Option<usize>,
    /// The owner; `None` without members.
    pub owner: Option<InstanceId>,
    /// The owner if this one left; `None` without other members.
    pub next: Option<InstanceId>,
}

impl KeyOwners {
    /// Places keys on `members`, given in any order; a repeated id counts once, with its first weight. `virtual_nodes` applies only to
    /// [`KeyPlacement::Hashring`]. Without members no key has an owner.
    ///
    /// # Errors
    ///
    /// [`TooManyPoints`].
    pub fn place(
        members: impl IntoIterator<Item = (InstanceId, Weight)>,
        placement: KeyPlacement,
        virtual_nodes: u32,
    ) -> Result<Self, TooManyPoints> {
        Self::follow(None, members, placement, virtual_nodes)
    }

    /// The placement of a view: over all its members and all instances without a record.
    ///
    /// # Errors
    ///
    /// [`TooManyPoints`].
    pub fn of_view(view: &View, placement: KeyPlacement, virtual_nodes: u32) -> Result<Self, TooManyPoints> {
        Self::place(owned(inputs(view)), placement, virtual_nodes)
    }

    /// Equal to [`KeyOwners::of_view`], at the cost of the changes since `last`, if that used the same rules.
    pub(crate) fn of_view_after(
        last: Option<&Self>,
        view: &View,
        placement: KeyPlacement,
        virtual_nodes: u32,
    ) -> Result<Self, TooManyPoints> {
        Self::follow(last, owned(inputs(view)), placement, virtual_nodes)
    }

    fn follow(
        last: Option<&Self>,
        members: impl IntoIterator<Item = (InstanceId, Weight)>,
        placement: KeyPlacement,
        virtual_nodes: u32,
    ) -> Result<Self, TooManyPoints> {
        let members = in_order(members);
        let per_weight = per_weight(placement, virtual_nodes);
        check(members.iter().map(|(_, weight)| *weight), placement, per_weight)?;
        let last = last.filter(|last| (last.placement, last.per_weight) == (placement, per_weight));
        let table = match (placement, last.map(|last| (&last.members, &last.table))) {
            (KeyPlacement::Modulo, _) => KeyTable::Modulo,
            (KeyPlacement::Uhashring, Some((had, KeyTable::Uhashring(points)))) => {
                KeyTable::Uhashring(points.follow(had, &members, per_weight))
            }
            (KeyPlacement::Uhashring, _) => KeyTable::Uhashring(Points::new(&members, per_weight)),
            (KeyPlacement::Hashring, Some((had, KeyTable::Hashring(points)))) => {
                KeyTable::Hashring(points.follow(had, &members, per_weight))
            }
            (KeyPlacement::Hashring, _) => KeyTable::Hashring(Points::new(&members, per_weight)),
        };
        Ok(Self { placement, per_weight, members, table })
    }

    /// How many points placing `view` would make, reusing `last` if that used the same rules.
    pub(crate) fn points_to_make(last: Option<&Self>, view: &View, placement: KeyPlacement, virtual_nodes: u32) -> u64 {
        let is_new = |member: &(&InstanceId, Weight)| {
            last.is_none_or(|last| last.members.binary_search_by(|(id, weight)| (id, *weight).cmp(member)).is_err())
        };
        let weights = inputs(view).filter(is_new).map(|(_, weight)| u64::from(weight.get()));
        weights.sum::<u64>() * u64::from(per_weight(placement, virtual_nodes))
    }

    /// Whether placing `view` would give this placement again; computed without placing it.
    pub fn is_of(&self, view: &View) -> bool {
        let mut inputs: Vec<_> = inputs(view).collect();
        inputs.sort_unstable();
        inputs.into_iter().eq(self.members.iter().map(|(id, weight)| (id, *weight)))
    }

    /// The rule.
    pub const fn placement(&self) -> KeyPlacement {
        self.placement
    }

    /// The members it was made from, sorted by the bytes of their ids.
    pub fn members(&self) -> &[(InstanceId, Weight)] {
        &self.members
    }

    /// The owner of a key; `None` without members.
    pub fn owner<K: ShardKey + ?Sized>(&self, key: &K) -> Option<&InstanceId> {
        self.position(key).map(|position| &self.members[position as usize].0)
    }

    /// What one member holds; nothing for an unknown id.
    pub fn share_of(self: &Arc<Self>, instance_id: &InstanceId) -> KeyShare {
        let position = self.members.binary_search_by(|(id, _)| id.cmp(instance_id)).ok().and_then(|at| u32::try_from(at).ok());
        position.map_or_else(KeyShare::nothing, |position| KeyShare::of_member(Arc::clone(self), position))
    }

    /// Why `key` has its owner. For diagnosis: it costs as much as the owner leaving the group.
    pub fn explain<K: ShardKey + ?Sized>(&self, key: &K) -> KeyExplanation {
        let (hash, point) = key.with_key(|key| key.with_text(|text| self.hash_and_point(text)));
        let position = self.position(key);
        let owner = position.map(|position| self.members[position as usize].0.clone());
        let others = self.members.iter().filter(|(id, _)| Some(id) != owner.as_ref()).cloned();
        // Fewer members have fewer points, so this cannot fail.
        let without = Self::follow(Some(self), others, self.placement, self.per_weight).ok();
        let next = without.and_then(|without| without.owner(key).cloned());
        KeyExplanation { hash, point, position: position.map(|position| position as usize), owner, next }
    }

    fn hash_and_point(&self, text: &[u8]) -> (String, Option<String>) {
        match &self.table {
            KeyTable::Modulo => (format!("{:08x}", modulo::fnv1a(text)), None),
            KeyTable::Uhashring(points) => {
                let hash = uhashring::UhashringPosition::of(text);
                (format!("{:032x}", hash.number()), points.find(hash).map(|(place, _)| format!("{:032x}", place.number())))
            }
            KeyTable::Hashring(points) => {
                let hash = hashring::HashringPosition::of(text);
                (format!("{:016x}", hash.number()), points.find(hash).map(|(place, _)| format!("{:016x}", place.number())))
            }
        }
    }

    #[inline]
    fn position<K: ShardKey + ?Sized>(&self, key: &K) -> Option<u32> {
        key.with_key(|key| self.position_of(key))
    }

    fn position_of(&self, key: Key<'_>) -> Option<u32> {
        key.with_text(|text| match &self.table {
            // A position is below the number of members, which fits.
            KeyTable::Modulo => modulo::fnv1a(text).checked_rem(u32::try_from(self.members.len()).unwrap_or(u32::MAX)),
            KeyTable::Uhashring(points) => points.find(uhashring::UhashringPosition::of(text)).map(|(_, member)| member),
            KeyTable::Hashring(points) => points.find(hashring::HashringPosition::of(text)).map(|(_, member)| member),
        })
    }
}

/// Equal if they give every key to the same member: the points follow from the other fields.
impl PartialEq for KeyOwners {
    fn eq(&self, other: &Self) -> bool {
        (self.placement, self.per_weight, &self.members) == (other.placement, other.per_weight, &other.members)
    }
}

impl Eq for KeyOwners {}

fn check(weights: impl Iterator<Item = Weight>, placement: KeyPlacement, per_weight: u32) -> Result<(), TooManyPoints> {
    let points = weights.map(|weight| u64::from(weight.get()) * u64::from(per_weight)).sum();
    if points > u64::from(POINTS_MAX) { Err(TooManyPoints { placement, points }) } else { Ok(()) }
}

const fn per_weight(placement: KeyPlacement, virtual_nodes: u32) -> u32 {
    match placement {
        KeyPlacement::Modulo => 0,
        KeyPlacement::Uhashring => uhashring::POINTS,
        KeyPlacement::Hashring => virtual_nodes,
    }
}

/// The members and weights that a key placement counts.
fn inputs(view: &View) -> impl Iterator<Item = (&InstanceId, Weight)> {
    view.members().iter().map(|m| (&m.instance_id, m.weight)).chain(view.foreign().iter().map(|id| (id, Weight::ONE)))
}

fn owned<'a>(members: impl Iterator<Item = (&'a InstanceId, Weight)>) -> impl Iterator<Item = (InstanceId, Weight)> {
    members.map(|(id, weight)| (id.clone(), weight))
}
