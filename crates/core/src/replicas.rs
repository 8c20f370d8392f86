//! Several members for a key: the owner and its successors, in different zones as long as there are any (rule 7 of
//! `docs/reference/placement.md`).

mod clockwise;

use clockwise::ClockwiseOrder;

use crate::ring::{self, PointHash};
use crate::{InstanceId, PlacementParams, ShardKey, SlotOwners, View, hash_bytes, slot_of, slot_start};

/// The most members for one key.
pub const REPLICAS_MAX: usize = 32;

/// For every slot its owner and the members that follow it.
///
/// ```
/// use shardwise_core::{InstanceId, Member, PlacementParams, Replicas, SlotOwners, View};
///
/// let member = |id, zone: &str| Member { zone: Some(zone.into()), ..Member::named(InstanceId::new(id).unwrap()) };
/// let view = View::new(1, vec![member("a", "north"), member("b", "north"), member("c", "south")]);
/// let replicas = Replicas::of_view(&view, PlacementParams::default(), 2);
///
/// let two: Vec<_> = replicas.owners("tenant-7", 2).collect();
/// assert_eq!(Some(two[0]), SlotOwners::of_view(&view, PlacementParams::default()).owner("tenant-7"));
/// assert!(two.contains(&&view.members()[2].instance_id), "one of the two is in the south");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replicas {
    slots: u32,
    members: Vec<InstanceId>,
    /// How many members each slot has.
    each: usize,
    /// `each` indices into `members` for every slot.
    ranked: Vec<u32>,
}

impl Replicas {
    /// The owners of a view's slots and their successors, `most` in all; at most [`REPLICAS_MAX`], and no more than the members placed.
    /// Empty under a key placement, which has no slots.
    ///
    /// It takes two to three times as long as a placement from scratch, whatever the weights and zones: it visits each point twice and,
    /// for each slot, at most twice as many zones and members as it lists. It stores four bytes for each slot and replica.
    pub fn of_view(view: &View, params: PlacementParams, most: usize) -> Self {
        let placed = SlotOwners::of_view(view, params);
        let owners = if placed.indices().is_empty() { 0 } else { placed.members().len() };
        let each = most.min(REPLICAS_MAX).min(owners);
        let ranked = if each == 0 { Vec::new() } else { ranked(&placed, &zones(view, &placed), each, hash_bytes, || ()) };
        Self { slots: params.slots, members: placed.members().iter().map(|(id, _)| id.clone()).collect(), each, ranked }
    }

    /// The number of slots, the placed members, how many each slot has, and so many positions in the members for every slot.
    pub(crate) fn parts(&self) -> (u32, &[InstanceId], usize, &[u32]) {
        (self.slots, &self.members, self.each, &self.ranked)
    }

    /// The first `n` members for a slot, its owner first; empty for a slot beyond the ring. The members for a smaller `n` are the first
    /// of those for a larger one.
    pub fn owners_of_slot(&self, slot: u32, n: usize) -> impl Iterator<Item = &InstanceId> {
        let begin = slot as usize * self.each;
        let ranked = self.ranked.get(begin..begin + self.each).unwrap_or_default();
        ranked.iter().take(n).map(|member| &self.members[*member as usize])
    }

    /// The first `n` members for a key, its owner first.
    pub fn owners<K: ShardKey + ?Sized>(&self, key: &K, n: usize) -> impl Iterator<Item = &InstanceId> {
        self.owners_of_slot(slot_of(key.key_hash(), self.slots), n)
    }
}

/// Each placed member's zone as a number. Members without a zone share one, because their location is unknown.
fn zones(view: &View, placed: &SlotOwners) -> Vec<usize> {
    let name = |id| view.member(id).and_then(|member| member.zone.as_deref()).unwrap_or_default();
    let each: Vec<_> = placed.members().iter().map(|(id, _)| name(id)).collect();
    let mut names = each.clone();
    names.sort_unstable();
    names.dedup();
    // Every name is found; 0 avoids a panic.
    each.iter().map(|name| names.binary_search(name).unwrap_or(0)).collect()
}

