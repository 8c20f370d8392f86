//! Clauses 4, 5 and 6: what a watch shows, and when.

use std::sync::Arc;

use futures::StreamExt;
use futures::future::{join_all, try_join_all};
use shardwise_core::View;

use super::{SOON, Scope, ids, view_where};
use crate::WatchEvent;

/// A new watch first shows all present members.
pub async fn clause_04_the_first_view_is_full(scope: &Scope) {
    for (incarnation, id) in (1..).zip(["a", "b", "c"]) {
        scope.joined(id, incarnation).await;
    }
    let mut watch = scope.peer.watch(&scope.group, scope.ttl / 3);
    let first = tokio::time::timeout(SOON, watch.next()).await.expect("a first view in time").expect("the watch goes on");
    let Ok(WatchEvent::View(snapshot)) = first else { panic!("the first event is a view, not {first:?}") };
    assert_eq!(ids(&snapshot.view), ["a", "b", "c"]);
    assert!(snapshot.proven <= scope.clock.now());
}

/// Members that join while the watch is being opened are seen.
pub async fn clause_04_no_change_is_lost_between_list_and_watch(scope: &Scope) {
    for round in 0..5u64 {
        let id = format!("m{round}");
        let registration = scope.registration(&id, round);
        let mut watch = scope.peer.watch(&scope.group, scope.ttl / 3);
        let (joined, view) =
            tokio::join!(scope.backend.register(&registration), view_where(&mut watch, SOON, &id, |view| ids(view).contains(&id)));
        joined.expect("register");
        assert!(view.member(&registration.member.instance_id).is_some());
        scope.backend.deregister(&registration.record_id()).await.expect("deregister");
        view_where(&mut watch, SOON, &format!("{id} gone"), |view| !ids(view).contains(&id)).await;
    }
}

/// Over many changes the revisions of one watch never fall, and equal revisions show equal members.
pub async fn clause_04_views_never_go_back(scope: &Scope) {
    let mut watch = scope.peer.watch(&scope.group, scope.ttl / 3);
    let changes = async {
        for n in 0..20u64 {
            let registration = scope.joined(&format!("m{n}"), n).await;
            if n % 2 == 1 {
                scope.backend.deregister(&registration.record_id()).await.expect("deregister");
            }
        }
        scope.joined("last", 99).await;
    };
    let reading = async {
        let mut before = Arc::<View>::default();
        while !ids(&before).contains(&"last".to_owned()) {
            let view = view_where(&mut watch, SOON, "the next change", |_| true).await;
            assert!(view.revision() >= before.revision(), "revision {} after {}", view.revision(), before.revision());
            assert!(view.revision() > before.revision() || ids(&view) == ids(&before), "one revision, two views");
            before = view;
        }
    };
    tokio::join!(changes, reading);
}

/// Watchers on two connections end up with the same view.
pub async fn clause_04_two_watchers_see_the_same_end(scope: &Scope) {
    let mut watches = [scope.backend.watch(&scope.group, scope.ttl / 3), scope.peer.watch(&scope.group, scope.ttl / 3)];
    for n in 0..5u64 {
        scope.joined(&format!("m{n}"), n).await;
    }
    let all = |view: &View| view.members().len() == 5;
    let views = join_all(watches.iter_mut().map(|watch| view_where(watch, SOON, "all five", all))).await;
    assert_eq!(views[0].revision(), views[1].revision());
    assert_eq!(views[0].fingerprint(), views[1].fingerprint());
}

/// An idle watch proves its view again and again.
pub async fn clause_05_silence_is_proven(scope: &Scope) {
    let ttl = scope.unhurried();
    let every = ttl / 3;
    let mut watch = scope.peer.watch(&scope.group, every);
    let mut last = scope.clock.now();
    for _ in 0..4 {
        let limit = every + ttl / 2;
        let event = tokio::time::timeout(limit, watch.next()).await.unwrap_or_else(|_| panic!("silent for more than {limit:?}"));
        let proven = match event.expect("the watch goes on").expect("nothing is wrong") {
            WatchEvent::Proven(proven) => proven,
            WatchEvent::View(snapshot) => snapshot.proven,
        };
        assert!(proven <= scope.clock.now() && proven >= last.minus(every * 2), "proven at {proven:?}");
        last = last.max(proven);
    }
}

/// Renewals of others cause no new revision.
pub async fn clause_05_renewals_are_not_reported(scope: &Scope) {
    let a = scope.joined("a", 1).await;
    let before = scope.view().await.revision();
    for _ in 0..5 {
        scope.backend.renew(&a.record_id(), a.ttl).await.expect("renew");
    }
    assert_eq!(scope.view().await.revision(), before);
}

/// A group without members, whether never joined or left by all, is an empty view and no error.
pub async fn clause_06_an_empty_group_is_an_empty_view(scope: &Scope) {
    assert!(scope.ids().await.is_empty());
    let a = scope.joined("a", 1).await;
    scope.backend.deregister(&a.record_id()).await.expect("deregister");
    scope.expect_ids(&[], SOON).await;
    let mut watch = scope.peer.watch(&scope.group, scope.ttl / 3);
    view_where(&mut watch, SOON, "nobody", |view| view.members().is_empty()).await;
}

/// Fifty members join at once and half of them leave at once; a watcher ends up with exactly the others.
pub async fn fifty_members_join_and_leave_at_once(scope: &Scope) {
    const MEMBERS: u64 = 50;
    let mut watch = scope.peer.watch(&scope.group, scope.ttl / 3);
    let registrations: Vec<_> = (0..MEMBERS).map(|n| scope.registration(&format!("m{n:02}"), n)).collect();
    try_join_all(registrations.iter().map(|r| scope.backend.register(r))).await.expect("register");
    let (leaving, staying) = registrations.split_at(registrations.len() / 2);
    try_join_all(leaving.iter().map(|r| async { scope.peer.deregister(&r.record_id()).await })).await.expect("deregister");
    try_join_all(staying.iter().map(|r| async { scope.backend.renew(&r.record_id(), r.ttl).await })).await.expect("renew");
    let expected: Vec<_> = staying.iter().map(|r| r.member.instance_id.as_str().to_owned()).collect();
    view_where(&mut watch, SOON, "the half that stays", |view| ids(view) == expected).await;
}
