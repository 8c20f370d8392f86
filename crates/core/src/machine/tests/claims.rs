//! Exclusive ownership: only claimed slots are owned, and released slots were published as lost before.

use super::*;
use crate::holdings::{CallFailure, ClaimAction, StoreRefusal};
use crate::machine::ClaimInput;
use crate::{AcquireOutcome, Claim, ClaimStore, Epoch, Holder, OwnershipMode, Resource, StoreId};

fn exclusive() -> Policy {
    let placement = PlacementParams { slots: 16, ..PlacementParams::default() };
    Policy { ownership: OwnershipMode::Exclusive, placement, drain_timeout: Duration::from_secs(2), ..policy() }
}

fn shown(id: &str, incarnation: u64) -> Member {
    Member { fingerprints: exclusive().fingerprints(), ..member(id, incarnation) }
}

fn store(id: u64, floor: u64) -> ClaimStore {
    ClaimStore { id: StoreId::new(id), floor }
}

fn claimed(actions: &[Action]) -> Vec<&ClaimAction> {
    actions.iter().filter_map(|action| if let Action::Claim(claim) = action { Some(claim) } else { None }).collect()
}

fn opening(actions: &[Action]) -> Option<u64> {
    claimed(actions).into_iter().find_map(|claim| if let ClaimAction::OpenStore { attempt } = claim { Some(*attempt) } else { None })
}

fn asked(actions: &[Action]) -> (u64, Vec<Resource>) {
    let asked = claimed(actions).into_iter().find_map(|claim| match claim {
        ClaimAction::Acquire { attempt, wanted } => Some((*attempt, wanted.clone())),
        _ => None,
    });
    asked.unwrap_or_else(|| panic!("nothing is asked for: {actions:?}"))
}

/// Answers with the store; the watch reports that there are no claims.
fn opened(run: &mut Run, ms: u64, attempt: u64, store: ClaimStore) -> Vec<Action> {
    run.step(ms, Input::Claims(ClaimInput::All(Vec::new())));
    run.step(ms, Input::Claims(ClaimInput::Opened { attempt, store }))
}

fn grant(run: &mut Run, ms: u64, (attempt, wanted): (u64, Vec<Resource>), epoch: u64) -> Vec<Action> {
    let epoch = Epoch::new(epoch).unwrap();
    let answers = wanted.into_iter().map(|resource| (resource, AcquireOutcome::Granted(epoch))).collect();
    run.step(ms, Input::Claims(ClaimInput::Acquired { attempt, answers }))
}

/// Alone in its group with all 16 slots under epoch 5.
fn holding() -> Run {
    let mut run = Run::with(exclusive());
    run.step(0, Input::Join);
    let attempt = opening(&run.registered(10, 0)).expect("it asks for the store");
    opened(&mut run, 12, attempt, store(1, 0));
    let asked = asked(&run.viewed(20, vec![shown("me", 7)]));
    grant(&mut run, 30, asked, 5);
    assert_eq!((run.state(), run.owned()), (ServiceState::Active, 16));
    run
}

#[test]
fn nothing_is_owned_before_it_is_granted() {
    let mut run = Run::with(exclusive());
    run.step(0, Input::Join);
    let attempt = opening(&run.registered(10, 0)).expect("it asks for the store");
    run.viewed(20, vec![shown("me", 7)]);
    assert_eq!((run.state(), run.owned()), (ServiceState::Joining, 0), "the store is not known");
    let actions = opened(&mut run, 25, attempt, store(1, 0));
    assert_eq!((run.state(), run.owned()), (ServiceState::Active, 0));
    let asked = asked(&actions);
    assert_eq!(asked.1, (0..16).map(Resource::Slot).collect::<Vec<_>>());
    let actions = grant(&mut run, 30, asked, 5);
    assert_eq!((run.owned(), cause(&actions)), (16, Some(Cause::Joined)));
    let ownership = run.machine.ownership();
    assert!(ownership.fences().all(|fence| fence.epoch.get() == 5) && ownership.fences().count() == 16);
    assert_eq!((ownership.deadline(), ownership.claims_end()), (Some(at(8_810)), Some(at(8_810))));
}

