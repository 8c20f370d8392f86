//! Invalid input: an error or a defined result, never a panic. (Colliding points are in `incremental_ring/tests.rs` and next to `Replicas`
//! and `explain`, arbitrary bytes in the package `fuzz`.)

use shardwise_core::{
    Balance, IncrementalRing, InstanceId, LoadMargin, Member, POINTS_MAX, PlacementChange, PlacementParams, Plan, Replicas, SLOTS_MAX,
    SlotOwners, SlotSet, VIRTUAL_NODES_MAX, View, WEIGHT_MAX, Weight, slot_of, slot_start,
};

fn id(name: &str) -> InstanceId {
    InstanceId::new(name).unwrap()
}

fn weight(weight: u64) -> Weight {
    Weight::new(weight).unwrap()
}

const ABC: [&str; 3] = ["a", "b", "c"];

fn members(names: &[&str]) -> Vec<(InstanceId, Weight)> {
    names.iter().map(|name| (id(name), Weight::ONE)).collect()
}

fn view(names: &[&str]) -> View {
    View::new(1, names.iter().map(|name| Member::named(id(name))).collect())
}

/// The number of slots of each member, in the given order; checks that they add up, and that a kept ring gives the same.
fn shares(members: &[(InstanceId, Weight)], params: PlacementParams) -> Vec<u32> {
    let placed = SlotOwners::place(members.iter().cloned(), params);
    assert_eq!(IncrementalRing::new(params).place(members.iter().cloned()), placed);
    assert!((0..params.slots).all(|slot| placed.owner_of_slot(slot).is_some()), "every slot has an owner");
    members.iter().map(|(id, _)| placed.slots_of(id).len()).collect()
}

#[test]
fn without_members_no_key_has_an_owner() {
    let params = PlacementParams::default();
    let placed = SlotOwners::of_view(&View::default(), params);
    assert_eq!((placed.owner("key"), placed.owner_of_slot(0)), (None, None));
    assert!(placed.slots_of(&id("a")).is_empty());
    assert_eq!(Replicas::of_view(&View::default(), params, 3).owners("key", 3).count(), 0);
    assert_eq!(placed.explain("key").owner, None);
    let nobody: [(InstanceId, Weight); 0] = [];
    assert_eq!(IncrementalRing::new(params).place(nobody), placed);
}

#[test]
fn numbers_out_of_range_are_refused_and_named() {
    let default = PlacementParams::default();
    for (params, key) in [
        (PlacementParams { slots: 0, ..default }, "slots"),
        (PlacementParams { slots: SLOTS_MAX + 1, ..default }, "slots"),
        (PlacementParams { virtual_nodes: 0, ..default }, "virtual_nodes"),
        (PlacementParams { virtual_nodes: VIRTUAL_NODES_MAX + 1, ..default }, "virtual_nodes"),
        (PlacementParams { load_margin: LoadMargin::Thousandths(10_001), ..default }, "load_margin"),
    ] {
        assert_eq!(params.validated().unwrap_err().key, key, "{params:?}");
    }
    for refused in [0, u64::from(WEIGHT_MAX) + 1, 256, 257, u64::MAX] {
        assert_eq!(Weight::new(refused), None, "{refused}");
    }
}

#[test]
fn a_slot_that_the_ring_does_not_have_has_no_owner() {
    let placed = SlotOwners::place([(id("a"), Weight::ONE)], PlacementParams { slots: 10, ..PlacementParams::default() });
    assert_eq!((placed.owner_of_slot(9), placed.owner_of_slot(10)), (Some(&id("a")), None));
    assert!(!SlotSet::full(10).contains(10) && !SlotSet::full(10).contains(u32::MAX));
    assert!(!SlotSet::empty(0).holds("key"));
    assert_eq!((slot_of(u64::MAX, 1), slot_of(u64::MAX, SLOTS_MAX)), (0, SLOTS_MAX - 1));
}

#[test]
fn the_smallest_ring_has_one_owner() {
    let members: Vec<_> = (0..50).map(|i| (id(&format!("w{i}")), weight(i % 100 + 1))).collect();
    let params = PlacementParams { slots: 1, virtual_nodes: 1, load_margin: LoadMargin::Thousandths(0), ..PlacementParams::default() };
    assert_eq!(shares(&members, params).iter().sum::<u32>(), 1);
}

/// Every weight from 1 to 100 in one fleet: no member is above its capacity, and each has something.
#[test]
fn all_weights_together_stay_within_their_capacities() {
    let members: Vec<_> = (1..=100).map(|w| (id(&format!("w{w}")), weight(w))).collect();
    let params = PlacementParams::default();
    let sum: u64 = (1..=100).sum();
    for ((_, weight), share) in members.iter().zip(shares(&members, params)) {
        let capacity = (u64::from(params.slots) * u64::from(weight.get()) * 1_050).div_ceil(1_000 * sum);
        assert!((1..=capacity).contains(&u64::from(share)), "weight {weight:?} has {share} slots of at most {capacity}");
    }
}

