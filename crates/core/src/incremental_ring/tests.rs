use super::*;
use crate::{LoadMargin, Member, MemberState};
use proptest::prelude::*;

fn id(name: impl AsRef<str>) -> InstanceId {
    InstanceId::new(name).unwrap()
}

fn weight(weight: u64) -> Weight {
    Weight::new(weight).unwrap()
}

fn params(slots: u32, virtual_nodes: u32, load_margin: LoadMargin) -> PlacementParams {
    PlacementParams { slots, virtual_nodes, load_margin, ..PlacementParams::default() }
}

fn simple(members: &[(InstanceId, Weight)], params: PlacementParams, hash: PointHash) -> SlotOwners {
    let members = ring::in_order(members.iter().cloned());
    let owners = if members.is_empty() { Vec::new() } else { owners(&members, &params, hash) };
    SlotOwners::from_parts(params, members, owners)
}

/// Every entry has its place by its hash, in the protocol's order, and the number of points is right.
fn assert_sound(ring: &IncrementalRing) {
    let points: u32 = ring.members.iter().map(|member| member.points).sum();
    assert_eq!(ring.buckets.iter().map(Vec::len).sum::<usize>(), points as usize);
    let mut numbers: Vec<_> = ring.members.iter().map(|member| member.number).chain(ring.free.iter().copied()).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().map(usize::from).eq(0..ring.numbers()));
    let id_of = |entry: &BucketEntry| {
        ring.members.iter().find(|member| usize::from(member.number) == entry.number()).map(|member| &member.id).unwrap()
    };
    for bucket in &ring.buckets {
        assert!(bucket.windows(2).all(|pair| (pair[0].place(), id_of(&pair[0])) <= (pair[1].place(), id_of(&pair[1]))));
    }
}

#[derive(Debug, Clone)]
enum Change {
    Join(u8, u8),
    Leave(u8),
    Weigh(u8, u8),
    Everybody(Vec<(u8, u8)>),
}

fn change() -> impl Strategy<Value = Change> {
    let someone = || (0u8..24, 1u8..=9);
    prop_oneof![
        6 => someone().prop_map(|(who, weight)| Change::Join(who, weight)),
        4 => (0u8..24).prop_map(Change::Leave),
        2 => someone().prop_map(|(who, weight)| Change::Weigh(who, weight)),
        1 => proptest::collection::vec(someone(), 0..24).prop_map(Change::Everybody),
    ]
}

fn apply(members: &mut Vec<(InstanceId, Weight)>, change: &Change) {
    let name = |who: &u8| id(format!("w{who}"));
    let some = |w: &u8| weight(u64::from(*w));
    match change {
        Change::Join(who, w) if members.iter().all(|(id, _)| *id != name(who)) => members.push((name(who), some(w))),
        Change::Join(..) => {}
        Change::Leave(who) => members.retain(|(id, _)| *id != name(who)),
        Change::Weigh(who, w) => members.iter_mut().filter(|(id, _)| *id == name(who)).for_each(|(_, weight)| *weight = some(w)),
        Change::Everybody(all) => *members = all.iter().map(|(who, w)| (name(who), some(w))).collect(),
    }
}

/// Only 64 places on the whole ring, four of them in one bucket.
fn crowded(bytes: &[u8]) -> u64 {
    let hash = hash_bytes(bytes);
    (hash >> 60 << 60) | (hash & 3)
}

/// All points at one place.
fn stacked(_: &[u8]) -> u64 {
    7
}

fn margins() -> impl Strategy<Value = LoadMargin> {
    prop_oneof![Just(LoadMargin::None), (0u32..300).prop_map(LoadMargin::Thousandths)]
}

