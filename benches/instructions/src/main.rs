//! Work whose instructions callgrind counts, because seconds say little on a busy machine.
//!
//! Without arguments it lists its cases, each with how many things one round of it works on. `CASE ROUNDS` does that many rounds. Two runs
//! with different numbers of rounds differ by the work alone, so starting and setting up count nothing.

#![expect(clippy::print_stdout, reason = "the list of cases is what it is asked for")]

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;

use shardwise_core::{
    IncrementalRing, InstanceId, KeyOwners, KeyPlacement, KeyShare, Member, Moment, NameError, Ownership, PlacementParams, Replicas,
    ServiceState, SlotOwners, View, Weight, hash_bytes,
};

const KEYS: usize = 4_096;

/// A case: its name, how many things a round works on, and a maker of rounds.
struct Case {
    name: &'static str,
    things: usize,
    prepare: fn() -> Result<Round, NameError>,
}

type Round = Box<dyn FnMut()>;

const CASES: [Case; 16] = [
    Case { name: "hash, ids of 15 bytes", things: KEYS, prepare: || Ok(hash(ids())) },
    Case { name: "hash, URLs of 200 bytes", things: KEYS, prepare: || Ok(hash(urls())) },
    Case { name: "filter_at, ids of 15 bytes", things: KEYS, prepare: || filter(ids(), 3, 16_384) },
    Case { name: "filter_at, ids, one of 1,000", things: KEYS, prepare: || filter(ids(), 1_000, 16_384) },
    Case { name: "filter_at, UUIDs as text", things: KEYS, prepare: || filter(uuids(), 3, 16_384) },
    Case { name: "filter_at, URLs of 200 bytes", things: KEYS, prepare: || filter(urls(), 3, 16_384) },
    Case { name: "filter_at, ids, 10,000 slots", things: KEYS, prepare: || filter(ids(), 3, 10_000) },
    Case {
        name: "filter_indices_at, ids of 15 bytes",
        things: KEYS,
        prepare: || on_ids(|ownership, keys, now| ownership.filter_indices_at(keys, now).len()),
    },
    Case { name: "count_at, ids of 15 bytes", things: KEYS, prepare: || on_ids(Ownership::count_at) },
    Case {
        name: "owns_at, ids of 15 bytes",
        things: KEYS,
        prepare: || on_ids(|ownership, keys, now| keys.iter().filter(|key| ownership.owns_at(*key, now)).count()),
    },
    Case { name: "one of 50 leaves or joins", things: 1, prepare: || change(50) },
    Case { name: "one of 1,000 leaves or joins", things: 1, prepare: || change(1_000) },
    Case { name: "three owners of 1,000", things: KEYS, prepare: three_owners },
    Case { name: "uhashring of 1,000", things: KEYS, prepare: || by_key(KeyPlacement::Uhashring) },
    Case { name: "modulo of 1,000", things: KEYS, prepare: || by_key(KeyPlacement::Modulo) },
    Case { name: "hashring of 1,000", things: KEYS, prepare: || by_key(KeyPlacement::Hashring) },
];

fn ids() -> Vec<String> {
    (0..KEYS).map(|i| format!("tenant-{i:08}")).collect()
}

fn uuids() -> Vec<String> {
    (0..KEYS).map(|i| format!("{:08x}-5a1f-4d0e-9b7c-{i:012x}", (i as u64 * 2_654_435_761) & 0xffff_ffff)).collect()
}

fn urls() -> Vec<String> {
    (0..KEYS).map(|i| format!("https://example.com/{i:0>180}")).collect()
}

fn fleet(size: u32) -> Result<Vec<(InstanceId, Weight)>, NameError> {
    (0..size).map(|i| Ok((InstanceId::new(format!("worker-{i}"))?, Weight::ONE))).collect()
}

/// What one of so many workers holds.
fn share(members: u32, slots: u32) -> Result<Ownership, NameError> {
    let fleet = fleet(members)?;
    let placed = SlotOwners::place(fleet.iter().cloned(), PlacementParams { slots, ..PlacementParams::default() });
    let mine = fleet.first().map_or_else(|| shardwise_core::SlotSet::empty(slots), |(id, _)| placed.slots_of(id));
    Ok(Ownership::fixed(ServiceState::Active, mine, Arc::new(View::default()), Moment::ZERO))
}

fn hash(keys: Vec<String>) -> Round {
    Box::new(move || {
        black_box(black_box(&keys).iter().fold(0, |sum, key| sum ^ hash_bytes(key.as_bytes())));
    })
}

fn filter(keys: Vec<String>, members: u32, slots: u32) -> Result<Round, NameError> {
    let ownership = share(members, slots)?;
    Ok(Box::new(move || drop(black_box(ownership.filter_at(black_box(&keys), Moment::ZERO)))))
}

fn on_ids(ask: fn(&Ownership, &[String], Moment) -> usize) -> Result<Round, NameError> {
    let (ownership, keys) = (share(3, 16_384)?, ids());
    Ok(Box::new(move || {
        black_box(ask(&ownership, black_box(&keys), Moment::ZERO));
    }))
}

/// A member leaves, and is there again in the next round.
fn change(members: u32) -> Result<Round, NameError> {
    let (all, mut ring) = (fleet(members)?, IncrementalRing::new(PlacementParams::default()));
    ring.place(all.iter().cloned());
    let mut whole = true;
    Ok(Box::new(move || {
        whole = !whole;
        black_box(ring.place(all.iter().skip(usize::from(!whole)).cloned()));
    }))
}

/// The first three members for each id, of a thousand; few points, because what is asked of them does not depend on their number.
fn three_owners() -> Result<Round, NameError> {
    let view = View::new(1, fleet(1_000)?.into_iter().map(|(id, _)| Member::named(id)).collect());
    let replicas = Replicas::of_view(&view, PlacementParams { virtual_nodes: 32, ..PlacementParams::default() }, 3);
    let keys = ids();
    Ok(Box::new(move || {
        let bytes = |key: &String| replicas.owners(key, 3).map(|id| id.as_str().len()).sum::<usize>();
        black_box(black_box(&keys).iter().map(bytes).sum::<usize>());
    }))
}

/// Which ids belong to one of a thousand by another fleet's rule, with 160 points for each member where it has points.
fn by_key(placement: KeyPlacement) -> Result<Round, NameError> {
    let fleet = fleet(1_000)?;
    let owners = KeyOwners::place(fleet.iter().cloned(), placement, 160).map(Arc::new);
    let share = owners.ok().zip(fleet.first()).map_or_else(KeyShare::nothing, |(owners, (me, _))| owners.share_of(me));
    let keys = ids();
    Ok(Box::new(move || {
        black_box(black_box(&keys).iter().filter(|key| share.holds(*key)).count());
    }))
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some(name), Some(rounds)) = (arguments.next(), arguments.next().and_then(|rounds| rounds.parse::<u32>().ok())) else {
        for case in CASES {
            println!("{}\t{}", case.things, case.name);
        }
        return ExitCode::SUCCESS;
    };
    let Some(Ok(mut round)) = CASES.iter().find(|case| case.name == name).map(|case| (case.prepare)()) else { return ExitCode::FAILURE };
    for _ in 0..rounds {
        round();
    }
    ExitCode::SUCCESS
}
