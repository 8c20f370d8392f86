//! The owner of each of a group's names: singletons, daemons, timers (`docs/internals/design.md`, "Names").
//!
//! A name's place on the ring is its XXH3-64. Names are placed like slots, in the order of their bytes, with their number in place of
//! the number of slots: so they are spread over the members, and no member has more than its share and the margin.

use std::collections::{BTreeMap, BTreeSet};

use crate::ring::{self, Point};
use crate::{ClaimName, InstanceId, PlacementParams, SlotOwners, View, hash_bytes};

/// The owner of each name, and its successors.
#[derive(Debug, Clone)]
pub struct NameOwners {
    members: Vec<InstanceId>,
    points: Vec<Point>,
    /// Index into `members`; empty without members.
    owners: BTreeMap<ClaimName, u32>,
}

impl NameOwners {
    /// Places the names on the members of a view. It computes the ring, in time proportional to the number of points. To get only the
    /// owners, a [`Placer`](crate::Placer) is faster.
    pub fn of_view(view: &View, params: PlacementParams, names: &BTreeSet<ClaimName>) -> Self {
        let members = ring::in_order(SlotOwners::inputs(view));
        let ids = || members.iter().map(|(id, _)| id.clone()).collect();
        if members.is_empty() || names.is_empty() {
            return Self { members: ids(), points: Vec::new(), owners: BTreeMap::new() };
        }
        let points = ring::sorted_points(&members, params.virtual_nodes, hash_bytes);
        let mut room = ring::capacities(&members, Self::count(names), params.load_margin);
        let mut place = |name: &ClaimName| {
            let owner = clockwise(&points, name).find(|member| room[*member as usize] > 0);
            // Capacities add up to at least the number of names, so there is one; 0 avoids a panic.
            let owner = owner.unwrap_or(0);
            room[owner as usize] = room[owner as usize].saturating_sub(1);
            owner
        };
        let owners = names.iter().map(|name| (name.clone(), place(name))).collect();
        Self { members: ids(), points, owners }
    }

    /// The number of names, in place of the number of slots. Even more names than the largest number of slots have room.
    pub(crate) fn count(names: &BTreeSet<ClaimName>) -> u32 {
        u32::try_from(names.len()).unwrap_or(u32::MAX)
    }

    /// The owner of a name; `None` without members or for a name that was not placed.
    pub fn owner(&self, name: &ClaimName) -> Option<&InstanceId> {
        self.owners.get(name).map(|owner| &self.members[*owner as usize])
    }

    /// The owner of a name, then the other members clockwise, each once.
    pub fn line(&self, name: &ClaimName) -> impl Iterator<Item = &InstanceId> {
        let owner = self.owners.get(name).copied();
        let mut seen: BTreeSet<u32> = owner.into_iter().collect();
        let others = clockwise(&self.points, name).filter(move |member| seen.insert(*member));
        owner.into_iter().chain(others).map(|member| &self.members[member as usize])
    }
}

