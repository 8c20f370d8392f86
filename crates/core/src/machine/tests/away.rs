//! Stepping away (`rejoin_grace`): the record is never shown as draining, and its replacement keeps the place.

use super::*;
use crate::holdings::ClaimAction;
use crate::machine::ClaimInput;
use crate::{AcquireOutcome, ClaimStore, Epoch, OwnershipMode, Resource, StoreId};

const REJOIN_GRACE: Duration = Duration::from_secs(30);

fn patient(ownership: OwnershipMode) -> Policy {
    let placement = PlacementParams { slots: 64, ..PlacementParams::default() };
    Policy { rejoin_grace: REJOIN_GRACE, placement, ownership, drain_timeout: Duration::from_secs(2), ..policy() }
}

fn shown(id: &str, incarnation: u64, state: MemberState) -> Member {
    Member { state, ..member(id, incarnation) }
}

/// The members, with the fingerprints of `policy`.
fn going_by(policy: &Policy, members: Vec<Member>) -> Vec<Member> {
    members.into_iter().map(|member| Member { fingerprints: policy.fingerprints(), ..member }).collect()
}

/// Active since 20 ms beside `other`.
fn active(policy: &Policy) -> Run {
    let mut run = Run::with(policy.clone());
    run.step(0, Input::Join);
    run.registered(10, 0);
    run.viewed(20, going_by(policy, vec![shown("me", 7, MemberState::Active), shown("other", 8, MemberState::Active)]));
    assert_eq!(run.state(), ServiceState::Active);
    run
}

fn left(actions: &[Action]) -> Vec<&Action> {
    actions.iter().filter(|action| matches!(action, Action::StepAway { .. } | Action::Deregister)).collect()
}

#[test]
fn a_leaver_is_shown_pausing_then_steps_away() {
    let mut run = active(&patient(OwnershipMode::Eventual));
    let actions = run.step(100, Input::Leave);
    assert!(actions.contains(&Action::MarkPausing) && !actions.contains(&Action::MarkDraining), "{actions:?}");
    assert_eq!((run.state(), run.owned(), left(&actions)), (ServiceState::Draining, 0, vec![]));
    let actions = run.step(150, Input::InFlightDone);
    assert_eq!(left(&actions), [&Action::StepAway { rejoin_grace: REJOIN_GRACE }]);
    run.step(160, Input::Deregistered);
    assert_eq!(run.state(), ServiceState::Left);
}

#[test]
fn max_loss_keeps_no_member_longer_that_will_be_away() {
    let mut run = active(&Policy { max_loss: crate::MaxLoss::percent(50), ..patient(OwnershipMode::Eventual) });
    run.step(100, Input::Leave);
    assert_eq!(left(&run.step(150, Input::InFlightDone)), [&Action::StepAway { rejoin_grace: REJOIN_GRACE }]);
}

#[test]
fn without_a_place_or_a_record_there_is_nothing_to_keep() {
    let policy = patient(OwnershipMode::Eventual);
    let mut refused = Run::with(policy.clone());
    refused.step(0, Input::Join);
    refused.registered(10, 0);
    refused.viewed(20, vec![shown("me", 7, MemberState::Active), member("a", 1), member("b", 2)]);
    assert_eq!(refused.state(), ServiceState::Refused, "the others have no rejoin grace");
    assert!(refused.step(100, Input::Leave).contains(&Action::MarkDraining));
    refused.step(110, Input::InFlightDone);
    assert_eq!(left(&refused.step(9_100, Input::Woken)), [&Action::Deregister]);

    let mut fenced = active(&policy);
    fenced.step(8_810, Input::Woken);
    fenced.step(8_820, Input::Leave);
    assert_eq!(left(&fenced.step(8_830, Input::InFlightDone)), [&Action::Deregister]);

    let mut lost = active(&policy);
    lost.step(2_990, Input::Leave);
    lost.step(3_000, Input::Woken);
    let attempt = lost.attempt;
    lost.step(3_010, Input::RecordLost { attempt });
    assert_eq!(left(&lost.step(3_020, Input::InFlightDone)), [&Action::Deregister]);
}

