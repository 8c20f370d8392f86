//! A worker filters a list of keys, compared with crates that place keys and two lower bounds, in the same run:
//! `docs/internals/performance.md`.
//!
//! The other crates are queried key by key, the only way they offer. None of them bounds the load. `cargo xtask bench peers` provides a
//! list of words (`SHARDWISE_BENCH_WORDS`, a file with one per line) and also measures Python's `uhashring`.

#![expect(clippy::unwrap_used, reason = "a benchmark; what cannot be set up should stop it")]

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use anchorhash::AnchorHash;
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use hashring::HashRing;
use jumphash::JumpHasher;
use shardwise_core::{
    InstanceId, KeyOwners, KeyPlacement, Member, Moment, Ownership, PlacementParams, Replicas, ServiceState, SlotOwners, View, Weight,
    hash_bytes,
};

const KEYS: u32 = 200_000;
const FLEETS: [u32; 4] = [3, 16, 256, 1_000];
/// A common choice of `hashring`'s users.
const PEERS_POINTS: u32 = 160;

/// XXH3 of the written bytes, for `hashring`.
#[derive(Default)]
struct Xxh3(u64);

impl Hasher for Xxh3 {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0 = self.0.rotate_left(5) ^ hash_bytes(bytes);
    }
}

fn fnv_1a(key: &str) -> u32 {
    key.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// A list's name and its keys.
type List = (&'static str, Vec<String>);

fn made(keys: u32) -> [List; 3] {
    let list = |name: fn(u32) -> String| (0..keys).map(name).collect();
    [
        ("ids of 15 bytes", list(|i| format!("tenant-{i:08}"))),
        ("UUIDs as text", list(|i| format!("{:08x}-5a1f-4d0e-9b7c-{:012x}", i.wrapping_mul(2_654_435_761), i))),
        ("URLs of 200 bytes", list(|i| format!("https://example.com/{i:0>180}"))),
    ]
}

fn words() -> Option<List> {
    let path = std::env::var_os("SHARDWISE_BENCH_WORDS")?;
    Some(("words", std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()))
}

fn id(member: u32) -> InstanceId {
    InstanceId::new(format!("worker-{member}")).unwrap()
}

/// One worker's share of a fleet's slots, as the service would hold it.
fn share(members: u32) -> Ownership {
    let placed = SlotOwners::place((0..members).map(|member| (id(member), Weight::ONE)), PlacementParams::default());
    Ownership::fixed(ServiceState::Active, placed.slots_of(&id(0)), Arc::new(View::default()), Moment::ZERO)
}

fn ring<S: BuildHasher>(members: u32, hasher: S) -> HashRing<(String, u32), S> {
    let mut ring = HashRing::with_hasher(hasher);
    ring.batch_add((0..members).flat_map(|m| (0..PEERS_POINTS).map(move |point| (format!("worker-{m}"), point))).collect());
    ring
}

fn one_byte(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, keys: &[String]) {
    group.bench_function(BenchmarkId::new("floor: one byte of each key", name), |b| {
        b.iter(|| black_box(keys).iter().filter(|key| key.as_bytes().last() == Some(&b'7')).count());
    });
}

/// Measured again right before each comparison: the machine may be slower a minute later.
fn hash_alone(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, keys: &[String]) {
    group.bench_function(BenchmarkId::new("floor: XXH3 of each key", name), |b| {
        b.iter(|| black_box(keys).iter().fold(0, |sum, key| sum ^ hash_bytes(key.as_bytes())));
    });
}

fn ours(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, keys: &[String], members: u32) {
    let ownership = share(members);
    let id = |what| BenchmarkId::new(what, name);
    hash_alone(group, name, keys);
    group.bench_function(id("filter_at"), |b| b.iter(|| ownership.filter_at(black_box(keys), Moment::ZERO)));
    group.bench_function(id("filter_indices_at"), |b| b.iter(|| ownership.filter_indices_at(black_box(keys), Moment::ZERO)));
}

/// Our other ways: keys with three replicas, and other fleets' rules, with as many points as the other crates.
fn ours_by_key(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, keys: &[String], members: u32) {
    let view = View::new(1, (0..members).map(|member| Member::named(id(member))).collect());
    let (replicas, me) = (Replicas::of_view(&view, PlacementParams::default(), 3), id(0));
    let mine = |key: &&String| replicas.owners(*key, 3).any(|owner| *owner == me);
    group.bench_function(BenchmarkId::new("owners of three", name), |b| {
        b.iter(|| black_box(keys).iter().filter(mine).collect::<Vec<_>>());
    });
    for placement in [KeyPlacement::Uhashring, KeyPlacement::Modulo, KeyPlacement::Hashring] {
        let owners = Arc::new(KeyOwners::of_view(&view, placement, PEERS_POINTS).unwrap());
        let share = owners.share_of(&me);
        let mine = |key: &&String| share.holds(*key);
        group.bench_function(BenchmarkId::new(format!("placement {placement}"), name), |b| {
            b.iter(|| black_box(keys).iter().filter(mine).collect::<Vec<_>>());
        });
    }
}

fn peers(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, keys: &[String], members: u32) {
    let id = |what| BenchmarkId::new(what, name);
    let default = ring(members, hashring::DefaultHashBuilder);
    let mine = |key: &&String| default.get(*key).is_some_and(|(owner, _)| owner == "worker-0");
    group.bench_function(id("hashring"), |b| b.iter(|| black_box(keys).iter().filter(mine).collect::<Vec<_>>()));

    let with_xxh3 = ring(members, BuildHasherDefault::<Xxh3>::default());
    let mine = |key: &&String| with_xxh3.get(*key).is_some_and(|(owner, _)| owner == "worker-0");
    group.bench_function(id("hashring with XXH3"), |b| b.iter(|| black_box(keys).iter().filter(mine).collect::<Vec<_>>()));

    let capacity = u16::try_from(members * 2).unwrap();
    let anchor: AnchorHash<&String, u32, RandomState> = anchorhash::Builder::default().with_resources(0..members).build(capacity);
    let mine = |key: &&String| anchor.get_resource(*key) == Some(&0);
    group.bench_function(id("anchorhash"), |b| b.iter(|| black_box(keys).iter().filter(mine).collect::<Vec<_>>()));

    let jump = JumpHasher::new();
    let mine = |key: &&String| jump.slot(*key, members) == 0;
    group.bench_function(id("jumphash"), |b| b.iter(|| black_box(keys).iter().filter(mine).collect::<Vec<_>>()));

    let mine = |key: &&String| fnv_1a(key).is_multiple_of(black_box(members));
    group.bench_function(id("FNV-1a modulo"), |b| b.iter(|| black_box(keys).iter().filter(mine).collect::<Vec<_>>()));
}

/// Many short samples, of one round or a few: on a busy machine some of them are undisturbed, and the fastest is reported.
fn briefly(group: &mut BenchmarkGroup<'_, WallTime>) {
    group.sampling_mode(SamplingMode::Flat).sample_size(50).nresamples(1_000);
    group.warm_up_time(Duration::from_millis(50)).measurement_time(Duration::from_millis(150));
}

fn of(keys: &[String]) -> Throughput {
    Throughput::Elements(keys.len() as u64)
}

fn all(c: &mut Criterion) {
    let mut group = c.benchmark_group("filter");
    briefly(&mut group);
    for (name, keys) in made(KEYS).into_iter().chain(words()) {
        group.throughput(of(&keys));
        for members in FLEETS {
            let name = format!("{name}, {members} members");
            one_byte(&mut group, &name, &keys);
            ours(&mut group, &name, &keys, members);
            ours_by_key(&mut group, &name, &keys, members);
            peers(&mut group, &name, &keys, members);
        }
    }
    let many: Vec<String> = (0..500_000).map(|i| format!("tenant-{i:08}")).collect();
    group.throughput(of(&many));
    ours(&mut group, "500000 ids, 300 members", &many, 300);
    group.finish();
}

/// How close it is to the hash alone, with lists that exceed every cache.
fn million(c: &mut Criterion) {
    let mut group = c.benchmark_group("a million");
    briefly(&mut group);
    for (name, keys) in made(1_000_000) {
        group.throughput(of(&keys));
        for members in FLEETS {
            ours(&mut group, &format!("{name}, {members} members"), &keys, members);
        }
    }
    group.finish();
}

criterion_group!(benches, all, million);
criterion_main!(benches);
