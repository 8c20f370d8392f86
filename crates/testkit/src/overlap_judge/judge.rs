//! From the lines of all workers to the answer: was a slot ever held twice, what ran on after its time, and was each write of that refused?
//!
//! A pure function. A *stay* is the time in which a worker held a slot under one epoch, by what it could know: from its `enter` to the
//! earliest of its `leave`, its `lost` and the last deadline that it wrote down while it held the slot.

use std::collections::BTreeMap;

use super::lines::{At, Line};

/// The time in which one worker held one slot under one epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stay {
    /// The place of its lines in the argument of [`findings`].
    pub worker: usize,
    /// The slot, or the number of a name.
    pub slot: u32,
    /// The epoch under which it was held.
    pub epoch: u64,
    /// From then on it was held.
    pub begin: At,
    /// Until then, as far as the worker could know.
    pub end: At,
}

/// The findings in the workers' lines.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// In the order of slots, and of their beginnings.
    pub stays: Vec<Stay>,
    /// Lines that do not follow from those before them: a slot that was entered twice, or left without having been entered.
    pub unfit: Vec<Line>,
    /// Two stays of different workers in one slot at one moment.
    pub overlaps: Vec<(Stay, Stay)>,
    /// A stay under an epoch that is not above that of an earlier one. (One worker may
    /// begin anew under one epoch: it was to give the slot away, and kept it.)
    pub falls: Vec<(Stay, Stay)>,
    /// Pieces of work that found themselves running after the end of their stay.
    pub late: usize,
    /// Those of them to which the service said that they own the slot under their epoch.
    pub owned_late: usize,
    /// Writes answered after the end of their stay: refused, and accepted because there was no write under a higher epoch yet.
    pub late_refused: usize,
    /// See `late_refused`.
    pub late_first: usize,
    /// Writes that passed though one under a higher epoch had been answered before they were asked for.
    pub stale_writes: Vec<Line>,
    /// Writes inside of a stay.
    pub writes: usize,
    /// Writes that were refused without any write under a higher epoch.
    pub wrongly_refused: usize,
    /// Jobs of timers, and the periods for which there was more than one.
    pub fired: usize,
    /// See `fired`.
    pub fired_twice: Vec<u64>,
}

impl Findings {
    /// How long after that moment work began in the slot; `None` if it never did.
    pub fn taken_after(&self, slot: u32, at: At) -> Option<u64> {
        let next = self.stays.iter().find(|stay| stay.slot == slot && stay.begin > at);
        next.map(|stay| stay.begin - at)
    }
}

/// Looks at the lines of all workers, each in the order in which it wrote them.
pub fn findings(workers: &[Vec<Line>]) -> Findings {
    let mut found = Findings::default();
    let mut writes = Vec::new();
    for (worker, lines) in workers.iter().enumerate() {
        let worker_stays = stays_of(worker, lines, &mut found.unfit);
        for line in lines {
            match *line {
                Line::Lost { slot, epoch, at, owns } if at >= end_of(&worker_stays, slot, epoch, at) => {
                    found.late += 1;
                    found.owned_late += usize::from(owns);
                }
                // Reported before its deadline; the service must agree then as well.
                Line::Lost { owns, .. } => found.owned_late += usize::from(owns),
                Line::Wrote { slot, epoch, at, done, .. } => writes.push((*line, done > end_of(&worker_stays, slot, epoch, at))),
                _ => {}
            }
        }
        found.stays.extend(worker_stays);
    }
    found.stays.sort_unstable_by_key(|stay| (stay.slot, stay.begin, stay.epoch));
    for of_slot in found.stays.chunk_by(|one, other| one.slot == other.slot) {
        compare(of_slot, &mut found.overlaps, &mut found.falls);
    }
    judge(&writes, &mut found);
    let period = |line: &Line| if let Line::Fired { slot, period, .. } = *line { Some((slot, period)) } else { None };
    let mut fired: Vec<_> = workers.iter().flatten().filter_map(period).collect();
    fired.sort_unstable();
    found.fired = fired.len();
    found.fired_twice = fired.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0].1).collect();
    found
}

/// The stays of one worker, and the lines that are in none.
fn stays_of(worker: usize, lines: &[Line], unfit: &mut Vec<Line>) -> Vec<Stay> {
    let (mut stays, mut open) = (Vec::new(), BTreeMap::<(u32, u64), Stay>::new());
    for line in lines {
        match *line {
            Line::Enter { slot, epoch, at, until } => {
                if let Some(before) = open.insert((slot, epoch), Stay { worker, slot, epoch, begin: at, end: until }) {
                    stays.push(before);
                    unfit.push(*line);
                }
            }
            Line::Held { slot, epoch, until, .. } => match open.get_mut(&(slot, epoch)) {
                Some(stay) => stay.end = stay.end.max(until),
                None => unfit.push(*line),
            },
            Line::Leave { slot, epoch, at } | Line::Lost { slot, epoch, at, .. } => match open.remove(&(slot, epoch)) {
                Some(stay) => stays.push(Stay { end: stay.end.min(at), ..stay }),
                None => unfit.push(*line),
            },
            Line::Wrote { .. } | Line::Fired { .. } => {}
        }
    }
    stays.extend(open.into_values());
    stays
}

/// When the stay ended to which something at that moment belongs: the last one that had begun.
fn end_of(stays: &[Stay], slot: u32, epoch: u64, at: At) -> At {
    let mine = stays.iter().filter(|stay| (stay.slot, stay.epoch) == (slot, epoch) && stay.begin <= at);
    mine.max_by_key(|stay| stay.begin).map_or(0, |stay| stay.end)
}

/// The faults among the stays in one slot, in the order of their beginnings.
fn compare(stays: &[Stay], overlaps: &mut Vec<(Stay, Stay)>, falls: &mut Vec<(Stay, Stay)>) {
    for (index, stay) in stays.iter().enumerate() {
        let earlier = &stays[..index];
        overlaps.extend(earlier.iter().filter(|one| one.worker != stay.worker && stay.begin < one.end).map(|one| (*one, *stay)));
        let same_life = |one: &Stay| one.worker == stay.worker && one.epoch == stay.epoch;
        falls.extend(earlier.iter().filter(|one| one.epoch >= stay.epoch && !same_life(one)).map(|one| (*one, *stay)));
    }
}

/// Counts the writes, of which each comes with whether it was late.
fn judge(writes: &[(Line, bool)], found: &mut Findings) {
    // The earliest answer under each epoch, and the highest epoch of all that was ever asked for, by slot.
    let mut first = BTreeMap::<(u32, u64), At>::new();
    let mut highest = BTreeMap::<u32, u64>::new();
    for (line, _) in writes {
        if let Line::Wrote { slot, epoch, done, passed, .. } = *line {
            let top = highest.entry(slot).or_default();
            *top = (*top).max(epoch);
            if passed {
                let earliest = first.entry((slot, epoch)).or_insert(done);
                *earliest = (*earliest).min(done);
            }
        }
    }
    for (line, late) in writes {
        let Line::Wrote { slot, epoch, at, passed, .. } = *line else { continue };
        let overtaken = first.range((slot, epoch + 1)..=(slot, u64::MAX)).any(|(_, done)| *done < at);
        match (passed, late) {
            (true, _) if overtaken => found.stale_writes.push(*line),
            (true, true) => found.late_first += 1,
            (true, false) => found.writes += 1,
            (false, _) if highest[&slot] == epoch => found.wrongly_refused += 1,
            (false, _) => found.late_refused += 1,
        }
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