#[test]
fn the_others_keep_what_they_have_and_nothing_more_until_the_rejoin_grace_is_over() {
    let policy = patient(OwnershipMode::Eventual);
    let mut run = active(&policy);
    let mine = Arc::clone(run.machine.ownership());
    let see = |run: &mut Run, ms, others: Vec<Member>| {
        run.viewed(ms, going_by(&policy, others.into_iter().chain([shown("me", 7, MemberState::Active)]).collect()));
        run.owned()
    };
    for (ms, state) in [(100, MemberState::Pausing), (200, MemberState::Away)] {
        let owned = see(&mut run, ms, vec![shown("other", 8, state)]);
        assert_eq!((owned, run.machine.ownership().slots()), (mine.slots().len(), mine.slots()), "{state:?}");
    }
    assert_eq!(run.machine.placements_computed(), 1, "the placement is the same one");
    see(&mut run, 300, vec![shown("other", 9, MemberState::Active)]);
    assert_eq!(run.machine.ownership().slots(), mine.slots(), "it is back");
    see(&mut run, 400, vec![shown("other", 9, MemberState::Away)]);
    assert_eq!(see(&mut run, 500, vec![]), 64, "it did not come back");
}

#[test]
fn an_away_member_counts_for_no_gate() {
    let policy = Policy { min_members: 2, ..patient(OwnershipMode::Eventual) };
    let mut run = active(&policy);
    assert!(run.owned() > 0);
    run.viewed(100, going_by(&policy, vec![shown("me", 7, MemberState::Active), shown("other", 8, MemberState::Away)]));
    assert_eq!((run.state(), run.owned()), (ServiceState::Active, 0));
}

/// The read began after the registration and saw the state before it.
#[test]
fn a_former_self_that_is_away_is_no_other_member() {
    let policy = patient(OwnershipMode::Eventual);
    let mut run = Run::with(policy.clone());
    run.step(0, Input::Join);
    run.registered(30, 0);
    run.viewed(20, going_by(&policy, vec![shown("me", 3, MemberState::Away)]));
    assert_eq!((run.state(), run.owned()), (ServiceState::Joining, 0));
    run.viewed(40, going_by(&policy, vec![shown("me", 7, MemberState::Active)]));
    assert_eq!((run.state(), run.owned()), (ServiceState::Active, 64), "all it had, at once");
}

fn claimed(actions: &[Action]) -> impl Iterator<Item = &ClaimAction> {
    actions.iter().filter_map(|action| if let Action::Claim(claim) = action { Some(claim) } else { None })
}

/// A member in a group with `other`, with the claims on all its slots.
fn holding() -> Run {
    let policy = patient(OwnershipMode::Exclusive);
    let mut run = Run::with(policy.clone());
    run.step(0, Input::Join);
    let actions = run.registered(10, 0);
    let attempt = claimed(&actions).find_map(|claim| if let ClaimAction::OpenStore { attempt } = claim { Some(*attempt) } else { None });
    run.step(12, Input::Claims(ClaimInput::All(Vec::new())));
    let store = ClaimStore { id: StoreId::new(1), floor: 0 };
    run.step(14, Input::Claims(ClaimInput::Opened { attempt: attempt.unwrap(), store }));
    let actions = run.viewed(20, going_by(&policy, vec![shown("me", 7, MemberState::Active), shown("other", 8, MemberState::Active)]));
    let asked = claimed(&actions).find_map(|claim| match claim {
        ClaimAction::Acquire { attempt, wanted } => Some((*attempt, wanted.clone())),
        _ => None,
    });
    let (attempt, wanted) = asked.unwrap();
    let answers = wanted.into_iter().map(|resource| (resource, AcquireOutcome::Granted(Epoch::new(5).unwrap()))).collect();
    run.step(30, Input::Claims(ClaimInput::Acquired { attempt, answers }));
    assert!(run.owned() > 0 && run.owned() < 64);
    run
}

#[test]
fn exclusive_the_claims_go_before_the_member_does() {
    let mut run = holding();
    let held: Vec<_> = run.machine.ownership().slots().iter().map(Resource::Slot).collect();
    let actions = run.step(100, Input::Leave);
    assert!(actions.contains(&Action::MarkPausing) && run.owned() == 0);
    assert!(left(&run.step(110, Input::InFlightDone)).is_empty(), "the slots are not given back");
    let actions = run.step(120, Input::Claims(ClaimInput::Idle(held)));
    let release = claimed(&actions).find_map(|claim| if let ClaimAction::Release { attempt, .. } = claim { Some(*attempt) } else { None });
    let actions = run.step(130, Input::Claims(ClaimInput::Released { attempt: release.unwrap() }));
    assert_eq!(left(&actions), [&Action::StepAway { rejoin_grace: REJOIN_GRACE }]);
}

