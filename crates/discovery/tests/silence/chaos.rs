//! What happens to the processes and to the store.

use std::ops::Range;

use rand::RngExt;
use shardwise_core::Moment;

use crate::clock::MS;
use crate::process::{Outgoing, Request};
use crate::store::WALL_BEGINS;
use crate::world::{Cut, Event, Fate, Outage, OutageKind, World};

const TTL_MS: u64 = 3_000;
/// Between two things that happen.
const PAUSE_MS: Range<u64> = 100..1_200;
/// How long a process is stopped or cut off.
const TROUBLE_MS: Range<u64> = 600..7_500;
/// Until a process that ended is started again.
const RESTART_MS: Range<u64> = 0..6_000;
/// Not so close to the TTL that clocks decide which of them it is.
pub(crate) const LONG_OUTAGE_MS: Range<u64> = 3_200..9_000;
const SHORT_OUTAGE_MS: Range<u64> = 200..2_800;
pub(crate) const LARGE: usize = 16;
const SMALL: usize = 7;

impl World {
    fn ms(&mut self, range: Range<u64>) -> u64 {
        self.dice.random_range(range) * MS
    }

    pub(crate) fn workers_max(&self) -> usize {
        if self.is_large { LARGE } else { SMALL }
    }

    pub(crate) fn chaos(&mut self) {
        if !self.faults {
            return;
        }
        let living = self.living();
        let any = living[self.dice.random_range(0..living.len())];
        match self.dice.random_range(0..20) {
            0..4 => self.stops(any),
            4..7 => self.is_cut(any),
            7 | 8 if living.len() > 2 => self.is_killed(any),
            9 if living.len() > 2 => self.leaves(any),
            10 | 11 => self.is_out(LONG_OUTAGE_MS),
            12 => self.is_out(SHORT_OUTAGE_MS),
            13 | 14 => self.wall_clock_jumps(),
            15 | 16 => self.loses_a_record(),
            17 if living.len() < self.workers_max() => self.joins(),
            _ => {}
        }
        let next = self.now + self.ms(PAUSE_MS);
        self.push(next, Event::Chaos);
    }

    pub(crate) fn joins(&mut self) {
        self.names += 1;
        self.starts(self.names);
    }

    fn stops(&mut self, who: usize) {
        if self.workers[who].fate == Fate::Runs {
            let time = self.ms(TROUBLE_MS);
            self.workers[who].fate = Fate::Stopped;
            self.figures.count(if time > TTL_MS * MS { "pauses beyond the TTL" } else { "pauses within the TTL" }, 1);
            self.push(self.now + time, Event::GoesOn(who));
        }
    }

    fn is_cut(&mut self, who: usize) {
        if self.workers[who].cut != Cut::Nowhere {
            return;
        }
        let cut = [Cut::Requests, Cut::Answers, Cut::Both][self.dice.random_range(0..3)];
        self.workers[who].cut = cut;
        if cut != Cut::Requests {
            // Messages on their way do not arrive. It notices only when the connection is back.
            self.break_link(who);
        }
        self.figures.count("cuts", 1);
        let heals = self.now + self.ms(TROUBLE_MS);
        self.push(heals, Event::Heals(who));
    }

    /// With SIGKILL. Its calls on their way arrive.
    pub(crate) fn is_killed(&mut self, who: usize) {
        self.workers[who].fate = Fate::Dead;
        self.figures.count("kills", 1);
        if self.faults {
            self.starts_again(who);
        }
    }

    fn leaves(&mut self, who: usize) {
        let request = Outgoing { attempt: 0, started: Moment::ZERO, request: Request::Leave };
        self.send(who, request);
        self.workers[who].fate = Fate::Dead;
        self.figures.count("leaves", 1);
        self.starts_again(who);
    }

    /// Under the same name, as a supervisor does, in four cases of five.
    fn starts_again(&mut self, who: usize) {
        if self.dice.random_bool(0.8) {
            let (name, at) = (self.workers[who].process.life.name, self.now + self.ms(RESTART_MS));
            self.push(at, Event::Starts(name));
        }
    }

    pub(crate) fn is_out(&mut self, time_ms: Range<u64>) {
        if self.outage.is_some() {
            return;
        }
        let is_long = time_ms.start > TTL_MS;
        let kind = [OutageKind::Stopped, OutageKind::Unreachable, OutageKind::Down][self.dice.random_range(0..3)];
        let outage = Outage { kind, ends: self.now + self.ms(time_ms) };
        self.outage = Some(outage);
        self.push(outage.ends, Event::OutageEnds);
        self.figures.count(if is_long { "outages longer than a TTL" } else { "outages shorter than a TTL" }, 1);
        if !is_long {
            for who in self.living() {
                self.workers[who].troubled = outage.ends;
            }
        }
    }

    fn wall_clock_jumps(&mut self) {
        self.store.wall_ahead = self.dice.random_range(0..2 * WALL_BEGINS);
        self.figures.count("jumps of the store's wall clock", 1);
    }

    /// Not soon after another loss or after the registration: absence has no number, so an observer cannot see that a record was there
    /// for a moment in between.
    fn loses_a_record(&mut self) {
        let settled = self.now.saturating_sub(TTL_MS * MS);
        let rows = self.store.rows.iter().filter(|(_, row)| row.created < settled);
        let names: Vec<usize> = rows.map(|(name, _)| *name).collect();
        if names.is_empty() || self.now < self.lost_at + 3 * TTL_MS * MS {
            return;
        }
        self.lost_at = self.now;
        let name = names[self.dice.random_range(0..names.len())];
        self.store.lose(name);
        self.figures.count("records lost", 1);
        for who in self.living() {
            if self.workers[who].process.life.name == name {
                self.trouble(who);
            }
        }
    }

    /// Faults end: all go on, are reachable, and the store is there.
    pub(crate) fn calms_down(&mut self) {
        self.faults = false;
        if self.outage.is_some() {
            self.outage_ends();
        }
        for who in self.living() {
            self.heals(who);
            self.goes_on(who);
        }
    }
}
