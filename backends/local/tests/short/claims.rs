//! Who holds what, over processes, deaths and waits for the file's lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Follower, Hand, PATIENCE, Scratch, granted, joined, registration, release, run_sql, slots, store};
use shardwise_backend_local::LocalBackend;
use shardwise_core::{ClaimName, Resource, SLOTS_MAX};
use shardwise_discovery::{Claims, ClaimsEvent, Discovery, ErrorKind, RecordId};
use sqlx::Connection;

const TTL: Duration = Duration::from_secs(20);
/// With a clock that is moved by hand.
const SHORT: Duration = Duration::from_secs(1);

#[tokio::test]
async fn what_is_no_slot_and_what_is_too_much_for_one_call_is_refused() {
    let scratch = Scratch::new();
    let backend = scratch.backend();
    let a = joined(&backend, "a", TTL).await.record_id();
    let store = store(&backend).await;
    let error = backend.acquire(&a, &store, &slots(65_535..65_537)).await.unwrap_err();
    crate::common::expect_error(&error, &ErrorKind::TooLarge, "acquire: 65536 is not a slot; slots are the numbers below 65536");
    let mut wanted = slots(0..SLOTS_MAX);
    wanted.push(Resource::Name(ClaimName::new("leader").unwrap()));
    let error = backend.acquire(&a, &store, &wanted).await.unwrap_err();
    crate::common::expect_error(&error, &ErrorKind::TooLarge, "acquire: 65537 resources are too many for one call; 65536 are allowed");
    assert!(granted(&backend, &a, &slots(65_535..65_536)).await.len() == 1, "the last slot is one");
    let twice = [slots(3..5), slots(3..5)].concat();
    assert_eq!(backend.acquire(&a, &store, &twice).await.unwrap().len(), 2, "each is answered once");
}

#[tokio::test]
async fn an_expired_record_that_was_not_deleted_holds_nothing() {
    let (scratch, hand) = (Scratch::new(), Hand::new());
    let (backend, peer) = (hand.backend(&scratch), hand.backend(&scratch));
    let (a, b) = (joined(&backend, "a", SHORT).await.record_id(), joined(&peer, "b", TTL).await.record_id());
    let before = granted(&backend, &a, &slots(0..5)).await;
    hand.advance(SHORT.checked_sub(Duration::from_nanos(1)).unwrap());
    assert!(granted(&peer, &b, &slots(0..3)).await.is_empty(), "it lives to the last nanosecond");
    hand.advance(Duration::from_nanos(1));
    let after = granted(&peer, &b, &slots(0..3)).await;
    assert_eq!(after.len(), 3);
    assert!(after.iter().all(|(slot, epoch)| *epoch > before[slot]), "{before:?}, then {after:?}");
    let members: i64 = sqlx::query_scalar("SELECT count(*) FROM member").fetch_one(&mut scratch.sql().await).await.unwrap();
    assert_eq!(members, 2, "nobody has deleted the record");
    let error = backend.acquire(&a, &store(&backend).await, &slots(3..5)).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Lost, "{error}");
    release(&backend, &a, &before).await;
    // The watch deletes the record, and shows what is left.
    Follower::of(&peer, TTL).until(0..3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_is_reported_without_a_list_of_members_and_once_the_file_can_be_written() {
    let (scratch, hand) = (Scratch::new(), Hand::new());
    let (backend, peer) = (hand.backend(&scratch), hand.backend(&scratch));
    let (a, b) = (joined(&backend, "a", SHORT).await.record_id(), joined(&peer, "b", SHORT * 2).await.record_id());
    granted(&backend, &b, &slots(0..2)).await;
    granted(&backend, &a, &slots(2..5)).await;
    let mut follower = Follower::of(&peer, TTL);
    follower.until(0..5).await;
    hand.advance(SHORT);
    follower.until(0..2).await;
    let mut stuck = scratch.sql().await;
    let transaction = stuck.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let reads = hand.reads();
    hand.advance(SHORT);
    hand.read_after(reads + 10).await;
    assert_eq!(follower.held.len(), 2);
    transaction.rollback().await.unwrap();
    follower.until(0..0).await;
}

/// An acquisition that has read the clock in time and is carried out too late: it had to wait for another process's write.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquisition_carried_out_after_expiry_is_lost_and_keeps_no_member_out() {
    let (scratch, hand) = (Scratch::new(), Hand::new());
    let (backend, peer) = (hand.backend(&scratch), hand.backend(&scratch));
    let (a, b) = (joined(&backend, "a", SHORT).await.record_id(), joined(&peer, "b", TTL).await.record_id());
    let known = store(&backend).await;
    let mut stuck = scratch.sql().await;
    let transaction = stuck.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let reads = hand.reads();
    let asking = tokio::spawn(async move { backend.acquire(&a, &known, &slots(0..3)).await });
    hand.read_after(reads).await;
    hand.advance(SHORT);
    transaction.rollback().await.unwrap();
    let error = asking.await.unwrap().unwrap_err();
    crate::common::expect_error(&error, &ErrorKind::Lost, "acquire: \"a\" has no living record here; register again");
    assert_eq!(granted(&peer, &b, &slots(0..3)).await.len(), 3);
}

