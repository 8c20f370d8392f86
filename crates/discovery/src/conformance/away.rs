//! Clause 12: members that leave for a while.

use std::time::Duration;

use futures::StreamExt;
use shardwise_core::{Incarnation, MemberState, REJOIN_GRACE_MIN, View};

use super::{SOON, Scope, view_where};
use crate::{ErrorKind, RecordId, Registration, WatchEvent};

/// A rejoin grace that is not over before a case is.
const LONG: Duration = Duration::from_mins(1);
/// What a backend may add to a rejoin grace by rounding it up.
const ROUNDING: Duration = Duration::from_secs(1);

impl Scope {
    async fn stepped_away(&self, registration: &Registration, rejoin_grace: Duration) {
        self.backend.step_away(registration, rejoin_grace).await.unwrap_or_else(|error| panic!("stepping away: {error}"));
    }
}

/// Ids, incarnations and states.
fn states(view: &View) -> Vec<(String, u64, MemberState)> {
    view.members().iter().map(|m| (m.instance_id.as_str().to_owned(), m.incarnation.get(), m.state)).collect()
}

fn is_lost<T>(answer: crate::Result<T>) -> bool {
    answer.is_err_and(|error| *error.kind() == ErrorKind::Lost)
}

/// It is seen at once, lives without renewal for as long as was asked for, and then ends, which is reported. Its own former life neither
/// renews nor changes it, and stepping away again does not begin the time anew.
pub async fn clause_12_an_away_member_keeps_its_place_for_the_rejoin_grace(scope: &Scope) {
    let mut watch = scope.peer.watch(&scope.group, scope.ttl / 3);
    let mut a = scope.registration("a", 1);
    a.member.metadata.insert("team".into(), "orders".into());
    scope.backend.register(&a).await.expect("register");
    view_where(&mut watch, SOON, "a active", |view| view.active() == 1).await;
    // Half a second more than a whole number, so that rounding down is found.
    let rejoin_grace = REJOIN_GRACE_MIN + Duration::from_millis(500);
    let asked = scope.clock.now();
    scope.stepped_away(&a, rejoin_grace).await;
    let answered = scope.clock.now();
    let view = view_where(&mut watch, SOON, "a away", |view| view.members().iter().any(|a| a.state == MemberState::Away)).await;
    assert_eq!((view.members().len(), view.active()), (1, 0));
    assert_eq!(view.members()[0].metadata, a.member.metadata);
    assert_eq!(view.members()[0].serves, a.member.serves);
    let longest = rejoin_grace + ROUNDING + scope.backend.capabilities().margin + Duration::from_secs(1);
    view_where(&mut watch, longest, "nobody", |view| view.members().is_empty()).await;
    let gone = scope.clock.now();
    assert!(gone.since(asked) >= rejoin_grace, "gone after {:?} of {rejoin_grace:?}", gone.since(asked));
    assert!(gone.since(answered) < longest, "gone after {:?} of {rejoin_grace:?}", gone.since(answered));
    scope.expect_ids(&[], SOON).await;
    undisturbed(scope).await;
}

