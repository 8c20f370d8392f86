//! How fast claims change hands. Prints what it measured (`--nocapture`).

#![expect(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "tests")]

mod common;

use std::time::{Duration, Instant};

use common::{claimant, group, open};
use futures::StreamExt;
use futures::future::join_all;
use shardwise_backend_consul::ConsulBackend;
use shardwise_core::{ClaimStore, Epoch, Resource};
use shardwise_discovery::{AcquireOutcome, Claims, ClaimsEvent, ClaimsStream, Discovery, RecordId};
use shardwise_testkit::{Consul, Lag};

const TTL: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(20);

fn slots(range: std::ops::Range<u32>) -> Vec<Resource> {
    range.map(Resource::Slot).collect()
}

async fn granted(backend: &ConsulBackend, record_id: &RecordId, store: &ClaimStore, wanted: &[Resource]) -> Vec<(Resource, Epoch)> {
    let answers = backend.acquire(record_id, store, wanted).await.unwrap();
    let epoch = |acquired| if let AcquireOutcome::Granted(epoch) = acquired { Some(epoch) } else { None };
    answers.into_iter().filter_map(|(resource, acquired)| Some((resource, epoch(acquired)?))).collect()
}

/// Reads until the watch shows this as held under that epoch, or as free.
async fn until_seen(watch: &mut ClaimsStream, of: &Resource, wanted: Option<Epoch>) {
    let read = async {
        loop {
            let ClaimsEvent::Changed { changes, .. } = watch.next().await.unwrap().unwrap() else { continue };
            if changes.iter().any(|change| change.resource == *of && change.claim.as_ref().map(|claim| claim.epoch) == wanted) {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.unwrap_or_else(|_| panic!("{of} is not told as {wanted:?}"));
}

fn show(what: &str, mut took: Vec<Duration>) -> Duration {
    took.sort_unstable();
    let at = |percent: usize| took[(took.len() * percent).div_ceil(100).max(1) - 1];
    println!("{what}: {} times, median {:?}, p99 {:?}, worst {:?}", took.len(), at(50), at(99), at(100));
    at(50)
}

/// Two members on one agent; how many slots the table has, and how often one of them is handed over.
async fn handovers(table: u32, times: u32) -> Duration {
    let consul = Consul::single().await.unwrap();
    let (one, two) = (open(&consul.address()), open(&consul.address()));
    let (a, b) = (claimant("g", "a", 1, TTL), claimant("g", "b", 2, TTL));
    one.register(&a).await.unwrap();
    two.register(&b).await.unwrap();
    let store = one.claim_store(&group("g"), 0).await.unwrap();
    let begun = Instant::now();
    let held = granted(&one, &a.record_id(), &store, &slots(0..table)).await;
    println!("acquired {} free slots in {:?}", held.len(), begun.elapsed());
    assert_eq!(held.len(), table as usize);
    let mut watches = [one.watch_claims(&group("g"), TTL / 4), two.watch_claims(&group("g"), TTL / 4)];
    for watch in &mut watches {
        assert!(matches!(watch.next().await.unwrap().unwrap(), ClaimsEvent::All { claims, .. } if claims.len() == table as usize));
    }
    let mut took = Vec::new();
    let mut epoch = held.iter().find(|(resource, _)| *resource == Resource::Slot(7)).unwrap().1;
    let slot = Resource::Slot(7);
    for round in 0..times {
        let (from, to, giver, taker) = if round % 2 == 0 { (&one, &two, &a, &b) } else { (&two, &one, &b, &a) };
        let watch = &mut watches[1 - round as usize % 2];
        let begun = Instant::now();
        let handing = async {
            from.release(&giver.record_id(), &[(slot.clone(), epoch)]).await.unwrap();
        };
        let taking = async {
            until_seen(watch, &slot, None).await;
            granted(to, &taker.record_id(), &store, std::slice::from_ref(&slot)).await
        };
        let ((), got) = tokio::join!(handing, taking);
        took.push(begun.elapsed());
        assert!(got[0].1 > epoch);
        epoch = got[0].1;
        // Both know it before the next round.
        for watch in &mut watches {
            until_seen(watch, &slot, Some(epoch)).await;
        }
        one.renew(&a.record_id(), TTL).await.unwrap();
        two.renew(&b.record_id(), TTL).await.unwrap();
    }
    let begun = Instant::now();
    let rest: Vec<_> = held.into_iter().filter(|(resource, _)| *resource != slot).collect();
    one.release(&a.record_id(), &rest).await.unwrap();
    println!("released {} slots in {:?}", rest.len(), begun.elapsed());
    show(&format!("a slot of {table} released, told, and acquired by another"), took)
}

/// The fourth member takes over a quarter: the others release its slots, it acquires the slots that its watch shows as free, and all
/// four follow.
async fn joins(slots: u32) -> Duration {
    let consul = Consul::single().await.unwrap();
    let members: Vec<_> = (0..4u64).map(|n| (open(&consul.address()), claimant("g", &format!("m{n}"), n, TTL))).collect();
    for (backend, member) in &members {
        backend.register(member).await.unwrap();
    }
    let store = members[0].0.claim_store(&group("g"), 0).await.unwrap();
    let wanted = |slot: &u32| slot % 4 == 3;
    let mut gives = Vec::new();
    for (n, (backend, member)) in (0..).zip(&members[..3]) {
        let share: Vec<_> = (0..slots).filter(|slot| slot % 3 == n).map(Resource::Slot).collect();
        let held = granted(backend, &member.record_id(), &store, &share).await;
        assert_eq!(held.len(), share.len());
        gives.push(held.into_iter().filter(|(resource, _)| matches!(resource, Resource::Slot(slot) if wanted(slot))).collect::<Vec<_>>());
    }
    let mut following = Vec::new();
    for (backend, _) in &members {
        let mut watch = backend.watch_claims(&group("g"), TTL / 4);
        assert!(matches!(watch.next().await.unwrap().unwrap(), ClaimsEvent::All { claims, .. } if claims.len() == slots as usize));
        following.push(watch);
    }
    let mut watch = following.pop().unwrap();
    for mut other in following {
        tokio::spawn(async move { while other.next().await.is_some() {} });
    }
    let begun = Instant::now();
    let giving = join_all(members.iter().zip(&gives).map(async |((backend, member), held)| {
        backend.release(&member.record_id(), held).await.unwrap();
    }));
    let taking = async {
        let (mut had, (backend, member)) = (0, &members[3]);
        while had < (0..slots).filter(wanted).count() {
            let ClaimsEvent::Changed { changes, .. } = watch.next().await.unwrap().unwrap() else { continue };
            let free: Vec<_> = changes.into_iter().filter(|change| change.claim.is_none()).map(|change| change.resource).collect();
            had += granted(backend, &member.record_id(), &store, &free).await.len();
        }
    };
    tokio::join!(giving, taking);
    let took = begun.elapsed();
    println!("a fourth member has its quarter of {slots} slots after {took:?}");
    took
}

/// `SHARDWISE_TEST_ROUNDS=200` asks for more handovers than a test run needs.
fn rounds(default: u32) -> u32 {
    std::env::var("SHARDWISE_TEST_ROUNDS").map_or(default, |rounds| rounds.parse().unwrap())
}

// The machine is shared with other tests and the build is not optimised, so the limits are wide; what p99 has to be is measured by itself.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_of_the_usual_ring_is_handed_over_within_milliseconds() {
    let lag = Lag::begin();
    assert!(handovers(1_024, rounds(40)).await < Duration::from_millis(300) + lag.allowance());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_of_thousands_is_handed_over_in_less_than_a_second() {
    let lag = Lag::begin();
    assert!(handovers(4_096, rounds(6)).await < Duration::from_secs(1) + lag.allowance());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fourth_member_has_its_share_of_thousands_in_seconds() {
    assert!(joins(4_096).await < Duration::from_secs(10));
}
