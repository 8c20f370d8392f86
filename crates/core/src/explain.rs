//! Why a key has its owner, step by step.

use crate::quota::{Classes, TransferredSlot, WeightClassLoad};
use crate::ring::{self, PointHash};
use crate::walk::walk;
use crate::{InstanceId, ShardKey, SlotOwners, hash_bytes, slot_of, slot_start};

/// A member that the walk for a slot reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkStep {
    /// The member.
    pub instance_id: InstanceId,
    /// The number of its point, from 0.
    pub point: u32,
    /// The place of that point on the ring.
    pub place: u64,
    /// The slots that it had when this one was placed.
    pub slots: u32,
    /// The most slots that it may have; with as many it is full and skipped.
    pub capacity: u32,
    /// Under `quota` with different weights: the slots of all members of its weight. With their most, all of them are skipped.
    pub together: Option<WeightClassLoad>,
}

/// The way from a key to its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The key's hash.
    pub hash: u64,
    /// Its slot.
    pub slot: u32,
    /// The start of the slot's arc on the ring: the walk goes clockwise from there.
    pub start: u64,
    /// Members that were skipped because they were full, each once, in the order of the walk.
    pub passed: Vec<WalkStep>,
    /// The point that got the slot; `None` without members.
    pub owner: Option<WalkStep>,
    /// Under `quota`, if the owner took the slot because the members of its weight had too few: the first owner.
    pub before: Option<WalkStep>,
    /// The owner if this one left; `None` without other members.
    pub next: Option<InstanceId>,
}

impl SlotOwners {
    /// Why `key` has its owner. For diagnosis: it takes the time of two placements.
    pub fn explain<K: ShardKey + ?Sized>(&self, key: &K) -> Explanation {
        let (hash, params) = (key.key_hash(), self.params());
        let slot = slot_of(hash, params.slots);
        let start = slot_start(slot, params.slots);
        let (mut passed, mut owner, mut before) = (Vec::new(), None, None);
        if !self.indices().is_empty() {
            let (walked, given) = self.walked(slot, hash_bytes);
            passed = self.met(slot, start, &walked, hash_bytes);
            owner = passed.pop();
            if let Some(given) = given {
                before = owner.replace(given);
            }
        }
        let others = self.members().iter().filter(|(id, _)| self.owner_of_slot(slot) != Some(id)).cloned();
        let next = SlotOwners::place(others, *params).owner_of_slot(slot).cloned();
        Explanation { hash, slot, start, passed, owner, before, next }
    }

    /// Every slot's owner after the walk, and the member that then took `slot` because its weight had too few.
    fn walked(&self, slot: u32, hash: PointHash) -> (Vec<u32>, Option<WalkStep>) {
        let (members, params) = (self.members(), self.params());
        let (walked, Some(classes)) = walk(members, params, hash) else { return (self.indices().to_vec(), None) };
        let capacities = ring::capacities(members, params.slots, params.load_margin);
        let given = classes.clone().fill(members, params, hash, &mut walked.clone());
        let taker = given.iter().position(|given| given.slot == slot).map(|at| {
            let TransferredSlot { to, point, place, had, .. } = given[at];
            let to = to as usize;
            // No class both takes and gives.
            let before = given[..at].iter().filter(|given| classes.is_same(given.to as usize, to)).map(|_| 1).sum();
            let together = classes.together(to, before);
            WalkStep { instance_id: members[to].0.clone(), point, place, slots: had, capacity: capacities[to], together: Some(together) }
        });
        (walked, taker)
    }

