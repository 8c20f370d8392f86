//! Deterministic simulation of `silence`: a group of processes, each with its own observer and clock, over a model of a store that ends no
//! lease by itself. A seed repeats its life exactly.
//!
//! In half of the lives the processes list the group with each of their writes (PostgreSQL), in the others each change is pushed to them in
//! order (NATS). Processes stop for up to two and a half TTLs, are killed and started again under their names, leave, or are cut off in one
//! direction or both. Calls and answers are lost; calls are carried out seconds after their caller gave up. The store is out for up to
//! three TTLs, loses a record, and its wall clock jumps. Each clock begins anywhere and is up to 0.5 % off, so that two differ by 1 %.
//!
//! What must hold:
//!
//! 1. *No eviction hits a valid lease.* When the store carries out an eviction, the clock of the evicted member, if that is alive, shows at
//!    least the deadline from the latest start of a write of it that the store carried out, answered or not: start plus 0.99 of the TTL.
//! 2. *No claim is granted while another process believes that it holds it*, by its own clock and the deadline from its answered writes.
//! 3. *Only members in trouble are evicted.* In the TTL before the write that proved its silence, an evicted living member was stopped, cut
//!    off, lost its record, or had a lost or late call. An outage longer than a TTL is no such trouble: it concerns all, so that it
//!    must not evict any. (A shorter one is: it may hit one member's renewals twice and no write of its observer.)
//! 4. *A killed member is evicted* within the TTL, 1 % and a bound after its last renewal, and its claims move on.
//!
//! `cargo xtask simulate-silence --seeds N --from S` runs as many as wanted.

#![expect(clippy::expect_used, clippy::panic, reason = "tests report by panicking")]

mod carried_out;
mod chaos;
mod clock;
mod life;
mod network;
mod process;
mod store;
mod world;

use std::collections::BTreeMap;
use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use clock::DRIFT_MAX;
use shardwise_core::mistakes::{Mistake, make};

/// In every run of the tests.
const SEEDS: u64 = 300;
/// A known mistake is found within so many.
const FOUND_WITHIN: u64 = 200;

/// Everything that a full run meets.
const HAPPENED: [&str; 20] = [
    "answers lost",
    "burials",
    "burials of absent records",
    "burials of living members",
    "burials refused because the record had changed",
    "calls carried out after their caller gave up",
    "calls late",
    "calls lost",
    "claims granted",
    "cuts",
    "jumps of the store's wall clock",
    "kills",
    "leaves",
    "lives of up to 16 members",
    "lives with lists",
    "outages longer than a TTL",
    "outages shorter than a TTL",
    "pauses beyond the TTL",
    "records lost",
    "starts",
];

/// What happened in all lives together, and the worst of each time in milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    counts: BTreeMap<&'static str, u64>,
    worst: BTreeMap<&'static str, u64>,
}

impl Figures {
    pub(crate) fn count(&mut self, what: &'static str, times: u64) {
        *self.counts.entry(what).or_default() += times;
    }

    pub(crate) fn took(&mut self, what: &'static str, ms: u64) {
        let worst = self.worst.entry(what).or_default();
        *worst = ms.max(*worst);
    }

    fn add(&mut self, other: &Self) {
        for (what, times) in &other.counts {
            self.count(what, *times);
        }
        for (what, ms) in &other.worst {
            self.took(what, *ms);
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is a whole number, not {text:?}")))
}

/// Lives those, until one on any thread goes wrong.
///
/// # Panics
///
/// If one does.
fn lives(seeds: impl Iterator<Item = u64>, wrong: &AtomicBool) -> Figures {
    let mut figures = Figures::default();
    for seed in seeds.take_while(|_| !wrong.load(Ordering::Relaxed)) {
        let life = life::live(seed, DRIFT_MAX).unwrap_or_else(|why| {
            wrong.store(true, Ordering::Relaxed);
            panic!("seed {seed}: {why}\nrepeat with: cargo xtask simulate-silence --seeds 1 --from {seed}")
        });
        figures.add(&life.figures);
    }
    figures
}

/// The same on several threads.
fn lives_on(threads: usize, seeds: Range<u64>) -> Figures {
    let wrong = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let share = |thread| seeds.clone().skip(thread).step_by(threads);
        let running: Vec<_> = (0..threads).map(share).map(|share| scope.spawn(|| lives(share, &wrong))).collect();
        let mut figures = Figures::default();
        for running in running {
            figures.add(&running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        figures
    })
}

#[test]
fn living_members_are_not_evicted_and_dead_ones_are() {
    let (from, seeds) = (number("SHARDWISE_SIMULATE_FROM").unwrap_or(0), number("SHARDWISE_SIMULATE_SEEDS").unwrap_or(SEEDS));
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let figures = lives_on(threads, from..from + seeds);
    for (what, times) in &figures.counts {
        println!("count: {what}: {times}");
    }
    for (what, ms) in &figures.worst {
        println!("worst ms: {what}: {ms}");
    }
    if seeds >= SEEDS {
        let never: Vec<_> = HAPPENED.iter().filter(|what| !figures.counts.contains_key(**what)).collect();
        assert!(never.is_empty(), "a run in which this never happened proves little: {never:?}");
    }
}

#[test]
fn known_mistakes_are_found() {
    let mistakes = [
        (Mistake::ServerTimestamps, "while its lease is valid"),
        (Mistake::AbsenceIsEviction, "while its lease is valid"),
        (Mistake::SilenceInOutage, "kept it from renewing"),
    ];
    for (mistake, shown_by) in mistakes {
        make(Some(mistake));
        let found = (0..FOUND_WITHIN).find_map(|seed| life::live(seed, DRIFT_MAX).err().map(|why| (seed, why)));
        make(None);
        let (seed, why) = found.unwrap_or_else(|| panic!("{mistake:?} is not found within {FOUND_WITHIN} seeds"));
        println!("{mistake:?} is found by seed {seed}: {why}");
        assert!(why.contains(shown_by), "{mistake:?} must be shown by {shown_by:?}: {why}");
    }
}

/// 3 % each, where a pair may differ by 1 %.
#[test]
fn clocks_beyond_the_bound_are_found() {
    let wrong = (0..FOUND_WITHIN).filter_map(|seed| life::live(seed, 6 * DRIFT_MAX).err());
    let found = wrong.into_iter().find(|why| why.contains("while its lease is valid"));
    assert!(found.is_some(), "{FOUND_WITHIN} seeds found nothing: the simulation checks too little");
}

#[test]
fn a_seed_repeats_its_life() {
    for seed in 0..3 {
        let [one, other] = [0, 1].map(|_| life::live(seed, DRIFT_MAX).unwrap_or_else(|why| panic!("seed {seed}: {why}")));
        assert_eq!((one.digest, one.figures), (other.digest, other.figures), "seed {seed}");
    }
}
