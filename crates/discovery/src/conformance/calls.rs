//! What changes of a record must not do: prolong it, arrive after a later change, or leave something behind when their caller has gone.

use std::time::Duration;

use shardwise_core::MemberState;

use super::{SOON, Scope};
use crate::{ErrorKind, Registration};

/// After how long callers give up: before a request is sent, while it is on its way, and after it is done.
const PATIENCE_MS: [u64; 8] = [0, 1, 2, 3, 5, 8, 13, 21];

fn saying(registered: &Registration, version: &str) -> Registration {
    let mut registration = registered.clone();
    registration.member.version = Some(version.to_owned());
    registration
}

/// A call that is dropped where it stands, if it takes longer than this.
async fn given_up<T>(call: impl Future<Output = T>, patience_ms: u64) {
    // A call that was quicker has nothing to give up.
    let _ = tokio::time::timeout(Duration::from_millis(patience_ms), call).await;
}

/// The ids, incarnations and versions that the peer reads.
async fn seen(scope: &Scope) -> Vec<(String, u64, Option<String>)> {
    let view = scope.view().await;
    let members = view.members().iter();
    members.map(|member| (member.instance_id.as_str().to_owned(), member.incarnation.get(), member.version.clone())).collect()
}

/// A member that changes its record all the time and never renews leaves as if it were silent.
pub async fn clause_02_an_update_does_not_prolong_the_record(scope: &Scope) {
    let registered = scope.joined_for("a", 1, scope.ttl).await;
    let started = scope.clock.now();
    for n in 0u32.. {
        let lived = scope.clock.now().since(started);
        match scope.backend.update(&saying(&registered, &n.to_string())).await {
            Err(error) if *error.kind() == ErrorKind::Lost => break,
            Err(error) => assert!(error.is_retryable(), "{error}"),
            Ok(()) => {}
        }
        assert!(lived < scope.gone_within(scope.ttl), "a record with a TTL of {:?} has lived for {lived:?} on updates alone", scope.ttl);
        tokio::time::sleep(scope.ttl / 20).await;
    }
    scope.expect_ids(&[], scope.gone_within(scope.ttl)).await;
}

/// The newest change stands, however many older ones were dropped on their way.
pub async fn clause_08_an_update_that_was_given_up_undoes_no_later_one(scope: &Scope) {
    let registered = scope.joined("a", 1).await;
    for patience in PATIENCE_MS {
        given_up(scope.backend.update(&saying(&registered, "old")), patience).await;
        let new = format!("after {patience} ms");
        scope.backend.update(&saying(&registered, &new)).await.expect("update");
        // Whatever is still on its way arrives.
        tokio::time::sleep(scope.ttl / 50).await;
        assert_eq!(seen(scope).await, [("a".to_owned(), 1, Some(new))], "the older update was given up after {patience} ms");
        scope.backend.renew(&registered.record_id(), registered.ttl).await.expect("renew");
    }
}

/// Each call, given up early or late and then made again, does what it does when it is made once.
pub async fn calls_that_were_given_up_and_made_again_are_harmless(scope: &Scope) {
    for (incarnation, patience) in (1..).zip(PATIENCE_MS) {
        let (backend, mut a) = (&scope.backend, scope.registration("a", incarnation));
        given_up(backend.register(&a), patience).await;
        backend.register(&a).await.unwrap_or_else(|error| panic!("registering again after {patience} ms: {error}"));
        given_up(backend.renew(&a.record_id(), a.ttl), patience).await;
        backend.renew(&a.record_id(), a.ttl).await.unwrap_or_else(|error| panic!("renewing again after {patience} ms: {error}"));
        a.member.state = MemberState::Draining;
        a.member.version = Some("2".into());
        given_up(backend.update(&a), patience).await;
        backend.update(&a).await.unwrap_or_else(|error| panic!("updating again after {patience} ms: {error}"));
        assert_eq!(seen(scope).await, [("a".to_owned(), incarnation, Some("2".to_owned()))], "given up after {patience} ms");
        given_up(backend.deregister(&a.record_id()), patience).await;
        backend.deregister(&a.record_id()).await.unwrap_or_else(|error| panic!("deregistering again after {patience} ms: {error}"));
        scope.expect_ids(&[], SOON).await;
    }
    tokio::time::sleep(scope.ttl / 10).await;
    assert!(scope.ids().await.is_empty(), "nothing comes back");
}
