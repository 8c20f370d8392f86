//! Scenarios as lists: what happens, then what must come out.

mod away;
mod claims;
mod ending;
mod keys;
mod loss;
mod next;
mod versions;

use super::*;
use crate::{GroupName, Member, MemberState, PolicyName};
use std::time::Duration;

const TTL: Duration = Duration::from_secs(9);

fn at(ms: u64) -> Moment {
    Moment::from_nanos(ms * 1_000_000)
}

fn policy() -> Policy {
    Policy::new(PolicyName::new("p").unwrap(), GroupName::new("g").unwrap())
}

fn placer(params: PlacementParams) -> Arc<Placer> {
    Arc::new(Placer::new(params))
}

fn me() -> Identity {
    Identity { instance_id: InstanceId::new("me").unwrap(), incarnation: Incarnation::new(7) }
}

fn member(id: &str, incarnation: u64) -> Member {
    Member {
        incarnation: Incarnation::new(incarnation),
        joined: incarnation,
        fingerprints: vec![policy().fingerprint()],
        ..Member::named(InstanceId::new(id).unwrap())
    }
}

struct Run {
    machine: Machine,
    attempt: u64,
}

impl Run {
    fn with(policy: Policy) -> Self {
        let timing = Timing::new(TTL, None, Duration::from_millis(100)).unwrap();
        Self { machine: Machine::new(Arc::new(policy), timing, me(), placer, at(0)), attempt: 0 }
    }

    fn new() -> Self {
        Self::with(policy())
    }

    /// Another than `me`, registered since 10 ms.
    fn of(id: &str, policy: Policy) -> Self {
        let mut run = Self::with(policy.clone());
        let me = Identity { instance_id: InstanceId::new(id).unwrap(), incarnation: Incarnation::new(1) };
        run.machine = Machine::new(Arc::new(policy), Timing::new(TTL, None, Duration::from_millis(100)).unwrap(), me, placer, at(0));
        run.step(0, Input::Join);
        run.registered(10, 0);
        run
    }

    fn step(&mut self, ms: u64, input: Input) -> Vec<Action> {
        let mut actions = Vec::new();
        self.machine.step(at(ms), input, &mut actions);
        for action in &actions {
            if let Action::Call { attempt, .. } = action {
                self.attempt = *attempt;
            }
        }
        actions
    }

    fn registered(&mut self, ms: u64, started: u64) -> Vec<Action> {
        let attempt = self.attempt;
        self.step(ms, Input::Registered { attempt, started: at(started), ttl: TTL })
    }

    fn renewed(&mut self, ms: u64, started: u64) -> Vec<Action> {
        let attempt = self.attempt;
        self.step(ms, Input::Renewed { attempt, started: at(started), ttl: TTL })
    }

    fn failed(&mut self, ms: u64, failure: Failure) -> Vec<Action> {
        let attempt = self.attempt;
        self.step(ms, Input::Failed { attempt, failure })
    }

    fn viewed(&mut self, ms: u64, members: Vec<Member>) -> Vec<Action> {
        self.step(ms, Input::Viewed { view: Arc::new(View::new(ms, members)), proven: at(ms) })
    }

    fn state(&self) -> ServiceState {
        self.machine.ownership().state()
    }

    fn owned(&self) -> u32 {
        self.machine.ownership().slots().len()
    }

    /// Active since 20 ms with a lease from 0 on: renewal due at 3,000, deadline at 8,910 - 100 = 8,810.
    fn active() -> Self {
        let mut run = Self::new();
        run.step(0, Input::Join);
        run.registered(10, 0);
        run.viewed(20, vec![member("me", 7)]);
        assert_eq!((run.state(), run.owned()), (ServiceState::Active, crate::SLOTS_DEFAULT));
        run
    }
}

fn calls(actions: &[Action]) -> Vec<Op> {
    actions.iter().filter_map(|a| if let Action::Call { op, .. } = a { Some(*op) } else { None }).collect()
}

fn cause(actions: &[Action]) -> Option<Cause> {
    actions.iter().find_map(|a| if let Action::Rebalanced(r) = a { Some(r.cause) } else { None })
}

#[test]
fn joining_registers_watches_and_owns_once_a_newer_view_shows_it() {
    let mut run = Run::new();
    let actions = run.step(0, Input::Join);
    assert!(actions.contains(&Action::StartWatch));
    assert_eq!(calls(&actions), [Op::Register]);
    // A view from before the registration proves nothing, even if it shows the record.
    run.step(5, Input::Viewed { view: Arc::new(View::new(1, vec![member("me", 7)])), proven: at(5) });
    assert!(run.registered(10, 6).contains(&Action::Look));
    assert_eq!((run.state(), run.owned()), (ServiceState::Joining, 0));
    let actions = run.viewed(20, vec![member("me", 7)]);
    assert_eq!((run.state(), cause(&actions)), (ServiceState::Active, Some(Cause::Joined)));
    assert_eq!(run.machine.ownership().deadline(), Some(at(6 + 8_810)));
}

