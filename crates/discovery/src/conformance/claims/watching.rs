//! Clause 6: what a watch delivers.

use futures::StreamExt;

use super::{ReaderTable, claims, slots};
use crate::ClaimsEvent;
use crate::conformance::{SOON, Scope};

/// A new follower learns of every claim, and of nothing else.
pub async fn claims_06_the_watch_begins_with_everything(scope: &Scope) {
    let (a, b) = (scope.claimant("a", 1).await, scope.claimant("b", 2).await);
    let _alive = scope.keep_alive(&[&a, &b]);
    assert!(scope.read().await.is_empty(), "nothing is held yet, and the watch says so");
    scope.granted(&a.record_id(), &slots(0..150)).await;
    let gone = scope.granted(&b.record_id(), &slots(150..300)).await;
    scope.release(&b.record_id(), &gone).await;
    assert_eq!(scope.read().await.into_keys().collect::<Vec<_>>(), slots(0..150));
}

/// Slots go to and fro while a follower watches: in the end it knows the present state.
pub async fn claims_06_no_change_is_lost(scope: &Scope) {
    let (a, b) = (scope.claimant("a", 1).await, scope.claimant("b", 2).await);
    let mut stream = claims(&*scope.peer).watch_claims(&scope.group, scope.ttl / 2);
    let mut table = ReaderTable::default();
    let _alive = scope.keep_alive(&[&a, &b]);
    for round in 0..10u32 {
        let (giver, taker) = if round % 2 == 0 { (a.record_id(), b.record_id()) } else { (b.record_id(), a.record_id()) };
        let held = scope.all_granted(&giver, &slots(round..round + 20), SOON).await;
        scope.release(&giver, &held).await;
        let last = scope.all_granted(&taker, &slots(round..round + 10), SOON).await;
        if round < 9 {
            scope.release(&taker, &last).await;
        }
    }
    let wanted = slots(9..19);
    table.until(&mut stream, SOON, "the last ten slots", |held| held.keys().eq(&wanted)).await;
    assert!(table.claims.values().all(|claim| claim.holder.instance_id == a.member.instance_id), "{:?}", table.claims);
}

/// A watch reports the claims of a dead member as free.
pub async fn claims_06_a_death_is_news(scope: &Scope) {
    let ttl = scope.soon_enough();
    let b = scope.claimant("b", 2).await;
    let mut stream = claims(&*scope.peer).watch_claims(&scope.group, scope.ttl / 2);
    let mut table = ReaderTable::default();
    let _alive = scope.keep_alive(&[&b]);
    scope.granted(&b.record_id(), &slots(10..12)).await;
    let a = scope.claimant_for("a", 1, ttl).await;
    scope.granted(&a.record_id(), &slots(0..10)).await;
    table.until(&mut stream, ttl, "all twelve", |held| held.len() == 12).await;
    let wanted = slots(10..12);
    table.until(&mut stream, scope.gone_within(ttl), "the living member's only", |held| held.keys().eq(&wanted)).await;
}

/// Where nothing changes, the watch says that this is so.
pub async fn claims_06_silence_is_proven(scope: &Scope) {
    let a = scope.claimant("a", 1).await;
    let _alive = scope.keep_alive(&[&a]);
    scope.granted(&a.record_id(), &slots(0..3)).await;
    let ttl = scope.unhurried();
    let mut stream = claims(&*scope.peer).watch_claims(&scope.group, ttl / 2);
    let mut proofs = Vec::new();
    let read = async {
        while proofs.len() < 3 {
            let event = stream.next().await.expect("the watch goes on").expect("nothing is wrong");
            proofs.push(match event {
                ClaimsEvent::All { proven, .. } | ClaimsEvent::Changed { proven, .. } | ClaimsEvent::Proven(proven) => proven,
            });
        }
    };
    tokio::time::timeout(ttl * 3, read).await.expect("a proof every half TTL");
    assert!(proofs.is_sorted_by(|a, b| a <= b) && proofs[2] <= scope.clock.now(), "{proofs:?}");
}
