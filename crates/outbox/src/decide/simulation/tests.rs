//! Which seeds run, and what each run must show.

use super::traffic::RETRIED;
use super::*;

/// The number of seeds in each test run; `SHARDWISE_SEED=<n>` repeats one, `cargo xtask simulate-outbox` runs any number.
const SEEDS: u64 = 30;

/// Within this many runs the simulation finds a hold that is used again after its release was given up.
const FORGETFUL: u64 = 200;

fn simulate(seed: u64, faults: bool) -> World {
    run_to_the_end(World::new(seed, faults), seed)
}

fn run_to_the_end(mut world: World, seed: u64) -> World {
    let nothing_is_slow = !world.faults && world.traffic != Traffic::OneSlow;
    while world.now < 25_000 {
        world.step();
    }
    world.faults = false;
    while !world.settled() {
        world.step();
        assert!(world.now < 100_000, "seed {seed}: 75 s after the last fault something is still pending");
    }
    assert!(!nothing_is_slow || !world.figures.contains_key(RETRIED), "seed {seed}: nothing was slow, and something was put back");
    world
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn with_seeds(from: u64, count: u64, mut test: impl FnMut(u64)) {
    let (from, count) = number("SHARDWISE_SEED").map_or((from, count), |seed| (seed, 1));
    for seed in from..from + count {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(seed)));
        assert!(outcome.is_ok(), "repeat with: SHARDWISE_SEED={seed} cargo test -p shardwise-outbox --lib simulation");
    }
}

#[test]
fn whatever_happens_order_and_fence_hold_and_everything_arrives() {
    let mut figures: BTreeMap<&str, u64> = BTreeMap::new();
    let (from, seeds) = (number("SHARDWISE_SIMULATE_FROM").unwrap_or(1), number("SHARDWISE_SIMULATE_SEEDS").unwrap_or(SEEDS));
    with_seeds(from, seeds, |seed| {
        let mut world = simulate(seed, true);
        assert!(world.aggregates.values().all(|aggregate| aggregate.arrived == aggregate.last));
        world.count("lives", 1);
        world.count("simulated seconds", world.now / 1_000);
        for (what, times) in world.figures {
            *figures.entry(what).or_default() += times;
        }
    });
    for (what, times) in figures {
        println!("count: {what}: {times}");
    }
}

#[test]
fn without_faults_nothing_arrives_twice() {
    with_seeds(1, 10, |seed| {
        let world = simulate(seed, false);
        assert!(world.aggregates.values().all(|aggregate| aggregate.deliveries == aggregate.last), "seed {seed}");
    });
}

/// Without room for them, the events of the other destination would wait behind all of the slow one's that were read before.
#[test]
fn a_slow_destination_delays_no_event_for_another() {
    let mut put_back = 0;
    with_seeds(1, 10, |seed| {
        let world = run_to_the_end(World::of(seed, false, Traffic::OneSlow), seed);
        assert!(world.aggregates.values().all(|aggregate| aggregate.deliveries == aggregate.last), "seed {seed}: once each");
        put_back += world.figures.get(RETRIED).copied().unwrap_or_default();
    });
    assert!(put_back > 0, "no life had to put anything back");
}

#[test]
fn a_busy_destination_is_not_slow() {
    with_seeds(1, 5, |seed| {
        let world = run_to_the_end(World::of(seed, false, Traffic::Busy), seed);
        assert!(world.aggregates.values().all(|aggregate| aggregate.deliveries == aggregate.last), "seed {seed}: once each");
    });
}

fn is_found(mistake: impl Fn(u64) -> World, seeds: u64) -> bool {
    (1..=seeds).any(|seed| {
        let life = || run_to_the_end(mistake(seed), seed);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(life)).is_err()
    })
}

#[test]
fn a_store_without_a_fence_is_found_out() {
    let fenceless = |seed| World::new(seed, true).with(EngineMistake::NoFence);
    assert!(is_found(fenceless, 10), "ten seeds found nothing: the simulation checks too little");
}

/// The store executes the release late, another publisher takes the slot, and this one continues to send.
#[test]
fn a_hold_that_is_used_after_its_release_was_given_up_is_found_out() {
    let forgetful = |seed| World { restless: true, ..World::new(seed, true).with(EngineMistake::UsesWhatItReleases) };
    assert!(is_found(forgetful, FORGETFUL), "{FORGETFUL} seeds found nothing: the simulation checks too little");
}

#[test]
fn a_slow_destination_that_keeps_everything_is_found_out() {
    let keeping = |seed| World::of(seed, false, Traffic::OneSlow).with(EngineMistake::OfSlow(SlowMistake::KeepsEverything));
    assert!(is_found(keeping, 10), "ten seeds found nothing: the simulation checks too little");
}

/// The first fix for slow destinations made it.
#[test]
fn a_busy_destination_that_is_taken_for_a_slow_one_is_found_out() {
    let hasty = |seed| World::of(seed, false, Traffic::Busy).with(EngineMistake::OfSlow(SlowMistake::TakesBusyForSlow));
    assert!(is_found(hasty, 10), "ten seeds found nothing: the simulation checks too little");
}