#[test]
fn what_goes_to_another_is_published_as_lost_then_drained_then_released() {
    let mut run = holding();
    let actions = run.viewed(100, vec![shown("me", 7), shown("other", 8)]);
    let published = actions.iter().position(|action| matches!(action, Action::Publish(_))).unwrap();
    let drained = actions.iter().position(|action| matches!(action, Action::Claim(ClaimAction::Drain(_)))).unwrap();
    assert!(published < drained, "{actions:?}");
    let Action::Claim(ClaimAction::Drain(leaving)) = &actions[drained] else { unreachable!() };
    assert_eq!(run.owned() as usize + leaving.len(), 16);
    assert!(claimed(&actions).iter().all(|claim| !matches!(claim, ClaimAction::Release { .. })), "work may be in flight");
    let actions = run.step(150, Input::Claims(ClaimInput::Idle(leaving.clone())));
    assert!(matches!(&claimed(&actions)[..], [ClaimAction::Release { held, .. }] if held.len() == leaving.len()), "{actions:?}");
}

#[test]
fn at_the_deadline_all_is_over_and_nothing_is_asked_for_before_a_new_view() {
    let mut run = holding();
    let actions = run.step(8_810, Input::Woken);
    assert_eq!((run.state(), run.owned(), cause(&actions)), (ServiceState::Fenced, 0, Some(Cause::Fenced)));
    assert_eq!(run.machine.ownership().claims_end(), None, "which ends every guard");
    let attempt = opening(&run.registered(8_900, 8_810)).expect("the store is asked for anew");
    let actions = run.step(8_910, Input::Claims(ClaimInput::Opened { attempt, store: store(1, 0) }));
    let given_back = claimed(&actions);
    assert!(matches!(&given_back[..], [ClaimAction::Release { held, .. }] if held.len() == 16), "what it held goes first: {actions:?}");
}

#[test]
fn leaving_gives_everything_back_before_the_record_goes() {
    let mut run = holding();
    let actions = run.step(100, Input::Leave);
    assert!(actions.contains(&Action::MarkDraining) && run.owned() == 0);
    assert_eq!(run.machine.ownership().claims_end(), Some(at(8_810)), "work in flight is still under its claims");
    let all: Vec<_> = (0..16).map(Resource::Slot).collect();
    assert!(!run.step(110, Input::InFlightDone).contains(&Action::Deregister), "the slots are not given back");
    let actions = run.step(120, Input::Claims(ClaimInput::Idle(all)));
    let release = claimed(&actions)
        .into_iter()
        .find_map(|claim| if let ClaimAction::Release { attempt, .. } = claim { Some(*attempt) } else { None });
    run.step(130, Input::Claims(ClaimInput::Released { attempt: release.expect("released") }));
    let actions = run.step(9_100, Input::Woken);
    assert!(actions.contains(&Action::Deregister), "the others have had the time to see it leave");
}

/// "hold": the claim is kept until the work or the lease ends, and a leaver does not stay for ever.
#[test]
fn a_leaver_whose_work_does_not_end_stops_renewing_and_ends_with_its_lease() {
    let mut run = holding();
    run.step(100, Input::Leave);
    run.step(110, Input::InFlightDone);
    assert_eq!(calls(&run.step(3_000, Input::Woken)), [], "2 s to drain are over");
    assert!(run.machine.wake_at().is_some_and(|wake| wake > at(3_000)), "and it does not spin: {:?}", run.machine.wake_at());
    let actions = run.step(8_810, Input::Woken);
    assert!(actions.contains(&Action::Deregister));
    assert_eq!(run.machine.ownership().claims_end(), None);
}

