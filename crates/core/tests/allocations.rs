//! Memory use, counted by the allocator.

#![expect(clippy::unwrap_used, reason = "a test; a name that is refused should stop it")]

use std::sync::Arc;

use allocation_counter::measure;
use shardwise_core::routing::{
    Choice, KeyHash, KeyRoute, LeastLoaded, Pick, PowerOfTwo, Random, RoundRobin, RouteTable, Routes, Width, WidthHints,
};
use shardwise_core::{
    IncrementalRing, InstanceId, KeyPlacement, Member, Moment, Ownership, PlacementKind, PlacementParams, Placer, Replicas, ServiceState,
    ShardKey, SlotSet, View, ViewPlacement, Weight,
};

const MIB: u64 = 1 << 20;

fn fleet(ids: std::ops::Range<u32>) -> Vec<(InstanceId, Weight)> {
    ids.map(|i| (InstanceId::new(format!("worker-{i}")).unwrap(), Weight::ONE)).collect()
}

/// 1,000 members of 1,024 points: memory that is kept, that a reader holds, and that a change needs temporarily.
#[test]
fn a_view_of_a_thousand_members_stays_below_32_mib() {
    let members = fleet(0..1_000);
    let mut ring = IncrementalRing::new(PlacementParams::default());
    let first = measure(|| drop(ring.place(members.iter().cloned())));
    assert!(first.bytes_max < 16 * MIB, "placing the first view took {} bytes", first.bytes_max);

    let mut changed = members;
    changed.remove(500);
    changed.extend(fleet(5_000..5_001));
    let mut placed = None;
    let change = measure(|| placed = Some(ring.place(changed.iter().cloned())));
    assert!(change.bytes_max < MIB, "a change took {} bytes", change.bytes_max);
    let copy = measure(|| drop(placed.clone()));
    assert!(copy.bytes_max < 2 * MIB / 10, "a placement is {} bytes", copy.bytes_max);

    // After a thousand newcomers the buckets have grown to their maximum.
    let kept = measure(|| {
        for newcomer in 0..1_000 {
            changed.rotate_left(1);
            changed.pop();
            changed.extend(fleet(10_000 + newcomer..10_001 + newcomer));
            drop(ring.place(changed.iter().cloned()));
        }
    });
    let kept = i64::try_from(first.bytes_max).unwrap() + kept.bytes_current;
    assert!(kept < i64::try_from(16 * MIB).unwrap(), "{kept} bytes are kept");
}

/// 160 points of 20 bytes for each member, once kept and once during a change; no more in between.
#[test]
fn key_placements_take_the_bytes_of_their_points() {
    let placer = Placer::new(PlacementParams { kind: PlacementKind::Key(KeyPlacement::Uhashring), ..PlacementParams::default() });
    let view =
        |ids: std::ops::Range<u32>| View::new(1, fleet(ids).into_iter().map(|(instance_id, _)| Member::named(instance_id)).collect());
    let most = 1_000 * 160 * 20 + MIB / 4;
    for (what, view) in [("the first view", view(0..1_000)), ("one left", view(0..999)), ("one came", view(0..1_000))] {
        let placed = measure(|| drop(placer.place(&view).unwrap()));
        assert!(placed.bytes_max < most, "{what}: it took {} bytes, at most {most} are expected", placed.bytes_max);
    }
}

#[test]
fn asking_allocates_nothing_and_filtering_only_the_result() {
    let slots = SlotSet::from_slots(16_384, (0..16_384).step_by(3));
    let ownership = Ownership::fixed(ServiceState::Active, slots, Arc::new(View::default()), Moment::ZERO);
    let keys: Vec<String> = (0..10_000).map(|i| format!("tenant-{i}")).collect();
    let now = Moment::from_nanos(1);

    let (mut owned, mut counted) = (0, 0);
    let asked = measure(|| owned = keys.iter().filter(|key| ownership.owns_at(*key, now)).count());
    assert_eq!(asked.count_total, 0, "owns_at");
    let counting = measure(|| counted = ownership.count_at(&keys, now));
    assert_eq!((counting.count_total, counted), (0, owned), "count_at");
    let filtered = measure(|| counted = ownership.filter_at(&keys, now).len());
    assert_eq!((filtered.count_total, counted), (1, owned), "filter_at");
    let indices = measure(|| counted = ownership.filter_indices_at(&keys, now).len());
    assert_eq!((indices.count_total, counted), (1, owned), "filter_indices_at");
}

/// A thousand members, a key of its owner alone, a hot one and one with a route, and requests to any member.
#[test]
fn routes_and_picks_allocate_nothing() {
    let member = |(instance_id, _)| Member::named(instance_id);
    let view = Arc::new(View::new(1, fleet(0..1_000).into_iter().map(member).collect()));
    let params = PlacementParams { slots: 1_024, virtual_nodes: 8, ..PlacementParams::default() };
    let (placement, replicas) = (ViewPlacement::of_view(&view, params).unwrap(), Replicas::of_view(&view, params, 4));
    let table = RouteTable::eventual(view, Some(&placement), Some(&replicas), None);
    let (now, hints) = (Moment::from_nanos(1), WidthHints::default());
    let skipped = placement.owner("moved").cloned().into_iter().collect();
    let routes = Routes::new(vec![KeyRoute::new(KeyHash::new("moved".key_hash()), 2, skipped).unwrap()]).unwrap();
    hints.on_answer(now, "hot".key_hash(), Some(4), Width::MAX);

    let picks: [&dyn Pick; 4] = [&PowerOfTwo, &RoundRobin::default(), &LeastLoaded, &Random];
    let mut chosen = 0;
    let routed = measure(|| {
        for (pick, random) in picks.into_iter().zip((1..).map(|step: u64| step.wrapping_mul(0x9e37_79b9_7f4a_7c15))) {
            for key in ["cold", "hot", "moved"] {
                let set = table.owners(key, now, &hints, &routes).unwrap();
                let choice = Choice { table: &table, set: set.as_slice(), pick, key: None, random };
                chosen += usize::from(choice.index(now).is_some());
            }
            let choice = Choice { table: &table, set: table.active().unwrap(), pick, key: None, random };
            let load = choice.index(now).and_then(|index| table.peer_load(index)).unwrap();
            let in_flight = load.begin();
            in_flight.peer().on_answer(now, Some(3));
            hints.on_answer(now, "hot".key_hash(), Some(3), Width::MAX);
        }
    });
    assert_eq!((routed.count_total, chosen), (0, 12));
}
