//! The cost of a key: filtering a list by ownership, compared with the `hashring` crate queried key by key in the same run.
//!
//! Quote ratios, not times: `cargo xtask bench keys` writes both into `docs/internals/measured.md`.

#![expect(clippy::unwrap_used, reason = "a benchmark; what cannot be set up should stop it")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use hashring::HashRing;
use shardwise_core::{InstanceId, Moment, Ownership, PlacementParams, ServiceState, SlotOwners, View, Weight, hash_bytes};

const KEYS: u32 = 100_000;
const FLEETS: [u32; 4] = [3, 16, 256, 1_000];
/// A common choice of `hashring`'s users.
const PEERS_POINTS: u32 = 160;

fn id(member: u32) -> InstanceId {
    InstanceId::new(format!("worker-{member}")).unwrap()
}

fn keys() -> Vec<String> {
    (0..KEYS).map(|i| format!("tenant-{i:08}")).collect()
}

fn placed(members: u32) -> SlotOwners {
    SlotOwners::place((0..members).map(|member| (id(member), Weight::ONE)), PlacementParams::default())
}

/// One worker's share of a fleet's slots.
fn share(members: u32) -> Ownership {
    Ownership::fixed(ServiceState::Active, placed(members).slots_of(&id(0)), Arc::new(View::default()), Moment::ZERO)
}

/// Twenty samples within a second: the whole run takes two minutes.
fn briefly(group: &mut BenchmarkGroup<'_, WallTime>) {
    group.sample_size(20).warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_secs(1));
}

/// One worker of a fleet filters the list of all keys.
fn filter(c: &mut Criterion) {
    let keys = keys();
    let mut group = c.benchmark_group("filter");
    briefly(&mut group);
    group.throughput(Throughput::Elements(u64::from(KEYS)));
    group.bench_function("memory: one byte of each key", |b| {
        b.iter(|| keys.iter().filter(|key| key.as_bytes().last() == Some(&b'7')).count());
    });
    group.bench_function("hash: XXH3 of each key", |b| b.iter(|| keys.iter().fold(0, |sum, key| sum ^ hash_bytes(key.as_bytes()))));
    for members in FLEETS {
        let ownership = share(members);
        group.bench_function(BenchmarkId::new("ours", members), |b| b.iter(|| ownership.filter_at(black_box(&keys), Moment::ZERO)));
        group.bench_function(BenchmarkId::new("ours, positions", members), |b| {
            b.iter(|| ownership.filter_indices_at(black_box(&keys), Moment::ZERO));
        });
        group.bench_function(BenchmarkId::new("ours, count", members), |b| b.iter(|| ownership.count_at(black_box(&keys), Moment::ZERO)));

        let mut ring: HashRing<(String, u32)> = HashRing::new();
        ring.batch_add((0..members).flat_map(|m| (0..PEERS_POINTS).map(move |point| (format!("worker-{m}"), point))).collect());
        let mine = |key: &&String| ring.get(*key).is_some_and(|(owner, _)| owner == "worker-0");
        group
            .bench_function(BenchmarkId::new("hashring, 160 points", members), |b| b.iter(|| keys.iter().filter(mine).collect::<Vec<_>>()));
    }
    group.finish();
}

/// Collects the keys held into a list with enough room: the cost without allocating fresh memory.
#[cfg(feature = "parallel")]
fn into_kept<'a>(ownership: &Ownership, keys: &'a [u64], kept: &mut Vec<&'a u64>) {
    kept.clear();
    keys.chunks(16_384).for_each(|part| kept.extend_from_slice(&ownership.filter_at(part, Moment::ZERO)));
}

/// The list length from which a second thread is worth it, and the best case for two, each with half of the keys and a preallocated list.
/// `cargo xtask bench keys` reports the speed-up over one thread.
#[cfg(feature = "parallel")]
fn parallel(c: &mut Criterion) {
    let two = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let ownership = share(3);
    let mut group = c.benchmark_group("parallel");
    briefly(&mut group);
    for keys in [4_096_u64, 8_192, 16_384, 32_768, 65_536, 1_000_000, 10_000_000] {
        let list: Vec<u64> = (0..keys).collect();
        let (mut one_kept, mut other_kept) = (Vec::with_capacity(list.len()), Vec::with_capacity(list.len()));
        group.throughput(Throughput::Elements(keys));
        group.bench_function(BenchmarkId::new("one thread", keys), |b| b.iter(|| ownership.filter_at(black_box(&list), Moment::ZERO)));
        group.bench_function(BenchmarkId::new("all threads", keys), |b| b.iter(|| ownership.par_filter_at(black_box(&list), Moment::ZERO)));
        group.bench_function(BenchmarkId::new("one thread, list kept", keys), |b| {
            b.iter(|| into_kept(&ownership, black_box(&list), &mut one_kept));
        });
        group.bench_function(BenchmarkId::new("two threads, lists kept", keys), |b| {
            let (one, other) = black_box(&list).split_at(list.len() / 2);
            let mut both = || rayon::join(|| into_kept(&ownership, one, &mut one_kept), || into_kept(&ownership, other, &mut other_kept));
            two.install(|| b.iter(&mut both));
        });
    }
    group.finish();
}

#[cfg(not(feature = "parallel"))]
fn parallel(_: &mut Criterion) {}

/// The group changed: place all slots again.
fn place(c: &mut Criterion) {
    let mut group = c.benchmark_group("place");
    briefly(&mut group);
    for members in FLEETS {
        group.bench_function(BenchmarkId::new("16384 slots, 1024 points", members), |b| b.iter(|| placed(black_box(members))));
    }
    group.finish();
}

criterion_group!(benches, filter, parallel, place);
criterion_main!(benches);