#[test]
fn a_renewal_is_due_at_a_third_of_the_ttl_and_moves_the_deadline_by_its_start() {
    let mut run = Run::active();
    assert_eq!(run.machine.wake_at(), Some(at(3_000)));
    assert_eq!(calls(&run.step(3_000, Input::Woken)), [Op::Renew]);
    run.step(3_050, Input::Proven { at: at(3_050) });
    run.renewed(3_700, 3_000);
    assert_eq!(run.machine.ownership().deadline(), Some(at(3_000 + 8_810)));
    assert_eq!(run.machine.wake_at(), Some(at(6_000)));
}

#[test]
fn a_renewal_answered_after_the_deadline_finds_the_member_fenced() {
    let mut run = Run::active();
    run.step(3_000, Input::Woken);
    let actions = run.renewed(8_810, 8_000);
    assert_eq!((run.state(), cause(&actions)), (ServiceState::Fenced, Some(Cause::Fenced)));
    assert_eq!(calls(&actions), [Op::Register], "it registers anew");
    run.registered(8_900, 8_810);
    assert_eq!((run.state(), run.owned()), (ServiceState::Joining, 0), "never straight back to active");
    run.viewed(8_950, vec![member("me", 7)]);
    assert_eq!(run.state(), ServiceState::Active);
}

#[test]
fn a_view_unproven_for_two_ttls_ends_ownership_though_renewals_succeed() {
    let mut run = Run::active();
    for start in [3_000, 6_000, 9_000, 12_000, 15_000] {
        run.step(start, Input::Woken);
        run.renewed(start + 5, start);
    }
    assert_eq!(run.machine.ownership().deadline(), Some(at(20 + 18_000)));
    run.step(18_020, Input::Woken);
    assert_eq!((run.state(), run.owned()), (ServiceState::Fenced, 0));
}

#[test]
fn a_lost_record_fences_at_once() {
    let mut run = Run::active();
    run.step(3_000, Input::Woken);
    let attempt = run.attempt;
    let actions = run.step(3_010, Input::RecordLost { attempt });
    assert_eq!((run.state(), calls(&actions)), (ServiceState::Fenced, vec![Op::Register]));
}

#[test]
fn failed_renewals_are_repeated_with_pauses_up_to_a_second_until_the_deadline() {
    let mut run = Run::active();
    run.step(3_000, Input::Woken);
    let (mut now, mut tried) = (3_000, 3_000);
    while run.state() == ServiceState::Active {
        if run.machine.lease.is_in_flight() {
            run.failed(now, Failure::Retryable);
            tried = now;
        }
        let next = run.machine.wake_at().unwrap().as_nanos() / 1_000_000 + 1;
        assert!(next > now && next <= now + 1_001, "{now} -> {next}");
        now = next;
        run.step(now, Input::Woken);
    }
    assert!((8_810..9_812).contains(&now), "fenced at {now}");
    // A backend that is back shortly before the end is asked before the end.
    assert!(tried + 100 >= now, "asked last at {tried}, fenced at {now}");
}

#[test]
fn stale_answers_fall_away() {
    let mut run = Run::active();
    run.step(3_000, Input::Woken);
    let old = run.attempt;
    run.step(3_001, Input::RecordLost { attempt: old });
    let before = run.machine.ownership().clone();
    for input in [
        Input::Renewed { attempt: old, started: at(3_000), ttl: TTL },
        Input::Registered { attempt: old, started: at(3_000), ttl: TTL },
        Input::Failed { attempt: old, failure: Failure::Permanent { message: "x".into() } },
        Input::RecordLost { attempt: old },
    ] {
        assert!(run.step(3_010, input).is_empty());
    }
    assert_eq!(*run.machine.ownership(), before);
}

#[test]
fn others_joining_and_leaving_move_slots_and_name_them() {
    let mut run = Run::active();
    let actions = run.viewed(100, vec![member("me", 7), member("other", 8)]);
    let Some(Action::Rebalanced(rebalance)) = actions.last() else { panic!("{actions:?}") };
    assert_eq!((rebalance.cause, rebalance.members_total), (Cause::MembersChanged, 2));
    assert_eq!(rebalance.members_joined, [InstanceId::new("other").unwrap()]);
    assert_eq!(rebalance.lost.len() + rebalance.slots_owned.unwrap(), crate::SLOTS_DEFAULT);
    let draining = Member { state: MemberState::Draining, ..member("other", 8) };
    run.viewed(200, vec![member("me", 7), draining]);
    assert_eq!(run.owned(), crate::SLOTS_DEFAULT, "a draining member's slots are taken over before it is gone");
}

