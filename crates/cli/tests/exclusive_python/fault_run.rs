//! What is done to the fleet, when, and what came of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use shardwise_testkit::overlap_judge::{Findings, findings};

use crate::common::chance::Chance;
use crate::figures::{Kill, figures, handovers};
use crate::fleet::{Fleet, Undo, now};
use crate::pair::Pair;
use crate::{Fault, PAIRS, TTL, Whom};

/// In which the others hold and have written to what one held that is stopped.
const REPLACED_WITHIN: Duration = Duration::from_secs(15);
/// How long processes are stopped and sidecars cut off, in milliseconds.
const STOP_LEAST_MS: u64 = 200;
const STOP_MOST_MS: u64 = 6_000;
/// Four of ten faults come to a fleet that has settled, and it settles before the next one.
const ALONE_OF_TEN: u64 = 4;

pub(crate) struct FaultRun {
    backend: String,
    fleet: Fleet,
    chance: Chance,
    counts: BTreeMap<Fault, u32>,
    kills: Vec<Kill>,
    /// Slots of those that were stopped until others held them: their writes after that must be refused.
    replaced: usize,
}

impl FaultRun {
    pub(crate) fn start(backend: &str, servers: usize, chance: Chance) -> Self {
        let fleet = Fleet::start(backend, servers);
        Self { backend: backend.to_owned(), fleet, chance, counts: BTreeMap::new(), kills: Vec::new(), replaced: 0 }
    }

    fn up_to(&mut self, longest: Duration) -> Duration {
        let most = u64::try_from(longest.as_millis()).unwrap();
        Duration::from_millis(self.chance.below(most + 1))
    }

    /// Does it to the fleet, alone or while others go on, and waits a little.
    pub(crate) fn strike(&mut self, fault: Fault) {
        let alone = fault == Fault::StopUntilReplaced || self.chance.below(10) < ALONE_OF_TEN;
        if alone {
            self.fleet.settle();
        }
        let is_free = |pair: &Pair| pair.is_whole() && !pair.is_struck;
        let free: Vec<_> = (0..PAIRS).filter(|number| is_free(&self.fleet.pairs[*number])).collect();
        if free.len() < 2 || fault == Fault::Lock && self.fleet.is_locked() {
            self.fleet.settle();
            return self.strike(fault);
        }
        let victim = free[self.chance.index(free.len())];
        *self.counts.entry(fault).or_default() += 1;
        let of = if fault == Fault::Lock { "all" } else { self.fleet.pairs[victim].name.as_str() };
        println!("{} {:>12} {}: {of}", self.backend, now(), fault.name());
        self.carry_out(fault, victim, alone);
        let rest = self.up_to(Duration::from_secs(1));
        if alone { self.fleet.settle() } else { self.fleet.wait(rest) }
    }

    fn carry_out(&mut self, fault: Fault, victim: usize, alone: bool) {
        let (brief, long) = (self.up_to(Duration::from_secs(1)), self.up_to(TTL + Duration::from_secs(1)));
        let stopped = Duration::from_millis(STOP_LEAST_MS + self.chance.below(STOP_MOST_MS - STOP_LEAST_MS + 1));
        match fault {
            Fault::Kill(whom) => {
                let at = now();
                let held = self.fleet.pairs[victim].kill(whom);
                if alone {
                    self.kills.push(Kill { at, whom, held });
                    self.fleet.settle();
                }
                self.fleet.later(brief, Undo::Restart(victim));
            }
            Fault::Stop(whom) => {
                self.fleet.stop(victim, whom);
                self.fleet.later(stopped, Undo::Continue(victim, whom));
            }
            Fault::StopUntilReplaced => {
                self.fleet.stop(victim, Whom::Worker);
                self.fleet.pairs[victim].catch_up();
                let before: BTreeSet<_> = self.fleet.pairs[victim].slots().into_iter().collect();
                // It may have been stopped inside a write, which blocks all other writers until it continues.
                if self.fleet.waited(REPLACED_WITHIN, |pairs| others_work(pairs, victim, &before)).is_ok() {
                    let held = self.fleet.pairs[victim].slots();
                    self.replaced += held.iter().filter(|slot| before.contains(slot)).count();
                }
                self.fleet.later(Duration::ZERO, Undo::Continue(victim, Whom::Worker));
            }
            Fault::Cut => {
                let how = self.chance.below(5);
                self.fleet.cut(victim, how);
                self.fleet.later(stopped, Undo::Heal(victim));
            }
            Fault::Lock => self.fleet.lock(long),
        }
    }

    /// Lets slots go from worker to worker in good order, while nothing else is done. Returns how long each took.
    pub(crate) fn hand_over(&mut self, rounds: usize) -> Vec<Duration> {
        self.fleet.settle();
        let begun = now();
        (0..rounds).for_each(|round| self.fleet.drain_and_undrain(round % PAIRS));
        handovers(&self.fleet.lines(), begun)
    }

    /// Ends it, and returns its figures.
    pub(crate) fn end(mut self) -> Value {
        self.fleet.end();
        let found = findings(&self.fleet.lines());
        let disorder = self.fleet.disorder();
        let figures_of_run = figures(&self.backend, &self.counts, &self.kills, &found);
        let Findings { unfit, overlaps, falls, stale_writes, owned_late, wrongly_refused, late_refused, .. } = &found;
        let is_clean = unfit.is_empty() && overlaps.is_empty() && falls.is_empty() && stale_writes.is_empty();
        // Each worker that was stopped until others held its slots has asked the table once more for each.
        let is_fenced = (*owned_late, *wrongly_refused, disorder) == (0, 0, 0) && *late_refused >= self.replaced;
        assert!(
            is_clean && is_fenced,
            "lines that do not follow from those before: {unfit:?}\noverlaps: {overlaps:?}\nfallen epochs: {falls:?}\nlate writes that \
             passed: {stale_writes:?}\nlate work that the client called owned: {owned_late}; writes refused without a higher epoch: \
             {wrongly_refused}; rows out of order: {disorder}; {} slots were taken from stopped workers\n{figures_of_run}",
            self.replaced
        );
        figures_of_run
    }
}

fn others_work(pairs: &[Pair], victim: usize, slots: &BTreeSet<u32>) -> Result<(), String> {
    let others = || pairs.iter().enumerate().filter(|(number, _)| *number != victim).map(|(_, pair)| pair);
    let missing: Vec<_> = slots.iter().filter(|slot| !others().any(|pair| pair.works_in(**slot))).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("no other worker works in {missing:?}")) }
}