    /// The members that the walk for `slot` reached; the last one is the owner.
    fn met(&self, slot: u32, start: u64, walked: &[u32], hash: PointHash) -> Vec<WalkStep> {
        let params = self.params();
        let mut slots = vec![0; self.members().len()];
        let mut classes = Classes::of(self.members(), params, hash);
        for owner in &walked[..slot as usize] {
            slots[*owner as usize] += 1;
            if let Some(classes) = &mut classes {
                classes.take(*owner as usize, |_| ());
            }
        }
        let owner = walked[slot as usize];
        let capacities = ring::capacities(self.members(), params.slots, params.load_margin);
        let points = ring::sorted_points(self.members(), params.virtual_nodes, hash);
        let first = points.partition_point(|point| point.hash < start);
        let mut stops: Vec<WalkStep> = Vec::new();
        for point in points[first..].iter().chain(&points[..first]) {
            let at = point.member as usize;
            let instance_id = &self.members()[at].0;
            if stops.iter().all(|stop| stop.instance_id != *instance_id) {
                let number = self.number_of(at, point.hash, hash);
                stops.push(WalkStep {
                    instance_id: instance_id.clone(),
                    point: number,
                    place: point.hash,
                    slots: slots[at],
                    capacity: capacities[at],
                    together: classes.as_ref().map(|classes| classes.together(at, 0)),
                });
            }
            if point.member == owner {
                break;
            }
        }
        stops
    }

    /// The number of the member's first point at `place`.
    fn number_of(&self, member: usize, place: u64, hash: PointHash) -> u32 {
        let (id, weight) = &self.members()[member];
        let per_weight = ring::points_per_weight(self.params().virtual_nodes, ring::weight_sum(self.members()));
        let (mut number, mut found) = (0, None);
        ring::each_point(id, 0..per_weight * u32::from(weight.get()), hash, |hash| {
            found = found.or((hash == place).then_some(number));
            number += 1;
        });
        // The point came from there, so it is found.
        found.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IncrementalRing, PlacementParams, Weight};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn id(name: &str) -> InstanceId {
        InstanceId::new(name).unwrap()
    }

    fn key_in(slot: u32) -> String {
        (0..10_000).map(|i| format!("key {i}")).find(|key| slot_of(key.key_hash(), 32) == slot).unwrap()
    }

    /// The worked example of docs/reference/placement.md.
    #[test]
    fn slot_24_of_the_worked_example_went_past_c() {
        let params = PlacementParams { slots: 32, virtual_nodes: 4, ..PlacementParams::default() };
        let placed = SlotOwners::place(["a", "b", "c"].map(|name| (id(name), Weight::ONE)), params);
        let explained = placed.explain(&key_in(24));
        assert_eq!((explained.slot, explained.start), (24, 24 << 59));
        let [passed] = &explained.passed[..] else { panic!("{explained:?}") };
        assert_eq!((passed.instance_id.as_str(), passed.slots, passed.capacity), ("c", 12, 12));
        let owner = explained.owner.unwrap();
        assert_eq!((owner.instance_id.as_str(), owner.slots, owner.capacity), ("a", 7, 12));
        assert!(passed.place >= explained.start && owner.place > passed.place);
        assert_eq!(hash_bytes(&[b"a", &owner.point.to_le_bytes()[..]].concat()), owner.place);
        let without_a = SlotOwners::place(["b", "c"].map(|name| (id(name), Weight::ONE)), params);
        assert_eq!(explained.next.as_ref(), without_a.owner_of_slot(24));
    }

    #[test]
    fn without_members_there_is_no_owner_and_alone_there_is_no_next() {
        let none = SlotOwners::place([], PlacementParams::default()).explain("key");
        assert_eq!((none.owner, none.next, none.passed), (None, None, vec![]));
        let one = SlotOwners::place([(id("a"), Weight::ONE)], PlacementParams::default()).explain("key");
        assert_eq!((one.owner.unwrap().instance_id, one.next), (id("a"), None));
    }

