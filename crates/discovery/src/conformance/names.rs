//! Clauses 10 and 11: what errors say, and which names are allowed; and that a record comes back as it was written.

use std::collections::BTreeMap;

use shardwise_core::{Address, Fingerprint, GroupName, Weight};

use super::{Scope, ids};
use crate::Registration;

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
    let longest = "ü".repeat(scope.backend.capabilities().name_bytes_max / 2);
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
