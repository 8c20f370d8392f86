//! How long claims take. Alone in its file, so that other tests do not count.

#![expect(clippy::print_stdout, reason = "tests")]

mod common;

use std::time::{Duration, Instant};

use common::{Follower, PATIENCE, Scratch, granted, group, joined, release, slots, store};
use shardwise_core::{ClaimName, SLOTS_MAX};
use shardwise_discovery::{Claims, Discovery, Notes};
use shardwise_testkit::Lag;

const TTL: Duration = Duration::from_secs(20);
const SINGLE: u32 = 500;

async fn timed<T>(what: &str, call: impl Future<Output = T>) -> T {
    let started = Instant::now();
    let done = call.await;
    println!("{what}: {:.1} ms", started.elapsed().as_secs_f64() * 1e3);
    done
}

/// Prints how long each takes. One that took four seconds would fail.
#[tokio::test]
async fn all_slots_there_can_be_are_acquired_and_released_in_one_call() {
    let scratch = Scratch::new();
    let (backend, peer) = (scratch.backend(), scratch.backend());
    let (a, b) = (joined(&backend, "a", PATIENCE).await.record_id(), joined(&peer, "b", PATIENCE).await.record_id());
    let mut follower = Follower::of(&peer, TTL);
    for count in [1_024, 4_096, SLOTS_MAX] {
        let all = slots(0..count);
        let held = timed(&format!("acquire {count}"), granted(&backend, &a, &all)).await;
        assert_eq!(held.len(), all.len());
        timed("  told", follower.until(0..count)).await;
        let again = timed("  acquire what is held by oneself", granted(&backend, &a, &all)).await;
        assert_eq!(again, held, "the same epochs");
        assert!(timed("  acquire what is held by another", granted(&peer, &b, &all)).await.is_empty());
        timed("  release", release(&backend, &a, &held)).await;
        timed("  told", follower.until(0..0)).await;
    }
}

/// Prints what is flushed to the disk before it is answered beside what is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_single_acquisition_a_note_and_a_renewal() {
    let scratch = Scratch::new();
    let backend = scratch.backend();
    let a = joined(&backend, "a", PATIENCE).await.record_id();
    let claims = store(&backend).await;
    let mut took = [Vec::new(), Vec::new(), Vec::new()];
    for n in 0..SINGLE {
        let started = Instant::now();
        backend.renew(&a, PATIENCE).await.unwrap();
        took[0].push(started.elapsed());
        let started = Instant::now();
        backend.acquire(&a, &claims, &slots(n..n + 1)).await.unwrap();
        took[1].push(started.elapsed());
        let (name, started) = (ClaimName::new(format!("{n}")).unwrap(), Instant::now());
        backend.write_note(&group(), &name, 0, "text").await.unwrap();
        took[2].push(started.elapsed());
    }
    for (what, mut took) in ["renewal", "acquisition of one slot", "note"].into_iter().zip(took) {
        took.sort_unstable();
        let [median, late] = [took.len() / 2, took.len() * 99 / 100].map(|at| took[at]);
        println!("{what}, {SINGLE} times: median {median:?}, 99 of 100 within {late:?}");
    }
}

/// Prints the distribution.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_goes_from_process_to_process_within_a_tenth_of_a_second() {
    let scratch = Scratch::new();
    let (backend, peer) = (scratch.backend(), scratch.backend());
    let (a, b) = (joined(&backend, "a", PATIENCE).await.record_id(), joined(&peer, "b", PATIENCE).await.record_id());
    let (mut of_a, mut of_b) = (Follower::of(&backend, TTL), Follower::of(&peer, TTL));
    let (lag, mut took) = (Lag::begin(), Vec::new());
    let mut held = granted(&backend, &a, &slots(0..50)).await;
    for round in 0..50 {
        let (giver, record_id, taker, heir, follower) =
            if round % 2 == 0 { (&backend, &a, &peer, &b, &mut of_b) } else { (&peer, &b, &backend, &a, &mut of_a) };
        follower.until(0..50).await;
        let started = Instant::now();
        release(giver, record_id, &held).await;
        follower.until(0..0).await;
        held = granted(taker, heir, &slots(0..50)).await;
        took.push(started.elapsed());
        assert_eq!(held.len(), 50);
    }
    took.sort_unstable();
    println!("handover of 50 slots, 50 times: median {:?}, 49th {:?}, worst {:?}", took[25], took[48], took[49]);
    // The middle one, since other programs on the machine may hold up any single one.
    let late = lag.allowance();
    assert!(took[25] <= Duration::from_millis(100) + late, "{took:?}, with {late:?} for this machine");
}