    /// All points on few places: the walk prefers the smaller id, lists each member once with its first point there, and ends at the owner.
    #[test]
    fn points_that_collide_are_met_in_the_order_of_the_ids() {
        let crowded: PointHash = |bytes| hash_bytes(bytes) >> 61 << 61;
        let stacked: PointHash = |_| 7;
        let members: Vec<_> = ["c", "a", "b", "d"].map(|name| (id(name), Weight::ONE)).into();
        for hash in [crowded, stacked] {
            let params = PlacementParams { slots: 40, virtual_nodes: 6, ..PlacementParams::default() };
            let placed = IncrementalRing::with_hash(params, hash).place(members.clone());
            for slot in 0..40 {
                let met = placed.met(slot, slot_start(slot, 40), placed.indices(), hash);
                let (last, passed) = met.split_last().unwrap();
                assert_eq!(Some(&last.instance_id), placed.owner_of_slot(slot));
                assert!(last.slots < last.capacity && passed.iter().all(|stop| stop.slots == stop.capacity), "{met:?}");
                assert_eq!(met.iter().map(|stop| &stop.instance_id).collect::<BTreeSet<_>>().len(), met.len(), "each once");
                let turned = |stop: &WalkStep| (stop.place.wrapping_sub(slot_start(slot, 40)), stop.instance_id.clone());
                assert!(met.is_sorted_by_key(turned), "{met:?}");
                for stop in &met {
                    let place = |point: u32| hash(&[stop.instance_id.as_str().as_bytes(), &point.to_le_bytes()].concat());
                    assert!(place(stop.point) == stop.place && (0..stop.point).all(|before| place(before) != stop.place), "{stop:?}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn who_was_passed_over_was_full_and_the_owner_was_not(members in 1u32..12, slots in 1u32..60, key in any::<u64>()) {
            let params = PlacementParams { slots, virtual_nodes: 3, ..PlacementParams::default() };
            let placed = SlotOwners::place((0..members).map(|i| (id(&format!("w{i}")), Weight::ONE)), params);
            let explained = placed.explain(&key);
            let owner = explained.owner.unwrap();
            prop_assert_eq!(Some(&owner.instance_id), placed.owner(&key));
            prop_assert!(owner.slots < owner.capacity);
            for stop in explained.passed {
                prop_assert_eq!(stop.slots, stop.capacity);
                prop_assert_eq!(placed.slots_of(&stop.instance_id).len(), stop.capacity);
                prop_assert_eq!(hash_bytes(&[stop.instance_id.as_str().as_bytes(), &stop.point.to_le_bytes()].concat()), stop.place);
            }
        }
    }
    proptest! {
        /// Every reported step is true: skipped members had no room, or their weight had none; and of two owners the second took the slot
        /// for its weight.
        #[test]
        fn under_quota_it_shows_whose_weight_was_full_and_who_took_the_slot_from_whom(
            weights in proptest::collection::vec(prop_oneof![Just(1u64), Just(2), Just(20)], 2..9), slots in 1u32..80, key in any::<u64>(),
        ) {
            let params = PlacementParams { kind: crate::PlacementKind::Quota, slots, virtual_nodes: 3, ..PlacementParams::default() };
            let members = (0..).zip(&weights).map(|(i, weight)| (id(&format!("w{i}")), Weight::new(*weight).unwrap()));
            let placed = SlotOwners::place(members, params);
            let explained = placed.explain(&key);
            let weight_of = |stop: &WalkStep| placed.members().iter().find(|(id, _)| *id == stop.instance_id).unwrap().1;
            let has_room = |stop: &WalkStep| stop.slots < stop.capacity && stop.together.is_none_or(|all| all.slots < all.most);
            let owner = explained.owner.unwrap();
            prop_assert_eq!(Some(&owner.instance_id), placed.owner(&key));
            prop_assert!(has_room(&owner), "{:?}", owner);
            prop_assert_eq!(hash_bytes(&[owner.instance_id.as_str().as_bytes(), &owner.point.to_le_bytes()].concat()), owner.place);
            prop_assert!(explained.passed.iter().all(|stop| !has_room(stop)), "{:?}", explained.passed);
            prop_assert!(explained.before.as_ref().is_none_or(|before| has_room(before) && weight_of(before) != weight_of(&owner)));
            let one_weight = weights.iter().all(|weight| *weight == weights[0]);
            prop_assert_eq!(owner.together.is_none(), one_weight);
        }
    }
}
