//! Thousands of claims: how many writes they are, and how long they take. The times are printed; what is wanted of them holds on a machine
//! that does nothing else, so only a wide limit is checked here.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use common::{ByHand, ClaimsFollower, PACE, backend, claimant, granted, group, only_granted, slots, store, view_where};
use futures::future::join_all;
use shardwise_backend_etcd::EtcdBackend;
use shardwise_core::{Epoch, Resource};
use shardwise_discovery::{Claims, Discovery, RecordId};
use shardwise_testkit::Etcd;
use tokio::sync::Mutex;

/// These tests measure, so they run one after the other.
static ALONE: Mutex<()> = Mutex::const_new(());
const SLOTS: u32 = 4_096;
const ROUNDS: usize = 3;
/// So many writes are that many slots at once.
const TRANSACTIONS: i64 = 33;
/// Enough on a machine that has three times as much to do as it can.
const LIMIT: Duration = Duration::from_secs(10);

/// p50, p99 and worst.
fn spread(mut took: Vec<Duration>) -> [Duration; 3] {
    took.sort_unstable();
    [took[took.len() / 2], took[took.len() * 99 / 100], took[took.len() - 1]]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_are_acquired_and_released_at_once() {
    let _alone = ALONE.lock().await;
    let server = Etcd::single().await.unwrap();
    let (etcd, here) = (ByHand(&server), backend(&[server.address()]));
    let a = claimant(&here, "a", 1).await;
    store(&here).await;
    for _ in 0..ROUNDS {
        let (before, begun) = (etcd.revision().await, Instant::now());
        let held = granted(&here, &a, &slots(0..SLOTS)).await;
        let acquired = begun.elapsed();
        assert_eq!(held.len(), SLOTS as usize);
        assert_eq!(etcd.revision().await - before, TRANSACTIONS, "127 to a transaction");
        let begun = Instant::now();
        ClaimsFollower::of(&backend(&[server.address()])).until_held(&slots(0..SLOTS)).await;
        let seen = begun.elapsed();
        let begun = Instant::now();
        here.release(&a, &held).await.unwrap();
        let took = [acquired, seen, begun.elapsed()];
        println!("{SLOTS} acquired, told to a new watch, released: {took:?}");
        assert_eq!(etcd.revision().await - before, 2 * TRANSACTIONS);
        assert!(took.iter().all(|took| *took < LIMIT), "{took:?}");
    }
}

/// From the call of release to the answer to the next holder, which acquires when its watch shows the release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_goes_from_one_to_the_other_at_once() {
    let _alone = ALONE.lock().await;
    let server = Etcd::single().await.unwrap();
    let (here, there) = (backend(&[server.address()]), backend(&[server.address()]));
    let (a, b) = (claimant(&here, "a", 1).await, claimant(&there, "b", 2).await);
    let (mut at_a, mut at_b) = (ClaimsFollower::of(&here), ClaimsFollower::of(&there));
    let mut took = Vec::new();
    let mut held = granted(&here, &a, &slots(7..8)).await;
    for _ in 0..100 {
        held = hand_over(&mut took, (&here, &a), (&there, &b), &mut at_b, held).await;
        held = hand_over(&mut took, (&there, &b), (&here, &a), &mut at_a, held).await;
    }
    let [p50, p99, worst] = spread(took);
    println!("p50, p99 and worst of 200 handovers: {p50:?}, {p99:?}, {worst:?}");
    assert!(p50 < LIMIT / 30, "p50 {p50:?}");
}

async fn hand_over(
    took: &mut Vec<Duration>,
    (giver, from): (&EtcdBackend, &RecordId),
    (taker, to): (&EtcdBackend, &RecordId),
    watch: &mut ClaimsFollower,
    held: Vec<(Resource, Epoch)>,
) -> Vec<(Resource, Epoch)> {
    let (store, slot) = (store(taker).await, slots(7..8));
    watch.until("the giver's claim", |claims| claims.get(&slot[0]).is_some_and(|claim| claim.epoch == held[0].1)).await;
    let begun = Instant::now();
    let taking = async {
        watch.until_held(&[]).await;
        only_granted(taker.acquire(to, &store, &slot).await.unwrap())
    };
    let (released, taken) = tokio::join!(giver.release(from, &held), taking);
    took.push(begun.elapsed());
    released.unwrap();
    assert!(taken[0].1 > held[0].1);
    taken
}

/// From the fourth member's call of register to the moment when it holds its quarter: the others see it and release their shares, and
/// it acquires what its watch shows as free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fourth_member_joins_three_with_4096_slots() {
    let _alone = ALONE.lock().await;
    let server = Etcd::single().await.unwrap();
    for _ in 0..ROUNDS {
        let took = fourth(&[server.address()]).await;
        println!("a fourth member had its quarter of {SLOTS} slots after {took:?}");
        assert!(took < LIMIT, "{took:?}");
    }
}

async fn fourth(addresses: &[String]) -> Duration {
    let mut three = Vec::new();
    for (n, incarnation) in (0..3).zip(1..) {
        let backend = backend(addresses);
        let record_id = claimant(&backend, &format!("m{n}"), incarnation).await;
        let share: Vec<_> = slots(0..SLOTS).into_iter().skip(n).step_by(3).collect();
        let held = granted(&backend, &record_id, &share).await;
        let mut watch = backend.watch(&group(), PACE);
        view_where(&mut watch, "itself", |view| view.members().iter().any(|member| member.instance_id == record_id.instance_id)).await;
        three.push((backend, record_id, held, watch));
    }
    let joining = backend(addresses);
    let (begun, wanted) = (Instant::now(), slots(0..SLOTS / 4).into_iter().collect::<BTreeSet<_>>());
    let giving = three.into_iter().map(|(backend, record_id, held, mut watch)| {
        let given: Vec<_> = held.iter().filter(|(slot, _)| wanted.contains(slot)).cloned().collect();
        async move {
            view_where(&mut watch, "the fourth", |view| view.members().len() == 4).await;
            backend.release(&record_id, &given).await.unwrap();
            (backend, record_id)
        }
    });
    let (done, record_id) = tokio::join!(join_all(giving), take_all(&joining, &wanted));
    let took = begun.elapsed();
    for (backend, record_id) in done {
        backend.deregister(&record_id).await.unwrap();
    }
    joining.deregister(&record_id).await.unwrap();
    ClaimsFollower::of(&joining).until_held(&[]).await;
    took
}

/// Joins, and acquires what is wanted as it comes free.
async fn take_all(backend: &EtcdBackend, wanted: &BTreeSet<Resource>) -> RecordId {
    let record_id = claimant(backend, "m3", 4).await;
    let (store, mut watch, mut mine) = (store(backend).await, ClaimsFollower::of(backend), BTreeSet::new());
    let mut begun = false;
    while mine.len() < wanted.len() {
        let rest: Vec<_> = wanted.difference(&mine).cloned().collect();
        watch.until("anything free", |claims| (begun || !claims.is_empty()) && rest.iter().any(|slot| !claims.contains_key(slot))).await;
        begun = true;
        let free: Vec<_> = rest.into_iter().filter(|slot| !watch.claims.contains_key(slot)).collect();
        mine.extend(only_granted(backend.acquire(&record_id, &store, &free).await.unwrap()).into_iter().map(|(slot, _)| slot));
    }
    record_id
}
