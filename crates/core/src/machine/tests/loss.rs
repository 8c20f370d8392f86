//! `max_loss`: if too many members vanish at once, their slots are not taken over.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::{Loss, MaxLoss, Missing, SlotSet, Weight};

const MINE: &str = "me";
const OTHERS: [&str; 3] = ["a", "b", "c"];

fn guarded(percent: u32) -> Policy {
    Policy { max_loss: MaxLoss::percent(percent), ..policy() }
}

fn group(others: &[&str]) -> Vec<Member> {
    others.iter().map(|id| member(id, 1)).chain([member(MINE, 7)]).collect()
}

fn missing(ids: &[&str]) -> Vec<Missing> {
    ids.iter().map(|id| Missing { instance_id: InstanceId::new(*id).unwrap(), weight: Weight::ONE }).collect()
}

fn listing_missing(id: &str, ids: &[&str]) -> Member {
    Member { loss: Some(Loss::Missing(missing(ids))), ..member(id, 1) }
}

fn draining(id: &str) -> Member {
    Member { state: MemberState::Draining, ..member(id, 1) }
}

/// Active among four since 20 ms.
fn among_four(policy: Policy) -> Run {
    let mut run = Run::with(policy);
    run.step(0, Input::Join);
    run.registered(10, 0);
    run.viewed(20, group(&OTHERS));
    run
}

fn rebalancing_frozen(run: &Run) -> bool {
    run.machine.ownership().rebalancing_frozen()
}

fn marked_missing(actions: &[Action]) -> Option<Vec<Missing>> {
    actions.iter().find_map(|action| if let Action::MarkLoss(missing) = action { Some(missing.clone()) } else { None })
}

#[test]
fn half_may_vanish_and_more_may_not() {
    let mut run = among_four(guarded(50));
    let quarter = run.owned();
    run.viewed(1_000, group(&["a"]));
    assert!(!rebalancing_frozen(&run) && run.owned() > quarter, "what two of four had is taken over");
    // Three of four vanished within one TTL: all of them keep their share from now on.
    let actions = run.viewed(1_100, group(&[]));
    assert_eq!((run.state(), rebalancing_frozen(&run), run.owned()), (ServiceState::Active, true, quarter));
    assert_eq!(marked_missing(&actions), Some(missing(&OTHERS)));
}

#[test]
fn without_the_setting_everything_is_taken_over() {
    let mut run = among_four(policy());
    run.viewed(1_000, group(&[]));
    assert_eq!((rebalancing_frozen(&run), run.owned()), (false, crate::SLOTS_DEFAULT));
}

#[test]
fn what_others_list_counts_with_and_without_the_setting_and_for_newcomers() {
    for policy in [guarded(50), policy()] {
        let mut run = Run::with(policy);
        run.step(0, Input::Join);
        run.registered(10, 0);
        run.viewed(20, vec![listing_missing("a", &["b", "c"]), member(MINE, 7)]);
        let share = run.owned();
        assert_eq!((run.state(), rebalancing_frozen(&run)), (ServiceState::Active, true));
        assert!((3_000..5_000).contains(&share), "a quarter of 16,384, not {share}");
        run.viewed(40, group(&["a"]));
        assert!(!rebalancing_frozen(&run) && run.owned() > share);
    }
}

#[test]
fn losses_further_apart_than_a_ttl_are_not_one() {
    let mut run = among_four(guarded(50));
    run.viewed(1_000, group(&["a"]));
    for ms in [3_000, 6_000] {
        run.step(ms, Input::Woken);
        run.renewed(ms + 10, ms);
    }
    run.viewed(10_100, group(&["a"]));
    run.viewed(10_200, group(&[]));
    assert_eq!((rebalancing_frozen(&run), run.owned()), (false, crate::SLOTS_DEFAULT));
}

