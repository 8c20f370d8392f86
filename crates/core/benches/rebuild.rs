//! What a change of the group costs: one member leaves or joins, all slots have a new owner.
//!
//! Each figure is of one change; leaving and joining take turns, and the newcomer is a new one every time.

#![expect(clippy::unwrap_used, reason = "a benchmark; what cannot be set up should stop it")]

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use shardwise_core::{Circle, InstanceId, PlacementParams, SlotOwners, Weight};

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
            b.iter(|| Circle::new(PlacementParams::default()).place(fleet.iter().cloned()));
        });
        let mut circle = Circle::new(PlacementParams::default());
        circle.place(fleet.iter().cloned());
        let (mut fleet, mut newcomer) = (fleet.clone(), size);
        group.bench_function(BenchmarkId::new("one joins or leaves", size), |b| {
            b.iter(|| {
                if fleet.len() == size as usize {
                    fleet.remove((newcomer % size) as usize);
                } else {
                    newcomer += 1;
                    fleet.push(member(newcomer));
                }
                circle.place(fleet.iter().cloned())
            });
        });
        group.bench_function(BenchmarkId::new("nothing changed but the walk", size), |b| b.iter(|| circle.place(fleet.iter().cloned())));
    }
    group.finish();
}

criterion_group!(benches, rebuild);
criterion_main!(benches);
