//! Clause 4: claims end with the record and only with it.

use super::{claims, epochs, slots};
use crate::ErrorKind;
use crate::conformance::{SOON, Scope};

/// Beyond the TTL, with renewals and nothing else.
pub async fn claims_04_renewing_keeps_claims(scope: &Scope) {
    let (a, b) = (scope.claimant_for("a", 1, scope.soon_enough()).await, scope.claimant("b", 2).await);
    let _alive = scope.keep_alive(&[&a, &b]);
    let held = scope.granted(&a.record_id(), &slots(0..4)).await;
    tokio::time::sleep(a.ttl * 2).await;
    assert!(scope.granted(&b.record_id(), &slots(0..4)).await.is_empty());
    assert_eq!(epochs(scope.read().await), held);
}

/// No other member is granted them while the member's lease may still be in force. That is 99 % of its TTL: a holder leaves out the last
/// 1 %, because no two clocks run alike. (Consul takes the time of a session's end when it begins to free its locks, and shows the
/// session until it has done so: some milliseconds.) Then they come free within TTL plus margin.
pub async fn claims_04_a_silent_members_claims_come_free(scope: &Scope) {
    let b = scope.claimant("b", 2).await;
    let _alive = scope.keep_alive(&[&b]);
    let a = scope.claimant_for("a", 1, scope.soon_enough()).await;
    scope.granted(&a.record_id(), &slots(0..100)).await;
    let grant = scope.backend.renew(&a.record_id(), a.ttl).await.expect("renew");
    let ends = grant.started.plus(grant.ttl * 99 / 100);
    let first = loop {
        let asked = scope.clock.now().since(grant.started);
        let granted = scope.granted(&b.record_id(), &slots(0..1)).await;
        if !granted.is_empty() {
            break scope.clock.now();
        }
        assert!(asked < scope.gone_within(a.ttl), "still held long after the lease's end");
        tokio::time::sleep(scope.ttl / 100).await;
    };
    assert!(first >= ends, "granted {:?} before the lease's end", ends.since(first));
    scope.all_granted(&b.record_id(), &slots(0..100), a.ttl / 2).await;
}

/// A member that leaves without having released.
pub async fn claims_04_deregistering_frees(scope: &Scope) {
    let (a, b) = (scope.claimant("a", 1).await, scope.claimant("b", 2).await);
    let _alive = scope.keep_alive(&[&b]);
    scope.granted(&a.record_id(), &slots(0..10)).await;
    scope.backend.deregister(&a.record_id()).await.expect("deregister");
    scope.all_granted(&b.record_id(), &slots(0..10), SOON).await;
}

/// A member that leaves for a while without having released, and comes back: who is away holds nothing and claims nothing.
pub async fn claims_04_stepping_away_frees(scope: &Scope) {
    let (a, b) = (scope.claimant("a", 1).await, scope.claimant("b", 2).await);
    let _alive = scope.keep_alive(&[&b]);
    let old = scope.granted(&a.record_id(), &slots(0..10)).await;
    scope.backend.step_away(&a, SOON * 6).await.expect("stepping away");
    scope.all_granted(&b.record_id(), &slots(0..5), SOON).await;
    let error = claims(&*scope.backend).acquire(&a.record_id(), &scope.store().await, &slots(10..11)).await.expect_err("it is away");
    assert_eq!(*error.kind(), ErrorKind::Lost, "{error}");
    let back = scope.claimant("a", 3).await;
    let held = scope.all_granted(&back.record_id(), &slots(5..10), SOON).await;
    assert!(held.iter().all(|(resource, epoch)| *epoch > old[resource]), "{old:?}, then {held:?}");
}

/// The same id under another incarnation begins with nothing, and the former life is not heard any more.
pub async fn claims_04_a_new_life_does_not_hold_what_the_former_held(scope: &Scope) {
    let former = scope.claimant_for("a", 1, scope.soon_enough()).await;
    let old = scope.granted(&former.record_id(), &slots(0..3)).await;
    scope.expect_ids(&[], scope.gone_within(former.ttl)).await;
    let next = scope.claimant("a", 2).await;
    let _alive = scope.keep_alive(&[&next]);
    let held = scope.all_granted(&next.record_id(), &slots(0..3), scope.gone_within(former.ttl)).await;
    assert!(held.iter().all(|(resource, epoch)| *epoch > old[resource]), "{old:?}, then {held:?}");
    scope.release(&former.record_id(), &old).await;
    let error = claims(&*scope.backend).acquire(&former.record_id(), &scope.store().await, &slots(3..4)).await.expect_err("it is dead");
    assert_eq!(*error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(scope.read().await.len(), 3);
}
