//! Entering against "publish, then drain", on parallel threads: no thread works in a slot that was found idle and given away.
//!
//! The system schedules the threads; their actions, and where they yield, come from a seed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use shardwise_core::{Epoch, Moment, Resource};

use super::Guards;

const SLOT: Resource = Resource::Slot(7);
const WORKERS: u64 = 3;
const ROUNDS: u64 = 4_000;
const SEEDS: u64 = 3;
/// A mistake is found within this many rounds; most within ten.
const FOUND_WITHIN: u64 = 200_000;
/// Only bounds a hang: without a mistake it takes microseconds.
const IDLE_WITHIN: Duration = Duration::from_mins(2);
/// The bound with a mistake, when a slot may be forgotten.
const IDLE_BY_MISTAKE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GuardMistake {
    /// Work is checked before readers see that the slot does not serve any more.
    DrainBeforePublish,
    /// Whether it serves is checked before the lock is taken.
    AskBeforeLock,
}

#[derive(Default)]
struct StressStage {
    guards: Guards,
    /// The epoch that readers see as serving; 0 means none.
    published: AtomicU64,
    /// It was idle, and now belongs to another member.
    given_away: AtomicBool,
    working: AtomicU64,
    wrong: AtomicBool,
    over: AtomicBool,
}

fn give_way(random: &mut StdRng) {
    if random.random_ratio(1, 4) {
        std::thread::yield_now();
    }
}

impl StressStage {
    fn serving(&self) -> Result<Epoch, ()> {
        match self.published.load(Ordering::SeqCst) {
            0 => Err(()),
            epoch => Epoch::new(epoch).map_err(drop),
        }
    }

    /// Enters and leaves until the end of the round.
    fn works(&self, mut random: StdRng, mistake: Option<GuardMistake>) {
        while !self.over.load(Ordering::SeqCst) {
            let entered = if mistake == Some(GuardMistake::AskBeforeLock) {
                let asked = self.serving();
                give_way(&mut random);
                self.guards.enter_claim(SLOT, Moment::ZERO, || asked)
            } else {
                self.guards.enter_claim(SLOT, Moment::ZERO, || self.serving())
            };
            let Ok((under, _signals)) = entered else {
                give_way(&mut random);
                continue;
            };
            self.working.fetch_add(1, Ordering::SeqCst);
            give_way(&mut random);
            if self.given_away.load(Ordering::SeqCst) {
                self.wrong.store(true, Ordering::SeqCst);
            }
            self.working.fetch_sub(1, Ordering::SeqCst);
            self.guards.leave(&under);
        }
    }

    /// Serves under that epoch, drains, sometimes serves on, and gives away what is idle. Returns whether all was right.
    async fn round(&self, epoch: u64, random: &mut StdRng, mistake: Option<GuardMistake>) -> bool {
        self.published.store(epoch, Ordering::SeqCst);
        loop {
            give_way(random);
            if mistake == Some(GuardMistake::DrainBeforePublish) {
                self.guards.drain(vec![SLOT]);
                give_way(random);
                self.published.store(0, Ordering::SeqCst);
            } else {
                self.published.store(0, Ordering::SeqCst);
                give_way(random);
                self.guards.drain(vec![SLOT]);
            }
            if random.random_ratio(3, 4) {
                break;
            }
            self.published.store(epoch, Ordering::SeqCst);
            self.guards.keep(&[SLOT]);
        }
        let within = if mistake.is_some() { IDLE_BY_MISTAKE } else { IDLE_WITHIN };
        let Ok(idle) = tokio::time::timeout(within, self.guards.idle()).await else { return false };
        assert!(idle.contains(&SLOT), "{idle:?}");
        self.given_away.store(true, Ordering::SeqCst);
        let mut right = true;
        for _ in 0..random.random_range(1..8) {
            right &= self.working.load(Ordering::SeqCst) == 0;
            give_way(random);
        }
        self.given_away.store(false, Ordering::SeqCst);
        right && !self.wrong.load(Ordering::SeqCst)
    }
}

/// The round with an error, among the first `rounds`.
fn went_wrong_in(seed: u64, rounds: u64, mistake: Option<GuardMistake>) -> Option<u64> {
    let stage = Arc::new(StressStage::default());
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let (stage, random) = (Arc::clone(&stage), StdRng::seed_from_u64(seed * 100 + worker));
            std::thread::spawn(move || stage.works(random, mistake))
        })
        .collect();
    let mut random = StdRng::seed_from_u64(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let wrong = (1..=rounds).find(|epoch| !runtime.block_on(stage.round(*epoch, &mut random, mistake)));
    stage.over.store(true, Ordering::SeqCst);
    for worker in workers {
        worker.join().unwrap();
    }
    wrong
}

#[test]
fn no_work_begins_in_what_was_found_idle_and_given_away() {
    for seed in 0..SEEDS {
        assert_eq!(went_wrong_in(seed, ROUNDS, None), None, "seed {seed}");
    }
}

#[test]
fn known_mistakes_are_found() {
    for mistake in [GuardMistake::DrainBeforePublish, GuardMistake::AskBeforeLock] {
        let found = went_wrong_in(0, FOUND_WITHIN, Some(mistake));
        println!("{mistake:?} is found in round {found:?}");
        assert!(found.is_some(), "{mistake:?} is not found within {FOUND_WITHIN} rounds");
    }
}
