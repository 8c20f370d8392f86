//! The ring of protocol 1: slots, points, and the clockwise walk with bounded load (`docs/reference/placement.md`).
//!
//! This file builds the ring of virtual nodes for one view, with only arithmetic on hashes. `placement` decides which members take part,
//! and `incremental_ring` keeps a ring between views.

#![expect(clippy::cast_possible_truncation, reason = "each cast says beside it why the value fits")]

use std::ops::Range;

use crate::{InstanceId, LoadMargin, PlacementParams, Weight};

/// The most points on one ring; beyond it, every member gets fewer points per unit of weight.
pub const POINTS_MAX: u32 = 4_194_304;

/// The slot of a hash: `(hash * slots) >> 64`. `slots` is at least 1.
#[inline]
pub fn slot_of(hash: u64, slots: u32) -> u32 {
    // The product's upper half is below `slots`, so it fits.
    ((u128::from(hash) * u128::from(slots)) >> 64) as u32
}

/// The start of slot `slot`'s arc: `ceil(slot * 2^64 / slots)`. `slot` is below `slots`; without slots it is 0.
pub fn slot_start(slot: u32, slots: u32) -> u64 {
    // slot < slots, so the quotient is below 2^64. `max` prevents a division by 0.
    (u128::from(slot) << 64).div_ceil(u128::from(slots.max(1))) as u64
}

/// One point of a member on the ring. Members are numbered in the order of their ids' bytes, so the derived order is the protocol's: by
/// hash, then by the smaller id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Point {
    pub(crate) hash: u64,
    pub(crate) member: u32,
}

/// The hash of a point's bytes: [`crate::hash_bytes`]; tests use others to make points collide.
pub(crate) type PointHash = fn(&[u8]) -> u64;

/// The members in the protocol's order: by the bytes of their ids, each id once, with its first weight.
pub(crate) fn in_order(members: impl IntoIterator<Item = (InstanceId, Weight)>) -> Vec<(InstanceId, Weight)> {
    let mut members: Vec<_> = members.into_iter().collect();
    members.sort_by(|a, b| a.0.cmp(&b.0));
    members.dedup_by(|b, a| a.0 == b.0);
    members
}

pub(crate) fn weight_sum(members: &[(InstanceId, Weight)]) -> u64 {
    members.iter().map(|(_, weight)| u64::from(weight.get())).sum()
}

/// Points per unit of weight: `virtual_nodes`, or fewer if the ring would exceed [`POINTS_MAX`].
pub(crate) fn points_per_weight(virtual_nodes: u32, weight_sum: u64) -> u32 {
    if u64::from(virtual_nodes) * weight_sum > u64::from(POINTS_MAX) {
        // At most POINTS_MAX, so it fits.
        (u64::from(POINTS_MAX) / weight_sum).max(1) as u32
    } else {
        virtual_nodes
    }
}

/// The number of points on a ring of members with these weights.
pub(crate) fn points_of(weights: impl Iterator<Item = Weight>, virtual_nodes: u32) -> u64 {
    let sum = weights.map(|weight| u64::from(weight.get())).sum();
    u64::from(points_per_weight(virtual_nodes, sum)) * sum
}

/// Passes the place of each of a member's points `which` to `put`.
pub(crate) fn each_point(id: &InstanceId, which: Range<u32>, hash: PointHash, mut put: impl FnMut(u64)) {
    let mut bytes = [id.as_str().as_bytes(), &[0; 4]].concat();
    let end = id.as_str().len();
    for point in which {
        bytes[end..].copy_from_slice(&point.to_le_bytes());
        put(hash(&bytes));
    }
}

/// Every member's points in the protocol's order.
pub(crate) fn sorted_points(members: &[(InstanceId, Weight)], virtual_nodes: u32, hash: PointHash) -> Vec<Point> {
    let weight_sum = weight_sum(members);
    let per_weight = points_per_weight(virtual_nodes, weight_sum);
    // At most POINTS_MAX, or one point per unit of weight of at most MEMBERS_MAX members.
    let mut points = Vec::with_capacity((u64::from(per_weight) * weight_sum) as usize);
    for (member, (id, weight)) in (0u32..).zip(members) {
        each_point(id, 0..per_weight * u32::from(weight.get()), hash, |hash| points.push(Point { hash, member }));
    }
    points.sort_unstable();
    points
}

/// How many slots each member may own: `ceil(slots * w * (1000 + m) / (1000 * sum(w)))`, or all of them without a margin.
pub(crate) fn capacities(members: &[(InstanceId, Weight)], slots: u32, margin: LoadMargin) -> Vec<u32> {
    let weight_sum = weight_sum(members);
    let capacity = |weight: Weight| match margin {
        LoadMargin::None => slots,
        // 65,536 * 100 * 11,000 fits easily; the quotient is capped at `slots`, the most that a member can own.
        LoadMargin::Thousandths(m) => {
            let load = u64::from(slots) * u64::from(weight.get()) * (1_000 + u64::from(m));
            load.div_ceil(1_000 * weight_sum).min(u64::from(slots)) as u32
        }
    };
    members.iter().map(|(_, weight)| capacity(*weight)).collect()
}

/// Whether any member can own a slot. Valid parameters give each member points; without points there are no owners.
pub(crate) const fn has_points(members: &[(InstanceId, Weight)], params: &PlacementParams) -> bool {
    !members.is_empty() && params.virtual_nodes > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_the_arc_from_its_start_to_the_next() {
        for slots in [1, 2, 3, 7, 1_000, 1_024, 16_384, 65_535, 65_536] {
            for slot in [0, slots / 3, slots / 2, slots - 1] {
                let start = slot_start(slot, slots);
                assert_eq!(slot_of(start, slots), slot);
                assert_eq!(slot_of(start.wrapping_sub(1), slots), if slot == 0 { slots - 1 } else { slot - 1 });
            }
            assert_eq!(slot_of(u64::MAX, slots), slots - 1);
        }
    }

    #[test]
    fn too_many_points_are_thinned_for_all() {
        assert_eq!(points_per_weight(1_024, 4_096), 1_024);
        assert_eq!(points_per_weight(1_024, 4_097), 1_023);
        assert_eq!(points_per_weight(1_024, u64::from(POINTS_MAX) * 2), 1);
    }
}