#[tokio::test]
async fn a_member_that_registers_again_after_its_death_holds_nothing() {
    let (scratch, hand) = (Scratch::new(), Hand::new());
    let backend = hand.backend(&scratch);
    let a = joined(&backend, "a", SHORT).await.record_id();
    let before = granted(&backend, &a, &slots(0..3)).await;
    backend.register(&registration("a", 1, SHORT)).await.unwrap();
    assert_eq!(granted(&backend, &a, &slots(0..3)).await, before, "it was alive, and so were its claims");
    hand.advance(SHORT);
    joined(&backend, "a", SHORT).await;
    let mut follower = Follower::of(&backend, TTL);
    follower.until(0..0).await;
    let after = granted(&backend, &a, &slots(0..3)).await;
    assert!(after.iter().all(|(slot, epoch)| *epoch > before[slot]), "{before:?}, then {after:?}");
}

#[tokio::test]
async fn epochs_rise_over_the_end_of_the_group_and_of_all_processes() {
    let scratch = Scratch::new();
    let mut last = None;
    for _ in 0..3 {
        let backend = scratch.backend();
        let a = joined(&backend, "a", TTL).await.record_id();
        let epoch = granted(&backend, &a, &slots(7..8)).await.into_values().next();
        assert!(epoch > last, "{epoch:?} after {last:?}");
        last = epoch;
        backend.deregister(&a).await.unwrap();
        let groups: i64 = sqlx::query_scalar("SELECT (SELECT count(*) FROM claim_group) + (SELECT count(*) FROM claim)")
            .fetch_one(&mut scratch.sql().await)
            .await
            .unwrap();
        assert_eq!(groups, 0, "nothing is left of a group without members but its number");
    }
}

#[tokio::test]
async fn a_reader_that_knows_less_than_is_remembered_reads_everything() {
    let scratch = Scratch::new();
    let backend = scratch.backend();
    let a = joined(&backend, "a", TTL).await.record_id();
    granted(&backend, &a, &slots(0..10)).await;
    let mut follower = Follower::of(&backend, TTL);
    follower.until(0..10).await;
    // As if so much had come free since that the beginning is forgotten.
    run_sql(
        &scratch.path(),
        "BEGIN IMMEDIATE; DELETE FROM claim WHERE resource >= 4;
         DELETE FROM claim_end WHERE number < (SELECT max(number) FROM claim_end); COMMIT",
    )
    .await;
    follower.until(0..4).await;
}

#[tokio::test]
async fn what_came_free_is_remembered_for_so_many_numbers() {
    let scratch = Scratch::new();
    let backend = scratch.backend();
    let a = joined(&backend, "a", TTL).await.record_id();
    let remembered = async || -> i64 {
        let mut connection = scratch.sql().await;
        sqlx::query_scalar("SELECT count(*) FROM claim_end").fetch_one(&mut connection).await.unwrap()
    };
    let held = granted(&backend, &a, &slots(0..10)).await;
    release(&backend, &a, &held).await;
    assert_eq!(remembered().await, 10);
    // Grant and release of the next one have the next two numbers, so that the sixth of the ten is the oldest within 131,072.
    run_sql(&scratch.path(), "UPDATE store SET counter = counter + 131072 - 7").await;
    let held = granted(&backend, &a, &slots(0..1)).await;
    release(&backend, &a, &held).await;
    assert_eq!(remembered().await, 6);
}

