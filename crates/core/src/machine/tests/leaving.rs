//! Leaving: the work, the record, and events in between.

use super::*;

#[test]
fn leaving_drains_waits_and_deregisters() {
    let mut run = Run::active();
    let actions = run.step(100, Input::Leave);
    assert_eq!((run.state(), cause(&actions)), (ServiceState::Draining, Some(Cause::Draining)));
    assert!(actions.contains(&Action::MarkDraining) && actions.contains(&Action::AwaitInFlight));
    run.viewed(150, vec![Member { state: MemberState::Draining, ..member("me", 7) }]);
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
    run.viewed(150, vec![Member { state: MemberState::Draining, ..member("me", 7) }]);
    assert!(!run.step(2_000, Input::Woken).contains(&Action::Deregister));
    assert!(run.step(2_100, Input::Woken).contains(&Action::Deregister));
}

#[test]
fn leaving_without_a_record_waits_for_nothing_but_the_work() {
    let mut run = Run::new();
    run.step(0, Input::Join);
    run.failed(5, OpFailure::Retryable);
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

/// Regression: the record was deleted right after its mark, so a reader that had not looked in between saw a death.
#[test]
fn a_leaver_is_shown_for_a_while_after_it_has_seen_itself_drain() {
    let mut run = Run::active();
    run.step(1_000, Input::Leave);
    assert!(!run.step(1_001, Input::InFlightDone).contains(&Action::Deregister), "nobody can have seen it drain");
    let drains = Member { state: MemberState::Draining, ..member("me", 7) };
    assert!(!run.viewed(1_010, vec![drains]).contains(&Action::Deregister));
    assert_eq!(run.machine.wake_at(), Some(at(1_510)));
    assert!(!run.step(1_509, Input::Woken).contains(&Action::Deregister));
    assert!(run.step(1_510, Input::Woken).contains(&Action::Deregister));
    // A backend that shows nothing delays it no longer than this.
    let mut unseen = Run::active();
    unseen.step(1_000, Input::Leave);
    unseen.step(1_001, Input::InFlightDone);
    assert!(!unseen.step(8_800, Input::Woken).contains(&Action::Deregister));
    assert!(unseen.step(10_000, Input::Woken).contains(&Action::Deregister));
}

/// Regression: with four busy processes on the machine 37 of 200 leavers of a group on Consul counted as dead, because their marks were
/// gone before slow readers looked.
#[test]
fn a_leaver_that_sees_itself_drain_late_is_shown_for_twice_as_long_as_that_took() {
    let mut run = Run::active();
    run.step(1_000, Input::Leave);
    run.step(1_001, Input::InFlightDone);
    let drains = || vec![Member { state: MemberState::Draining, ..member("me", 7) }];
    run.viewed(2_600, drains());
    assert_eq!(calls(&run.step(3_000, Input::Woken)), [Op::Renew], "it renews");
    // The next view changes nothing.
    run.viewed(4_100, drains());
    assert!(!run.step(5_799, Input::Woken).contains(&Action::Deregister));
    assert!(run.step(5_800, Input::Woken).contains(&Action::Deregister));
}

/// Regression: a worker that may register but not read waited a TTL to see itself drain before it reported the error.
#[test]
fn who_has_not_seen_itself_does_not_wait_to_see_itself_drain() {
    for former in [None, Some(member("me", 6))] {
        let mut run = Run::new();
        run.step(0, Input::Join);
        run.registered(10, 0);
        if let Some(former) = former {
            run.viewed(15, vec![former]);
        }
        assert!(run.step(20, Input::Leave).contains(&Action::MarkDraining), "others may see it");
        assert!(run.step(30, Input::InFlightDone).contains(&Action::Deregister));
    }
}

/// An abandoned deregistration may be carried out at any later time: it must not name a later registration.
#[test]
fn joining_again_after_leaving_is_another_life() {
    let mut run = Run::active();
    run.step(20, Input::Leave);
    run.step(30, Input::InFlightDone);
    run.viewed(40, vec![Member { state: MemberState::Draining, ..member("me", 7) }]);
    assert!(run.step(600, Input::Woken).contains(&Action::Deregister));
    assert!(run.step(610, Input::Deregistered).iter().all(|action| !matches!(action, Action::BeginLife(_))));
    assert_eq!(run.state(), ServiceState::Left);
    let actions = run.step(650, Input::Join);
    let begins = actions.iter().position(|action| *action == Action::BeginLife(Incarnation::new(8)));
    let registers = actions.iter().position(|action| matches!(action, Action::Call { op: Op::Register, .. }));
    assert!(begins.is_some() && begins < registers, "{actions:?}");
    run.registered(660, 650);
    run.viewed(680, vec![member("me", 8)]);
    assert_eq!(run.state(), ServiceState::Active);
}
