//! `on_backend_loss = "keep"`: the last view is kept for a while, and only if the member itself did not pause.

use super::*;
use crate::BackendLoss;

const KEEP_FOR: Duration = Duration::from_mins(1);
/// The deadline of [`Run::active`]; its record lives until 9,000.
const DEADLINE: u64 = 8_810;

fn keeping() -> Run {
    let policy = Policy { on_backend_loss: BackendLoss::Keep { keep_for: KEEP_FOR }, ..policy() };
    let mut run = Run::with(policy);
    run.step(0, Input::Join);
    run.registered(10, 0);
    run.viewed(20, vec![member("me", 7), member("you", 8)]);
    run
}

/// Past its deadline, cut off from the backend, with its former share.
fn stale() -> (Run, u32) {
    let mut run = keeping();
    let before = run.owned();
    run.step(3_000, Input::Woken);
    run.failed(6_000, OpFailure::Retryable);
    let actions = run.step(DEADLINE, Input::Woken);
    assert_eq!((run.state(), run.owned(), cause(&actions)), (ServiceState::Stale, before, None));
    assert_eq!(run.machine.ownership().deadline(), Some(at(DEADLINE).plus(KEEP_FOR)));
    (run, before)
}

#[test]
fn the_last_view_is_kept_and_no_longer_than_it_may_be() {
    let (mut run, before) = stale();
    assert!(
        before > 0 && run.machine.ownership().owns_at("k", at(DEADLINE)) == run.machine.ownership().owns_at("k", at(DEADLINE + 59_999))
    );
    assert!(!run.machine.ownership().is_live_at(at(DEADLINE).plus(KEEP_FOR)));
    assert!(run.machine.wake_at().is_some());
    run.step(DEADLINE + 60_000, Input::Woken);
    assert_eq!((run.state(), run.owned()), (ServiceState::Fenced, 0));
}

#[test]
fn a_member_that_stood_still_itself_stops_all_the_same() {
    let mut run = keeping();
    // Stopped for longer than its TTL of 9 s, just after a renewal.
    run.step(3_000, Input::Woken);
    run.renewed(3_010, 3_000);
    assert!(!run.machine.ownership().is_live_at(at(12_020)), "from its first instruction on");
    run.step(12_020, Input::Woken);
    assert_eq!((run.state(), run.owned()), (ServiceState::Fenced, 0));
}

#[test]
fn a_renewal_brings_it_back_once_the_view_is_proven_too() {
    let (mut run, before) = stale();
    run.step(10_000, Input::Woken);
    // The view was last proven at 20, which was more than two TTLs ago.
    run.renewed(19_000, 18_900);
    assert_eq!(run.state(), ServiceState::Stale);
    let actions = run.viewed(19_010, vec![member("me", 7), member("you", 8)]);
    assert_eq!((run.state(), run.owned(), cause(&actions)), (ServiceState::Active, before, None));
}

#[test]
fn a_record_that_is_gone_is_made_anew_without_letting_go() {
    let (mut run, before) = stale();
    run.step(10_000, Input::Woken);
    let attempt = run.attempt;
    assert_eq!(calls(&run.step(20_000, Input::RecordLost { attempt })), [Op::Register]);
    assert_eq!((run.state(), run.owned()), (ServiceState::Stale, before));
    run.registered(20_010, 20_000);
    assert_eq!((run.state(), run.owned()), (ServiceState::Stale, before), "no view shows the new record yet");
    let actions = run.viewed(20_020, vec![member("me", 7)]);
    assert_eq!((run.state(), run.owned(), cause(&actions)), (ServiceState::Active, crate::SLOTS_DEFAULT, Some(Cause::MembersChanged)));
}