/// With more points than a ring has, every member gets fewer, and the shares stay in proportion.
#[test]
fn more_points_than_a_ring_has_are_cut_for_all_alike() {
    let members = [(id("heavy"), weight(100)), (id("light"), weight(50))];
    let params = PlacementParams { virtual_nodes: VIRTUAL_NODES_MAX, load_margin: LoadMargin::None, ..PlacementParams::default() };
    assert!(u64::from(VIRTUAL_NODES_MAX) * 150 > u64::from(POINTS_MAX));
    let [heavy, light] = shares(&members, params)[..] else { unreachable!("two members") };
    let ratio = f64::from(heavy) / f64::from(light);
    assert!((1.9..2.1).contains(&ratio), "{heavy} and {light}: {ratio}");
}

#[test]
fn an_id_that_comes_twice_counts_once_with_its_first_weight() {
    let params = PlacementParams { slots: 1_000, ..PlacementParams::default() };
    let twice = [(id("a"), weight(3)), (id("b"), weight(1)), (id("a"), weight(100))];
    assert_eq!(SlotOwners::place(twice.clone(), params), SlotOwners::place(twice[..2].iter().cloned(), params));
}

/// Point 0 of `a` is hashed from the bytes of `a\0\0\0\0`: ids that continue another one must not collide with its points.
#[test]
fn ids_that_begin_with_each_other_share_fairly() {
    let mut members: Vec<_> = ["a", "a\u{1}", "aa", "aaa", "aaaa", "aaaaa"].map(|name| (id(name), Weight::ONE)).into();
    members.push((id(&"a".repeat(255)), Weight::ONE));
    let params = PlacementParams::default();
    let mean = f64::from(params.slots) / members.len() as f64;
    for (share, (id, _)) in shares(&members, params).into_iter().zip(&members) {
        let ratio = f64::from(share) / mean;
        assert!((0.85..=1.051).contains(&ratio), "{id:?} has {ratio} of the mean");
    }
}

/// Parameters that [`PlacementParams::validated`] refuses: on a ring without slots or without points nothing is owned, in every
/// function, and every number can be displayed.
#[test]
fn without_slots_or_without_points_no_member_owns() {
    assert_eq!((slot_start(0, 0), slot_of(u64::MAX, 0)), (0, 0));
    let default = PlacementParams::default();
    for params in [
        PlacementParams { slots: 0, ..default },
        PlacementParams { virtual_nodes: 0, ..default },
        PlacementParams { slots: 0, virtual_nodes: 0, load_margin: LoadMargin::None, ..default },
    ] {
        let (two, three) = (&ABC[..2], &ABC[..]);
        let placed = SlotOwners::place(members(three), params);
        assert_eq!((placed.owner("key"), placed.owner_of_slot(0)), (None, None), "{params:?}");
        assert!(placed.members().iter().all(|(id, _)| placed.slots_of(id).is_empty()), "{params:?}");
        let explained = placed.explain("key");
        assert_eq!((explained.owner, explained.next, explained.passed), (None, None, vec![]), "{params:?}");
        let mut ring = IncrementalRing::new(params);
        for fleet in [two, three, &[], three, &ABC[1..]] {
            assert_eq!(ring.place(members(fleet)), SlotOwners::place(members(fleet), params), "{params:?}");
        }
        assert_eq!(Replicas::of_view(&view(three), params, 2).owners("key", 2).count(), 0, "{params:?}");
        let plan = Plan::new(members(two), members(three), params);
        assert_eq!((plan.moved, plan.before), (0, Balance { members: 2, peak: 0.0, least: 0.0 }), "{params:?}");
        let change = PlacementChange::new((members(two), params), (members(three), default)).unwrap();
        assert_eq!((change.moved_share, change.before.balance.least), (1.0, 0.0), "{params:?}: everything comes from nobody");
        for json in [serde_json::to_string(&plan).unwrap(), serde_json::to_string(&change).unwrap()] {
            let explained: serde_json::Value = serde_json::from_str(&json).unwrap();
            for key in ["/before/peak", "/before/least", "/after/peak", "/after/least"] {
                assert!(explained.pointer(key).is_some_and(serde_json::Value::is_number), "{key} of {json}");
            }
        }
    }
}

/// More slots than a policy may have work like any others.
#[test]
fn above_the_most_slots_everything_is_as_below() {
    let params = PlacementParams { slots: 70_000, virtual_nodes: 64, ..PlacementParams::default() };
    assert!(params.slots > SLOTS_MAX);
    assert_eq!(shares(&members(&ABC), params).iter().sum::<u32>(), 70_000);
    let placed = SlotOwners::place(members(&ABC), params);
    let explained = placed.explain("key");
    assert_eq!(explained.owner.map(|stop| stop.instance_id).as_ref(), placed.owner("key"));
    assert_eq!(explained.slot, slot_of(shardwise_core::hash_bytes(b"key"), 70_000));
    let replicas = Replicas::of_view(&view(&ABC), params, 3);
    assert!((0..70_000).all(|slot| replicas.owners_of_slot(slot, 1).next() == placed.owner_of_slot(slot)));
    assert_eq!(replicas.owners_of_slot(69_999, 3).count(), 3);
    let plan = Plan::new(members(&ABC[..2]), members(&ABC), params);
    let change = PlacementChange::new((members(&ABC[..2]), params), (members(&ABC), params)).unwrap();
    assert!((change.moved_share - f64::from(plan.moved) / 70_000.0).abs() < 1e-9, "{plan:?} {change:?}");
    assert!((20_000..27_000).contains(&plan.moved), "about a third: {plan:?}");
}
