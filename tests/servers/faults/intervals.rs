//! From the lines of all workers to the answer: was a slot ever held twice, what ran
//! on after its time, and was every write of that refused?
//!
//! A pure function. A *stay* is the time in which a worker held a slot under one epoch, by what it could know: from its `enter` to the
//! earliest of its `leave`, its `lost` and the last deadline that it wrote down while it held the slot.

use std::collections::BTreeMap;

use super::lines::{At, Line};

/// The time in which one worker held one slot under one epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stay {
    pub(crate) worker: usize,
    pub(crate) slot: u32,
    pub(crate) epoch: u64,
    pub(crate) begin: At,
    pub(crate) end: At,
}

/// The findings in the workers' lines.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    /// In the order of slots, and of their beginnings.
    pub(crate) stays: Vec<Stay>,
    /// Two stays of different workers in one slot at one moment.
    pub(crate) overlaps: Vec<(Stay, Stay)>,
    /// A stay under an epoch that is not above that of an earlier one. (One worker may
    /// begin anew under one epoch: it was to give the slot away, and kept it.)
    pub(crate) falls: Vec<(Stay, Stay)>,
    /// Pieces of work that found themselves running after the end of their stay.
    pub(crate) late: usize,
    /// Those of them to which the service said that they own the slot under their epoch.
    pub(crate) owned_late: usize,
    /// Writes answered after the end of their stay: refused, and accepted because there was no write under a higher epoch yet.
    pub(crate) late_refused: usize,
    pub(crate) late_first: usize,
    /// Writes that passed though one under a higher epoch had been answered before they were asked for.
    pub(crate) ghosts: Vec<Line>,
    /// Writes inside of a stay.
    pub(crate) writes: usize,
    /// Writes that were refused without any write under a higher epoch.
    pub(crate) wrongly_refused: usize,
    /// Jobs of timers, and the periods for which there was more than one.
    pub(crate) fired: usize,
    pub(crate) fired_twice: Vec<u64>,
}