/// Silence costs nothing: the file stays as it is, and the claims are not read again.
#[tokio::test]
async fn a_watch_in_steady_state_writes_nothing_and_proves_itself() {
    let scratch = Scratch::new();
    let backend = scratch.backend();
    let a = joined(&backend, "a", PATIENCE).await.record_id();
    granted(&backend, &a, &slots(0..100)).await;
    let every = Duration::from_millis(100);
    let mut follower = Follower::of(&backend, every);
    follower.until(0..100).await;
    let mut connection = scratch.sql().await;
    let version = async |connection: &mut sqlx::SqliteConnection| -> i64 {
        sqlx::query_scalar("PRAGMA data_version").fetch_one(connection).await.unwrap()
    };
    let before = version(&mut connection).await;
    let mut last = None;
    for _ in 0..5 {
        let ClaimsEvent::Proven(proven) = follower.next().await.unwrap() else { panic!("nothing has changed") };
        assert!(last < Some(proven), "{proven:?} after {last:?}");
        last = Some(proven);
    }
    assert_eq!(version(&mut connection).await, before);
}

/// Numbers from a seed, one after the other (`SplitMix64`).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

const CONTESTED: u32 = 40;

/// What really goes on at each slot: who works there, and the highest epoch so far.
#[derive(Default)]
struct Site {
    holder: AtomicU64,
    epoch: AtomicU64,
}

/// Acquires and releases what it gets, and checks that no other member holds it meanwhile.
async fn contend(backend: LocalBackend, record_id: RecordId, me: u64, sites: &[Site]) -> (usize, Vec<Duration>) {
    let (mut random, mut grants, mut took) = (Random(me), 0, Vec::new());
    let site = |resource: &Resource| match resource {
        Resource::Slot(slot) => &sites[*slot as usize],
        Resource::Name(name) => panic!("only slots were asked for, and {name} was granted"),
    };
    for _ in 0..40 {
        let from = u32::try_from(random.below(u64::from(CONTESTED) - 10)).unwrap();
        let started = Instant::now();
        let held = granted(&backend, &record_id, &slots(from..from + 10)).await;
        took.push(started.elapsed());
        for (resource, epoch) in &held {
            let site = site(resource);
            assert_eq!(site.holder.swap(me, Ordering::SeqCst), 0, "{resource} has two holders");
            let before = site.epoch.swap(epoch.get(), Ordering::SeqCst);
            assert!(before < epoch.get(), "{resource}: epoch {epoch} after {before}");
        }
        grants += held.len();
        if random.below(3) == 0 {
            tokio::time::sleep(Duration::from_millis(random.below(4))).await;
        }
        for resource in held.keys() {
            assert_eq!(site(resource).holder.swap(0, Ordering::SeqCst), me, "{resource} was taken away");
        }
        release(&backend, &record_id, &held).await;
    }
    (grants, took)
}

/// Prints how long the acquisitions took.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_who_take_and_give_back_at_once_never_hold_one_slot_together() {
    let scratch = Scratch::new();
    let sites: &'static [Site] = (0..CONTESTED).map(|_| Site::default()).collect::<Vec<_>>().leak();
    let seed = std::process::id().into();
    println!("seeds from {seed}");
    let mut contenders = Vec::new();
    for me in seed..seed + 6 {
        let backend = scratch.backend();
        let record_id = joined(&backend, &format!("m{me}"), PATIENCE * 3).await.record_id();
        contenders.push(tokio::spawn(contend(backend, record_id, me, sites)));
    }
    let mut follower = Follower::of(&scratch.backend(), TTL);
    let (mut grants, mut took) = (0, Vec::new());
    for contender in contenders {
        let (granted, durations) = contender.await.unwrap();
        grants += granted;
        took.extend(durations);
    }
    took.sort_unstable();
    let (median, late) = (took[took.len() / 2], took[took.len() * 99 / 100]);
    println!("{} acquisitions: median {median:?}, 99 of 100 within {late:?}, worst {:?}", took.len(), took[took.len() - 1]);
    assert!(grants > 100, "only {grants} grants; nobody would have met anybody");
    follower.until(0..0).await;
}
