//! Watches: how fast, how many, and what they leave behind.

mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::{Follower, PATIENCE, Scratch, descriptors, granted, group, ids, joined, registration, slots, view_of};
use futures::{FutureExt, StreamExt};
use shardwise_backend_local::WATCHERS_MAX;
use shardwise_core::GroupName;
use shardwise_discovery::{ClaimsEvent, Discovery, ErrorKind, Registration, WatchEvent};

const TTL: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn a_change_in_another_process_is_seen_within_a_tenth_of_a_second() {
    let scratch = Scratch::new();
    let (backend, peer) = (scratch.backend(), scratch.backend());
    let mut watch = peer.watch(&group(), TTL);
    view_of(&mut watch, &[]).await;
    let mut delays = Vec::new();
    for round in 0..21 {
        let a = registration("a", round, TTL);
        backend.register(&a).await.unwrap();
        let written = Instant::now();
        view_of(&mut watch, &["a"]).await;
        delays.push(written.elapsed());
        backend.deregister(&a.record_id()).await.unwrap();
        view_of(&mut watch, &[]).await;
    }
    // The middle one, since other programs on the machine may hold up any single one.
    delays.sort_unstable();
    assert!(delays[10] <= Duration::from_millis(100), "{delays:?}");
}

/// Looking makes no file, and follows the one that another process makes later.
#[tokio::test]
async fn what_is_watched_before_there_is_a_file_is_seen_once_there_is_one() {
    let scratch = Scratch::new();
    let (backend, peer) = (scratch.backend(), scratch.backend());
    let every = Duration::from_millis(100);
    let mut watch = peer.watch(&group(), every);
    let mut claims = Follower::of(&peer, every);
    view_of(&mut watch, &[]).await;
    assert!(matches!(claims.next().await, Ok(ClaimsEvent::All { claims, .. }) if claims.is_empty()));
    assert!(matches!(claims.next().await, Ok(ClaimsEvent::Proven(_))), "nothing has changed");
    assert!(peer.members(&group()).await.unwrap().view.members().is_empty());
    assert_eq!(fs::read_dir(scratch.directory()).unwrap().count(), 0, "looking makes no file");
    let a = joined(&backend, "a", TTL).await;
    assert_eq!(granted(&backend, &a.record_id(), &slots(0..3)).await.len(), 3);
    view_of(&mut watch, &["a"]).await;
    claims.until(0..3).await;
    assert_eq!(ids(&peer.members(&group()).await.unwrap().view), ["a"]);
}

#[tokio::test]
async fn looking_makes_no_folder_either() {
    let scratch = Scratch::new();
    let backend = common::backend(&scratch.directory().join("later/members.db"));
    assert!(backend.members(&group()).await.unwrap().view.members().is_empty());
    let mut watch = backend.watch(&group(), Duration::from_millis(100));
    view_of(&mut watch, &[]).await;
    assert_eq!(fs::read_dir(scratch.directory()).unwrap().count(), 0);
    backend.register(&registration("a", 1, TTL)).await.unwrap();
    view_of(&mut watch, &["a"]).await;
}

#[tokio::test]
async fn proofs_come_as_often_as_asked_for_while_others_renew() {
    let scratch = Scratch::new();
    let (backend, peer) = (scratch.backend(), scratch.backend());
    let a = registration("a", 1, TTL);
    backend.register(&a).await.unwrap();
    let every = Duration::from_millis(100);
    let mut watch = peer.watch(&group(), every);
    view_of(&mut watch, &["a"]).await;
    let mut last = None;
    for _ in 0..10 {
        backend.renew(&a.record_id(), TTL).await.unwrap();
        let event = tokio::time::timeout(PATIENCE, watch.next()).await.expect("a proof in time");
        let Some(Ok(WatchEvent::Proven(proven))) = event else { panic!("renewals are no changes, got {event:?}") };
        if let Some(last) = last {
            assert!(proven.since(last) >= every, "{proven:?} after {last:?}");
        }
        last = Some(proven);
    }
}

