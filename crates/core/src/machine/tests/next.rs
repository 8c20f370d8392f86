//! A policy with a `next`: the switch, the way back, and members that cannot follow.

use super::*;
use crate::{SlotOwners, SlotSet};

const OLD: PlacementParams =
    PlacementParams { kind: crate::PlacementKind::Ring, slots: 1_024, virtual_nodes: 64, load_margin: crate::LoadMargin::DEFAULT };
const NEXT: PlacementParams = PlacementParams { slots: 2_048, virtual_nodes: 32, ..OLD };

fn old() -> Policy {
    Policy { placement: OLD, ..policy() }
}

fn changing() -> Policy {
    Policy { next: Some(NEXT), ..old() }
}

fn done() -> Policy {
    Policy { placement: NEXT, ..policy() }
}

/// A member's record under that policy.
fn under(policy: &Policy, id: &str, incarnation: u64) -> Member {
    Member { fingerprints: policy.fingerprints(), ..member(id, incarnation) }
}

fn share(params: PlacementParams, members: &[&str], me: &str) -> SlotSet {
    let members = members.iter().map(|id| (InstanceId::new(*id).unwrap(), crate::Weight::ONE));
    SlotOwners::place(members, params).slots_of(&InstanceId::new(me).unwrap())
}

/// `me` under `policy`, active beside `a` and `b` under `others`.
fn beside(policy: Policy, others: &Policy) -> Run {
    let mine = under(&policy, "me", 7);
    let mut run = Run::with(policy);
    run.step(0, Input::Join);
    run.registered(10, 0);
    run.viewed(20, vec![under(others, "a", 1), under(others, "b", 2), mine]);
    run
}

fn rebalanced(actions: &[Action]) -> &Rebalance {
    let mut found = actions.iter().filter_map(|action| if let Action::Rebalanced(rebalance) = action { Some(rebalance) } else { None });
    let rebalance = found.next().unwrap();
    assert_eq!(found.next(), None, "{actions:?}");
    rebalance
}

fn published(actions: &[Action]) -> usize {
    actions.iter().filter(|action| matches!(action, Action::Publish(_))).count()
}

#[test]
fn the_view_in_which_the_last_member_lists_next_is_the_switch() {
    let mut run = beside(changing(), &old());
    assert_eq!((run.state(), run.machine.ownership().slots()), (ServiceState::Active, &share(OLD, &["a", "b", "me"], "me")));
    run.viewed(30, vec![under(&changing(), "a", 3), under(&old(), "b", 2), under(&changing(), "me", 7)]);
    let before = run.machine.ownership().slots().clone();
    assert_eq!(before, share(OLD, &["a", "b", "me"], "me"), "one lists the old alone");

    let computed = run.machine.placements_computed();
    let all = || vec![under(&changing(), "a", 3), under(&changing(), "b", 4), under(&changing(), "me", 7)];
    let actions = run.viewed(40, all());
    let after = share(NEXT, &["a", "b", "me"], "me");
    assert_eq!((run.state(), run.machine.ownership().slots()), (ServiceState::Active, &after));
    assert_eq!((published(&actions), run.machine.placements_computed()), (1, computed + 1));
    assert_eq!(run.machine.ownership().since(), at(20), "it was active all the time");
    let rebalance = rebalanced(&actions);
    assert_eq!((rebalance.cause, rebalance.slots_owned), (Cause::PolicyChanged, Some(after.len())));
    assert_eq!((&rebalance.gained, &rebalance.lost), (&after.minus(&before), &before.minus(&after)));

    for ms in (100..2_000).step_by(100) {
        run.step(ms, Input::Proven { at: at(ms) });
        let actions = run.viewed(ms + 50, all());
        assert_eq!(cause(&actions), None);
    }
    assert_eq!(run.machine.placements_computed(), computed + 1, "neither a heartbeat nor the same view again adds one");
}

/// The second rolling restart: `next` becomes the placement, and in the end no member lists the old one.
#[test]
fn removing_the_old_placement_changes_nothing() {
    let mut run = beside(changing(), &changing());
    let before = run.machine.ownership().slots().clone();
    let computed = run.machine.placements_computed();
    for (ms, a, b) in [(30, done(), changing()), (40, done(), done())] {
        let actions = run.viewed(ms, vec![under(&a, "a", ms), under(&b, "b", ms), under(&changing(), "me", 7)]);
        assert_eq!((run.state(), cause(&actions)), (ServiceState::Active, None));
    }
    assert_eq!((run.machine.ownership().slots(), run.machine.placements_computed()), (&before, computed));
    let mut last = beside(done(), &done());
    assert_eq!((last.machine.ownership().slots(), last.state()), (&before, ServiceState::Active));
    assert_eq!(cause(&last.viewed(30, vec![under(&done(), "a", 1), under(&changing(), "b", 9), under(&done(), "me", 7)])), None);
}

