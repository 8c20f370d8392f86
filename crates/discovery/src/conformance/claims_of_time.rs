//! Clauses 1, 2, 3 and 9: how long a record lives, and what brings it back.

use super::{Scope, while_renewing};
use crate::{ErrorKind, Registration};

/// Registering, renewing and updating leave one record per member.
pub async fn clause_01_one_record_per_member(scope: &Scope) {
    let a = scope.joined("a", 1).await;
    scope.joined("b", 2).await;
    scope.backend.renew(&a.record_id(), a.ttl).await.expect("renew");
    scope.backend.update(&a).await.expect("update");
    scope.backend.register(&a).await.expect("register again");
    assert_eq!(scope.ids().await, ["a", "b"]);
}

/// A member that renews stays beyond its TTL.
pub async fn clause_01_a_renewed_member_stays(scope: &Scope) {
    let a = scope.joined_for("a", 1, scope.unhurried()).await;
    let renew = || async {
        scope.backend.renew(&a.record_id(), a.ttl).await.expect("a renewal in time succeeds");
        assert_eq!(scope.ids().await, ["a"]);
    };
    while_renewing(a.ttl / 6, renew, tokio::time::sleep(a.ttl * 2)).await;
}

/// A silent member is there for most of its TTL and gone after TTL plus margin.
pub async fn clause_02_a_silent_member_leaves_within_its_ttl_and_margin(scope: &Scope) {
    let ttl = scope.unhurried();
    scope.joined_for("silent", 1, ttl).await;
    tokio::time::sleep(ttl / 2).await;
    assert_eq!(scope.ids().await, ["silent"], "half a TTL after registering it is still a member");
    scope.expect_ids(&[], scope.gone_within(ttl)).await;
}

/// A grant names the start of its request, and the record lives that long.
pub async fn clause_03_a_grant_counts_from_the_start_of_its_request(scope: &Scope) {
    let (before, ttl) = (scope.clock.now(), scope.unhurried());
    let registration = scope.registration_for("a", 1, ttl);
    let grant = scope.backend.register(&registration).await.expect("register");
    let between = scope.clock.now();
    assert!(before <= grant.started && grant.started <= between, "{before:?} <= {:?} <= {between:?}", grant.started);
    assert!(grant.ttl >= ttl, "granted {:?}, asked for {ttl:?}", grant.ttl);
    let grant = scope.backend.renew(&registration.record_id(), ttl).await.expect("renew");
    assert!(between <= grant.started && grant.started <= scope.clock.now());
    let left = grant.started.plus(grant.ttl).since(scope.clock.now());
    tokio::time::sleep(left * 2 / 3).await;
    assert_eq!(scope.ids().await, ["a"], "it lives as long as it was granted");
}

/// Renewing after expiry answers `Lost`, and the member does not come back.
pub async fn clause_09_renewing_after_expiry_is_lost(scope: &Scope) {
    let a = scope.joined_for("a", 1, scope.ttl).await;
    scope.expect_ids(&[], scope.gone_within(scope.ttl)).await;
    for _ in 0..2 {
        let error = scope.backend.renew(&a.record_id(), scope.ttl).await.expect_err("the record has expired");
        assert_eq!(*error.kind(), ErrorKind::Lost, "{error}");
        assert!(scope.ids().await.is_empty(), "a late renewal heals nothing");
    }
    scope.backend.register(&Registration { ttl: scope.unhurried(), ..a }).await.expect("it may register again");
    assert_eq!(scope.ids().await, ["a"]);
}

/// Updating after expiry answers `Lost`, and the member does not come back.
pub async fn clause_09_updating_after_expiry_is_lost(scope: &Scope) {
    let a = scope.joined_for("a", 1, scope.ttl).await;
    scope.expect_ids(&[], scope.gone_within(scope.ttl)).await;
    let error = scope.backend.update(&a).await.expect_err("the record has expired");
    assert_eq!(*error.kind(), ErrorKind::Lost, "{error}");
    assert!(scope.ids().await.is_empty());
}