/// Looks at the lines of all workers, each in the order in which it wrote them.
pub(crate) fn findings(workers: &[Vec<Line>]) -> Findings {
    let mut found = Findings::default();
    let mut writes = Vec::new();
    for (worker, lines) in workers.iter().enumerate() {
        let worker_stays = stays_of(worker, lines);
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

/// The stays of one worker.
fn stays_of(worker: usize, lines: &[Line]) -> Vec<Stay> {
    let (mut stays, mut open) = (Vec::new(), BTreeMap::<(u32, u64), Stay>::new());
    for line in lines {
        match *line {
            Line::Enter { slot, epoch, at, until } => {
                let before = open.insert((slot, epoch), Stay { worker, slot, epoch, begin: at, end: until });
                assert_eq!(before, None, "a worker entered twice");
            }
            Line::Held { slot, epoch, until, .. } => {
                let stay = open.get_mut(&(slot, epoch)).unwrap();
                stay.end = stay.end.max(until);
            }
            Line::Leave { slot, epoch, at } | Line::Lost { slot, epoch, at, .. } => {
                let stay = open.remove(&(slot, epoch)).unwrap();
                stays.push(Stay { end: stay.end.min(at), ..stay });
            }
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
            (true, _) if overtaken => found.ghosts.push(*line),
            (true, true) => found.late_first += 1,
            (true, false) => found.writes += 1,
            (false, _) if highest[&slot] == epoch => found.wrongly_refused += 1,
            (false, _) => found.late_refused += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: u32 = 3;

    fn enter(epoch: u64, at: At, until: At) -> Line {
        Line::Enter { slot: SLOT, epoch, at, until }
    }

    fn held(epoch: u64, at: At, until: At) -> Line {
        Line::Held { slot: SLOT, epoch, at, until }
    }

    fn leave(epoch: u64, at: At) -> Line {
        Line::Leave { slot: SLOT, epoch, at }
    }

    fn lost(epoch: u64, at: At, owns: bool) -> Line {
        Line::Lost { slot: SLOT, epoch, at, owns }
    }

    fn wrote(epoch: u64, at: At, done: At, passed: bool) -> Line {
        Line::Wrote { slot: SLOT, epoch, at, done, passed }
    }

    fn ends(found: &Findings) -> Vec<(u64, At, At)> {
        found.stays.iter().map(|stay| (stay.epoch, stay.begin, stay.end)).collect()
    }

    #[test]
    fn two_at_once_are_found_in_any_order() {
        let one = vec![enter(1, 10, 30), held(1, 20, 50)];
        let other = vec![enter(2, 49, 80), leave(2, 60)];
        for workers in [[one.clone(), other.clone()], [other, one]] {
            let found = findings(&workers);
            assert_eq!(found.overlaps.len(), 1, "{found:?}");
            assert_eq!((found.overlaps[0].0.epoch, found.overlaps[0].1.epoch), (1, 2));
        }
    }

    #[test]
    fn a_short_stay_inside_of_a_long_one_is_found_behind_others() {
        let long = vec![enter(1, 10, 100)];
        let short = vec![enter(2, 20, 25), leave(2, 22), enter(3, 90, 95)];
        assert_eq!(findings(&[long, short]).overlaps.len(), 2);
    }

    #[test]
    fn a_stay_ends_with_the_last_deadline_that_was_published_while_it_was_held() {
        // Killed, or paused: it writes no more lines.
        let found = findings(&[vec![enter(1, 10, 30), held(1, 20, 50)], vec![enter(2, 50, 70)]]);
        assert_eq!((found.overlaps.len(), ends(&found)), (0, vec![(1, 10, 50), (2, 50, 70)]));
    }

    #[test]
    fn a_stay_ends_with_leaving_and_with_its_loss_before_its_deadline() {
        let left = findings(&[vec![enter(1, 10, 90), leave(1, 40)], vec![enter(2, 40, 95), lost(2, 60, false)], vec![enter(3, 60, 99)]]);
        assert_eq!((left.overlaps.len(), ends(&left)), (0, vec![(1, 10, 40), (2, 40, 60), (3, 60, 99)]));
        assert_eq!(left.late, 1, "the one that lost it ran on at that moment");
    }

    #[test]
    fn what_runs_on_after_its_time_is_counted_apart_and_is_no_overlap() {
        let ghost = vec![enter(1, 10, 50), lost(1, 90, false), wrote(1, 91, 92, false)];
        let owner = vec![enter(2, 60, 120), wrote(2, 61, 62, true)];
        let found = findings(&[ghost, owner]);
        assert_eq!((found.overlaps.len(), found.late, found.owned_late), (0, 1, 0));
        assert_eq!((found.late_refused, found.writes, found.ghosts.len()), (1, 1, 0));
    }

    #[test]
    fn a_service_that_says_owned_to_what_is_lost_is_found() {
        assert_eq!(findings(&[vec![enter(1, 10, 50), lost(1, 60, true)]]).owned_late, 1);
        assert_eq!(findings(&[vec![enter(1, 10, 50), lost(1, 40, true)]]).owned_late, 1, "before its deadline too");
    }

    #[test]
    fn a_write_of_a_ghost_that_passed_is_found_and_one_before_any_others_is_none() {
        let ghost = |at, done| vec![enter(1, 10, 50), lost(1, 60, false), wrote(1, at, done, true)];
        let owner = vec![enter(2, 60, 120), wrote(2, 65, 70, true)];
        let found = findings(&[ghost(71, 72), owner.clone()]);
        assert_eq!((found.ghosts.len(), found.late_first), (1, 0));
        let found = findings(&[ghost(61, 64), owner]);
        assert_eq!((found.ghosts.len(), found.late_first), (0, 1));
    }

    #[test]
    fn a_write_that_was_begun_in_time_and_answered_late_is_late() {
        // Paused between its look at the deadline and the write.
        let ghost = vec![enter(1, 10, 50), wrote(1, 49, 90, false), lost(1, 91, false)];
        let owner = vec![enter(2, 60, 120), wrote(2, 61, 62, true)];
        assert_eq!(findings(&[ghost, owner]).late_refused, 1);
    }

    #[test]
    fn a_period_that_was_fired_twice_is_found_by_any_member() {
        let fired = |epoch, at, period| Line::Fired { slot: SLOT, epoch, at, period };
        let one = vec![fired(1, 10, 100), fired(1, 20, 101)];
        let found = findings(&[one.clone(), vec![fired(2, 30, 102)]]);
        assert_eq!((found.fired, found.fired_twice), (3, vec![]));
        let found = findings(&[one.clone(), vec![fired(2, 30, 101), fired(2, 40, 103)]]);
        assert_eq!((found.fired, found.fired_twice), (4, vec![101]));
        let other = Line::Fired { slot: SLOT + 1, epoch: 3, at: 30, period: 100 };
        assert_eq!(findings(&[one, vec![other]]).fired_twice, [0; 0], "another timer's");
    }

    #[test]
    fn a_write_that_is_refused_without_a_reason_is_found() {
        assert_eq!(findings(&[vec![enter(2, 10, 50), wrote(2, 20, 21, false)]]).wrongly_refused, 1);
    }

    #[test]
    fn epochs_that_fall_or_repeat_are_found_but_not_a_slot_that_was_kept() {
        let fallen = [vec![enter(5, 10, 20), leave(5, 15)], vec![enter(4, 30, 40)]];
        assert_eq!(findings(&fallen).falls.len(), 1);
        let repeated = [vec![enter(5, 10, 20), leave(5, 15)], vec![enter(5, 30, 40)]];
        assert_eq!(findings(&repeated).falls.len(), 1);
        let kept = [vec![enter(5, 10, 20), leave(5, 15), enter(5, 17, 40)]];
        assert_eq!((findings(&kept).falls.len(), findings(&kept).stays.len()), (0, 2));
    }
}