#[test]
fn another_store_is_refused_until_its_floor_was_raised_above_what_is_known() {
    let mut run = holding();
    let attempt = run.attempt;
    run.step(3_000, Input::Woken);
    run.step(3_010, Input::RecordLost { attempt: attempt + 1 });
    let attempt = opening(&run.registered(3_020, 3_010)).expect("asked");
    opened(&mut run, 3_030, attempt, store(2, 0));
    let actions = run.viewed(3_040, vec![shown("me", 7)]);
    assert_eq!(run.state(), ServiceState::Refused, "{actions:?}");
    assert!(matches!(run.machine.ownership().refusal(), Some(MemberRefusal::Store(StoreRefusal::Other { highest: 5, .. }))));
    let attempt = opening(&run.step(4_100, Input::Woken)).expect("it looks again");
    run.step(4_110, Input::Claims(ClaimInput::Opened { attempt, store: store(2, 4) }));
    assert_eq!(run.state(), ServiceState::Refused, "4 is not above 5");
    let attempt = opening(&run.step(5_200, Input::Woken)).expect("it looks again");
    let actions = run.step(5_210, Input::Claims(ClaimInput::Opened { attempt, store: store(2, 5) }));
    assert_eq!(run.state(), ServiceState::Active);
    let Some(ClaimAction::Release { attempt, held }) = claimed(&actions).into_iter().next() else { panic!("{actions:?}") };
    assert_eq!(held.len(), 16, "if they are there after all, they are given back before they are asked for");
    asked(&run.step(5_220, Input::Claims(ClaimInput::Released { attempt: *attempt })));
}

/// For example, a member in the view without the right to claim.
#[test]
fn a_slot_whose_owner_does_not_come_is_taken_by_the_next_until_the_group_changes() {
    let mut run = holding();
    let Some(Action::Claim(ClaimAction::Drain(leaving))) = run
        .viewed(100, vec![shown("me", 7), shown("mute", 8)])
        .into_iter()
        .find(|action| matches!(action, Action::Claim(ClaimAction::Drain(_))))
    else {
        panic!("some slots go to the other")
    };
    let kept = run.owned();
    let release = run.step(150, Input::Claims(ClaimInput::Idle(leaving.clone())));
    let Some(ClaimAction::Release { attempt, .. }) = claimed(&release).into_iter().next() else { panic!("{release:?}") };
    run.step(160, Input::Claims(ClaimInput::Released { attempt: *attempt }));
    let mut now = 160;
    let again = loop {
        now += 100;
        assert!(now < 25_000, "nobody takes them");
        let actions = run.step(now, Input::Woken);
        run.step(now, Input::Proven { at: at(now) });
        if calls(&actions).contains(&Op::Renew) {
            run.renewed(now, now);
        }
        if claimed(&actions).iter().any(|claim| matches!(claim, ClaimAction::Acquire { .. })) {
            break actions;
        }
    };
    assert!((9_000..12_000).contains(&now), "after one TTL of 9 s and a scan: {now} ms");
    let again = asked(&again);
    assert_eq!(again.1, leaving);
    let actions = grant(&mut run, now + 10, again, 9);
    assert_eq!((run.owned(), cause(&actions)), (16, Some(Cause::OwnerAbsent)));
    run.step(now + 20, Input::Viewed { view: Arc::new(View::new(99_999, vec![shown("me", 7), shown("mute", 9)])), proven: at(now + 20) });
    assert_eq!(run.owned(), kept, "the other was restarted and has its time again");
}

