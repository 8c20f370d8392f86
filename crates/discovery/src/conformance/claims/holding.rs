//! Clauses 1, 2, 3, 5, 7 and 8: who is granted what, and under which epoch.

use shardwise_core::{ClaimStore, GroupName, StoreId};

use super::{claims, epochs, granted, name, slots};
use crate::conformance::{SOON, Scope};
use crate::{AcquireOutcome, ErrorKind, Registration};

/// A free resource is granted to the first member that asks, who keeps what others ask for, under its epoch.
pub async fn claims_01_a_free_resource_is_granted_once(scope: &Scope) {
    let (a, b) = (scope.claimant("a", 1).await, scope.claimant("b", 2).await);
    let _alive = scope.keep_alive(&[&a, &b]);
    let held = scope.granted(&a.record_id(), &slots(3..5)).await;
    assert_eq!(held.len(), 2);
    for backend in [&scope.peer, &scope.backend, &scope.peer] {
        let answers = claims(&**backend).acquire(&b.record_id(), &scope.store().await, &slots(3..5)).await.expect("acquire");
        assert!(answers.iter().all(|(_, acquired)| *acquired == AcquireOutcome::Held), "a holds both: {answers:?}");
    }
    let read = scope.read().await;
    assert!(read.values().all(|claim| claim.holder.instance_id == a.member.instance_id), "{read:?}");
    assert_eq!(epochs(read), held);
}

/// Two connections ask for the same hundreds of slots at the same time, in different orders.
pub async fn claims_01_of_many_that_ask_at_once_one_gets_each(scope: &Scope) {
    let (a, b) = (scope.claimant("a", 1).await, scope.claimant("b", 2).await);
    let store = scope.store().await;
    let (forwards, backwards) = (slots(0..300), slots(0..300).into_iter().rev().collect::<Vec<_>>());
    let _alive = scope.keep_alive(&[&a, &b]);
    let (seat_a, seat_b) = (a.record_id(), b.record_id());
    let (of_a, of_b) = tokio::join!(
        claims(&*scope.backend).acquire(&seat_a, &store, &forwards),
        claims(&*scope.peer).acquire(&seat_b, &store, &backwards),
    );
    let (of_a, of_b) = (granted(of_a.expect("acquire")), granted(of_b.expect("acquire")));
    let both: Vec<_> = of_a.keys().filter(|resource| of_b.contains_key(*resource)).collect();
    assert!(both.is_empty(), "granted twice: {both:?}");
    assert_eq!(of_a.len() + of_b.len(), 300, "every slot was free, so somebody is granted it");
    let read = scope.read().await;
    for (resource, claim) in &read {
        let held = if claim.holder.instance_id == a.member.instance_id { &of_a } else { &of_b };
        assert!(held.contains_key(resource), "{resource}: the record says {claim:?}");
    }
    assert_eq!(read.len(), 300);
}

/// Each later grant's epoch is above all earlier ones, for any resource and any member.
pub async fn claims_02_epochs_rise_over_resources_and_members(scope: &Scope) {
    let (a, b) = (scope.claimant("a", 1).await, scope.claimant("b", 2).await);
    let _alive = scope.keep_alive(&[&a, &b]);
    let mut highest = 0;
    for round in 0..6u32 {
        let record_id = if round % 2 == 0 { a.record_id() } else { b.record_id() };
        let wanted = if round % 3 == 0 { vec![name(&format!("n{round}"))] } else { slots(round * 10..round * 10 + 3) };
        let epochs: Vec<_> = scope.granted(&record_id, &wanted).await.values().map(|epoch| epoch.get()).collect();
        assert_eq!(epochs.len(), wanted.len());
        assert!(epochs.iter().all(|epoch| *epoch > highest), "{epochs:?} after {highest}");
        highest = epochs.into_iter().max().unwrap_or(highest);
    }
}