proptest! {
    #[test]
    fn view_after_view_it_is_the_simple_placement(
        changes in proptest::collection::vec(change(), 1..40),
        slots in prop_oneof![1u32..300, Just(1_024), 16_000u32..17_000],
        nodes in 1u32..40,
        margin in margins(),
        hash in prop_oneof![3 => Just(hash_bytes as PointHash), 1 => Just(crowded as PointHash), 1 => Just(stacked as PointHash)],
    ) {
        let params = params(slots, nodes, margin);
        let (mut ring, mut members) = (IncrementalRing::with_hash(params, hash), Vec::new());
        for change in &changes {
            apply(&mut members, change);
            let placed = ring.place(members.iter().cloned());
            prop_assert_eq!(&placed, &simple(&members, params, hash), "after {:?}", change);
            prop_assert_eq!(ring.points_of(placed.members()), ring::sorted_points(placed.members(), nodes, hash), "after {:?}", change);
            assert_sound(&ring);
        }
    }

    #[test]
    fn ids_of_any_kind_keep_their_order(names in proptest::collection::vec("[a-cé🦀]{1,3}", 1..12), without in any::<proptest::sample::Index>()) {
        let params = params(97, 5, LoadMargin::DEFAULT);
        let mut members: Vec<_> = names.iter().map(|name| (id(name), Weight::ONE)).collect();
        let mut ring = IncrementalRing::with_hash(params, crowded);
        prop_assert_eq!(ring.place(members.clone()), simple(&members, params, crowded));
        members.remove(without.index(names.len()));
        prop_assert_eq!(ring.place(members.clone()), simple(&members, params, crowded));
    }
}

/// The default constants with realistic changes: one leaves, one joins, one grows, repeatedly.
#[test]
fn a_fleet_of_sixty_changes_one_by_one() {
    let params = PlacementParams::default();
    let mut ring = IncrementalRing::new(params);
    let mut members: Vec<_> = (0..60).map(|i| (id(format!("worker-{i}")), Weight::ONE)).collect();
    ring.place(members.clone());
    for step in 0..20 {
        match step % 3 {
            0 => drop(members.remove(step)),
            1 => members.push((id(format!("new-{step}")), Weight::ONE)),
            _ => members[step].1 = weight(3),
        }
        assert_eq!(ring.place(members.clone()), SlotOwners::place(members.clone(), params), "step {step}");
    }
    assert_sound(&ring);
}

/// More weight than there is room for points: every member gives up some, and gets them back.
#[test]
fn all_give_points_when_the_ring_is_full() {
    let params = params(1_000, 65_536, LoadMargin::DEFAULT);
    let mut ring = IncrementalRing::new(params);
    for weights in [&[30, 30][..], &[30, 30, 8], &[30, 28, 8], &[30, 28]] {
        let members: Vec<_> = weights.iter().enumerate().map(|(i, w)| (id(format!("w{i}")), weight(*w))).collect();
        assert_eq!(ring.place(members.clone()), SlotOwners::place(members, params), "{weights:?}");
    }
}

#[test]
fn with_more_members_than_numbers_it_is_the_simple_placement_too() {
    let params = params(500, 1, LoadMargin::DEFAULT);
    let fleet = |members: u32| (0..members).map(|i| (id(format!("w{i}")), Weight::ONE));
    let mut ring = IncrementalRing::new(params);
    for members in [MEMBERS_MAX, MEMBERS_MAX + 1, MEMBERS_MAX, 3, 0, 2] {
        assert_eq!(ring.place(fleet(members)), SlotOwners::place(fleet(members), params), "{members} members");
    }
}

#[test]
fn a_view_is_placed_without_those_that_drain() {
    let member = |name: &str, state| Member { state, ..Member::named(id(name)) };
    let mut ring = IncrementalRing::new(PlacementParams::default());
    for draining in [MemberState::Active, MemberState::Draining] {
        let view = View::new(1, vec![member("a", MemberState::Active), member("b", draining)]);
        assert_eq!(ring.place_view(&view), SlotOwners::of_view(&view, PlacementParams::default()));
    }
}
