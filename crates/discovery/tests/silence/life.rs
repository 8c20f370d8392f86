//! One life: a phase of faults, a phase in which everything must come right, an outage of the store for all, and a death.

use std::collections::BTreeSet;

use rand::RngExt;
use rand::seq::SliceRandom;

use crate::Figures;
use crate::chaos::LONG_OUTAGE_MS;
use crate::clock::MS;
use crate::network::LATE_MAX;
use crate::process::RESOURCES;
use crate::store::LifeId;
use crate::world::{Event, Fate, World};

/// One life in so many is that of a large group, in which not all guard all.
const LARGE_ONE_IN: u64 = 10;
const FAULTS_END: u64 = 30_000 * MS;
/// Late calls are carried out and pending restarts happen.
const LAST_RESTART: u64 = 6_000 * MS + LATE_MAX;
/// From then on: two TTLs and two seconds.
const SETTLES_WITHIN: u64 = 8_000 * MS;
/// The TTL by a clock that is 1 % slow.
const TTL_MAX: u64 = 3_030 * MS;
/// Three messages, a write under way, and a proof.
const EVICTED_WITHIN: u64 = 200 * MS;
/// An observer that lists sees a beat up to a period late.
const LISTED_WITHIN: u64 = 1_000 * MS;
/// All ask for all resources in turn.
const TAKEN_WITHIN: u64 = 4_000 * MS;

/// The result of a life that went well.
pub(crate) struct Lived {
    pub(crate) figures: Figures,
    pub(crate) digest: u64,
}

/// Lives the life of that seed, with clocks that are off by up to `drift` millionths.
///
/// # Errors
///
/// A description of the failure.
pub(crate) fn live(seed: u64, drift: u64) -> Result<Lived, String> {
    let is_large = seed % LARGE_ONE_IN == LARGE_ONE_IN - 1;
    let mut world = World::new(seed, drift, is_large);
    world.begins();
    world.run_until(FAULTS_END)?;
    world.settles()?;
    world.all_are_out()?;
    world.some_die()?;
    world.figures.count("lives", 1);
    world.figures.count("simulated seconds", world.now / MS / 1_000);
    Ok(Lived { figures: world.figures, digest: world.digest })
}

impl World {
    fn begins(&mut self) {
        if self.is_large {
            self.figures.count("lives of up to 16 members", 1);
        }
        if self.polls {
            self.figures.count("lives with lists", 1);
        }
        let members = if self.is_large { 12 } else { 4 };
        for _ in 0..members {
            self.names += 1;
            let at = self.dice.random_range(0..1_000 * MS);
            self.push(at, Event::Starts(self.names));
        }
        self.push(3_000 * MS, Event::Chaos);
    }

    fn settles(&mut self) -> Result<(), String> {
        self.calms_down();
        self.run_until(self.now + LAST_RESTART + SETTLES_WITHIN)?;
        self.check_settled("after the faults")
    }

    /// The store has the living members and no others, and one holder of each resource.
    fn check_settled(&self, when: &str) -> Result<(), String> {
        let living: BTreeSet<LifeId> = self.living().into_iter().map(|who| self.workers[who].process.life).collect();
        let there = self.store.lives();
        if there != living {
            return Err(format!("{when} the store has {there:?}, and {living:?} live"));
        }
        match (0..RESOURCES).map(|resource| self.believers(resource).len()).find(|holders| *holders != 1) {
            Some(holders) => Err(format!("{when} a resource has {holders} holders")),
            None => Ok(()),
        }
    }

    /// The store is out for all, for longer than a TTL, and all come back at once. One process is stopped meanwhile: no write of it fails,
    /// so that only the time between its writes shows the outage.
    fn all_are_out(&mut self) -> Result<(), String> {
        let evicted = self.evicted.len();
        self.is_out(LONG_OUTAGE_MS);
        if let (Some(outage), Some(who)) = (self.outage, self.living().first().copied()) {
            self.workers[who].fate = Fate::Stopped;
            let goes_on = outage.ends + self.dice.random_range(0..500 * MS);
            self.push(goes_on, Event::GoesOn(who));
        }
        self.run_until(self.now + LONG_OUTAGE_MS.end * MS + SETTLES_WITHIN)?;
        match self.evicted.get(evicted) {
            Some(record) => Err(format!("{:?} is evicted although only an outage of the store kept it from renewing", record.life)),
            None => self.check_settled("after the outage"),
        }
    }

    fn some_die(&mut self) -> Result<(), String> {
        let mut living = self.living();
        living.shuffle(&mut self.dice);
        let most = if self.is_large { 3 } else { 1 };
        let dying: Vec<usize> = living.iter().skip(1).take(most).copied().collect();
        let (died, before) = (self.now, self.evicted.len());
        for who in &dying {
            self.is_killed(*who);
        }
        let bound = TTL_MAX + EVICTED_WITHIN + if self.polls { LISTED_WITHIN } else { 0 };
        self.run_until(died + bound + TAKEN_WITHIN)?;
        let evicted: Vec<_> = self.evicted[before..].to_vec();
        for life in dying.iter().map(|who| self.workers[*who].process.life) {
            let Some(record) = evicted.iter().find(|record| record.life == life) else {
                return Err(format!("{life:?} died at {} ms and is not evicted", died / MS));
            };
            let took = record.at.saturating_sub(record.renewed.unwrap_or(died));
            if took > bound {
                return Err(format!("{life:?} was evicted {} ms after its last renewal", took / MS));
            }
            self.figures.took("buried after the last renewal", took / MS);
        }
        self.check_settled("after a death")
    }
}
