//! `max_loss`: too many vanish at once, everybody stands still.

use super::*;
use crate::{LossMark, MaxLoss};

const MINE: &str = "me";
const OTHERS: [&str; 3] = ["a", "b", "c"];

fn guarded() -> Policy {
    Policy { max_loss: MaxLoss::percent(50), ..policy() }
}

fn group(others: &[&str]) -> Vec<Member> {
    others.iter().map(|id| member(id, 1)).chain([member(MINE, 7)]).collect()
}

fn marked(id: &str, loss: LossMark) -> Member {
    Member { loss: Some(loss), ..member(id, 1) }
}

/// Active among four since 20 ms.
fn among_four(policy: Policy) -> Run {
    let mut run = Run::with(policy);
    run.step(0, Input::Join);
    run.registered(10, 0);
    run.viewed(20, group(&OTHERS));
    run
}

fn stands_still(run: &Run) -> bool {
    run.machine.ownership().stands_still()
}

#[test]
fn half_may_vanish_and_more_may_not() {
    let mut run = among_four(guarded());
    let quarter = run.owned();
    run.viewed(1_000, group(&["a"]));
    assert!(!stands_still(&run) && run.owned() > quarter, "two of four are taken over");
    let half = run.owned();
    // Three of the four of one TTL ago.
    let actions = run.viewed(1_100, group(&[]));
    assert!(stands_still(&run) && actions.contains(&Action::MarkLoss(true)));
    assert_eq!((run.state(), run.owned(), cause(&actions)), (ServiceState::Active, half, None));
}

#[test]
fn without_the_setting_everything_is_taken_over() {
    let mut run = among_four(policy());
    run.viewed(1_000, group(&[]));
    assert_eq!((stands_still(&run), run.owned()), (false, crate::SLOTS_DEFAULT));
}

#[test]
fn losses_further_apart_than_a_ttl_are_not_one() {
    let mut run = among_four(guarded());
    run.viewed(1_000, group(&["a"]));
    run.step(3_000, Input::Woken);
    run.renewed(3_010, 3_000);
    run.step(6_000, Input::Woken);
    run.renewed(6_010, 6_000);
    run.viewed(10_100, group(&["a"]));
    run.viewed(10_200, group(&[]));
    assert_eq!((stands_still(&run), run.owned()), (false, crate::SLOTS_DEFAULT));
}

#[test]
fn whoever_drains_has_not_vanished() {
    let mut run = among_four(guarded());
    let draining = |id: &str| Member { state: MemberState::Draining, ..member(id, 1) };
    run.viewed(1_000, vec![draining("a"), draining("b"), draining("c"), member(MINE, 7)]);
    run.viewed(1_100, group(&[]));
    assert_eq!((stands_still(&run), run.owned()), (false, crate::SLOTS_DEFAULT));
}

#[test]
fn it_ends_when_enough_are_back_under_whatever_incarnation() {
    let mut run = among_four(guarded());
    let before = run.owned();
    run.viewed(1_000, group(&[]));
    assert_eq!((stands_still(&run), run.owned()), (true, before));
    run.viewed(2_000, vec![member("z", 1), member(MINE, 7)]);
    assert_eq!((stands_still(&run), run.owned()), (true, before), "a stranger is not one of the missing");
    let actions = run.viewed(3_000, vec![member("c", 99), member("z", 1), member(MINE, 7)]);
    assert!(!stands_still(&run) && actions.contains(&Action::MarkLoss(false)) && run.owned() > before);
}

#[test]
fn an_operators_word_ends_it() {
    let mut run = among_four(guarded());
    run.viewed(1_000, group(&[]));
    assert!(stands_still(&run));
    let operator = Member { state: MemberState::Draining, ..marked("operator", LossMark::Confirmed) };
    let actions = run.viewed(2_000, vec![operator, member(MINE, 7)]);
    assert!(!stands_still(&run) && actions.contains(&Action::MarkLoss(false)));
    assert_eq!(run.owned(), crate::SLOTS_DEFAULT);
    run.viewed(3_000, group(&[]));
    assert!(!stands_still(&run), "what was confirmed does not come up again");
}

#[test]
fn a_newcomer_owns_nothing_while_others_stand_still() {
    let mut run = Run::with(guarded());
    run.step(0, Input::Join);
    run.registered(10, 0);
    run.viewed(20, vec![marked("a", LossMark::Seen), member(MINE, 7)]);
    assert_eq!((run.state(), stands_still(&run), run.owned()), (ServiceState::Active, true, 0));
    let why = run.machine.ownership().not_owning_at(at(30)).unwrap();
    assert!(why.hint.contains("max_loss"), "{}", why.hint);
    run.viewed(40, group(&["a"]));
    assert!(!stands_still(&run) && run.owned() > 0);
}

#[test]
fn whoever_saw_the_loss_in_smaller_steps_does_as_the_others() {
    let mut run = among_four(guarded());
    run.viewed(1_000, group(&["a", "b"]));
    let before = run.owned();
    run.viewed(1_100, vec![marked("a", LossMark::Seen), member(MINE, 7)]);
    assert_eq!((stands_still(&run), run.owned()), (true, before));
}

#[test]
fn after_an_absence_of_its_own_nothing_can_be_told() {
    let mut run = among_four(guarded());
    let attempt = {
        run.step(3_000, Input::Woken);
        run.attempt
    };
    run.step(3_010, Input::RecordLost { attempt });
    run.registered(3_020, 3_015);
    run.viewed(3_030, group(&[]));
    assert_eq!((run.state(), stands_still(&run)), (ServiceState::Active, false));
}