#[test]
fn a_member_that_drains_has_not_vanished_however_many_they_are() {
    let ids: Vec<String> = (0..100).map(|i| format!("w{i:03}")).collect();
    let left = |from: usize| ids[from..].iter().map(|id| member(id, 1)).chain([member(MINE, 7)]);
    let mut run = Run::with(guarded(50));
    run.step(0, Input::Join);
    run.registered(10, 0);
    run.viewed(20, left(0).collect());
    for (gone, id) in ids.iter().enumerate().take(90) {
        let ms = 100 + 20 * gone as u64;
        run.viewed(ms, left(gone + 1).chain([draining(id)]).collect());
        run.viewed(ms + 5, left(gone + 1).collect());
    }
    assert!(!rebalancing_frozen(&run), "everybody drained");
}

#[test]
fn it_ends_when_enough_are_back_under_whatever_name() {
    let mut run = among_four(guarded(50));
    let before = run.owned();
    run.viewed(1_000, group(&[]));
    assert_eq!((rebalancing_frozen(&run), run.owned()), (true, before));
    let actions = run.viewed(3_000, vec![member("c", 99), member(MINE, 7)]);
    assert!(!rebalancing_frozen(&run) && run.owned() > before, "two of four are enough");
    assert_eq!(marked_missing(&actions), Some(vec![]));
    run.viewed(4_000, group(&[]));
    let mut other = among_four(guarded(50));
    other.viewed(1_000, group(&[]));
    other.viewed(3_000, vec![member("new-1", 1), member(MINE, 7)]);
    assert!(!rebalancing_frozen(&other), "a restarted worker may have another id");
}

#[test]
fn an_operators_word_ends_it() {
    let mut run = among_four(guarded(50));
    run.viewed(1_000, group(&[]));
    assert!(rebalancing_frozen(&run));
    let operator = Member { loss: Some(Loss::Confirmed), ..draining("operator") };
    let actions = run.viewed(2_000, vec![operator, member(MINE, 7)]);
    assert_eq!((rebalancing_frozen(&run), run.owned(), marked_missing(&actions)), (false, crate::SLOTS_DEFAULT, Some(vec![])));
    run.viewed(3_000, group(&[]));
    assert!(!rebalancing_frozen(&run), "what was confirmed does not come up again");
}

#[test]
fn min_members_counts_who_is_there() {
    let mut run = Run::with(Policy { min_members: 3, ..guarded(50) });
    run.step(0, Input::Join);
    run.registered(10, 0);
    let serving = |id: &str, incarnation| Member { fingerprints: run.machine.policy.fingerprints(), ..member(id, incarnation) };
    let (all, alone) = (["a", "b", "c"].map(|id| serving(id, 1)), serving(MINE, 7));
    run.viewed(20, all.into_iter().chain([alone.clone()]).collect());
    assert!(run.owned() > 0);
    run.viewed(1_000, vec![alone]);
    assert_eq!(run.owned(), 0);
}

#[test]
fn after_an_absence_of_its_own_nothing_is_known() {
    let mut run = among_four(guarded(50));
    run.step(3_000, Input::Woken);
    let attempt = run.attempt;
    run.step(3_010, Input::RecordLost { attempt });
    run.registered(3_020, 3_015);
    run.viewed(3_030, group(&[]));
    assert_eq!((run.state(), rebalancing_frozen(&run)), (ServiceState::Active, false));
}

/// `me` drains among the others.
fn shown_draining() -> Vec<Member> {
    OTHERS.iter().map(|id| member(id, 1)).chain([Member { state: MemberState::Draining, ..member(MINE, 7) }]).collect()
}

/// Readers only see the newest view: when a leaver was shown for 250 ms, a reader that looked away for longer saw a death.
#[test]
fn a_leaver_stays_until_the_others_have_seen_it_drain_even_if_they_rest_for_a_third_of_the_ttl() {
    let mut run = among_four(guarded(50));
    run.step(1_000, Input::Leave);
    assert!(!run.step(1_001, Input::InFlightDone).contains(&Action::Deregister));
    assert!(!run.viewed(1_010, shown_draining()).contains(&Action::Deregister));
    run.step(3_000, Input::Woken);
    assert_eq!(run.renewed(3_001, 3_000), []);
    run.viewed(3_500, shown_draining());
    assert_eq!(run.machine.wake_at(), Some(at(4_010)), "the first view counts");
    assert!(run.step(4_010, Input::Woken).contains(&Action::Deregister));
    // Cut off from the backend it does not wait for ever.
    let mut cut_off = among_four(guarded(50));
    cut_off.step(1_000, Input::Leave);
    cut_off.step(1_001, Input::InFlightDone);
    assert!(cut_off.step(10_000, Input::Woken).contains(&Action::Deregister));
}

