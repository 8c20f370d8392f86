//! The cost of a route among a thousand members: from a key to its owner or to one of the members over which it is spread, and from no key
//! to any member. Each figure is for one route, with a pick where there is a choice.

#![expect(clippy::unwrap_used, reason = "a benchmark; what cannot be set up should stop it")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use shardwise_core::routing::{Choice, LeastLoaded, Pick, PowerOfTwo, RoundRobin, RouteTable, Routes, Width, WidthHints};
use shardwise_core::{Incarnation, InstanceId, Key, Member, Moment, PlacementParams, Replicas, ShardKey, View, ViewPlacement};

const MEMBERS: u64 = 1_000;
/// More than a cache holds of what they lead to.
const KEYS: usize = 10_000;
const NOW: Moment = Moment::from_nanos(1_000_000_000_000);

fn table() -> RouteTable {
    let member = |number: u64| Member {
        incarnation: Incarnation::new(number + 1),
        ..Member::named(InstanceId::new(format!("worker-{number}")).unwrap())
    };
    let view = Arc::new(View::new(1, (0..MEMBERS).map(member).collect()));
    let params = PlacementParams::default();
    let (placement, replicas) = (ViewPlacement::of_view(&view, params).unwrap(), Replicas::of_view(&view, params, 4));
    let table = RouteTable::eventual(view, Some(&placement), Some(&replicas), None);
    // Every member has reported a load.
    (0..1_000).filter_map(|index| table.peer_load(index)).zip(0..).for_each(|(load, reported)| load.on_answer(NOW, Some(reported % 7)));
    table
}

/// One step of a Weyl sequence: cheaper than what callers draw with.
fn random(step: &mut u64) -> u64 {
    *step = step.wrapping_add(0x9e37_79b9_7f4a_7c15);
    *step
}

fn route(c: &mut Criterion) {
    let (table, routes) = (table(), Routes::default());
    let keys: Vec<String> = (0..KEYS).map(|key| format!("tenant-{key:08}")).collect();
    let (narrow, wide) = (WidthHints::default(), WidthHints::default());
    for key in keys.iter().take(100) {
        wide.on_answer(NOW, key.key_hash(), Some(4), Width::MAX);
    }
    let mut group = c.benchmark_group("route");
    group.throughput(Throughput::Elements(1));
    let id = |what| BenchmarkId::new(what, MEMBERS);
    for (what, hints, keys) in [("a key's owner", &narrow, &keys[..]), ("a hot key, width 4, two choices", &wide, &keys[..100])] {
        let (mut next, mut step) = (keys.iter().cycle(), 0);
        group.bench_function(id(what), |b| {
            b.iter(|| {
                let key = next.next().map(String::as_str).unwrap_or_default();
                let set = table.owners(black_box(key), NOW, hints, &routes).unwrap();
                let key = Some(Key::new(key.as_bytes()));
                Choice { table: &table, set: set.as_slice(), pick: &PowerOfTwo, key, random: random(&mut step) }.index(NOW)
            });
        });
    }
    let round_robin = RoundRobin::default();
    let picks: [(&str, &dyn Pick); 3] =
        [("any, two choices", &PowerOfTwo), ("any, round robin", &round_robin), ("any, least loaded", &LeastLoaded)];
    for (what, pick) in picks {
        let mut step = 0;
        group.bench_function(id(what), |b| {
            b.iter(|| Choice { table: &table, set: table.active().unwrap(), pick, key: None, random: random(&mut step) }.index(NOW));
        });
    }
    group.finish();
}

/// A changed group: the table of the next view, which keeps what is known of the members that stay.
fn rebuild(c: &mut Criterion) {
    let table = table();
    let placement = ViewPlacement::of_view(table.view(), PlacementParams::default()).unwrap();
    let mut group = c.benchmark_group("route table");
    group.sample_size(20);
    group.bench_function(BenchmarkId::new("of a view, without successors", MEMBERS), |b| {
        b.iter(|| RouteTable::eventual(Arc::clone(table.view()), Some(&placement), None, Some(&table)));
    });
    group.finish();
}

criterion_group!(benches, route, rebuild);
criterion_main!(benches);
