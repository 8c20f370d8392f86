//! Which seeds run, and what each run must show.

use super::*;

/// The number of seeds in each test run; `SHARDWISE_SEED=<n>` repeats one, `cargo xtask simulate-outbox` runs any number.
const SEEDS: u64 = 60;

/// Within this many runs the simulation finds a hold that is used again after its release was given up.
const FORGETFUL: u64 = 200;

fn simulate(seed: u64, faults: bool) -> World {
    run_to_the_end(World::new(seed, faults), seed)
}

fn run_to_the_end(mut world: World, seed: u64) -> World {
    while world.now < 25_000 {
        world.step();
    }
    world.faults = false;
    while !world.settled() {
        world.step();
        assert!(world.now < 100_000, "seed {seed}: 75 s after the last fault something is still pending");
    }
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
    with_seeds(1, 20, |seed| {
        let world = simulate(seed, false);
        assert!(world.aggregates.values().all(|aggregate| aggregate.deliveries == aggregate.last), "seed {seed}");
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