/// Regression: the record may appear as active, and was deleted at once.
#[test]
fn a_leaver_waits_for_its_registration_and_until_the_others_have_seen_it_drain() {
    let leaving = || {
        let mut run = Run::with(guarded(50));
        run.step(0, Input::Join);
        run.step(10, Input::Leave);
        assert!(!run.step(11, Input::InFlightDone).contains(&Action::Deregister), "its registration is on its way");
        assert_eq!(run.machine.wake_at(), Some(at(1_010)), "for a second");
        run
    };
    let mut run = leaving();
    let actions = run.registered(500, 5);
    assert!(actions.contains(&Action::MarkDraining) && !actions.contains(&Action::Deregister));
    assert!(!run.viewed(510, group(&OTHERS)).contains(&Action::Deregister), "the view is older than the mark");
    assert!(!run.viewed(600, shown_draining()).contains(&Action::Deregister));
    run.step(3_000, Input::Woken);
    run.renewed(3_001, 3_000);
    assert!(!run.step(3_590, Input::Woken).contains(&Action::Deregister));
    assert!(run.step(3_600, Input::Woken).contains(&Action::Deregister));

    // A mark that is never shown delays it no longer than a TTL.
    let mut unseen = leaving();
    unseen.registered(500, 5);
    assert!(!unseen.step(9_004, Input::Woken).contains(&Action::Deregister));
    assert!(unseen.step(9_005, Input::Woken).contains(&Action::Deregister));

    let no_record: [fn(&mut Run) -> Vec<Action>; 4] = [
        |run| run.failed(500, OpFailure::Retryable),
        |run| run.failed(500, OpFailure::Permanent { message: "no".into() }),
        |run| {
            let attempt = run.attempt;
            run.step(500, Input::RecordLost { attempt })
        },
        |run| {
            let attempt = run.attempt;
            run.step(500, Input::Registered { attempt, started: at(0), ttl: Duration::from_millis(400) })
        },
    ];
    for end in no_record {
        assert!(end(&mut leaving()).contains(&Action::Deregister), "there is no record to be shown");
    }
    assert!(leaving().step(1_010, Input::Woken).contains(&Action::Deregister), "a backend that is silent");
}

#[test]
fn a_leaver_whose_record_is_lost_has_nothing_to_show() {
    let mut run = among_four(guarded(50));
    run.step(1_000, Input::Leave);
    run.step(1_001, Input::InFlightDone);
    run.step(3_000, Input::Woken);
    let attempt = run.attempt;
    assert!(run.step(3_010, Input::RecordLost { attempt }).contains(&Action::Deregister));
}

/// Whatever each member has seen, once the records list the missing members all have the same placement.
#[test]
fn members_whose_pasts_differ_agree() {
    let ids: Vec<String> = (0..8).map(|i| format!("w{i}")).collect();
    let fleet = |n: usize| ids[..n].iter().map(|id| member(id, 1)).collect::<Vec<_>>();
    let mut runs: Vec<Run> = ids[..5].iter().map(|id| Run::of(id, guarded(30))).collect();
    let mut marks = vec![None; 5];
    for (i, run) in runs.iter_mut().enumerate() {
        run.viewed(20, fleet(8));
        if i % 2 == 1 {
            // One member sees the first death in a separate view.
            run.viewed(1_000, fleet(7));
        }
        marks[i] = marked_missing(&run.viewed(1_100, fleet(5)));
    }
    let marked = |i: usize| Member { loss: marks[i].clone().map(Loss::Missing), ..member(&ids[i], 1) };
    let mut owned = SlotSet::empty(crate::SLOTS_DEFAULT);
    for run in &mut runs {
        run.viewed(1_200, (0..5).map(marked).collect());
        assert!(rebalancing_frozen(run));
        let mine = run.machine.ownership().slots();
        assert!(owned.minus(mine) == owned, "a slot is owned twice");
        owned = owned.union(mine);
    }
    let share = f64::from(owned.len()) / f64::from(crate::SLOTS_DEFAULT);
    assert!((0.55..0.70).contains(&share), "five of eight own {share}");
}