/// `each` members for every slot: the owner, then clockwise the members of new zones, then clockwise the remaining members.
///
/// It goes backwards over the points twice and over the slots once. `visit` is called for every point, zone and member visited: at most
/// `2 * points + 2 * each * slots` times, whatever the weights and zones.
fn ranked(placed: &SlotOwners, zones: &[usize], each: usize, hash: PointHash, mut visit: impl FnMut()) -> Vec<u32> {
    let params = placed.params();
    let points = ring::sorted_points(placed.members(), params.virtual_nodes, hash);
    let mut ahead = ClockwiseOrder::new(zones);
    // Once around: the first points follow after the last one.
    for point in points.iter().rev() {
        visit();
        ahead.pass(point.member);
    }
    let mut ranked = vec![0; each * params.slots as usize];
    let mut points = points.iter().rev().peekable();
    for ((list, owner), slot) in ranked.chunks_exact_mut(each).zip(placed.indices()).zip(0..params.slots).rev() {
        let start = slot_start(slot, params.slots);
        while let Some(point) = points.next_if(|point| point.hash >= start) {
            visit();
            ahead.pass(point.member);
        }
        ahead.fill(*owner, list, &mut visit);
    }
    ranked
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IncrementalRing, KeyPlacement, LoadMargin, Member, MemberState, PlacementKind, Weight};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn id(name: impl AsRef<str>) -> InstanceId {
        InstanceId::new(name).unwrap()
    }

    fn fleet(members: &[(u8, u8)]) -> View {
        let member = |(i, (weight, zone)): (usize, &(u8, u8))| Member {
            weight: Weight::new(u64::from(*weight)).unwrap(),
            zone: (*zone > 0).then(|| format!("zone-{zone}")),
            ..Member::named(id(format!("worker-{i}")))
        };
        View::new(1, members.iter().enumerate().map(member).collect())
    }

    /// Rule 7 taken literally: two turns around all points, for every slot.
    fn as_written(view: &View, placed: &SlotOwners, hash: PointHash, slot: u32, n: usize) -> Vec<InstanceId> {
        let params = placed.params();
        let sum: u64 = placed.members().iter().map(|(_, weight)| u64::from(weight.get())).sum();
        assert!(sum * u64::from(params.virtual_nodes) <= u64::from(ring::POINTS_MAX));
        let mut points = Vec::new();
        for (id, weight) in placed.members() {
            for i in 0..params.virtual_nodes * u32::from(weight.get()) {
                points.push((hash(&[id.as_str().as_bytes(), &i.to_le_bytes()].concat()), id));
            }
        }
        points.sort_unstable();
        let at = points.iter().position(|(hash, _)| *hash >= slot_start(slot, params.slots)).unwrap_or(0);
        points.rotate_left(at);
        let zone = |id: &InstanceId| view.member(id).unwrap().zone.clone().unwrap_or_default();
        let mut list: Vec<InstanceId> = placed.owner_of_slot(slot).into_iter().cloned().collect();
        for (_, id) in &points {
            if list.iter().all(|taken| zone(taken) != zone(id)) {
                list.push((*id).clone());
            }
        }
        for (_, id) in &points {
            if !list.contains(id) {
                list.push((*id).clone());
            }
        }
        list.truncate(n);
        list
    }

    proptest! {
        #[test]
        fn it_is_the_text(members in proptest::collection::vec((1u8..5, 0u8..4), 0..9), slots in 1u32..40, nodes in 1u32..12, n in 0usize..10) {
            let params = PlacementParams { slots, virtual_nodes: nodes, ..PlacementParams::default() };
            let view = fleet(&members);
            let (placed, replicas) = (SlotOwners::of_view(&view, params), Replicas::of_view(&view, params, n));
            for slot in 0..=slots {
                let expected = if slot < slots { as_written(&view, &placed, hash_bytes, slot, n) } else { Vec::new() };
                prop_assert_eq!(replicas.owners_of_slot(slot, n).cloned().collect::<Vec<_>>(), expected, "slot {}", slot);
            }
        }

        /// The same where points collide: those at one place are in the order of the ids.
        #[test]
        fn it_is_the_text_where_points_collide(members in proptest::collection::vec((1u8..5, 0u8..4), 1..9), slots in 1u32..40, stacked in any::<bool>(), n in 1usize..10) {
            let hash: PointHash = if stacked { |_| 7 } else { |bytes| hash_bytes(bytes) >> 61 << 61 };
            let params = PlacementParams { slots, virtual_nodes: 6, ..PlacementParams::default() };
            let view = fleet(&members);
            let placed = IncrementalRing::with_hash(params, hash).place_view(&view);
            let each = n.min(members.len());
            let lists = ranked(&placed, &zones(&view, &placed), each, hash, || ());
            for (list, slot) in lists.chunks_exact(each).zip(0..slots) {
                let owners: Vec<_> = list.iter().map(|member| placed.members()[*member as usize].0.clone()).collect();
                prop_assert_eq!(owners, as_written(&view, &placed, hash, slot, n), "slot {}", slot);
            }
        }

        #[test]
        fn members_and_zones_are_as_many_as_can_be(members in proptest::collection::vec((1u8..5, 0u8..5), 1..20), n in 1usize..8, margin in 0u32..100) {
            let params = PlacementParams { slots: 64, virtual_nodes: 8, load_margin: LoadMargin::Thousandths(margin), ..PlacementParams::default() };
            let view = fleet(&members);
            let (placed, replicas) = (SlotOwners::of_view(&view, params), Replicas::of_view(&view, params, n));
            let zones = |ids: &[&InstanceId]| ids.iter().map(|id| view.member(id).unwrap().zone.clone()).collect::<BTreeSet<_>>().len();
            let all: Vec<_> = view.members().iter().map(|member| &member.instance_id).collect();
            for slot in 0..64 {
                let list: Vec<_> = replicas.owners_of_slot(slot, n).collect();
                prop_assert_eq!(list[0], placed.owner_of_slot(slot).unwrap());
                prop_assert_eq!(list.iter().collect::<BTreeSet<_>>().len(), n.min(all.len()));
                prop_assert_eq!(zones(&list), n.min(zones(&all)));
                prop_assert!(replicas.owners_of_slot(slot, n - 1).eq(list[..list.len().min(n - 1)].iter().copied()));
            }
        }
    }

    /// One small member is alone in its zone: it is far away from almost every slot.
    #[test]
    fn a_zone_that_is_hard_to_find_costs_no_more_than_another() {
        let params = PlacementParams { slots: 4_096, virtual_nodes: 64, ..PlacementParams::default() };
        let mut fleet_of_two_zones = vec![(100, 1); 99];
        fleet_of_two_zones.push((1, 2));
        let view = fleet(&fleet_of_two_zones);
        let placed = SlotOwners::of_view(&view, params);
        let points = 64 * (99 * 100 + 1);
        for each in [2, 3, REPLICAS_MAX] {
            let mut visited = 0;
            let lists = ranked(&placed, &zones(&view, &placed), each, hash_bytes, || visited += 1);
            assert_eq!(lists.len(), each * 4_096);
            let ceiling = 2 * points + 2 * each * 4_096;
            assert!((points..=ceiling).contains(&visited), "{visited} visits for {each} members a slot, at most {ceiling} are stated");
        }
    }

    #[test]
    fn without_members_no_owner_and_never_more_than_the_most() {
        let params = PlacementParams::default();
        assert_eq!(Replicas::of_view(&View::default(), params, 3).owners("key", 3).count(), 0);
        let view = fleet(&[(1, 1); 40]);
        assert_eq!(Replicas::of_view(&view, params, usize::MAX).owners("key", usize::MAX).count(), REPLICAS_MAX);
        assert_eq!(Replicas::of_view(&view, params, 2).owners("key", 3).count(), 2);
    }

    #[test]
    fn a_key_placement_has_no_replicas() {
        for placement in [KeyPlacement::Uhashring, KeyPlacement::Modulo, KeyPlacement::Hashring] {
            let params = PlacementParams { kind: PlacementKind::Key(placement), ..PlacementParams::default() };
            let replicas = Replicas::of_view(&fleet(&[(1, 1), (1, 2), (1, 3)]), params, 3);
            assert_eq!(replicas.owners("key", 3).collect::<Vec<_>>(), Vec::<&InstanceId>::new(), "{placement}");
        }
    }

    #[test]
    fn who_drains_is_no_replica() {
        let mut members = fleet(&[(1, 1), (1, 2), (1, 3)]).members().to_vec();
        members[1].state = MemberState::Draining;
        let replicas = Replicas::of_view(&View::new(2, members), PlacementParams::default(), 3);
        assert_eq!(replicas.owners("key", 3).collect::<BTreeSet<_>>(), [&id("worker-0"), &id("worker-2")].into());
    }
}