#[test]
fn exclusive_no_member_claims_for_an_away_member() {
    let policy = patient(OwnershipMode::Exclusive);
    let mut run = holding();
    let mine = run.owned();
    let asked_while = |run: &mut Run, from: u64, other: Option<MemberState>| {
        let mut asked = false;
        for ms in (from..from + 60_000).step_by(2_000) {
            let others = other.map(|state| shown("other", 8, state));
            let members = others.into_iter().chain([shown("me", 7, MemberState::Active)]).collect();
            let mut actions = run.renewed(ms, ms);
            let view = Input::Viewed { view: Arc::new(View::new(from, going_by(&policy, members))), proven: at(ms) };
            actions.extend(run.step(ms, view));
            actions.extend(run.step(ms + 1_000, Input::Woken));
            asked |= claimed(&actions).any(|claim| matches!(claim, ClaimAction::Acquire { .. }));
        }
        asked
    };
    assert!(!asked_while(&mut run, 2_000, Some(MemberState::Pausing)));
    assert!(!asked_while(&mut run, 62_000, Some(MemberState::Away)));
    assert_eq!((run.state(), run.owned()), (ServiceState::Active, mine));
    assert!(asked_while(&mut run, 122_000, Some(MemberState::Active)), "one that is here and does not claim loses its turn");
}

#[test]
fn exclusive_what_it_had_is_claimed_once_the_rejoin_grace_is_over() {
    let policy = patient(OwnershipMode::Exclusive);
    let mut run = holding();
    run.viewed(100, going_by(&policy, vec![shown("me", 7, MemberState::Active), shown("other", 8, MemberState::Away)]));
    let actions = run.viewed(200, going_by(&policy, vec![shown("me", 7, MemberState::Active)]));
    let wanted: usize = claimed(&actions).map(|claim| if let ClaimAction::Acquire { wanted, .. } = claim { wanted.len() } else { 0 }).sum();
    assert_eq!(wanted + run.owned() as usize, 64);
}

#[test]
fn a_place_that_is_just_being_kept_is_given_up_once_that_is_answered() {
    let mut run = active(&patient(OwnershipMode::Eventual));
    run.step(100, Input::Leave);
    assert_eq!(left(&run.step(150, Input::InFlightDone)), [&Action::StepAway { rejoin_grace: REJOIN_GRACE }]);
    assert_eq!(left(&run.step(155, Input::LeaveForGood)), Vec::<&Action>::new(), "the record that keeps it is on its way");
    assert_eq!(left(&run.step(160, Input::Deregistered)), [&Action::Deregister]);
    assert_eq!(run.state(), ServiceState::Draining);
    run.step(170, Input::Deregistered);
    assert_eq!(run.state(), ServiceState::Left);
}

#[test]
fn who_leaves_for_good_keeps_no_place() {
    let policy = patient(OwnershipMode::Eventual);
    let mut run = active(&policy);
    let actions = run.step(100, Input::LeaveForGood);
    assert!(actions.contains(&Action::MarkDraining) && !actions.contains(&Action::MarkPausing), "{actions:?}");
    assert_eq!(left(&run.step(150, Input::InFlightDone)), Vec::<&Action>::new(), "the others are to see it leave");
    assert_eq!(left(&run.step(9_100, Input::Woken)), [&Action::Deregister]);
    run.step(9_110, Input::Deregistered);
    assert_eq!(left(&run.step(9_120, Input::LeaveForGood)), Vec::<&Action>::new(), "it has left");

    let mut run = active(&policy);
    run.step(100, Input::Leave);
    assert!(run.step(110, Input::LeaveForGood).contains(&Action::MarkDraining), "it has changed its mind");
    assert_eq!(left(&run.step(150, Input::InFlightDone)), Vec::<&Action>::new());
    assert_eq!(left(&run.step(9_110, Input::Woken)), [&Action::Deregister]);
}

#[test]
fn an_away_member_can_give_up_its_place() {
    let mut run = active(&patient(OwnershipMode::Eventual));
    run.step(100, Input::Leave);
    assert_eq!(left(&run.step(150, Input::InFlightDone)), [&Action::StepAway { rejoin_grace: REJOIN_GRACE }]);
    run.step(160, Input::Deregistered);
    assert_eq!(run.state(), ServiceState::Left);
    assert_eq!(left(&run.step(200, Input::LeaveForGood)), [&Action::Deregister]);
    let meanwhile = run.step(210, Input::Woken);
    assert!(!meanwhile.iter().any(|action| matches!(action, Action::Call { .. })), "{meanwhile:?}");
    run.step(220, Input::Deregistered);
    assert_eq!(run.state(), ServiceState::Left);
    assert_eq!(left(&run.step(230, Input::LeaveForGood)), Vec::<&Action>::new(), "once");
}
