//! Members under a key placement, together with instances of another fleet.

use super::*;
use crate::{KeyOwners, KeyPlacement, KeyShare, PlacementKind, SlotOwners, TooManyPoints, Weight};

fn params(placement: KeyPlacement) -> PlacementParams {
    PlacementParams { kind: PlacementKind::Key(placement), virtual_nodes: 16, ..PlacementParams::default() }
}

fn by(placement: KeyPlacement) -> Policy {
    Policy { placement: params(placement), ..policy() }
}

/// A member without fingerprints.
fn member(id: &str, incarnation: u64) -> Member {
    Member { fingerprints: Vec::new(), ..super::member(id, incarnation) }
}

fn ids(names: &[&str]) -> Vec<InstanceId> {
    names.iter().map(|name| InstanceId::new(*name).unwrap()).collect()
}

fn joined(policy: Policy) -> Run {
    let mut run = Run::with(policy);
    run.step(0, Input::Join);
    run.registered(10, 0);
    run
}

impl Run {
    fn viewed_beside(&mut self, ms: u64, members: Vec<Member>, foreign: &[&str]) -> Vec<Action> {
        let view = Arc::new(View::new(ms, members).with_foreign(ids(foreign)));
        self.step(ms, Input::Viewed { view, proven: at(ms) })
    }

    fn owns(&self, key: u32, ms: u64) -> bool {
        self.machine.ownership().owns_at(&key, at(ms))
    }
}

fn rebalance(actions: &[Action]) -> Option<&Rebalance> {
    actions.iter().find_map(|action| if let Action::Rebalanced(rebalance) = action { Some(rebalance) } else { None })
}

fn owners(placement: KeyPlacement, names: &[&str]) -> KeyOwners {
    KeyOwners::place(ids(names).into_iter().map(|id| (id, Weight::ONE)), placement, 16).unwrap()
}

#[test]
fn each_key_is_owned_as_the_other_fleet_reckons_and_never_past_the_deadline() {
    for placement in [KeyPlacement::Uhashring, KeyPlacement::Modulo, KeyPlacement::Hashring] {
        let mut run = joined(by(placement));
        assert_eq!((run.machine.ownership().slots_owned(), run.machine.ownership().keys()), (None, Some(&KeyShare::nothing())));
        let draining = Member { state: MemberState::Draining, ..member("b", 2) };
        let actions = run.viewed_beside(20, vec![member("me", 7), draining], &["z", "a"]);
        let placed = owners(placement, &["a", "b", "me", "z"]);
        let mine = |key: &u32| placed.owner(key).unwrap().as_str() == "me";
        assert!((0..1_000).all(|key| run.owns(key, 30) == mine(&key)), "{placement}");
        let seen = rebalance(&actions).unwrap();
        assert_eq!((seen.cause, seen.slots_owned, seen.gained.len(), seen.lost.len()), (Cause::Joined, None, 0, 0));
        assert!((0..1_000).all(|key| seen.gains(&key) == mine(&key) && !seen.loses(&key)), "{placement}");
        assert!(!(0..1_000).any(|key| run.owns(key, 9_900)), "past the deadline");

        let computed = run.machine.placements_computed();
        run.viewed_beside(40, vec![member("me", 7), Member { state: MemberState::Draining, ..member("b", 2) }], &["a", "z"]);
        assert_eq!(run.machine.placements_computed(), computed, "the same instances are placed once");
        run.step(9_900, Input::Woken);
        assert_eq!((run.state(), run.machine.ownership().keys()), (ServiceState::Fenced, Some(&KeyShare::nothing())));
    }
}

#[test]
fn a_foreign_instance_that_goes_gives_its_keys_to_the_others() {
    let mut run = joined(by(KeyPlacement::Uhashring));
    run.viewed_beside(20, vec![member("me", 7)], &["a", "b"]);
    let actions = run.viewed_beside(30, vec![member("me", 7)], &["a"]);
    let (before, after) = (owners(KeyPlacement::Uhashring, &["a", "b", "me"]), owners(KeyPlacement::Uhashring, &["a", "me"]));
    let mine = |owners: &KeyOwners, key: &u32| owners.owner(key).unwrap().as_str() == "me";
    let seen = rebalance(&actions).unwrap();
    assert_eq!(seen.cause, Cause::MembersChanged);
    for key in 0..1_000 {
        assert_eq!(run.owns(key, 40), mine(&after, &key));
        assert_eq!((seen.loses(&key), seen.gains(&key)), (false, mine(&after, &key) && !mine(&before, &key)));
    }
}

#[test]
fn changes_of_keys_merge_without_losing_a_gap() {
    let mut run = joined(by(KeyPlacement::Modulo));
    let fleets: [&[&str]; 4] = [&["a"], &["a", "b"], &["a", "b", "c"], &["a"]];
    let mut changes =
        (20..).zip(fleets).map(|(ms, foreign)| rebalance(&run.viewed_beside(ms, vec![member("me", 7)], foreign)).unwrap().clone());
    let first = changes.next().unwrap();
    let merged = changes.reduce(Rebalance::then).unwrap();
    let held: Vec<_> = fleets.iter().map(|foreign| owners(KeyPlacement::Modulo, &[*foreign, &["me"]].concat())).collect();
    for key in 0..1_000u32 {
        let mine: Vec<_> = held.iter().map(|owners| owners.owner(&key).unwrap().as_str() == "me").collect();
        let always = mine.iter().all(|mine| *mine);
        assert_eq!(first.gains(&key), mine[0]);
        assert_eq!((merged.loses(&key), merged.gains(&key)), (mine[0] && !always, mine[3] && !always), "{key} {mine:?}");
    }
}