/// A slot that goes from hand to hand, by release and by death, has a higher epoch each time.
pub async fn claims_02_epochs_rise_over_releases_and_deaths(scope: &Scope) {
    let (a, b) = (scope.claimant_for("a", 1, scope.unhurried()).await, scope.claimant("b", 2).await);
    let slot = slots(7..8);
    let mut seen = Vec::new();
    let alive = scope.keep_alive(&[&a, &b]);
    for round in 0..4 {
        let record_id = if round % 2 == 0 { a.record_id() } else { b.record_id() };
        let held = scope.all_granted(&record_id, &slot, SOON).await;
        seen.extend(held.values().copied());
        scope.release(&record_id, &held).await;
    }
    scope.granted(&a.record_id(), &slot).await.values().for_each(|epoch| seen.push(*epoch));
    drop(alive);
    let _heir = scope.keep_alive(&[&b]);
    seen.extend(scope.all_granted(&b.record_id(), &slot, scope.gone_within(a.ttl)).await.values().copied());
    assert_eq!(seen.len(), 6);
    assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
}

/// No record, no claim: never registered, another incarnation's, deregistered, expired.
pub async fn claims_03_only_a_living_record_claims(scope: &Scope) {
    let store = scope.store().await;
    let lost = async |registration: &Registration, why: &str| {
        let error = claims(&*scope.backend).acquire(&registration.record_id(), &store, &slots(0..3)).await.expect_err(why);
        assert_eq!(*error.kind(), ErrorKind::Lost, "{why}: {error}");
    };
    lost(&scope.registration("nobody", 1), "it never registered").await;
    let a = scope.claimant("a", 1).await;
    lost(&scope.registration("a", 2), "it is another incarnation").await;
    scope.backend.deregister(&a.record_id()).await.expect("deregister");
    lost(&a, "it has left").await;
    let b = scope.claimant_for("b", 3, scope.ttl).await;
    scope.expect_ids(&[], scope.gone_within(scope.ttl)).await;
    lost(&b, "it has expired").await;
    assert!(scope.read().await.is_empty());
}

/// A repeated call, after an answer that was lost, grants the same again and never a lower epoch.
pub async fn claims_03_asking_again_keeps_what_is_held(scope: &Scope) {
    let a = scope.claimant("a", 1).await;
    let _alive = scope.keep_alive(&[&a]);
    let first = scope.granted(&a.record_id(), &slots(0..5)).await;
    let again = scope.granted(&a.record_id(), &slots(0..8)).await;
    assert_eq!(again.len(), 8);
    assert!(first.iter().all(|(resource, epoch)| again[resource] >= *epoch), "{first:?}, then {again:?}");
    assert_eq!(epochs(scope.read().await), again);
}

/// A member that waits for a slot gets it right after the release.
pub async fn claims_05_what_is_released_is_free_at_once(scope: &Scope) {
    let (a, b) = (scope.claimant("a", 1).await, scope.claimant("b", 2).await);
    let _alive = scope.keep_alive(&[&a, &b]);
    let held = scope.granted(&a.record_id(), &slots(0..200)).await;
    scope.release(&a.record_id(), &held).await;
    assert_eq!(scope.granted(&b.record_id(), &slots(0..200)).await.len(), 200, "no delay after a release");
    scope.release(&a.record_id(), &held).await;
    assert_eq!(scope.read().await.len(), 200, "a release that is repeated changes nothing");
}

/// A release in another member's or another incarnation's name, or under the epoch of a former acquisition, changes nothing and is no error.
pub async fn claims_05_no_member_releases_what_is_not_theirs(scope: &Scope) {
    let (a, b) = (scope.claimant("a", 1).await, scope.claimant("b", 2).await);
    let _alive = scope.keep_alive(&[&a, &b]);
    let former = scope.granted(&a.record_id(), &slots(0..3)).await;
    scope.release(&a.record_id(), &former).await;
    let held = scope.all_granted(&a.record_id(), &slots(0..3), SOON).await;
    scope.release(&a.record_id(), &former).await;
    scope.release(&b.record_id(), &held).await;
    scope.release(&scope.registration("a", 9).record_id(), &held).await;
    assert_eq!(epochs(scope.read().await), held);
    assert!(scope.granted(&b.record_id(), &slots(0..3)).await.is_empty());
}

/// Everybody sees the same store, at once and later.
pub async fn claims_07_the_store_is_one_and_the_same(scope: &Scope) {
    let (first, second) =
        tokio::join!(claims(&*scope.backend).claim_store(&scope.group, 0), claims(&*scope.peer).claim_store(&scope.group, 0),);
    let first = first.expect("claim_store");
    assert_eq!(first, second.expect("claim_store"));
    scope.claimant("a", 1).await;
    assert_eq!(scope.store().await, first);
}

