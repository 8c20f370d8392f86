//! Refusals: an id in use, wrong credentials, other constants, a short lease; how often the member retries, and how it recovers.

use super::*;
use crate::Serves;

#[test]
fn an_id_whose_holder_renews_is_refused_and_one_that_is_silent_is_waited_out() {
    let mut run = Run::new();
    run.step(0, Input::Join);
    let in_use = |stamp| OpFailure::InUse { address: None, stamp };
    run.failed(5, in_use(1));
    assert_eq!(run.state(), ServiceState::Joining, "perhaps its own former self");
    run.step(100, Input::Woken);
    run.failed(105, in_use(1));
    assert_eq!(run.state(), ServiceState::Joining);
    run.step(200, Input::Woken);
    let actions = run.failed(205, in_use(2));
    assert_eq!(run.state(), ServiceState::Refused);
    assert!(actions.contains(&Action::StopWatch));
    assert!(matches!(run.machine.ownership().refusal(), Some(MemberRefusal::InUse { .. })));
}

fn denied(message: &str) -> OpFailure {
    OpFailure::Permanent { message: message.into() }
}

#[test]
fn wrong_credentials_are_refused_at_once_and_a_new_wish_to_join_is_carried_out_at_once() {
    let mut run = Run::new();
    run.step(0, Input::Join);
    let actions = run.failed(5, denied("permission denied"));
    assert!(matches!(&actions[..], [Action::StopWatch, Action::Publish(now)] if now.state() == ServiceState::Refused), "{actions:?}");
    assert!(run.machine.ownership().not_owning_at(at(6)).unwrap().hint.contains("permission denied"));
    let actions = run.step(7, Input::Join);
    assert!(actions.contains(&Action::StartWatch));
    assert_eq!((run.state(), calls(&actions)), (ServiceState::Joining, vec![Op::Register]));
    run.step(8, Input::Leave);
    run.step(9, Input::InFlightDone);
    run.step(10, Input::Deregistered);
    assert_eq!((run.state(), run.machine.wake_at()), (ServiceState::Left, None), "who leaves is not tried again");
}

/// The fleet's token is invalid for ten minutes.
#[test]
fn a_member_that_is_denied_its_way_back_asks_slowly_says_so_once_and_comes_back_by_itself() {
    let mut run = Run::active();
    let mut now = 9_000;
    run.step(now, Input::Woken);
    let actions = run.failed(now, denied("token expired"));
    assert!(matches!(&actions[..], [Action::StopWatch, Action::Publish(now)] if now.state() == ServiceState::Refused), "{actions:?}");
    let mut tries = 0;
    while now < 609_000 {
        let next = run.machine.wake_at().unwrap().as_nanos() / 1_000_000 + 1;
        assert!((4_500..=9_001).contains(&(next - now)), "{now} -> {next}: about once per TTL of 9 s");
        now = next;
        assert!(matches!(run.step(now, Input::Woken)[..], [Action::Call { op: Op::Register, .. }]));
        assert_eq!(run.failed(now, denied("token expired")), [], "nothing new to say");
        tries += 1;
    }
    assert!((66..=134).contains(&tries), "{tries} tries");
    assert_eq!(run.machine.ownership().since(), at(9_000));
    let actions = run.failed(now, denied("stale"));
    assert_eq!(actions, [], "an answer to no call");

    now = run.machine.wake_at().unwrap().as_nanos() / 1_000_000 + 1;
    run.step(now, Input::Woken);
    let actions = run.failed(now, denied("role missing"));
    assert!(matches!(&actions[..], [Action::Publish(now)] if now.refusal().unwrap().to_string() == "role missing"), "{actions:?}");
    assert_eq!(run.machine.ownership().since(), at(9_000), "refused all the time");

    now = run.machine.wake_at().unwrap().as_nanos() / 1_000_000 + 1;
    run.step(now, Input::Woken);
    let actions = run.registered(now + 5, now);
    assert!(actions.contains(&Action::StartWatch) && actions.contains(&Action::ReadGroup), "{actions:?}");
    assert_eq!((run.state(), run.machine.ownership().refusal()), (ServiceState::Joining, None));
    let actions = run.viewed(now + 10, vec![member("me", 7)]);
    assert_eq!((run.state(), cause(&actions)), (ServiceState::Active, Some(Cause::Joined)));
}