#[test]
fn however_many_changes_merge_what_they_remember_stays_small_and_no_gap_is_forgotten() {
    let mut run = joined(by(KeyPlacement::Modulo));
    run.viewed_beside(20, vec![member("me", 7)], &["a"]);
    let fleets = (21..61).map(|ms| if ms % 2 == 0 { vec!["a"] } else { vec!["a", "b"] });
    let changes =
        (21..).zip(fleets).map(|(ms, foreign)| rebalance(&run.viewed_beside(ms, vec![member("me", 7)], &foreign)).unwrap().clone());
    let merged = changes.reduce(Rebalance::then).unwrap();
    assert!(merged.history.len() <= 8, "{}", merged.history.len());
    let placed = owners(KeyPlacement::Modulo, &["a", "me"]);
    for key in 0..100u32 {
        let mine = placed.owner(&key).unwrap().as_str() == "me";
        assert_eq!((merged.loses(&key), merged.gains(&key)), (mine, mine), "who forgets takes every key for lost meanwhile");
    }
}

#[test]
fn min_members_counts_members_and_no_foreign_instance() {
    let mut run = joined(Policy { min_members: 2, ..by(KeyPlacement::Uhashring) });
    run.viewed_beside(20, vec![member("me", 7)], &["a", "b", "c"]);
    assert!((run.state() == ServiceState::Active) && !(0..100).any(|key| run.owns(key, 30)));
    assert_eq!(run.machine.ownership().slots_owned(), None);
    run.viewed_beside(30, vec![member("me", 7), member("other", 8)], &[]);
    assert!((0..100).any(|key| run.owns(key, 40)));
}

/// Regression: it still reported a number of slots under the key placement, which has none.
#[test]
fn below_min_members_the_switch_to_a_key_placement_leaves_no_slots() {
    let ring = Policy { min_members: 2, next: Some(params(KeyPlacement::Modulo)), ..policy() };
    let under = |fingerprints: &[crate::Fingerprint], id: &str, incarnation| Member {
        fingerprints: fingerprints.to_vec(),
        ..member(id, incarnation)
    };
    let (old, both) = (ring.fingerprints()[..1].to_vec(), ring.fingerprints());
    let mut run = joined(ring);
    let seen = |run: &Run| (run.state(), run.machine.ownership().slots_owned(), run.machine.ownership().slots().slots());
    run.viewed(20, vec![under(&both, "me", 7), Member { state: MemberState::Draining, ..under(&old, "b", 8) }]);
    assert_eq!(seen(&run), (ServiceState::Active, Some(0), 16_384));
    let actions = run.viewed(30, vec![under(&both, "me", 7)]);
    assert_eq!((seen(&run), rebalance(&actions)), ((ServiceState::Active, None, 0), None));
    run.viewed(40, vec![under(&both, "me", 7), under(&old, "b", 9)]);
    assert_eq!(seen(&run).2, 16_384, "and back");
}

#[test]
fn more_points_than_can_be_kept_are_refused_and_fewer_are_taken_back() {
    let mut run = joined(Policy { placement: PlacementParams { virtual_nodes: 65_536, ..params(KeyPlacement::Hashring) }, ..policy() });
    let heavy = Member { weight: Weight::new(64).unwrap(), ..member("heavy", 8) };
    run.viewed_beside(20, vec![member("me", 7), heavy], &[]);
    let too_many = TooManyPoints { placement: KeyPlacement::Hashring, points: 65 * 65_536 };
    assert_eq!((run.state(), run.machine.ownership().refusal()), (ServiceState::Refused, Some(&MemberRefusal::TooManyPoints(too_many))));
    run.viewed_beside(30, vec![member("me", 7)], &[]);
    assert!(run.state() == ServiceState::Active && run.owns(1, 40));
}

#[test]
fn a_next_leads_from_another_fleets_rule_to_the_ring() {
    let ring = PlacementParams { virtual_nodes: 16, ..PlacementParams::default() };
    let changing = Policy { next: Some(ring), ..by(KeyPlacement::Uhashring) };
    let under = |policy: &Policy, id: &str, incarnation| Member { fingerprints: policy.fingerprints(), ..member(id, incarnation) };
    let mut run = joined(changing.clone());
    run.viewed_beside(20, vec![under(&changing, "me", 7), under(&by(KeyPlacement::Uhashring), "other", 8)], &["a"]);
    let before = owners(KeyPlacement::Uhashring, &["a", "me", "other"]);
    assert!((0..1_000).all(|key| run.owns(key, 30) == (before.owner(&key).unwrap().as_str() == "me")));
    let actions = run.viewed_beside(40, vec![under(&changing, "me", 7), under(&changing, "other", 9)], &[]);
    let after = SlotOwners::place(ids(&["me", "other"]).into_iter().map(|id| (id, Weight::ONE)), ring);
    let seen = rebalance(&actions).unwrap();
    assert_eq!((seen.cause, seen.slots_owned), (Cause::PolicyChanged, Some(after.slots_of(&ids(&["me"])[0]).len())));
    for key in 0..1_000u32 {
        let (was, is) = (before.owner(&key).unwrap().as_str() == "me", after.owner(&key).unwrap().as_str() == "me");
        assert_eq!(run.owns(key, 50), is);
        assert_eq!((seen.loses(&key), seen.gains(&key)), (was && !is, is && !was), "{key}");
    }
}
