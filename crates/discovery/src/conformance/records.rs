//! Clauses 1, 2, 3 and 7 to 11: whose record it is, what is in it, how long it lives, and how it leaves.
//! And what changes of it must not do: prolong it, arrive after a later change, or leave something behind when their caller has gone.

use std::collections::BTreeMap;
use std::time::Duration;

use shardwise_core::{Address, Fingerprint, GroupName, MemberState, NAME_BYTES_MAX, Weight};

use super::{SOON, Scope, ids, view_where};
use crate::{ErrorKind, Registration};

/// After how long callers give up: before a request is sent, while it is on its way, and after it is done.
const PATIENCE_MS: [u64; 8] = [0, 1, 2, 3, 5, 8, 13, 21];

fn draining(mut registration: Registration) -> Registration {
    registration.member.state = MemberState::Draining;
    registration
}

/// Registering, renewing and updating leave one record per member.
pub async fn clause_01_one_record_per_member(scope: &Scope) {
    let a = scope.joined("a", 1).await;
    scope.joined("b", 2).await;
    scope.backend.renew(&a.record_id(), a.ttl).await.expect("renew");
    scope.backend.update(&a).await.expect("update");
    scope.backend.register(&a).await.expect("register again");
    assert_eq!(scope.ids().await, ["a", "b"]);
}

/// A member that renews stays beyond its TTL, also while it drains.
pub async fn clause_01_a_renewed_member_stays(scope: &Scope) {
    let (a, b) = (scope.joined_for("a", 1, scope.unhurried()).await, scope.joined_for("b", 2, scope.unhurried()).await);
    scope.backend.update(&draining(b.clone())).await.expect("update");
    for _ in 0..12 {
        tokio::time::sleep(a.ttl / 6).await;
        for member in [&a, &b] {
            scope.backend.renew(&member.record_id(), member.ttl).await.expect("a renewal in time succeeds");
        }
        let view = scope.view().await;
        let states: Vec<_> = view.members().iter().map(|member| (member.instance_id.as_str(), member.state)).collect();
        assert_eq!(states, [("a", MemberState::Active), ("b", MemberState::Draining)]);
    }
}

