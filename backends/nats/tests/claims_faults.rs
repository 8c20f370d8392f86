//! Claims and what may go wrong with them: lives that end in the middle of a call, holders without a trace, streams that have lost
//! messages, claims that were edited by hand.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{TTL, backend, bucket, claimant, eventually, granted, group, lasting, only_granted, registration, shared, slots, store};
use futures::future::join_all;
use shardwise_core::{GroupName, Resource};
use shardwise_discovery::{AcquireOutcome, Claims, Discovery, ErrorKind, Registration};

/// A publish by hand, acknowledged.
async fn put(url: &str, subject: String, payload: &str) {
    let client = async_nats::connect(url).await.unwrap();
    client.request(subject, payload.to_owned().into()).await.unwrap();
}

/// The purge of a subject by hand, which leaves no marker.
async fn purge(url: &str, bucket: &str, subject: &str) {
    let client = async_nats::connect(url).await.unwrap();
    let body = format!("{{\"filter\":\"{subject}\"}}");
    client.request(format!("$JS.API.STREAM.PURGE.KV_{bucket}"), body.into()).await.unwrap();
}

/// Its beat is gone without a tombstone, so nothing says that its life is over: what it holds is granted a TTL later, and not before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_absence_of_a_beat_is_no_end_of_a_life() {
    let (server, bucket) = (shared().await, bucket());
    let url = server.address();
    let (here, there) = (backend(&url, &bucket), backend(&url, &bucket));
    let a = Registration { claims: true, ttl: TTL, ..lasting("a", 1) };
    here.register(&a).await.unwrap();
    assert_eq!(granted(&here, &a.record_id(), &slots(0..2)).await.len(), 2);
    let b = claimant(&there, "b", 2).await;
    drop(here);
    for key in ["b", "m"] {
        purge(&url, &bucket, &format!("$KV.{bucket}.workers.{key}.a")).await;
    }
    let begun = std::time::Instant::now();
    let answers = there.acquire(&b, &store(&there).await, &slots(0..2)).await.unwrap();
    assert!(answers.iter().all(|(_, outcome)| *outcome == AcquireOutcome::NotYet), "{answers:?}");
    eventually("both slots", async || (granted(&there, &b, &slots(0..2)).await.len() == 2).then_some(())).await;
    assert!(begun.elapsed() >= TTL * 99 / 100, "granted after {:?}", begun.elapsed());
}

/// Everybody asks for the same slot the moment its holder leaves, round after round: one gets it, and epochs rise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_that_race_for_a_slot_one_gets_it_under_a_higher_epoch() {
    let (server, bucket) = (shared().await, bucket());
    let backends: Vec<_> = (0..4).map(|_| backend(&server.address(), &bucket)).collect();
    let mut members = Vec::new();
    for (incarnation, backend) in (1..).zip(&backends) {
        members.push(claimant(backend, &format!("m{incarnation}"), incarnation).await);
    }
    let (known, wanted) = (store(&backends[0]).await, slots(0..1));
    let mut last = 0;
    for round in 0..200 {
        let asking = backends.iter().zip(&members).map(|(backend, member)| backend.acquire(member, &known, &wanted));
        let answers: Vec<_> = join_all(asking).await.into_iter().map(|answer| only_granted(answer.unwrap())).collect();
        let won: Vec<_> = (0..4).filter(|index| !answers[*index].is_empty()).collect();
        assert_eq!(won.len(), 1, "round {round}: {answers:?}");
        let (winner, held) = (won[0], answers[won[0]].clone());
        let epoch = held[0].1.get();
        assert!(epoch > last, "round {round}: {epoch} after {last}");
        last = epoch;
        backends[winner].release(&members[winner], &held).await.unwrap();
    }
}

/// The same life that was evicted does not renew, does not claim, and what it held is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_evicted_life_has_nothing_left() {
    let (server, bucket) = (shared().await, bucket());
    let url = server.address();
    let (here, there) = (backend(&url, &bucket), backend(&url, &bucket));
    let (a, b) = (claimant(&here, "a", 1).await, claimant(&there, "b", 2).await);
    let held = granted(&here, &a, &slots(0..3)).await;
    // As an observer would.
    put(&url, format!("$KV.{bucket}.workers.b.a"), "").await;
    let taken = granted(&there, &b, &slots(0..3)).await;
    assert!(taken.len() == 3 && taken.iter().zip(&held).all(|(now, before)| now.1 > before.1), "{held:?}, then {taken:?}");
    let error = here.renew(&a, TTL).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Lost, "{error}");
    let error = here.acquire(&a, &store(&here).await, &slots(3..4)).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Lost, "{error}");
    here.release(&a, &held).await.unwrap();
    let c = claimant(&there, "c", 3).await;
    assert!(granted(&there, &c, &slots(0..3)).await.is_empty(), "its release changes nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_cannot_be_read_keeps_no_other_from_being_granted() {
    let (server, bucket) = (shared().await, bucket());
    let url = server.address();
    let here = backend(&url, &bucket);
    let a = claimant(&here, "a", 1).await;
    put(&url, format!("$KV.{bucket}.workers.c.slot.1"), "nonsense").await;
    let answers = here.acquire(&a, &store(&here).await, &slots(0..3)).await.unwrap();
    let outcome = |slot: u32| answers.iter().find(|(resource, _)| *resource == Resource::Slot(slot)).unwrap().1;
    assert!(matches!(outcome(0), AcquireOutcome::Granted(_)) && matches!(outcome(2), AcquireOutcome::Granted(_)), "{answers:?}");
    assert_eq!(outcome(1), AcquireOutcome::NotYet);
}

