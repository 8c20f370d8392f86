//! Clauses 7 and 8: whose record it is, and how it leaves.

use shardwise_core::{Address, MemberState};

use super::{SOON, Scope, view_where, while_renewing};
use crate::{ErrorKind, Registration};

fn draining(mut registration: Registration) -> Registration {
    registration.member.state = MemberState::Draining;
    registration
}

/// A watcher sees the member as draining, then sees it gone.
pub async fn clause_07_draining_is_seen_before_gone(scope: &Scope) {
    let mut watch = scope.peer.watch(&scope.group, scope.ttl / 3);
    let a = scope.joined("a", 1).await;
    view_where(&mut watch, SOON, "a active", |view| view.active() == 1).await;
    scope.backend.update(&draining(a.clone())).await.expect("update");
    let view = view_where(&mut watch, SOON, "a draining", |view| view.members().iter().any(|m| m.state == MemberState::Draining)).await;
    assert_eq!(view.members().len(), 1);
    assert_eq!(view.members()[0].serves, a.member.serves);
    scope.backend.deregister(&a.record_id()).await.expect("deregister");
    view_where(&mut watch, SOON, "nobody", |view| view.members().is_empty()).await;
}

/// A draining member renews and stays visible as draining.
pub async fn clause_07_a_draining_member_renews(scope: &Scope) {
    let a = scope.joined_for("a", 1, scope.unhurried()).await;
    scope.backend.update(&draining(a.clone())).await.expect("update");
    let renew = || async {
        scope.backend.renew(&a.record_id(), a.ttl).await.expect("renew while draining");
    };
    while_renewing(a.ttl / 6, renew, tokio::time::sleep(a.ttl * 3 / 2)).await;
    let view = scope.view().await;
    assert_eq!(view.members().iter().map(|m| m.state).collect::<Vec<_>>(), [MemberState::Draining]);
}

/// Renewing, updating and deregistering under another incarnation change nothing.
pub async fn clause_08_another_incarnation_touches_nothing(scope: &Scope) {
    let own = scope.joined("a", 1).await;
    let mut other = scope.registration("a", 2);
    other.member.zone = Some("elsewhere".into());
    assert_eq!(*scope.peer.renew(&other.record_id(), other.ttl).await.expect_err("not its record").kind(), ErrorKind::Lost);
    assert_eq!(*scope.peer.update(&other).await.expect_err("not its record").kind(), ErrorKind::Lost);
    scope.peer.deregister(&other.record_id()).await.expect("deleting what is not there is no error");
    let view = scope.view().await;
    let member = view.member(&own.member.instance_id).expect("the record is still there");
    assert_eq!((member.incarnation, member.zone.as_deref()), (own.member.incarnation, None));
}

/// Registering an id in use names its holder; the stamp changes with each renewal by the holder, and only then.
pub async fn clause_08_an_id_in_use_is_named_and_its_stamp_moves(scope: &Scope) {
    let mut holder = scope.registration("a", 1);
    holder.member.address = Some(Address { host: "10.0.0.9".into(), port: 4711 });
    scope.backend.register(&holder).await.expect("register");
    let refused = || async {
        let error = scope.peer.register(&scope.registration("a", 2)).await.expect_err("the id is in use");
        match error.kind() {
            ErrorKind::InUse { address, stamp } => (address.clone(), *stamp),
            other => panic!("expected InUse, got {other:?}: {error}"),
        }
    };
    let (address, first) = refused().await;
    assert_eq!(address, holder.member.address);
    assert_eq!(refused().await.1, first, "nobody has renewed");
    scope.backend.renew(&holder.record_id(), holder.ttl).await.expect("renew");
    assert_ne!(refused().await.1, first, "the holder has renewed");
}

/// An id whose holder is silent can be had after its TTL.
pub async fn clause_08_a_silent_holder_is_waited_out(scope: &Scope) {
    scope.joined_for("a", 1, scope.ttl).await;
    let started = scope.clock.now();
    let successor = scope.registration("a", 2);
    loop {
        let asked = scope.clock.now().since(started);
        let Err(error) = scope.peer.register(&successor).await else { break };
        assert!(matches!(error.kind(), ErrorKind::InUse { .. }), "{error}");
        assert!(asked < scope.gone_within(scope.ttl), "the id is still taken: {error}");
        tokio::time::sleep(scope.ttl / 50).await;
    }
    let snapshot = scope.backend.members(&scope.group).await.expect("members");
    assert_eq!(snapshot.view.members().iter().map(|m| m.incarnation.get()).collect::<Vec<_>>(), [2]);
}

/// Ten incarnations race for one id over two connections: exactly one gets it.
pub async fn clause_08_of_many_racing_for_one_id_one_wins(scope: &Scope) {
    let won = scope.race_for("a", 100..110).await;
    assert_eq!(scope.view().await.members().iter().map(|m| m.incarnation.get()).collect::<Vec<_>>(), [won]);
}

/// The incarnation that made a record may register again while it is alive.
pub async fn clause_08_the_same_incarnation_registers_again(scope: &Scope) {
    let mut a = scope.joined_for("a", 1, scope.unhurried()).await;
    a.member.version = Some("2".into());
    tokio::time::sleep(a.ttl / 2).await;
    scope.backend.register(&a).await.expect("its own record");
    tokio::time::sleep(a.ttl * 5 / 8).await;
    let view = scope.view().await;
    assert_eq!(view.members().iter().map(|m| m.version.as_deref()).collect::<Vec<_>>(), [Some("2")], "registering renews");
}

/// Deregistering is done once and may be asked for again.
pub async fn deregistering_twice_is_no_error(scope: &Scope) {
    let a = scope.joined("a", 1).await;
    for _ in 0..2 {
        scope.backend.deregister(&a.record_id()).await.expect("deregister");
        scope.expect_ids(&[], SOON).await;
    }
}

/// A later registration has a higher number than an earlier one, over departures too.
pub async fn later_joins_have_higher_numbers(scope: &Scope) {
    let mut last = 0;
    for (id, incarnation) in [("b", 1), ("a", 2), ("c", 3), ("a", 4)] {
        let registration = scope.joined(id, incarnation).await;
        let view = scope.view().await;
        let joined = view.member(&registration.member.instance_id).expect("just registered").joined;
        assert!(joined > last, "{id} joined as {joined} after {last}");
        last = joined;
        if id == "a" {
            scope.backend.deregister(&registration.record_id()).await.expect("deregister");
        }
    }
}