/// A higher floor stands for everybody, and grants are above it; a lower one changes nothing. A member that names another store, or the
/// former floor, gets an error and holds nothing by it.
pub async fn claims_07_a_floor_lifts_epochs_and_never_falls(scope: &Scope) {
    let a = scope.claimant("a", 1).await;
    let before = scope.store().await;
    let floor = 1 << 40;
    let _alive = scope.keep_alive(&[&a]);
    let low = scope.granted(&a.record_id(), &slots(0..1)).await;
    let raised = claims(&*scope.peer).claim_store(&scope.group, floor).await.expect("claim_store");
    assert_eq!(raised, ClaimStore { floor, ..before });
    assert_eq!(scope.store().await, raised, "a lower floor changes nothing");
    let other = ClaimStore { id: StoreId::new(!raised.id.get()), ..raised };
    for (store, why) in [(before, "the floor was raised"), (other, "it is another store")] {
        let error = claims(&*scope.backend).acquire(&a.record_id(), &store, &slots(1..2)).await.expect_err(why);
        assert_eq!(*error.kind(), ErrorKind::OtherStore, "{why}: {error}");
        assert_eq!(scope.read().await.len(), 1, "{why}");
    }
    let high = scope.granted(&a.record_id(), &slots(1..2)).await;
    assert!(low.values().all(|epoch| epoch.get() < floor) && high.values().all(|epoch| epoch.get() > floor), "{low:?} {high:?}");
}

/// More than fits into one transaction of any backend.
pub async fn claims_08_thousands_in_one_call(scope: &Scope) {
    let (a, b) = (scope.claimant("a", 1).await, scope.claimant("b", 2).await);
    let _alive = scope.keep_alive(&[&a, &b]);
    let held = scope.granted(&a.record_id(), &slots(0..2_000)).await;
    assert_eq!(held.len(), 2_000);
    assert_eq!(scope.read().await.len(), 2_000);
    scope.release(&a.record_id(), &held).await;
    assert_eq!(scope.all_granted(&b.record_id(), &slots(0..2_000), SOON).await.len(), 2_000);
}

/// Held and free ones in one call, as neighbours.
pub async fn claims_08_one_that_is_held_does_not_keep_the_others(scope: &Scope) {
    let (a, b) = (scope.claimant("a", 1).await, scope.claimant("b", 2).await);
    let _alive = scope.keep_alive(&[&a, &b]);
    let odd: Vec<_> = slots(0..300).into_iter().skip(1).step_by(2).collect();
    scope.granted(&a.record_id(), &odd).await;
    let of_b = scope.granted(&b.record_id(), &slots(0..300)).await;
    assert_eq!(of_b.len(), 150);
    assert!(odd.iter().all(|resource| !of_b.contains_key(resource)));
}

/// Names are kept as they are; they do not collide with slots or with each other.
pub async fn claims_names_may_be_anything(scope: &Scope) {
    let a = scope.claimant("a", 1).await;
    let mut wanted = vec![name("7"), name("slot/7"), name("a b"), name("ünï/🦀"), name("%2F"), name(&"x".repeat(255)), name("s 7")];
    wanted.extend(slots(7..8));
    let _alive = scope.keep_alive(&[&a]);
    assert_eq!(scope.granted(&a.record_id(), &wanted).await.len(), wanted.len());
    wanted.sort_unstable();
    assert_eq!(scope.read().await.into_keys().collect::<Vec<_>>(), wanted);
}

/// The same slot of two groups has two holders, and their watches are apart.
pub async fn claims_of_groups_are_apart(scope: &Scope) {
    let a = scope.claimant("a", 1).await;
    let group = GroupName::new(format!("{}/2", scope.group)).expect("a valid name");
    let other = Registration { group: group.clone(), claims: true, ..scope.registration("a", 1) };
    scope.backend.register(&other).await.expect("register");
    let _alive = scope.keep_alive(&[&a, &other]);
    scope.granted(&a.record_id(), &slots(0..3)).await;
    let backend = claims(&*scope.backend);
    let store = backend.claim_store(&group, 0).await.expect("claim_store");
    let answers = backend.acquire(&other.record_id(), &store, &slots(0..5)).await.expect("acquire");
    assert_eq!(granted(answers).len(), 5);
    assert_eq!(scope.read().await.len(), 3);
}
