//! The clockwise walk with bounded load (rules 4 and 5 of `docs/reference/placement.md`): the owner of every slot.

use crate::quota::Classes;
use crate::ring::{PointHash, capacities, sorted_points};
use crate::{InstanceId, PlacementParams, Weight, slot_start};

/// The owner of every slot as an index into `members`, which are [in order](in_order) and [have points](has_points).
pub(crate) fn owners(members: &[(InstanceId, Weight)], params: &PlacementParams, hash: PointHash) -> Vec<u32> {
    let (mut owners, classes) = walk(members, params, hash);
    if let Some(mut classes) = classes {
        classes.fill(members, params, hash, &mut owners);
    }
    owners
}

/// Rules 4 and 5, and under `quota` the state of the weight classes afterwards.
///
/// Slots are placed in ascending order; each goes to the first point at or after its start whose member is not full. Capacities add up to
/// at least `slots` and every member has a point, so the walk ends within one turn.
pub(crate) fn walk(members: &[(InstanceId, Weight)], params: &PlacementParams, hash: PointHash) -> (Vec<u32>, Option<Classes>) {
    let points = sorted_points(members, params.virtual_nodes, hash);
    let mut room = capacities(members, params.slots, params.load_margin);
    let mut classes = Classes::of(members, params, hash);
    if let Some(classes) = &classes {
        classes.limit(&mut room);
    }
    let mut first = 0;
    let place = |slot: u32| {
        let start = slot_start(slot, params.slots);
        while points.get(first).is_some_and(|point| point.hash < start) {
            first += 1;
        }
        let clockwise = points[first..].iter().chain(&points[..first]);
        let owner = clockwise.map(|point| point.member).find(|member| room[*member as usize] > 0);
        // Room is left for every slot, see above; 0 avoids a panic.
        let owner = owner.unwrap_or(0);
        room[owner as usize] = room[owner as usize].saturating_sub(1);
        if let Some(classes) = &mut classes {
            classes.take(owner as usize, |member| room[member] = 0);
        }
        owner
    };
    ((0..params.slots).map(place).collect(), classes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LoadMargin, PlacementKind, hash_bytes};
    use proptest::prelude::*;

    fn members(weights: &[u8]) -> Vec<(InstanceId, Weight)> {
        let mut members: Vec<_> = (0..)
            .zip(weights)
            .map(|(i, w)| (InstanceId::new(format!("worker-{i}")).unwrap(), Weight::new(u64::from(*w)).unwrap()))
            .collect();
        members.sort();
        members
    }

    fn params(slots: u32, virtual_nodes: u32, load_margin: LoadMargin) -> PlacementParams {
        PlacementParams { kind: PlacementKind::Ring, slots, virtual_nodes, load_margin }
    }

    /// `owners` taken literally from the protocol's text, slot by slot.
    fn as_written(members: &[(InstanceId, Weight)], params: &PlacementParams) -> Vec<u32> {
        let sum: u64 = members.iter().map(|(_, w)| u64::from(w.get())).sum();
        let mut ring = Vec::new();
        for (index, (id, weight)) in (0u32..).zip(members) {
            for i in 0..params.virtual_nodes * u32::from(weight.get()) {
                ring.push((hash_bytes(&[id.as_str().as_bytes(), &i.to_le_bytes()].concat()), id.as_str(), index));
            }
        }
        ring.sort_unstable();
        let mut taken = vec![0u64; members.len()];
        let place = |slot| {
            let at = ring.iter().position(|(hash, ..)| *hash >= slot_start(slot, params.slots)).unwrap_or(0);
            let full = |m: u32| match params.load_margin {
                LoadMargin::None => false,
                LoadMargin::Thousandths(margin) => {
                    let w = u64::from(members[m as usize].1.get());
                    taken[m as usize] >= (u64::from(params.slots) * w * (1_000 + u64::from(margin))).div_ceil(1_000 * sum)
                }
            };
            let owner = (0..ring.len()).map(|step| ring[(at + step) % ring.len()].2).find(|m| !full(*m)).unwrap();
            taken[owner as usize] += 1;
            owner
        };
        (0..params.slots).map(place).collect()
    }

    proptest! {
        #[test]
        fn the_walk_is_the_text(weights in proptest::collection::vec(1u8..5, 1..9), slots in 1u32..200, nodes in 1u32..20, margin in prop_oneof![Just(LoadMargin::None), (0u32..300).prop_map(LoadMargin::Thousandths)]) {
            let members = members(&weights);
            let params = params(slots, nodes, margin);
            prop_assert_eq!(owners(&members, &params, hash_bytes), as_written(&members, &params));
        }

        #[test]
        fn without_margin_it_is_the_hashring_crate(weights in proptest::collection::vec(1u8..4, 1..8), slots in 1u32..300, nodes in 1u32..40) {
            let members = members(&weights);
            let ours = owners(&members, &params(slots, nodes, LoadMargin::None), hash_bytes);
            let oracle = oracle::ring(&members, nodes);
            for slot in 0..slots {
                let expected = oracle::owner(&oracle, slot_start(slot, slots));
                prop_assert_eq!(ours[slot as usize], expected, "slot {}", slot);
            }
        }

        #[test]
        fn no_member_passes_its_capacity(weights in proptest::collection::vec(1u8..=100, 1..20), slots in 1u32..500, margin in 0u32..200) {
            let members = members(&weights);
            let margin = LoadMargin::Thousandths(margin);
            let owners = owners(&members, &params(slots, 16, margin), hash_bytes);
            for (index, capacity) in capacities(&members, slots, margin).into_iter().enumerate() {
                prop_assert!(owners.iter().filter(|o| **o as usize == index).count() <= capacity as usize);
            }
        }
    }

    /// The `hashring` crate as an independent implementation of rule 4, fed with our hashes.
    mod oracle {
        use super::{InstanceId, Weight, hash_bytes};
        use hashring::HashRing;
        use std::hash::{BuildHasher, Hash, Hasher};

        #[derive(Default, Clone)]
        pub(super) struct AsGiven(u64);
        impl Hasher for AsGiven {
            fn finish(&self) -> u64 {
                self.0
            }
            fn write(&mut self, _: &[u8]) {}
            fn write_u64(&mut self, hash: u64) {
                self.0 = hash;
            }
        }
        #[derive(Default, Clone)]
        pub(super) struct AsGivenState;
        impl BuildHasher for AsGivenState {
            type Hasher = AsGiven;
            fn build_hasher(&self) -> AsGiven {
                AsGiven(0)
            }
        }
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub(super) struct PointNode(u64, u32);
        impl Hash for PointNode {
            fn hash<H: Hasher>(&self, state: &mut H) {
                state.write_u64(self.0);
            }
        }

        pub(super) fn ring(members: &[(InstanceId, Weight)], nodes: u32) -> HashRing<PointNode, AsGivenState> {
            let mut points = Vec::new();
            for (index, (id, weight)) in (0u32..).zip(members) {
                for i in 0..nodes * u32::from(weight.get()) {
                    points.push(PointNode(hash_bytes(&[id.as_str().as_bytes(), &i.to_le_bytes()].concat()), index));
                }
            }
            points.sort_by_key(|node| (node.0, node.1));
            points.dedup_by_key(|node| node.0);
            let mut ring = HashRing::with_hasher(AsGivenState);
            ring.batch_add(points);
            ring
        }

        pub(super) fn owner(ring: &HashRing<PointNode, AsGivenState>, hash: u64) -> u32 {
            ring.get(&hash).expect("the ring has points").1
        }
    }
}
