//! Leaving: the work, the record, and what happens to either meanwhile.

use super::*;

#[test]
fn leaving_drains_waits_and_deregisters() {
    let mut run = Run::active();
    let actions = run.step(100, Input::Leave);
    assert_eq!((run.state(), cause(&actions)), (ServiceState::Draining, Some(Cause::Draining)));
    assert!(actions.contains(&Action::MarkDraining) && actions.contains(&Action::AwaitInFlight));
    assert!(!run.step(200, Input::Woken).contains(&Action::Deregister), "work is still in flight");
    assert_eq!(calls(&run.step(3_000, Input::Woken)), [Op::Renew], "it renews while it drains");
    assert!(run.step(3_100, Input::InFlightDone).contains(&Action::Deregister));
    run.step(3_200, Input::Deregistered);
    assert_eq!(run.state(), ServiceState::Left);
    assert_eq!(run.machine.wake_at(), None);
    assert_eq!(calls(&run.step(3_300, Input::Join)), [Op::Register], "it may join again");
}

#[test]
fn a_drain_that_takes_too_long_ends_with_its_timeout() {
    let mut run = Run::with(Policy { drain_timeout: Duration::from_secs(2), ..policy() });
    run.step(0, Input::Join);
    run.registered(10, 0);
    run.step(100, Input::Leave);
    assert!(!run.step(2_000, Input::Woken).contains(&Action::Deregister));
    assert!(run.step(2_100, Input::Woken).contains(&Action::Deregister));
}

#[test]
fn leaving_without_a_record_waits_for_nothing_but_the_work() {
    let mut run = Run::new();
    run.step(0, Input::Join);
    run.failed(5, Failure::Retryable);
    let actions = run.step(10, Input::Leave);
    assert!(!actions.contains(&Action::MarkDraining));
    assert_eq!(run.machine.wake_at(), Some(at(30_010)), "only the drain's own end");
    assert!(run.step(20, Input::InFlightDone).contains(&Action::Deregister));
}

#[test]
fn a_record_lost_while_draining_is_not_made_again() {
    let mut run = Run::active();
    run.step(100, Input::Leave);
    run.step(3_000, Input::Woken);
    let attempt = run.attempt;
    assert_eq!(calls(&run.step(3_010, Input::RecordLost { attempt })), []);
    assert_eq!(run.machine.wake_at(), Some(at(30_100)));
}

#[test]
fn a_registration_under_way_when_the_wish_to_leave_comes_is_shown_as_draining() {
    let mut run = Run::new();
    run.step(0, Input::Join);
    run.step(10, Input::Leave);
    assert!(run.registered(20, 5).contains(&Action::MarkDraining));
    assert_eq!(run.state(), ServiceState::Draining);
    assert_eq!(calls(&run.step(3_010, Input::Woken)), [Op::Renew], "it renews while it drains");
}