/// Members with different pasts, with marks being written, at one view.
#[derive(Debug)]
struct Pending {
    /// The views of each before the common one, as bits of the members present.
    pasts: Vec<Vec<u16>>,
    /// How many of its marks have been written: none, some, or all.
    written: Vec<usize>,
}

const FLEET: usize = 10;
/// These members have machines and are present in every view.
const AWAKE: usize = 4;

fn small(max_loss: u32) -> Policy {
    let mut policy = guarded(max_loss);
    (policy.placement.slots, policy.placement.virtual_nodes) = (256, 16);
    policy
}

fn pending() -> impl Strategy<Value = Pending> {
    let pasts = vec(vec(any::<u16>(), 1..4), AWAKE);
    (pasts, vec(0usize..4, AWAKE)).prop_map(|(pasts, written)| Pending { pasts, written })
}

impl Pending {
    fn fleet(there: u16, marks: &[Option<Loss>]) -> Vec<Member> {
        let fingerprints = small(30).fingerprints();
        let with_mark = |i: usize| {
            let loss = marks.get(i).cloned().flatten();
            Member { loss, fingerprints: fingerprints.clone(), ..member(&format!("w{i}"), 1) }
        };
        (0..FLEET).filter(|i| *i < AWAKE || there >> i & 1 == 1).map(with_mark).collect()
    }

    /// Each with its past, and the marks in the records by then.
    fn begun(&self) -> (Vec<Run>, Vec<Option<Loss>>) {
        let begin = |(i, (past, written)): (usize, (&Vec<u16>, &usize))| {
            let mut run = Run::of(&format!("w{i}"), small(30));
            let mut marks = vec![None];
            run.viewed(20, Self::fleet(u16::MAX, &[]));
            for (ms, there) in (1_000..).step_by(100).zip(past) {
                let wanted = marked_missing(&run.viewed(ms, Self::fleet(*there, &[])));
                marks.extend(wanted.map(|missing| (!missing.is_empty()).then_some(Loss::Missing(missing))));
            }
            (run, marks[*written.min(&(marks.len() - 1))].clone())
        };
        self.pasts.iter().zip(&self.written).enumerate().map(begin).unzip()
    }
}

proptest! {
    /// Whichever of their marks are written, even none: at one view no slot has two owners.
    #[test]
    fn marks_on_their_way_give_no_slot_two_owners(pending in pending(), there in any::<u16>()) {
        let (mut runs, marks) = pending.begun();
        let mut owned = SlotSet::empty(256);
        for run in &mut runs {
            run.viewed(2_000, Pending::fleet(there, &marks));
            prop_assert_eq!(run.state(), ServiceState::Active);
            let mine = run.machine.ownership().slots();
            prop_assert_eq!(owned.intersection(mine).len(), 0, "owned twice with the marks {:?}", marks);
            owned = owned.union(mine);
        }
    }
}

#[test]
fn no_member_takes_over_while_the_mark_is_on_its_way_nor_by_a_mark_that_is_to_go() {
    let mut run = among_four(guarded(50));
    let before = run.machine.ownership().slots().clone();
    run.viewed(1_000, group(&[]));
    assert_eq!((rebalancing_frozen(&run), run.machine.ownership().slots()), (true, &before), "the others may go by a view without it");
    let marked = Member { loss: Some(Loss::Missing(missing(&OTHERS))), ..member(MINE, 7) };
    run.viewed(1_100, vec![marked.clone()]);
    assert_eq!((rebalancing_frozen(&run), run.machine.ownership().slots()), (true, &before));
    // Two are back: the mark should go, and until it does the others act on it.
    let computed = run.machine.placements_computed();
    run.viewed(3_000, vec![member("b", 1), member("c", 1), marked]);
    assert!(rebalancing_frozen(&run) && run.machine.ownership().slots().minus(&before).is_empty());
    run.viewed(3_100, group(&["b", "c"]));
    assert!(!rebalancing_frozen(&run) && run.owned() > before.len());
    run.step(3_200, Input::Proven { at: at(3_200) });
    assert_eq!(run.machine.placements_computed(), computed + 2, "each once");
}