/// The stream is deleted and made anew: its sequences begin at 1, so epochs would repeat. Nothing is granted before the floor is raised.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_begins_anew_grants_nothing_under_the_former_store() {
    let (server, bucket) = (shared().await, bucket());
    let url = server.address();
    let here = backend(&url, &bucket);
    let a = claimant(&here, "a", 1).await;
    let before = store(&here).await;
    assert_eq!(granted(&here, &a, &slots(0..1)).await.len(), 1);
    let context = async_nats::jetstream::new(async_nats::connect(&*url).await.unwrap());
    context.delete_stream(format!("KV_{bucket}")).await.unwrap();
    let b = registration("b", 2);
    eventually("a member registers again", async || here.register(&b).await.ok()).await;
    let error = here.acquire(&b.record_id(), &before, &slots(0..1)).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::OtherStore, "{error}");
    // The former store comes back with its id, as from a backup: this process has used it, and refuses it.
    let stored = format!("{{\"id\":\"{}\",\"floor\":0,\"stream_created\":\"another\"}}", before.id);
    put(&url, format!("$KV.{bucket}.workers.s"), &stored).await;
    let other = here.claim_store(&group(), 0).await.unwrap();
    assert_ne!(other.id, before.id, "for its members it is another store");
    let error = backend(&url, &bucket).claim_store(&group(), 0).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("epoch_floor"), "{error}");
    let raised = here.claim_store(&group(), 1_000_000).await.unwrap();
    let granted = only_granted(here.acquire(&b.record_id(), &raised, &slots(0..1)).await.unwrap());
    assert!(granted[0].1.get() > 1_000_000, "{granted:?}");
}

/// The stream is deleted, and another process makes it anew before this one misses it. By the lower sequence of its next write this one
/// notices, and goes on in the stream that is there: else it would count its epochs in one that is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_another_process_has_made_anew_is_the_one_that_counts() {
    let (server, bucket) = (shared().await, bucket());
    let url = server.address();
    let here = backend(&url, &bucket);
    let a = claimant(&here, "a", 1).await;
    assert_eq!(granted(&here, &a, &slots(0..3)).await.len(), 3);
    let context = async_nats::jetstream::new(async_nats::connect(&*url).await.unwrap());
    context.delete_stream(format!("KV_{bucket}")).await.unwrap();
    let there = backend(&url, &bucket);
    let raised = there.claim_store(&group(), 1_000_000).await.unwrap();
    let again = Registration { claims: true, ..lasting("a", 2) };
    eventually("it registers again", async || here.register(&again).await.ok()).await;
    let found = eventually("the store", async || here.claim_store(&group(), 0).await.ok()).await;
    assert_eq!(found, raised, "both see the same store");
    let answers = eventually("an answer", async || here.acquire(&again.record_id(), &found, &slots(0..3)).await.ok()).await;
    let held = only_granted(answers);
    assert!(held.len() == 3 && held.iter().all(|(_, epoch)| epoch.get() > 1_000_000), "{held:?}");
}

/// The stream is deleted, and another process makes it anew before this one, which has written little, sees a sequence that falls. A store
/// that names the former stream would be refused by all members.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_names_the_stream_that_is_there_whoever_makes_it() {
    let server = shared().await;
    let url = server.address();
    for is_made_here in [false, true] {
        let bucket = bucket();
        let here = backend(&url, &bucket);
        here.claim_store(&GroupName::new("others").unwrap(), 0).await.unwrap();
        let context = async_nats::jetstream::new(async_nats::connect(&*url).await.unwrap());
        context.delete_stream(format!("KV_{bucket}")).await.unwrap();
        let there = backend(&url, &bucket);
        there.register(&registration("b", 2)).await.unwrap();
        let made = store(if is_made_here { &here } else { &there }).await;
        for process in [&here, &there, &backend(&url, &bucket)] {
            assert_eq!(store(process).await, made, "made here: {is_made_here}");
        }
        let a = claimant(&here, "a", 1).await;
        assert_eq!(granted(&here, &a, &slots(0..1)).await.len(), 1);
    }
}