/// Half-way, and even after the switch: a member that lists only the old one reverts the group.
#[test]
fn the_way_back_is_the_same_way() {
    let mut run = beside(changing(), &changing());
    let next = run.machine.ownership().slots().clone();
    let actions = run.viewed(30, vec![under(&old(), "a", 3), under(&changing(), "b", 2), under(&changing(), "me", 7)]);
    assert_eq!(rebalanced(&actions).cause, Cause::PolicyChanged);
    assert_eq!(run.machine.ownership().slots(), &share(OLD, &["a", "b", "me"], "me"));
    assert_eq!(rebalanced(&actions).lost, next.minus(run.machine.ownership().slots()));
    let actions = run.viewed(40, vec![under(&old(), "a", 3), under(&old(), "b", 4), under(&changing(), "me", 7)]);
    assert_eq!((run.state(), cause(&actions)), (ServiceState::Active, None));
}

/// A crash half-way: the switch may happen because the last member that lists only the old placement is gone, and revert when it returns.
#[test]
fn a_member_that_dies_has_no_say_and_has_one_again_when_it_is_back() {
    let mut run = beside(changing(), &old());
    let actions = run.viewed(30, vec![under(&changing(), "a", 3), under(&changing(), "me", 7)]);
    assert_eq!(rebalanced(&actions).cause, Cause::PolicyChanged);
    assert_eq!(run.machine.ownership().slots(), &share(NEXT, &["a", "me"], "me"));
    let actions = run.viewed(40, vec![under(&changing(), "a", 3), under(&old(), "b", 5), under(&changing(), "me", 7)]);
    assert_eq!(rebalanced(&actions).cause, Cause::PolicyChanged);
    assert_eq!(run.machine.ownership().slots(), &share(OLD, &["a", "b", "me"], "me"));
}

#[test]
fn who_cannot_serve_what_the_group_serves_is_refused_and_both_are_named() {
    let run = beside(old(), &done());
    let group = done().fingerprint();
    let refusal = run.machine.ownership().refusal().unwrap();
    assert_eq!((run.state(), run.owned()), (ServiceState::Refused, 0));
    assert_eq!(refusal, &MemberRefusal::OtherPolicy { mine: old().fingerprint(), next: None, group });
    let third = Policy { placement: PlacementParams { virtual_nodes: 7, ..OLD }, ..policy() };
    let run = beside(changing(), &third);
    let reason = run.machine.ownership().refusal().unwrap().to_string();
    for named in [old().fingerprint(), done().fingerprint(), third.fingerprint()] {
        assert!(reason.contains(&named.to_string()), "{reason}");
    }
    let sides = ["this worker has fingerprint ", ", and with next ", "the members of the group serve "];
    assert!(sides.iter().all(|side| reason.contains(side)), "{reason}");
    // The draining record of a member that lists only the old placement still counts.
    let mut run = beside(changing(), &changing());
    let draining = Member { state: MemberState::Draining, ..under(&old(), "b", 2) };
    run.viewed(30, vec![under(&changing(), "a", 1), draining, under(&changing(), "me", 7)]);
    assert_eq!(run.machine.ownership().slots(), &share(OLD, &["a", "me"], "me"));
}

#[test]
fn a_gate_that_opens_after_the_switch_opens_to_the_new_placement() {
    let gated = |policy: Policy| Policy { min_members: 3, ..policy };
    let mut run = beside(gated(changing()), &gated(old()));
    run.viewed(30, vec![under(&gated(changing()), "a", 3), under(&gated(changing()), "me", 7)]);
    assert_eq!((run.state(), run.owned()), (ServiceState::Active, 0));
    assert_eq!(run.machine.ownership().slots().slots(), NEXT.slots, "it tells the new ring while nobody owns");
    let all = vec![under(&gated(changing()), "a", 3), under(&gated(changing()), "b", 4), under(&gated(changing()), "me", 7)];
    let actions = run.viewed(40, all);
    assert_eq!(rebalanced(&actions).cause, Cause::MemberGate);
    assert_eq!(run.machine.ownership().slots(), &share(NEXT, &["a", "b", "me"], "me"));
    assert_eq!((&rebalanced(&actions).gained, rebalanced(&actions).lost.len()), (run.machine.ownership().slots(), 0));
}

/// A switch that moves nothing of this member triggers no listener, so the snapshot must show it.
#[test]
fn a_switch_that_moves_nothing_is_seen_all_the_same() {
    let [wide, wider] = ["0.5", "0.6"].map(|margin| PlacementParams { load_margin: crate::LoadMargin::parse(margin).unwrap(), ..OLD });
    let old = || Policy { placement: wide, ..policy() };
    let changing = Policy { next: Some(wider), ..old() };
    let mut run = beside(changing.clone(), &old());
    let served = |run: &Run| run.machine.ownership().policy_fingerprint();
    assert_eq!(served(&run), Some(old().fingerprint()));
    let all = |a: &Policy, ms| vec![under(a, "a", ms), under(&changing, "b", ms), under(&changing, "me", 7)];
    run.viewed(30, all(&old(), 3));
    let actions = run.viewed(40, all(&changing, 4));
    assert_eq!((cause(&actions), published(&actions)), (None, 1));
    assert_eq!(served(&run), changing.fingerprints().get(1).copied());
    run.viewed(50, vec![under(&done(), "a", 5), under(&done(), "b", 5), under(&changing, "me", 7)]);
    assert_eq!((run.state(), served(&run)), (ServiceState::Refused, changing.fingerprints().get(1).copied()), "the last that it served");
}