async fn undisturbed(scope: &Scope) {
    let b = scope.joined("b", 2).await;
    scope.stepped_away(&b, REJOIN_GRACE_MIN).await;
    let longest = REJOIN_GRACE_MIN + ROUNDING + scope.backend.capabilities().margin + Duration::from_secs(1);
    let begun = scope.clock.now();
    let disturbs = async || {
        assert!(is_lost(scope.backend.renew(&b.record_id(), b.ttl).await), "there is nothing to renew");
        assert!(is_lost(scope.backend.update(&b).await), "there is nothing to update");
    };
    disturbs().await;
    assert_eq!(states(&*scope.view().await), [("b".to_owned(), 2, MemberState::Away)]);
    while !scope.ids().await.is_empty() {
        disturbs().await;
        let again = scope.backend.step_away(&b, REJOIN_GRACE_MIN).await;
        assert!(again.is_ok() || is_lost(again), "it is away, or that is over");
        let since = scope.clock.now().since(begun);
        assert!(since < longest, "not gone after {since:?} of {REJOIN_GRACE_MIN:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// A watch that sees every change sees the id in each view exactly once, while others come and go.
pub async fn clause_12_stepping_away_and_returning_are_one_step(scope: &Scope) {
    let mut watch = scope.peer.watch(&scope.group, scope.ttl / 3);
    let mut a = scope.joined("a", 1).await;
    view_where(&mut watch, SOON, "a active", |view| view.active() == 1).await;
    let mut last = 1;
    for incarnation in 2..6 {
        let former = a.clone();
        a.member.incarnation = Incarnation::new(incarnation);
        // The watch is read meanwhile: a step in between would be seen.
        let leaving_and_coming = async {
            scope.stepped_away(&former, LONG).await;
            scope.backend.register(&a).await.unwrap_or_else(|error| panic!("coming back as {incarnation}: {error}"));
        };
        let back = async {
            while last != incarnation {
                let Some(event) = watch.next().await else { panic!("the watch ended") };
                let Ok(WatchEvent::View(snapshot)) = event else { continue };
                let seen = states(&snapshot.view);
                assert_eq!(seen.iter().map(|(id, ..)| id.as_str()).collect::<Vec<_>>(), ["a"], "once in each view");
                assert!(snapshot.view.duplicates().is_empty(), "{:?}", snapshot.view.duplicates());
                if seen[0].2 == MemberState::Active {
                    last = seen[0].1;
                }
            }
        };
        let ((), seen) = tokio::join!(leaving_and_coming, tokio::time::timeout(SOON, back));
        seen.unwrap_or_else(|_| panic!("incarnation {incarnation} is not seen"));
        assert_eq!(states(&*scope.view().await), [("a".to_owned(), incarnation, MemberState::Active)]);
    }
}

/// A member that comes in the place of one that is away has joined later than all that
/// are there, and stays so: the group works for what its oldest member works for.
pub async fn clause_12_the_replacement_of_an_away_member_has_joined_last(scope: &Scope) {
    let (mut a, b) = (scope.joined("a", 1).await, scope.joined("b", 2).await);
    let in_place = a.member.instance_id.clone();
    let is_last = async |what: &str| {
        let view = scope.view().await;
        let numbers: Vec<_> = [&in_place, &b.member.instance_id].map(|id| view.member(id).expect("it is there").joined).into();
        assert!(numbers[0] > numbers[1], "{what}: {numbers:?}");
    };
    scope.stepped_away(&a, LONG).await;
    a.member.incarnation = Incarnation::new(3);
    scope.backend.register(&a).await.expect("coming back");
    is_last("as it comes").await;
    a.member.metadata.insert("team".into(), "orders".into());
    scope.backend.update(&a).await.expect("update");
    is_last("after a change").await;
    scope.stepped_away(&a, LONG).await;
    is_last("away").await;
}

/// Many lives of the member that is away register at once: one gets the place, the others hear that it is taken.
pub async fn clause_12_of_many_that_return_one_wins(scope: &Scope) {
    let a = scope.joined("a", 1).await;
    scope.stepped_away(&a, LONG).await;
    let won = scope.race_for("a", 2..8).await;
    assert_eq!(states(&*scope.view().await), [("a".to_owned(), won, MemberState::Active)]);
}

/// Nothing of its absence is left once it is back, under whatever incarnation: the next death is a death.
pub async fn clause_12_a_member_that_returned_and_died_is_gone(scope: &Scope) {
    for (former, next) in [(1, 2), (3, 3)] {
        let a = scope.joined("a", former).await;
        scope.stepped_away(&a, LONG).await;
        let back = scope.joined_for("a", next, scope.ttl).await;
        scope.expect_ids(&[], scope.gone_within(back.ttl)).await;
    }
}

/// Stepping away fails for a member that is not registered, is dead, or is another incarnation.
pub async fn clause_12_only_a_living_record_steps_away(scope: &Scope) {
    assert!(is_lost(scope.backend.step_away(&scope.registration("b", 1), LONG).await), "it was never there");
    scope.joined("a", 1).await;
    assert!(is_lost(scope.backend.step_away(&scope.registration("a", 2), LONG).await), "it is another life's record");
    assert_eq!(states(&*scope.view().await), [("a".to_owned(), 1, MemberState::Active)]);
    let dead = scope.joined_for("c", 1, scope.ttl).await;
    scope.expect_ids(&["a"], scope.gone_within(dead.ttl)).await;
    assert!(is_lost(scope.backend.step_away(&dead, LONG).await), "it has expired");
    assert_eq!(scope.ids().await, ["a"]);
}

/// Deregistering ends an absence, for its own life alone.
pub async fn clause_12_an_away_member_can_be_removed(scope: &Scope) {
    let a = scope.joined("a", 1).await;
    scope.stepped_away(&a, LONG).await;
    scope.backend.deregister(&scope.registration("a", 2).record_id()).await.expect("another life's is no error");
    assert_eq!(scope.ids().await, ["a"]);
    scope.backend.deregister(&a.record_id()).await.expect("deregister");
    scope.expect_ids(&[], SOON).await;
    // Another member can do so too, with only what the group shows of the record.
    let b = scope.joined("b", 3).await;
    scope.stepped_away(&b, LONG).await;
    let view = scope.view().await;
    let [seen] = view.members() else { panic!("b alone is away: {view:?}") };
    let (group, instance_id, incarnation) = (scope.group.clone(), seen.instance_id.clone(), seen.incarnation);
    scope.peer.deregister(&RecordId { group, instance_id, incarnation }).await.expect("deregister");
    scope.expect_ids(&[], SOON).await;
}