#[test]
fn being_turned_away_is_as_good_as_no_answer_but_a_living_double_is_not() {
    let (mut run, before) = stale();
    run.step(10_000, Input::Woken);
    let attempt = run.attempt;
    run.step(10_010, Input::RecordLost { attempt });
    run.failed(10_020, OpFailure::Permanent { message: "no".into() });
    assert_eq!((run.state(), run.owned()), (ServiceState::Stale, before));
    run.step(30_000, Input::Woken);
    run.failed(30_010, OpFailure::InUse { address: None, stamp: 1 });
    run.step(31_000, Input::Woken);
    run.failed(31_010, OpFailure::InUse { address: None, stamp: 2 });
    assert_eq!((run.state(), run.owned()), (ServiceState::Refused, 0));
}

#[test]
fn a_silent_watch_is_a_lost_backend_too() {
    let mut run = keeping();
    for ms in (3_000..18_000).step_by(3_000) {
        run.step(ms, Input::Woken);
        run.renewed(ms + 10, ms);
    }
    // Last proven at 20; two TTLs of 9 s later the view has expired.
    run.step(18_020, Input::Woken);
    assert_eq!(run.state(), ServiceState::Stale);
    run.step(18_030, Input::Proven { at: at(18_025) });
    assert_eq!(run.state(), ServiceState::Active);
}

#[test]
fn it_can_leave() {
    let (mut run, _) = stale();
    let actions = run.step(10_000, Input::Leave);
    assert!(actions.contains(&Action::MarkDraining) && run.state() == ServiceState::Draining && run.owned() == 0);
}

#[test]
fn a_busy_moment_when_the_view_ends_does_not_undo_keep_while_the_record_lives() {
    let mut run = keeping();
    for ms in [3_000, 6_000, 9_000, 12_000, 15_000, 17_900] {
        run.step(ms, Input::Woken);
        run.renewed(ms + 10, ms);
    }
    // The view has ended at 18,020; the record lives until 26,900, so no other member can have taken over.
    run.step(18_020 + 250, Input::Woken);
    assert_eq!(run.state(), ServiceState::Stale);
}

/// Regression: it was fenced if the deadline was checked once the record might be gone, 190 ms later with a TTL of 9 s.
#[test]
fn a_busy_moment_at_the_leases_end_does_not_undo_keep_in_an_outage() {
    for late in [150, 1_000, 4_000] {
        let mut run = keeping();
        run.step(3_000, Input::Woken);
        run.failed(6_000, OpFailure::Retryable);
        run.step(8_000, Input::Woken);
        run.failed(8_010, OpFailure::Retryable);
        run.step(DEADLINE + 190 + late, Input::Woken);
        assert_eq!(run.state(), ServiceState::Stale, "{late} ms after its record may be gone");
    }
    // An unanswered call is not a success.
    let mut silent = keeping();
    silent.step(3_000, Input::Woken);
    silent.step(5_000, Input::Proven { at: at(5_000) });
    silent.step(DEADLINE + 500, Input::Woken);
    assert_eq!(silent.state(), ServiceState::Stale);
}

#[test]
fn neither_a_failure_before_nor_a_call_on_its_way_makes_up_for_standing_still() {
    let mut failed = keeping();
    failed.step(3_000, Input::Woken);
    failed.failed(3_010, OpFailure::Retryable);
    failed.step(3_010 + 6_000, Input::Woken);
    assert_eq!((failed.state(), failed.owned()), (ServiceState::Fenced, 0), "two thirds of its TTL of 9 s");
    let mut asked = keeping();
    asked.step(3_000, Input::Woken);
    asked.step(12_500, Input::Woken);
    assert_eq!((asked.state(), asked.owned()), (ServiceState::Fenced, 0));
}

#[test]
fn a_backend_that_was_never_asked_is_not_lost() {
    let mut run = keeping();
    run.step(3_000, Input::Woken);
    run.renewed(3_010, 3_000);
    run.step(5_990, Input::Proven { at: at(5_980) });
    // It slept through the renewal that was due, and its record may be gone.
    run.step(12_000, Input::Woken);
    assert_eq!((run.state(), run.owned()), (ServiceState::Fenced, 0));
}