/// The ids that a record lists when all other members of a fleet, with these ids, vanish.
fn listed_of(ids: &[String]) -> Vec<String> {
    let mut run = Run::with(guarded(50));
    run.step(0, Input::Join);
    run.registered(10, 0);
    run.viewed(20, ids.iter().map(|id| member(id, 1)).chain([member(MINE, 7)]).collect());
    let listed = marked_missing(&run.viewed(1_000, group(&[]))).unwrap();
    assert!(rebalancing_frozen(&run));
    listed.iter().map(|missing| missing.instance_id.as_str().to_owned()).collect()
}

/// Whatever the ids are, and JSON needs six bytes for some characters: the list fits into every backend's record.
#[test]
fn a_record_lists_the_smallest_ids_as_far_as_there_is_room() {
    let ids = |pad: &str, width: usize| (0..140).map(|i| format!("{i:03}{}", pad.repeat(width))).collect::<Vec<_>>();
    for (pad, width, listed) in [("x", 1, 128), ("x", 212, 38), ("\u{1}", 212, 6), ("\"", 100, 40)] {
        let ids = ids(pad, width);
        assert_eq!(listed_of(&ids), ids[..listed], "{listed} of 140 ids of {} bytes", ids[0].len());
    }
}

#[test]
fn a_new_record_says_nothing_of_the_past() {
    let mut run = among_four(guarded(50));
    assert!(marked_missing(&run.viewed(1_000, group(&[]))).is_some());
    run.step(3_000, Input::Woken);
    let attempt = run.attempt;
    run.step(3_010, Input::RecordLost { attempt });
    assert_eq!(marked_missing(&run.registered(3_020, 3_015)), None, "it was made without a mark");
    assert_eq!(marked_missing(&run.viewed(3_030, group(&[]))), None);
    assert!(!rebalancing_frozen(&run));
}

#[test]
fn a_member_that_came_back_and_then_left_in_good_order_is_not_missing() {
    let ids: Vec<String> = (0..9).map(|i| format!("w{i}")).collect();
    let from = |first: usize| ids[first..].iter().map(|id| member(id, 1)).chain([member(MINE, 7)]).collect::<Vec<_>>();
    let mut run = Run::with(guarded(30));
    run.step(0, Input::Join);
    run.registered(10, 0);
    run.viewed(20, from(0));
    assert_eq!(marked_missing(&run.viewed(1_000, from(6))).unwrap().len(), 6);
    let still = missing(&["w0", "w1", "w2", "w3", "w4"]);
    assert_eq!(marked_missing(&run.viewed(1_500, from(5))), Some(still), "one of six is back");
    run.viewed(2_000, from(6).into_iter().chain([draining("w5")]).collect());
    assert_eq!(marked_missing(&run.viewed(2_300, from(6))), None);
    assert!(rebalancing_frozen(&run));
}

#[test]
fn a_member_that_never_had_a_share_gets_none_by_dying() {
    let refused = |id: &str| Member { fingerprints: vec![crate::Fingerprint::of("another policy")], ..member(id, 1) };
    let mut run = Run::with(guarded(30));
    run.step(0, Input::Join);
    run.registered(10, 0);
    run.viewed(20, group(&["a", "b"]).into_iter().chain([refused("x"), refused("y")]).collect());
    let before = run.owned();
    assert_eq!(marked_missing(&run.viewed(1_000, group(&["a", "b"]))), None);
    assert_eq!((rebalancing_frozen(&run), run.owned()), (false, before));
    // Nor do they make a loss smaller: one of three is more than 30 %.
    let mut beside = Run::with(guarded(30));
    beside.step(0, Input::Join);
    beside.registered(10, 0);
    beside.viewed(20, group(&["a", "b"]).into_iter().chain([refused("x"), refused("y")]).collect());
    let actions = beside.viewed(1_000, group(&["a"]).into_iter().chain([refused("x"), refused("y")]).collect());
    assert_eq!(marked_missing(&actions), Some(missing(&["b"])));
}
