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
    let stale = vec![enter(1, 10, 50), lost(1, 90, false), wrote(1, 91, 92, false)];
    let owner = vec![enter(2, 60, 120), wrote(2, 61, 62, true)];
    let found = findings(&[stale, owner]);
    assert_eq!((found.overlaps.len(), found.late, found.owned_late), (0, 1, 0));
    assert_eq!((found.late_refused, found.writes, found.stale_writes.len()), (1, 1, 0));
}

#[test]
fn a_service_that_says_owned_to_what_is_lost_is_found() {
    assert_eq!(findings(&[vec![enter(1, 10, 50), lost(1, 60, true)]]).owned_late, 1);
    assert_eq!(findings(&[vec![enter(1, 10, 50), lost(1, 40, true)]]).owned_late, 1, "before its deadline too");
}

#[test]
fn a_stale_write_that_passed_is_found_and_one_before_any_others_is_none() {
    let stale = |at, done| vec![enter(1, 10, 50), lost(1, 60, false), wrote(1, at, done, true)];
    let owner = vec![enter(2, 60, 120), wrote(2, 65, 70, true)];
    let found = findings(&[stale(71, 72), owner.clone()]);
    assert_eq!((found.stale_writes.len(), found.late_first), (1, 0));
    let found = findings(&[stale(61, 64), owner]);
    assert_eq!((found.stale_writes.len(), found.late_first), (0, 1));
}

#[test]
fn a_write_that_was_begun_in_time_and_answered_late_is_late() {
    // Paused between its look at the deadline and the write.
    let stale = vec![enter(1, 10, 50), wrote(1, 49, 90, false), lost(1, 91, false)];
    let owner = vec![enter(2, 60, 120), wrote(2, 61, 62, true)];
    assert_eq!(findings(&[stale, owner]).late_refused, 1);
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
fn lines_that_do_not_follow_from_those_before_are_found() {
    let found = findings(&[vec![enter(1, 10, 50), enter(1, 20, 60), leave(1, 30), leave(1, 40), held(2, 41, 70)]]);
    assert_eq!((found.unfit, found.stays.len()), (vec![enter(1, 20, 60), leave(1, 40), held(2, 41, 70)], 2));
}

#[test]
fn a_takeover_lasts_until_work_begins_in_the_slot() {
    let found = findings(&[vec![enter(1, 10, 50)], vec![enter(2, 60, 70)]]);
    assert_eq!([found.taken_after(SLOT, 20), found.taken_after(SLOT, 60), found.taken_after(SLOT + 1, 20)], [Some(40), None, None]);
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