/// This member holds everything in place of "mute", whose own share `leaving` is, or in place of no member.
fn standing_in(run: &mut Run) -> (u64, Vec<Resource>) {
    let actions = run.viewed(100, vec![shown("me", 7), shown("mute", 8)]);
    let Some(Action::Claim(ClaimAction::Drain(leaving))) =
        actions.into_iter().find(|action| matches!(action, Action::Claim(ClaimAction::Drain(_))))
    else {
        panic!("some go to the other")
    };
    let release = run.step(150, Input::Claims(ClaimInput::Idle(leaving.clone())));
    let Some(ClaimAction::Release { attempt, .. }) = claimed(&release).into_iter().next() else { panic!("{release:?}") };
    run.step(160, Input::Claims(ClaimInput::Released { attempt: *attempt }));
    let (now, actions) = pump(run, 160, 25_000).expect("it takes them");
    grant(run, now + 10, asked(&actions), 9);
    assert_eq!(run.owned(), 16);
    (now + 10, leaving)
}

/// One that was fenced and comes back, for example, while its record was there all the time.
#[test]
fn what_is_held_in_place_of_an_owner_is_given_back_when_that_one_asks_for_it() {
    let mut run = holding();
    let (now, of_mute) = standing_in(&mut run);
    let asking = |id: &str, incarnation| Member { reclaims: 1, ..shown(id, incarnation) };
    let sees =
        |run: &mut Run, ms, revision, members| run.step(ms, Input::Viewed { view: Arc::new(View::new(revision, members)), proven: at(ms) });
    sees(&mut run, now + 10, 90_000, vec![asking("me", 7), shown("mute", 8)]);
    assert_eq!(run.owned(), 16, "nobody asks for what this one holds");
    let actions = sees(&mut run, now + 20, 90_001, vec![asking("me", 7), asking("mute", 8)]);
    let given: Vec<_> = claimed(&actions).into_iter().filter(|action| matches!(action, ClaimAction::Drain(_))).collect();
    assert_eq!(given, [&ClaimAction::Drain(of_mute.clone())]);
    assert_eq!(run.owned() as usize, 16 - of_mute.len());
    let actions = sees(&mut run, now + 30, 90_002, vec![asking("me", 7), asking("mute", 8)]);
    assert_eq!(claimed(&actions), Vec::<&ClaimAction>::new(), "it has asked once");
}

/// "other" holds these under that epoch.
fn held_by_other(resources: impl IntoIterator<Item = Resource>, epoch: u64) -> Vec<(Resource, Claim)> {
    let holder = Holder { instance_id: InstanceId::new("other").unwrap(), incarnation: Incarnation::new(8) };
    let claim = Claim { holder, epoch: Epoch::new(epoch).unwrap() };
    resources.into_iter().map(|resource| (resource, claim.clone())).collect()
}

/// A member that wants these, while "other" holds everything. Its first call to acquire failed, or was answered.
fn displaced(failure: Option<CallFailure>) -> (Run, Vec<Resource>) {
    let mut run = Run::with(exclusive());
    run.step(0, Input::Join);
    let attempt = opening(&run.registered(10, 0)).expect("it asks for the store");
    opened(&mut run, 12, attempt, store(1, 0));
    let (attempt, wanted) = asked(&run.viewed(20, vec![shown("me", 7), shown("other", 8)]));
    let held = wanted.iter().map(|resource| (resource.clone(), AcquireOutcome::Held)).collect();
    let answer = failure.map_or(ClaimInput::Acquired { attempt, answers: held }, |failure| ClaimInput::Failed { attempt, failure });
    run.step(25, Input::Claims(answer));
    run.step(30, Input::Claims(ClaimInput::All(held_by_other((0..16).map(Resource::Slot), 3))));
    (run, wanted)
}