#[test]
fn however_long_the_ttl_a_refused_member_asks_again_within_half_a_minute_and_however_short_no_oftener_than_others() {
    for (ttl, pauses) in [(Duration::from_hours(1), 15_000..=30_000), (Duration::from_millis(100), 500..=1_000)] {
        let timing = Timing::new(ttl, None, Duration::from_millis(1)).unwrap();
        let mut run = Run { machine: Machine::new(Arc::new(policy()), timing, me(), placer, at(0)), attempt: 0 };
        run.step(0, Input::Join);
        run.failed(0, denied("token expired"));
        let pause = run.machine.wake_at().unwrap().as_nanos() / 1_000_000;
        assert!(pauses.contains(&pause), "TTL {ttl:?}: {pause} ms");
    }
}

#[test]
fn a_backend_that_denies_and_then_is_out_of_reach_is_asked_at_the_usual_pace_again() {
    let mut run = Run::active();
    run.step(9_000, Input::Woken);
    run.failed(9_000, denied("token expired"));
    run.step(18_000, Input::Woken);
    run.failed(18_000, OpFailure::Retryable);
    assert_eq!((run.state(), run.machine.ownership().refusal()), (ServiceState::Joining, None));
    assert!(run.machine.wake_at().unwrap() <= at(18_050));
}

/// A worker that was stopped beyond its TTL finds its successor under its own id and waits until that one is gone.
#[test]
fn a_member_whose_id_was_taken_over_asks_slowly_until_the_other_is_gone() {
    let mut run = Run::active();
    run.step(60_000, Input::Woken);
    let in_use = |stamp| OpFailure::InUse { address: None, stamp };
    run.failed(60_000, in_use(3));
    assert_eq!(run.state(), ServiceState::Fenced, "perhaps it is dying");
    let mut now = 60_100;
    for stamp in 4..20 {
        run.step(now, Input::Woken);
        run.failed(now, in_use(stamp));
        assert_eq!(run.state(), ServiceState::Refused);
        let next = run.machine.wake_at().unwrap().as_nanos() / 1_000_000 + 1;
        assert!(next - now >= 4_500, "{now} -> {next}");
        now = next;
    }
    run.step(now, Input::Woken);
    run.registered(now, now);
    run.viewed(now + 10, vec![member("me", 7)]);
    assert_eq!(run.state(), ServiceState::Active);
}

#[test]
fn a_group_with_other_constants_refuses_and_takes_back() {
    let other = |id, n| Member { fingerprints: vec![Fingerprint::of("other")], ..member(id, n) };
    let mut run = Run::new();
    run.step(0, Input::Join);
    run.registered(10, 0);
    run.viewed(20, vec![member("me", 7), other("a", 1), other("b", 2)]);
    assert_eq!((run.state(), run.owned()), (ServiceState::Refused, 0));
    let expected = MemberRefusal::OtherPolicy { mine: policy().fingerprint(), next: None, group: Fingerprint::of("other") };
    assert_eq!(run.machine.ownership().refusal(), Some(&expected));
    run.viewed(30, vec![member("me", 7)]);
    assert_eq!(run.state(), ServiceState::Active);
}

#[test]
fn of_two_incarnations_the_younger_owns_nothing() {
    let mut run = Run::new();
    run.step(0, Input::Join);
    run.registered(10, 0);
    run.viewed(20, vec![member("me", 3), member("me", 7)]);
    assert_eq!((run.state(), run.owned()), (ServiceState::Refused, 0));
    run.viewed(30, vec![member("me", 7)]);
    assert_eq!(run.state(), ServiceState::Active);
}

/// Regression: the member retried without a message, or was fenced before each renewal.
#[test]
fn a_lease_that_ends_before_its_first_renewal_is_refused_with_both_numbers_and_its_record_goes() {
    for granted in [1, 100, 149] {
        let mut run = Run::new();
        run.step(0, Input::Join);
        let registered = |run: &mut Run, now| {
            let attempt = run.attempt;
            run.step(now, Input::Registered { attempt, started: at(now), ttl: Duration::from_millis(granted) })
        };
        let actions = registered(&mut run, 10);
        assert!(actions.contains(&Action::Deregister) && actions.contains(&Action::StopWatch), "{granted} ms: {actions:?}");
        let refusal = run.machine.ownership().refusal().map(ToString::to_string).unwrap_or_default();
        assert_eq!(run.state(), ServiceState::Refused);
        let said = format!(
            "discovery.stop_margin is 100ms: with ttl = 9s, of which the backend grants {granted}ms, ownership would end before the first renewal;"
        );
        assert!(refusal.starts_with(&said), "{refusal}");
        run.step(20, Input::Deregistered);
        assert_eq!(calls(&run.step(4_000, Input::Woken)), [], "it asks slowly");
        let now = run.machine.wake_at().unwrap().as_nanos() / 1_000_000 + 1;
        run.step(now, Input::Woken);
        run.registered(now, now);
        assert_eq!((run.state(), run.machine.ownership().refusal()), (ServiceState::Joining, None), "once the whole is granted it gets in");
    }
    let mut run = Run::new();
    run.step(0, Input::Join);
    run.step(10, Input::Registered { attempt: run.attempt, started: at(10), ttl: Duration::from_millis(160) });
    assert_eq!(run.state(), ServiceState::Joining, "of 160 ms it owns for 58.4, and renews after 53.3");
}