/// The members of the points clockwise from the name's place, one turn.
fn clockwise<'a>(points: &'a [Point], name: &ClaimName) -> impl Iterator<Item = u32> + use<'a> {
    let hash = hash_bytes(name.as_str().as_bytes());
    let first = points.partition_point(|point| point.hash < hash);
    points[first..].iter().chain(&points[..first]).map(|point| point.member)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LoadMargin, Member};
    use proptest::prelude::*;

    fn view(members: usize) -> View {
        View::new(1, (0..members).map(|i| Member::named(InstanceId::new(format!("m{i}")).unwrap())).collect())
    }

    fn names(count: usize) -> BTreeSet<ClaimName> {
        (0..count).map(|i| ClaimName::new(format!("daemon/{i}")).unwrap()).collect()
    }

    #[test]
    fn no_member_owns_without_members_and_one_owns_all() {
        let none = NameOwners::of_view(&view(0), PlacementParams::default(), &names(3));
        assert!(names(3).iter().all(|name| none.owner(name).is_none() && none.line(name).count() == 0));
        let one = NameOwners::of_view(&view(1), PlacementParams::default(), &names(3));
        assert!(names(3).iter().all(|name| one.owner(name).is_some_and(|owner| owner.as_str() == "m0")));
    }

    proptest! {
        #[test]
        fn names_are_spread_and_each_stands_in_line_once(members in 1usize..8, count in 1usize..40, margin in 0u32..200) {
            let params = PlacementParams { virtual_nodes: 64, load_margin: LoadMargin::Thousandths(margin), ..PlacementParams::default() };
            let placed = NameOwners::of_view(&view(members), params, &names(count));
            let most = (count * (1_000 + margin as usize)).div_ceil(1_000 * members);
            for i in 0..members {
                let me = InstanceId::new(format!("m{i}")).unwrap();
                prop_assert!(names(count).iter().filter(|name| placed.owner(name) == Some(&me)).count() <= most);
            }
            for name in names(count) {
                let line: Vec<_> = placed.line(&name).collect();
                prop_assert_eq!(placed.owner(&name), line.first().copied());
                prop_assert_eq!(line.iter().collect::<BTreeSet<_>>().len(), members);
                prop_assert_eq!(line.len(), members);
            }
        }

        /// A changing group on one kept ring, with weights and with few points.
        #[test]
        fn on_the_placers_ring_they_have_the_same_owners(
            fleets in prop::collection::vec(prop::collection::btree_map(0usize..12, 1u64..4, 0..8), 1..6),
            count in 0usize..40,
            margin in prop::option::of(0u32..200),
            virtual_nodes in 1u32..40,
        ) {
            let load_margin = margin.map_or(LoadMargin::None, LoadMargin::Thousandths);
            let params = PlacementParams { virtual_nodes, load_margin, slots: 16, ..PlacementParams::default() };
            let placer = crate::Placer::new(params);
            for (revision, fleet) in (1..).zip(fleets) {
                let member = |(i, weight)| Member {
                    weight: crate::Weight::new(weight).unwrap(),
                    ..Member::named(InstanceId::new(format!("m{i}")).unwrap())
                };
                let view = View::new(revision, fleet.into_iter().map(member).collect());
                if revision % 2 == 0 {
                    placer.place(&view).unwrap();
                }
                let anew = NameOwners::of_view(&view, params, &names(count));
                let owners = names(count).into_iter().filter_map(|name| Some((name.clone(), anew.owner(&name)?.clone()))).collect();
                prop_assert_eq!(placer.place_names(&view, &names(count)), owners);
            }
        }

        /// The rule of `docs/internals/design.md`, "Names", taken literally: in the order of the names, to the first point clockwise
        /// whose member has room.
        #[test]
        fn the_walk_is_the_text(members in 1usize..6, count in 1usize..20) {
            let params = PlacementParams { virtual_nodes: 8, ..PlacementParams::default() };
            let placed = NameOwners::of_view(&view(members), params, &names(count));
            let sorted = ring::in_order(SlotOwners::inputs(&view(members)));
            let points = ring::sorted_points(&sorted, 8, hash_bytes);
            let mut points: Vec<(u64, u32)> = points.into_iter().map(|point| (point.hash, point.member)).collect();
            points.sort_unstable();
            let mut taken = vec![0; members];
            let room = (count * 1_050).div_ceil(1_000 * members);
            for name in names(count) {
                let hash = hash_bytes(name.as_str().as_bytes());
                let from = points.iter().filter(|(at, _)| *at >= hash).chain(points.iter().filter(|(at, _)| *at < hash));
                let owner = from.map(|(_, member)| *member as usize).find(|member| taken[*member] < room).unwrap();
                taken[owner] += 1;
                prop_assert_eq!(placed.owner(&name), Some(&sorted[owner].0));
            }
        }
    }
}