#[tokio::test]
async fn changes_to_other_groups_are_not_reported() {
    let scratch = Scratch::new();
    let backend = scratch.backend();
    backend.register(&registration("a", 1, TTL)).await.unwrap();
    let empty = GroupName::new("workers/empty").unwrap();
    let mut watches = [backend.watch(&group(), Duration::from_millis(300)), backend.watch(&empty, Duration::from_millis(300))];
    view_of(&mut watches[0], &["a"]).await;
    view_of(&mut watches[1], &[]).await;
    for n in 0..5 {
        let other = Registration { group: GroupName::new("workers/other").unwrap(), ..registration("b", n, TTL) };
        backend.register(&other).await.unwrap();
        backend.deregister(&other.record_id()).await.unwrap();
    }
    for watch in &mut watches {
        let event = tokio::time::timeout(PATIENCE, watch.next()).await.expect("an event in time");
        assert!(matches!(event, Some(Ok(WatchEvent::Proven(_)))), "{event:?}");
    }
}

#[tokio::test]
async fn many_watches_of_many_groups_share_one_connection() {
    let scratch = Scratch::new();
    let backend = scratch.backend();
    let mut watches = Vec::new();
    for n in 0..30 {
        let group = GroupName::new(format!("g{n}")).unwrap();
        backend.register(&Registration { group: group.clone(), ..registration("a", n, TTL) }).await.unwrap();
        for _ in 0..4 {
            watches.push(backend.watch(&group, TTL));
        }
    }
    for watch in &mut watches {
        view_of(watch, &["a"]).await;
    }
    let open = descriptors(&scratch.path());
    assert!(open <= 4, "one writer, two readers, one poller; found {open}");
}

/// A reader that is overtaken by another one between its answer and looking at it must not take the file for an older copy.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_that_overtake_each_other_all_get_their_answer() {
    let scratch = Scratch::new();
    let backend = scratch.backend();
    let readers: Vec<_> = (0..4)
        .map(|_| {
            let backend = backend.clone();
            tokio::spawn(async move {
                for _ in 0..500 {
                    backend.members(&group()).await.unwrap();
                }
            })
        })
        .collect();
    let mut changes = 0;
    while readers.iter().any(|reader| !reader.is_finished()) {
        backend.register(&registration(&format!("m{}", changes % 10), changes, TTL)).await.unwrap();
        backend.deregister(&registration(&format!("m{}", changes % 10), changes, TTL).record_id()).await.unwrap();
        changes += 1;
    }
    for reader in readers {
        reader.await.unwrap();
    }
}

#[tokio::test]
async fn there_is_a_limit_to_watches() {
    let scratch = Scratch::new();
    let backend = scratch.backend();
    let mut watches: Vec<_> = (0..WATCHERS_MAX).map(|_| backend.watch(&group(), TTL)).collect();
    for watch in &mut watches {
        assert!(watch.next().now_or_never().is_none());
    }
    let mut refused = backend.watch(&group(), TTL);
    let error = refused.next().now_or_never().flatten().unwrap().unwrap_err();
    let text = format!("watch: this process already has {WATCHERS_MAX} watches of this backend, and no more are allowed; drop some");
    common::expect_error(&error, &ErrorKind::TooLarge, &text);
    watches.truncate(WATCHERS_MAX - 1);
    view_of(&mut backend.watch(&group(), TTL), &[]).await;
}

#[test]
fn a_watch_outlives_the_runtime_that_its_poller_ran_on() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (scratch, first, second) = (Scratch::new(), runtime(), runtime());
    let backend = scratch.backend();
    let mut doomed = backend.watch(&group(), TTL);
    first.block_on(view_of(&mut doomed, &[]));
    let mut watch = backend.watch(&group(), TTL);
    second.block_on(view_of(&mut watch, &[]));
    drop(first);
    second.block_on(async {
        scratch.backend().register(&registration("a", 1, TTL)).await.unwrap();
        let view = view_of(&mut watch, &["a"]).await;
        assert_eq!(ids(&view), ["a"]);
    });
}