/// How often and when it asks for its share. Its calls to acquire fail with this, or are answered that another member holds it.
fn reclaims(run: &mut Run, from: u64, until: u64, failure: Option<&CallFailure>) -> Vec<(u64, u64)> {
    let mut asks = Vec::new();
    for ms in (from..until).step_by(100) {
        let actions = run.step(ms, Input::Woken);
        run.step(ms, Input::Proven { at: at(ms) });
        if calls(&actions).contains(&Op::Renew) {
            run.renewed(ms, ms);
        }
        for action in actions {
            match action {
                Action::Reclaim(count) => asks.push((count, ms)),
                Action::Claim(ClaimAction::Acquire { attempt, wanted }) => {
                    let held = wanted.into_iter().map(|resource| (resource, AcquireOutcome::Held)).collect();
                    let answer = match failure {
                        Some(failure) => ClaimInput::Failed { attempt, failure: failure.clone() },
                        None => ClaimInput::Acquired { attempt, answers: held },
                    };
                    run.step(ms, Input::Claims(answer));
                }
                _ => {}
            }
        }
    }
    asks
}

/// Whether `ms` is `expected` or as much later as a scan or two may be: a member scans four times per TTL of 9 s.
fn is_close(ms: u64, expected: u64) -> bool {
    (expected..expected + 5_000).contains(&ms)
}

#[test]
fn a_member_whose_share_others_hold_asks_for_it() {
    let (mut run, _) = displaced(None);
    let asks = reclaims(&mut run, 100, 40_000, None);
    // After half a TTL, then a whole one, then two.
    let &[(1, first), (2, second), (3, third)] = &asks[..] else { panic!("{asks:?}") };
    assert!(is_close(first, 4_500) && is_close(second, first + 9_000) && is_close(third, second + 18_000), "{asks:?}");
}

/// It could not use its share, and tries by itself whether it may claim again, although others hold all that it wants.
#[test]
fn a_member_that_may_not_claim_asks_for_nothing_until_it_may() {
    let denied = CallFailure::Permanent("no right".into());
    let (mut run, _) = displaced(Some(denied.clone()));
    assert_eq!(reclaims(&mut run, 100, 60_000, Some(&denied)), []);
    let asks = reclaims(&mut run, 60_000, 70_000, None);
    assert!(matches!(asks[..], [(1, ms)] if is_close(ms, 64_500)), "{asks:?}");
}

/// Or else what it is given would go to and fro for ever, and have no owner most of the time.
#[test]
fn a_member_that_does_not_acquire_what_it_is_given_asks_later_and_only_once_a_call_is_answered() {
    let (mut run, wanted) = displaced(None);
    let asks = reclaims(&mut run, 100, 8_000, None);
    assert!(matches!(asks[..], [(1, ms)] if is_close(ms, 4_500)), "{asks:?}");
    let given = wanted.iter().map(|resource| (resource.clone(), None)).collect();
    let (attempt, again) = asked(&run.step(8_000, Input::Claims(ClaimInput::Changed(given))));
    assert_eq!(again, wanted);
    run.step(8_000, Input::Claims(ClaimInput::Failed { attempt, failure: CallFailure::Retryable }));
    assert_eq!(reclaims(&mut run, 8_100, 17_000, Some(&CallFailure::Retryable)), [], "it is free");
    run.step(17_000, Input::Claims(ClaimInput::All(held_by_other((0..16).map(Resource::Slot), 9))));
    assert_eq!(reclaims(&mut run, 17_100, 60_000, Some(&CallFailure::Retryable)), [], "it could not use it");
    let asks = reclaims(&mut run, 60_000, 80_000, None);
    assert!(matches!(asks[..], [(2, ms)] if is_close(ms, 69_000 + 2_250)), "not after half a TTL again: {asks:?}");
}

#[test]
fn a_backend_that_grants_less_is_renewed_as_often_within_that() {
    let mut run = Run::with(exclusive());
    run.step(0, Input::Join);
    let attempt = run.attempt;
    run.step(10, Input::Registered { attempt, started: at(0), ttl: TTL / 2 });
    assert_eq!(run.machine.wake_at(), Some(at(1_500)), "a sixth of 9 s");
    assert_eq!(run.machine.renewal_takes(), Duration::from_millis(1_500), "one that hangs leaves time for two more");
    run.step(1_500, Input::Woken);
    assert_eq!(run.machine.ownership().claims_end(), Some(at(4_455 - 100)));
}

