//! Scenarios as lists: an input, then the expected actions.

mod away;
mod claims;
mod ending;
mod keys;
mod late;
mod leaving;
mod loss;
mod next;
mod refused;
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

    /// A member other than `me`, registered since 10 ms.
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

    fn failed(&mut self, ms: u64, failure: OpFailure) -> Vec<Action> {
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
    assert!(run.registered(10, 6).contains(&Action::ReadGroup));
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
            run.failed(now, OpFailure::Retryable);
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
fn below_min_members_no_member_owns() {
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
fn a_member_back_after_a_fence_looks_again_while_the_watch_has_nothing_new_to_show() {
    let mut run = Run::active();
    run.step(3_000, Input::Woken);
    run.failed(5_900, OpFailure::Retryable);
    run.step(8_810, Input::Woken);
    assert_eq!(run.state(), ServiceState::Fenced);
    assert!(run.registered(8_830, 8_820).contains(&Action::ReadGroup));
    // That read fails. The group is as it was, and the watch, which goes on, only proves it.
    run.step(9_500, Input::Woken);
    let actions = run.step(9_600, Input::Proven { at: at(9_600) });
    assert_eq!((&*actions, run.state()), ([Action::ReadGroup].as_slice(), ServiceState::Joining));
    run.step(9_610, Input::Viewed { view: Arc::new(View::new(20, vec![member("me", 7)])), proven: at(9_600) });
    assert_eq!(run.state(), ServiceState::Active);
    assert!(!run.step(9_900, Input::Proven { at: at(9_900) }).contains(&Action::ReadGroup), "there is a view");
}
