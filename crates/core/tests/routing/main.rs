//! Deterministic simulation of requests: callers and members decide with the types of `routing`, on simulated time. A seed repeats its run
//! exactly.
//!
//! Eight members handle eight requests at once, 20 ms each. What must hold:
//!
//! 1. *A hot key costs little.* With 50 even keys and one that has 100 times the load of each, 1,600 requests a second in all, the 99th
//!    percentile is at most twice that of the same load spread evenly, at a width of at most 4. Without width it is missed.
//! 2. *A key that was hot goes back to its owner alone* within four minutes.
//! 3. *A load that was reported once is forgotten*, though the member is not asked meanwhile.
//! 4. *A dead member is avoided* while it is still in the view.
//! 5. *A busy member is avoided* for as long as it asks.
//! 6. *Hints in a loop end*, and the request ends at its deadline.

#![expect(clippy::expect_used, clippy::panic, reason = "tests report by panicking")]

mod dice;
mod scenarios;
mod world;

use shardwise_core::mistakes::{Mistake, make};
use shardwise_core::routing::Width;

/// In every run of the tests.
const SEEDS: u64 = 5;
/// A known mistake is found within so many.
const FOUND_WITHIN: u64 = 5;

type Scenario = fn(u64) -> Result<(), String>;

fn holds(what: &str, seeds: u64, scenario: impl Fn(u64) -> Result<(), String>) {
    for seed in 0..seeds {
        scenario(seed).unwrap_or_else(|why| panic!("{what}, seed {seed}: {why}"));
    }
}

#[test]
fn a_hot_key_at_most_doubles_the_99th_percentile() {
    holds("a hot key", SEEDS, |seed| {
        let spread = scenarios::hot_key(seed, 8, Width::MAX, false)?.within(2)?;
        println!("seed {seed}: p99 {} µs, evenly {} µs, width {}", spread.hot_p99 / 1_000, spread.even_p99 / 1_000, spread.widest);
        if spread.widest > 4 { Err(format!("width {}", spread.widest)) } else { Ok(()) }
    });
}

#[test]
fn so_it_does_with_few_callers_and_with_many() {
    for callers in [1, 32] {
        holds("a hot key", 2, |seed| scenarios::hot_key(seed, callers, Width::MAX, false)?.within(2).map(drop));
    }
}

/// It gets fewer requests of the hot key, so the others have more than without it.
#[test]
fn forged_loads_and_widths_leave_every_request_answered() {
    holds("forged numbers", 2, |seed| scenarios::hot_key(seed, 8, Width::MAX, true)?.within(4).map(drop));
}

#[test]
fn without_width_a_hot_key_is_too_much_for_its_owner() {
    let alone = scenarios::hot_key(0, 8, Width::ONE, false).expect("all are answered or still wait");
    let why = alone.within(4).expect_err("one member can handle 400 requests a second");
    println!("without width: {why}");
}

#[test]
fn a_quiet_key_is_narrowed_loads_age_the_dead_and_the_busy_are_avoided_and_hints_end() {
    holds("narrowing", SEEDS, scenarios::narrows);
    holds("aging", SEEDS, scenarios::recovers);
    holds("a dead member", SEEDS, scenarios::avoids_the_dead);
    holds("a busy member", SEEDS, scenarios::avoids_the_busy);
    holds("hints", SEEDS, scenarios::ends_hints);
}

#[test]
fn known_mistakes_are_found() {
    let mistakes: [(Mistake, Scenario, &str); 5] = [
        (Mistake::WidthNeverNarrows, scenarios::narrows, "still went to others than its owner"),
        (Mistake::LoadNeverAges, scenarios::recovers, "a member that is idle again got 0 requests"),
        (Mistake::FailureForgotten, scenarios::avoids_the_dead, "were sent to a dead member"),
        (Mistake::RefusalForgotten, scenarios::avoids_the_busy, "were sent to a busy member"),
        (Mistake::HintsWithoutEnd, scenarios::ends_hints, "attempts for one request of 2 s"),
    ];
    for (mistake, scenario, shown_by) in mistakes {
        make(Some(mistake));
        let found = (0..FOUND_WITHIN).find_map(|seed| scenario(seed).err().map(|why| (seed, why)));
        make(None);
        let (seed, why) = found.unwrap_or_else(|| panic!("{mistake:?} is not found within {FOUND_WITHIN} seeds"));
        println!("{mistake:?} is found by seed {seed}: {why}");
        assert!(why.contains(shown_by), "{mistake:?} must be shown by {shown_by:?}: {why}");
    }
}

#[test]
fn a_seed_repeats_its_run() {
    let [one, other] = [0, 1].map(|_| scenarios::hot_key(3, 8, Width::MAX, false).unwrap_or_else(|why| panic!("{why}")));
    assert!(one == other, "two runs of one seed differ");
}