/// A silent member is there for most of its TTL and gone after TTL plus margin, for who asks and for who watches.
pub async fn clause_02_a_silent_member_leaves_within_its_ttl_and_margin(scope: &Scope) {
    let ttl = scope.unhurried();
    let mut watch = scope.peer.watch(&scope.group, scope.ttl / 3);
    scope.joined_for("watched", 1, ttl).await;
    view_where(&mut watch, ttl, "the member", |view| !view.members().is_empty()).await;
    // Nothing reads the group meanwhile: the watch has to notice by itself.
    view_where(&mut watch, scope.gone_within(ttl), "the member gone", |view| view.members().is_empty()).await;
    scope.joined_for("silent", 2, ttl).await;
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

/// Renewing and updating after expiry answer `Lost`, and the member does not come back.
pub async fn clause_09_after_expiry_renewals_and_updates_are_lost(scope: &Scope) {
    let a = scope.joined_for("a", 1, scope.ttl).await;
    scope.expect_ids(&[], scope.gone_within(scope.ttl)).await;
    for _ in 0..2 {
        let renewed = scope.backend.renew(&a.record_id(), scope.ttl).await.map(drop);
        for answer in [renewed, scope.backend.update(&a).await] {
            let error = answer.expect_err("the record has expired");
            assert_eq!(*error.kind(), ErrorKind::Lost, "{error}");
        }
        assert!(scope.ids().await.is_empty(), "what comes late heals nothing");
    }
    scope.backend.register(&Registration { ttl: scope.unhurried(), ..a }).await.expect("it may register again");
    assert_eq!(scope.ids().await, ["a"]);
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
    view_where(&mut watch, SOON, "no member", |view| view.members().is_empty()).await;
}

/// Renewing, updating and deregistering under another incarnation change nothing. Its own may deregister twice.
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
    for _ in 0..2 {
        scope.backend.deregister(&own.record_id()).await.expect("deregistering again is no error");
        scope.expect_ids(&[], SOON).await;
    }
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
    assert_eq!(refused().await.1, first, "it was not renewed");
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
        // While the record expires, a backend may know so little of it that it asks the worker to try again.
        assert!(matches!(error.kind(), ErrorKind::InUse { .. }) || error.is_retryable(), "{error}");
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

/// Errors say which operation failed and are not empty.
pub async fn clause_10_errors_name_their_operation(scope: &Scope) {
    let nobody = scope.registration("nobody", 1);
    let error = scope.backend.renew(&nobody.record_id(), nobody.ttl).await.expect_err("nothing to renew");
    assert_eq!(error.operation(), "renew");
    let shown = error.to_string();
    assert!(shown.starts_with("renew: ") && shown.contains("nobody") && !shown.contains('\n'), "{shown:?}");
}

/// Names with spaces, slashes, emoji, quotes, control characters and of the longest length.
pub async fn clause_11_any_name_goes(scope: &Scope) {
    let longest = "ü".repeat(NAME_BYTES_MAX / 2);
    let mut names = vec!["a b", "a/b", "/", "🦀", "'; --", "%2F", "*", "a\nb", "\u{202e}", ".", "..", longest.as_str()];
    for (incarnation, name) in (1..).zip(&names) {
        scope.joined(name, incarnation).await;
    }
    names.sort_unstable();
    assert_eq!(scope.ids().await, names);
    for (incarnation, name) in (1..).zip(["a b", "a/b", "/", "🦀"]) {
        let named = scope.registration(name, incarnation);
        let record_id = named.record_id();
        scope.backend.renew(&record_id, named.ttl).await.unwrap_or_else(|e| panic!("renewing {name:?}: {e}"));
        scope.backend.deregister(&record_id).await.unwrap_or_else(|e| panic!("deregistering {name:?}: {e}"));
        assert!(!scope.ids().await.contains(&name.to_owned()), "{name:?} is gone");
    }
}

/// Groups whose names begin alike, differ in case or contain separators do not see each other.
pub async fn clause_11_groups_do_not_see_each_other(scope: &Scope) {
    let suffixes = ["", "/", "/a", "a", "A", " ", "_", "%"];
    let groups = suffixes.map(|suffix| (format!("m{suffix}"), GroupName::new(format!("{}{suffix}", scope.group)).expect("a valid name")));
    for (id, group) in &groups {
        let registration = Registration { group: group.clone(), ..scope.registration(id, 1) };
        scope.backend.register(&registration).await.unwrap_or_else(|e| panic!("registering in {group:?}: {e}"));
    }
    for (id, group) in &groups {
        let snapshot = scope.peer.members(group).await.expect("members");
        assert_eq!(ids(&snapshot.view), [id.as_str()], "in group {group:?}");
    }
}

/// Address, weight, zone, version, fingerprints and metadata come back as they were written.
pub async fn what_is_registered_is_what_is_seen(scope: &Scope) {
    let mut registration = scope.registration("a", u64::MAX);
    registration.member.address = Some(Address { host: "fe80::1".into(), port: 65_535 });
    registration.member.weight = Weight::new(100).expect("in range");
    registration.member.zone = Some("zone 1/ü".into());
    registration.member.version = Some("1.2.3-rc.1".into());
    registration.member.fingerprints = vec![Fingerprint::of("old"), Fingerprint::of("new")];
    registration.member.metadata = BTreeMap::from([("k é".into(), "v\n🦀".into()), (String::new(), String::new())]);
    scope.backend.register(&registration).await.expect("register");
    let read = || async {
        let view = scope.view().await;
        let mut member = view.members().first().expect("one member").clone();
        member.joined = 0;
        member
    };
    assert_eq!(read().await, registration.member);
    registration.member.weight = Weight::ONE;
    registration.member.metadata.clear();
    scope.backend.update(&registration).await.expect("update");
    assert_eq!(read().await, registration.member);
}

pub(super) fn saying(registered: &Registration, version: &str) -> Registration {
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
pub(super) async fn seen(scope: &Scope) -> Vec<(String, u64, Option<String>)> {
    let view = scope.view().await;
    let members = view.members().iter();
    members.map(|member| (member.instance_id.as_str().to_owned(), member.incarnation.get(), member.version.clone())).collect()
}

/// A member that changes its record all the time and never renews leaves as if it were silent. A wrong backend keeps it for ever, so the
/// bound is wide: a busy machine makes each change late, and what silence may take is measured by the case of a silent member.
pub async fn clause_02_an_update_does_not_prolong_the_record(scope: &Scope) {
    let registered = scope.joined_for("a", 1, scope.ttl).await;
    let (started, longest) = (scope.clock.now(), scope.gone_within(scope.ttl) * 4);
    for n in 0u32.. {
        let lived = scope.clock.now().since(started);
        match scope.backend.update(&saying(&registered, &n.to_string())).await {
            Err(error) if *error.kind() == ErrorKind::Lost => break,
            Err(error) => assert!(error.is_retryable(), "{error}"),
            Ok(()) => {}
        }
        assert!(lived < longest, "a record with a TTL of {:?} has lived for {lived:?} on updates alone", scope.ttl);
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