fn pump(run: &mut Run, from: u64, to: u64) -> Option<(u64, Vec<Action>)> {
    let mut now = from;
    while now < to {
        now += 100;
        let actions = run.step(now, Input::Woken);
        run.step(now, Input::Proven { at: at(now) });
        if calls(&actions).contains(&Op::Renew) {
            run.renewed(now, now);
        }
        if claimed(&actions).iter().any(|claim| matches!(claim, ClaimAction::Acquire { .. })) {
            return Some((now, actions));
        }
    }
    None
}

#[test]
fn below_min_members_no_member_stands_in_for_another() {
    let policy = Policy { min_members: 2, ..exclusive() };
    let mut run = Run::with(policy.clone());
    run.step(0, Input::Join);
    let attempt = opening(&run.registered(10, 0)).unwrap();
    opened(&mut run, 12, attempt, store(1, 0));
    run.viewed(20, vec![Member { fingerprints: policy.fingerprints(), ..member("me", 7) }]);
    assert_eq!((run.state(), run.owned()), (ServiceState::Active, 0));
    if let Some((now, actions)) = pump(&mut run, 20, 30_000) {
        let asked = asked(&actions);
        let n = asked.1.len();
        grant(&mut run, now + 1, asked, 5);
        panic!("below min_members: asks for {n} at {now}, owns {} {:?}", run.owned(), run.machine.ownership().fence_at("k", at(now + 2)));
    }
}

#[test]
fn what_the_missing_had_is_not_for_others_to_stand_in_for() {
    let policy = Policy { max_loss: crate::MaxLoss::percent(50), ..exclusive() };
    let m = |id: &str, inc| Member { fingerprints: policy.fingerprints(), ..member(id, inc) };
    let mut run = Run::with(policy.clone());
    run.step(0, Input::Join);
    let attempt = opening(&run.registered(10, 0)).unwrap();
    run.step(11, Input::Claims(ClaimInput::All(Vec::new())));
    run.step(12, Input::Claims(ClaimInput::Opened { attempt, store: store(1, 0) }));
    let a = run.viewed(20, vec![m("a", 1), m("b", 1), m("c", 1), m("me", 7)]);
    let q = asked(&a);
    grant(&mut run, 30, q, 5);
    let before = run.owned();
    run.viewed(1_000, vec![m("me", 7)]);
    assert!(run.machine.ownership().rebalancing_frozen());
    assert_eq!(run.owned(), before);
    if let Some((now, actions)) = pump(&mut run, 1_000, 60_000) {
        let asked = asked(&actions);
        let n = asked.1.len();
        grant(&mut run, now + 1, asked, 9);
        panic!(
            "stands still {}: asks for {n} at {now}, owns {} instead of {before}",
            run.machine.ownership().rebalancing_frozen(),
            run.owned()
        );
    }
}

#[test]
fn a_leaver_does_not_wait_for_what_it_held_before_a_fence() {
    let mut run = holding();
    run.step(8_810, Input::Woken);
    run.step(8_850, Input::Leave);
    run.registered(8_900, 8_810);
    let actions = run.step(8_910, Input::InFlightDone);
    assert!(actions.contains(&Action::Deregister), "{actions:?} wakes {:?}", run.machine.wake_at());
}

#[test]
fn a_store_that_is_not_accepted_shows_at_once() {
    let mut run = holding();
    let attempt = run.attempt;
    run.step(3_000, Input::Woken);
    run.step(3_010, Input::RecordLost { attempt: attempt + 1 });
    let attempt = opening(&run.registered(3_020, 3_010)).expect("asked");
    run.viewed(3_025, vec![shown("me", 7)]);
    opened(&mut run, 3_030, attempt, store(2, 0));
    assert_eq!(run.state(), ServiceState::Refused);
}