#[test]
fn heartbeats_and_repeated_views_compute_no_placement() {
    let mut run = Run::active();
    let computed = run.machine.placements_computed();
    for ms in (100..2_000).step_by(100) {
        run.step(ms, Input::Proven { at: at(ms) });
        assert_eq!(cause(&run.viewed(ms + 50, vec![member("me", 7)])), None);
    }
    assert_eq!(run.machine.placements_computed(), computed);
}

#[test]
fn a_view_without_me_ends_ownership_until_the_record_is_settled() {
    let mut run = Run::active();
    run.viewed(100, vec![member("other", 8)]);
    assert_eq!((run.state(), run.owned()), (ServiceState::Joining, 0));
    run.viewed(200, vec![member("me", 7), member("other", 8)]);
    assert_eq!(run.state(), ServiceState::Active);
}

#[test]
fn below_min_members_nobody_owns() {
    let gated = || Policy { min_members: 2, ..policy() };
    let member = |id, n| Member { fingerprints: vec![gated().fingerprint()], ..member(id, n) };
    let mut run = Run::with(gated());
    run.step(0, Input::Join);
    run.registered(10, 0);
    run.viewed(20, vec![member("me", 7)]);
    assert_eq!((run.state(), run.owned()), (ServiceState::Active, 0));
    let hint = run.machine.ownership().not_owning_at(at(20)).unwrap().hint;
    assert_eq!(hint, "1 active members, min_members is 2; start more workers");
    assert_eq!(cause(&run.viewed(30, vec![member("me", 7), member("b", 8)])), Some(Cause::MemberGate));
    assert_eq!(cause(&run.viewed(40, vec![member("me", 7)])), Some(Cause::MemberGate));
    assert_eq!(run.owned(), 0);
}

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
fn an_id_whose_holder_renews_is_refused_and_one_that_is_silent_is_waited_out() {
    let mut run = Run::new();
    run.step(0, Input::Join);
    let in_use = |stamp| Failure::InUse { address: None, stamp };
    run.failed(5, in_use(1));
    assert_eq!(run.state(), ServiceState::Joining, "perhaps its own former self");
    run.step(100, Input::Woken);
    run.failed(105, in_use(1));
    assert_eq!(run.state(), ServiceState::Joining);
    run.step(200, Input::Woken);
    let actions = run.failed(205, in_use(2));
    assert_eq!(run.state(), ServiceState::Refused);
    assert!(actions.contains(&Action::StopWatch));
    assert!(matches!(run.machine.ownership().refusal(), Some(Refusal::InUse { .. })));
}

fn denied(message: &str) -> Failure {
    Failure::Permanent { message: message.into() }
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

/// Ten minutes in which the fleet's token is no longer valid.
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
    assert!(actions.contains(&Action::StartWatch) && actions.contains(&Action::Look), "{actions:?}");
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
    run.failed(18_000, Failure::Retryable);
    assert_eq!((run.state(), run.machine.ownership().refusal()), (ServiceState::Joining, None));
    assert!(run.machine.wake_at().unwrap() <= at(18_050));
}

