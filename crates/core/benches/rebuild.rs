//! The cost of a change of the group: one member leaves or joins, and all slots are placed.
//!
//! Each figure is for one change; leaving and joining alternate, and every newcomer has a new id.

#![expect(clippy::unwrap_used, reason = "a benchmark; what cannot be set up should stop it")]

use std::collections::{BTreeMap, BTreeSet};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, criterion_group, criterion_main};
use shardwise_core::{
    ClaimName, Holder, Incarnation, IncrementalRing, InstanceId, Member, NameOwners, PlacementKind, PlacementParams, Placer, Resource,
    SlotOwners, Succession, View, Weight,
};

const FLEETS: [u32; 4] = [3, 50, 300, 1_000];

fn member(number: u32) -> (InstanceId, Weight) {
    (InstanceId::new(format!("worker-{number}")).unwrap(), Weight::ONE)
}

fn rebuild(c: &mut Criterion) {
    let mut group = c.benchmark_group("rebuild");
    group.sample_size(20);
    for size in FLEETS {
        let fleet: Vec<_> = (0..size).map(member).collect();
        group.bench_function(BenchmarkId::new("from nothing, simple", size), |b| {
            b.iter(|| SlotOwners::place(fleet.iter().cloned(), PlacementParams::default()));
        });
        group.bench_function(BenchmarkId::new("from nothing", size), |b| {
            b.iter(|| IncrementalRing::new(PlacementParams::default()).place(fleet.iter().cloned()));
        });
        let mut ring = IncrementalRing::new(PlacementParams::default());
        ring.place(fleet.iter().cloned());
        let (mut fleet, mut newcomer) = (fleet.clone(), size);
        group.bench_function(BenchmarkId::new("one joins or leaves", size), |b| {
            b.iter(|| {
                if fleet.len() == size as usize {
                    fleet.remove((newcomer % size) as usize);
                } else {
                    newcomer += 1;
                    fleet.push(member(newcomer));
                }
                ring.place(fleet.iter().cloned())
            });
        });
        group.bench_function(BenchmarkId::new("nothing changed but the walk", size), |b| b.iter(|| ring.place(fleet.iter().cloned())));
    }
    weights(&mut group);
    group.finish();
}

/// A thousand members with weights from 1 to 4, whose shares `ring` matches roughly and `quota` exactly.
fn weights(group: &mut BenchmarkGroup<'_, WallTime>) {
    let weighted = |number: u32| (member(number).0, Weight::new(u64::from(number % 4 + 1)).unwrap());
    for kind in [PlacementKind::Ring, PlacementKind::Quota] {
        let params = PlacementParams { kind, ..PlacementParams::default() };
        let mut fleet: Vec<_> = (0..1_000).map(weighted).collect();
        let mut ring = IncrementalRing::new(params);
        ring.place(fleet.iter().cloned());
        let mut newcomer = 1_000;
        group.bench_function(BenchmarkId::new(format!("one joins or leaves, weights 1 to 4, {}", kind.as_str()), 1_000), |b| {
            b.iter(|| {
                if fleet.len() == 1_000 {
                    fleet.remove((newcomer % 1_000) as usize);
                } else {
                    newcomer += 1;
                    fleet.push(weighted(newcomer));
                }
                ring.place(fleet.iter().cloned())
            });
        });
    }
}

/// The succession while versions differ: one of a hundred members has left, or nothing is held. Includes computing the ring.
fn succession(c: &mut Criterion) {
    let mut group = c.benchmark_group("versions differ");
    group.sample_size(20);
    let version = |number: u32| Some(if number < 50 { "1.9" } else { "1.10" }.to_owned());
    let members = (0..100).map(|number| Member { version: version(number), ..Member::named(member(number).0) });
    let (view, params, names) = (View::new(1, members.collect()), PlacementParams::default(), BTreeSet::new());
    let placed = SlotOwners::of_view(&view, params);
    let holder = |id: &InstanceId| Holder { instance_id: id.clone(), incarnation: Incarnation::new(0) };
    let claims: BTreeMap<_, _> =
        (0..params.slots).map(|slot| (Resource::Slot(slot), holder(placed.owner_of_slot(slot).unwrap()))).collect();
    let without = view.members().iter().filter(|member| member.instance_id != claims[&Resource::Slot(0)].instance_id);
    let left = View::new(2, without.cloned().collect());
    group.bench_function("one has left", |b| b.iter(|| Succession::of_view(&left, params, &names, &claims)));
    group.bench_function("no member holds anything", |b| b.iter(|| Succession::of_view(&view, params, &names, [])));
    group.bench_function("everything is held", |b| b.iter(|| Succession::of_view(&view, params, &names, &claims)));
    group.finish();
}

/// The cost of the same change for a member that offers names, besides the slots.
fn names(c: &mut Criterion) {
    let mut group = c.benchmark_group("names");
    group.sample_size(20);
    let names: BTreeSet<_> = (0..10).map(|n| ClaimName::new(format!("daemon/{n}")).unwrap()).collect();
    for size in FLEETS {
        let view = |size: u32| View::new(1, (0..size).map(|n| Member::named(InstanceId::new(format!("worker-{n}")).unwrap())).collect());
        let views = [view(size), view(size + 1)];
        let params = PlacementParams::default();
        group.bench_function(BenchmarkId::new("from nothing", size), |b| b.iter(|| NameOwners::of_view(&views[0], params, &names)));
        let placer = Placer::new(params);
        let mut turn = 0;
        group.bench_function(BenchmarkId::new("on the placer's circle, one joins or leaves", size), |b| {
            b.iter(|| {
                turn += 1;
                placer.place_names(&views[turn % 2], &names)
            });
        });
        group.bench_function(BenchmarkId::new("on the placer's circle, already placed", size), |b| {
            b.iter(|| placer.place_names(&views[0], &names));
        });
    }
    group.finish();
}

criterion_group!(benches, rebuild, succession, names);
criterion_main!(benches);