/// The deletion of the record with the refused lease does not end a leaver's work.
#[test]
fn a_leaver_whose_lease_was_refused_waits_for_its_work() {
    let mut run = Run::new();
    run.step(0, Input::Join);
    run.step(10, Input::Registered { attempt: run.attempt, started: at(10), ttl: Duration::from_millis(1) });
    run.step(15, Input::Leave);
    run.step(20, Input::Deregistered);
    assert_eq!(run.state(), ServiceState::Draining);
    assert!(run.step(30, Input::InFlightDone).contains(&Action::Deregister));
    run.step(40, Input::Deregistered);
    assert_eq!(run.state(), ServiceState::Left);
}

#[test]
fn an_outage_behind_a_rival_is_asked_about_ever_more_rarely() {
    let mut run = Run::new();
    run.step(0, Input::Join);
    run.failed(5, OpFailure::InUse { address: None, stamp: 1 });
    let mut calls = 0;
    while run.machine.wake_at().unwrap() < at(60_000) {
        let ms = run.machine.wake_at().unwrap().as_nanos() / 1_000_000 + 1;
        run.step(ms, Input::Woken);
        run.failed(ms, OpFailure::Retryable);
        calls += 1;
    }
    assert!(calls < 150, "{calls} calls in a minute");
}

fn working_for(id: &str, incarnation: u64, serves: &str) -> Member {
    let serves = Some(Serves::from_parts(serves.into(), Some(format!("{serves}-events"))));
    Member { serves, ..member(id, incarnation) }
}

#[test]
fn a_group_that_works_for_something_else_refuses_by_name_and_keeps_no_record() {
    let mut run = Run::new();
    run.step(0, Input::Join);
    run.registered(10, 0);
    let actions = run.viewed(20, vec![working_for("first", 2, "0rder5"), working_for("me", 7, "n0t1ce5")]);
    assert!(actions.contains(&Action::Deregister) && actions.contains(&Action::StopWatch), "{actions:?}");
    assert_eq!((run.state(), run.owned()), (ServiceState::Refused, 0));
    let said = run.machine.ownership().refusal().map(ToString::to_string).unwrap();
    for part in [r#"outbox "n0t1ce5-events""#, r#"outbox "0rder5-events""#, r#"member "first""#, r#"group "g""#] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let again = run.machine.wake_at().unwrap().as_nanos() / 1_000_000 + 1;
    assert!((4_500..=9_100).contains(&again), "asks again at {again} ms, about once per TTL of 9 s");
    assert_eq!(calls(&run.step(again, Input::Woken)), [Op::Register]);
    run.registered(again + 5, again);
    let actions = run.viewed(
        again + 10,
        vec![working_for("me", 9, "n0t1ce5")].into_iter().map(|m| Member { incarnation: Incarnation::new(7).next(), ..m }).collect(),
    );
    assert_eq!((run.state(), cause(&actions)), (ServiceState::Active, Some(Cause::Joined)), "the others are gone");
}

#[test]
fn a_member_that_loses_its_record_while_another_work_takes_the_group_is_refused_and_owns_nothing() {
    let mut run = Run::active();
    let actions = run.viewed(30, vec![working_for("first", 2, "0rder5"), working_for("me", 7, "keys")]);
    assert!(actions.contains(&Action::Deregister), "{actions:?}");
    assert_eq!((run.state(), run.owned()), (ServiceState::Refused, 0));
}

#[test]
fn beside_a_record_that_does_not_say_what_it_works_for_a_member_goes_on() {
    let mut run = Run::new();
    run.step(0, Input::Join);
    run.registered(10, 0);
    run.viewed(20, vec![member("older", 2), working_for("me", 7, "0rder5")]);
    assert_eq!(run.state(), ServiceState::Active);
}