/// A worker that was stopped beyond its TTL and meets its successor under its own id waits until that one is gone.
#[test]
fn a_member_whose_id_was_taken_over_asks_slowly_until_the_other_is_gone() {
    let mut run = Run::active();
    run.step(60_000, Input::Woken);
    let in_use = |stamp| Failure::InUse { address: None, stamp };
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
fn a_registration_that_is_answered_with_lost_is_repeated_with_pauses() {
    let mut run = Run::active();
    run.step(9_000, Input::Woken);
    let attempt = run.attempt;
    assert_eq!(run.step(9_001, Input::RecordLost { attempt }), []);
    assert!(run.machine.wake_at().unwrap() > at(9_001));
}

#[test]
fn a_group_with_other_constants_refuses_and_takes_back() {
    let other = |id, n| Member { fingerprints: vec![Fingerprint::of("other")], ..member(id, n) };
    let mut run = Run::new();
    run.step(0, Input::Join);
    run.registered(10, 0);
    run.viewed(20, vec![member("me", 7), other("a", 1), other("b", 2)]);
    assert_eq!((run.state(), run.owned()), (ServiceState::Refused, 0));
    let expected = Refusal::OtherPolicy { mine: policy().fingerprint(), next: None, group: Fingerprint::of("other") };
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

#[test]
fn a_registration_answered_after_its_own_deadline_is_repeated() {
    let mut run = Run::new();
    run.step(0, Input::Join);
    let actions = run.registered(9_000, 0);
    assert_eq!((run.state(), run.owned()), (ServiceState::Joining, 0), "{actions:?}");
    run.step(10_100, Input::Woken);
    assert!(run.attempt > 1, "it tries again");
}

/// They were repeated twenty times a second for ever.
#[test]
fn registrations_that_are_over_when_they_are_answered_are_repeated_ever_more_rarely() {
    let mut run = Run::new();
    run.step(0, Input::Join);
    let (mut now, mut tries) = (9_000, 0);
    while now < 69_000 {
        let attempt = run.attempt;
        run.step(now, Input::Registered { attempt, started: at(now - 9_000), ttl: TTL });
        assert_eq!((run.state(), run.owned()), (ServiceState::Joining, 0));
        now = run.machine.wake_at().unwrap().as_nanos() / 1_000_000 + 1;
        run.step(now, Input::Woken);
        tries += 1;
    }
    assert!(tries < 150, "{tries} tries in a minute");
}

/// It was asked again and again without a word, or the member was fenced before each renewal.
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

/// The end of the record whose lease was refused is not the end of a leaver's work.
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

/// Found by the demo: after registering, the group is read once beside the watch. That read began later than the watch's and saw less;
/// the watch's newer view came behind it, was taken for old news, and nobody ever told it again.
#[test]
fn of_two_reads_that_overtake_each_other_the_higher_revision_counts() {
    let (one, two) = (vec![member("me", 7)], vec![member("me", 7), member("other", 8)]);
    let viewed = |revision, members: &Vec<Member>, proven| Input::Viewed {
        view: Arc::new(View::new(revision, members.clone())),
        proven: at(proven),
    };
    for swapped in [false, true] {
        let mut run = Run::new();
        run.step(0, Input::Join);
        run.registered(10, 0);
        let mut news = [viewed(2, &one, 20), viewed(3, &two, 15)];
        if swapped {
            news.reverse();
        }
        for input in news {
            run.step(30, input);
        }
        assert_eq!(run.machine.ownership().view().revision(), 3, "swapped: {swapped}");
        assert!(run.owned() < crate::SLOTS_DEFAULT);
    }
}

#[test]
fn a_registration_answered_too_late_after_a_fence_is_made_again_and_not_renewed() {
    let mut run = Run::active();
    run.step(9_000, Input::Woken);
    assert_eq!(run.state(), ServiceState::Fenced);
    run.registered(18_000, 9_000);
    let actions = run.step(18_100, Input::Woken);
    assert_eq!(calls(&actions), [Op::Register], "{actions:?}");
    run.registered(18_110, 18_100);
    run.viewed(18_120, vec![member("me", 7)]);
    assert_eq!(run.state(), ServiceState::Active);
}

#[test]
fn a_backend_whose_revisions_fall_ends_ownership_within_two_ttls() {
    let mut run = Run::active();
    run.step(30, Input::Viewed { view: Arc::new(View::new(500, vec![member("me", 7)])), proven: at(30) });
    let mut now = 1_000;
    while run.state() == ServiceState::Active {
        assert!(now <= 19_000, "still active on a view of {now} ms ago");
        let fallen = View::new(7, vec![member("me", 7), member("other", 8)]);
        run.step(now, Input::Viewed { view: Arc::new(fallen), proven: at(now) });
        if run.state() == ServiceState::Active {
            run.renewed(now, now);
        }
        now += 1_000;
    }
    run.registered(now, now);
    run.step(now + 20, Input::Viewed { view: Arc::new(View::new(8, vec![member("me", 7), member("other", 8)])), proven: at(now + 10) });
    assert_eq!((run.state(), run.machine.ownership().view().revision()), (ServiceState::Active, 8), "it begins from nothing");
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

#[test]
fn an_outage_behind_a_rival_is_asked_about_ever_more_rarely() {
    let mut run = Run::new();
    run.step(0, Input::Join);
    run.failed(5, Failure::InUse { address: None, stamp: 1 });
    let mut calls = 0;
    while run.machine.wake_at().unwrap() < at(60_000) {
        let ms = run.machine.wake_at().unwrap().as_nanos() / 1_000_000 + 1;
        run.step(ms, Input::Woken);
        run.failed(ms, Failure::Retryable);
        calls += 1;
    }
    assert!(calls < 150, "{calls} calls in a minute");
}
