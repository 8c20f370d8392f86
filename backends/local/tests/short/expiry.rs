//! How records end, with a clock that the test moves by hand.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Hand, PATIENCE, Scratch, eventually, granted, group, ids, registration, run_sql, slots, view_of, with_clock};
use shardwise_backend_local::LocalBackend;
use shardwise_core::mistakes::{Mistake, make};
use shardwise_discovery::{Clock, Discovery, ErrorKind, Registration};
use sqlx::Connection;
use sqlx::sqlite::SqliteConnection;

const TTL: Duration = Duration::from_secs(1);

async fn seen(backend: &LocalBackend) -> (u64, Vec<String>) {
    let view = backend.members(&group()).await.unwrap().view;
    (view.revision(), ids(&view).into_iter().map(str::to_owned).collect())
}

async fn rows(connection: &mut SqliteConnection) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM member").fetch_one(connection).await.unwrap()
}

#[tokio::test]
async fn a_record_lives_to_the_last_nanosecond_of_its_ttl_and_no_longer() {
    let (scratch, hand) = (Scratch::new(), Hand::new());
    let (backend, peer) = (hand.backend(&scratch), hand.backend(&scratch));
    backend.register(&registration("a", 1, TTL)).await.unwrap();
    hand.advance(TTL.checked_sub(Duration::from_nanos(1)).unwrap());
    let (alive, members) = seen(&peer).await;
    assert_eq!(members, ["a"]);
    hand.advance(Duration::from_nanos(1));
    let (gone, members) = seen(&peer).await;
    assert!(members.is_empty());
    assert!(gone > alive, "leaving is a change: revision {gone} after {alive}");
    assert_eq!(rows(&mut scratch.sql().await).await, 0, "whoever sees a dead record deletes it");
    assert_eq!(seen(&backend).await.0, gone, "and does so once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_record_that_cannot_be_deleted_is_left_out() {
    let (scratch, hand) = (Scratch::new(), Hand::new());
    let (backend, peer) = (hand.backend(&scratch), hand.backend(&scratch));
    let (a, b) = (registration("a", 1, TTL), registration("b", 1, TTL * 100));
    backend.register(&a).await.unwrap();
    backend.register(&b).await.unwrap();
    let mut watch = peer.watch(&group(), PATIENCE);
    view_of(&mut watch, &["a", "b"]).await;
    let mut stuck = scratch.sql().await;
    let transaction = stuck.begin_with("BEGIN IMMEDIATE").await.unwrap();
    hand.advance(TTL);
    view_of(&mut watch, &["b"]).await;
    assert_eq!(seen(&peer).await.1, ["b"]);
    transaction.rollback().await.unwrap();
    eventually("it is deleted as soon as that is possible", async || (rows(&mut stuck).await == 1).then_some(())).await;
    assert_eq!(*backend.renew(&a.record_id(), TTL).await.unwrap_err().kind(), ErrorKind::Lost);
}

/// A renewal that has read the clock in time and is carried out too late: it had to wait for another process's write.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_carried_out_after_expiry_is_lost_and_heals_nothing() {
    let (scratch, hand) = (Scratch::new(), Hand::new());
    let (backend, peer) = (hand.backend(&scratch), hand.backend(&scratch));
    let a = registration("a", 1, TTL);
    backend.register(&a).await.unwrap();
    let mut stuck = scratch.sql().await;
    let transaction = stuck.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let reads = hand.reads();
    let renewal = tokio::spawn({
        let (backend, record_id) = (backend.clone(), a.record_id());
        async move { backend.renew(&record_id, TTL).await }
    });
    hand.read_after(reads).await;
    hand.advance(TTL);
    transaction.rollback().await.unwrap();
    let error = renewal.await.unwrap().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(error.to_string(), "renew: \"a\" has no living record here; register again");
    assert!(seen(&peer).await.1.is_empty());
    assert_eq!(rows(&mut stuck).await, 0);
}

/// The same, and the caller has given up waiting in the meantime.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_whose_caller_gave_up_heals_nothing_either() {
    let (scratch, hand) = (Scratch::new(), Hand::new());
    let backend = hand.backend(&scratch);
    let a = registration("a", 1, TTL);
    backend.register(&a).await.unwrap();
    let mut stuck = scratch.sql().await;
    let transaction = stuck.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let (record_id, reads) = (a.record_id(), hand.reads());
    tokio::select! {
        answer = backend.renew(&record_id, TTL) => panic!("the lock is held, and yet {answer:?}"),
        () = hand.read_after(reads) => {}
    }
    hand.advance(TTL);
    transaction.rollback().await.unwrap();
    eventually("the late renewal is taken back", async || (rows(&mut stuck).await == 0).then_some(())).await;
}

type Trapped = Box<dyn FnOnce() + Send>;

/// A clock that runs something, once, when it is read for the second time after it
/// was armed: a renewal reads it before it is written, and again afterwards.
#[derive(Clone, Default)]
struct Trap {
    armed: Arc<Mutex<Option<Trapped>>>,
    reads: Arc<AtomicU64>,
}

impl Trap {
    fn backend(&self, scratch: &Scratch, hand: &Hand) -> LocalBackend {
        let (trap, clock) = (self.clone(), hand.clock());
        let read = move || {
            if trap.reads.fetch_add(1, Ordering::SeqCst) == 1 {
                let armed = trap.armed.lock().unwrap().take();
                if let Some(run) = armed {
                    run();
                }
            }
            clock.now()
        };
        with_clock(&scratch.path(), Clock::custom(read))
    }

    fn arm(&self, run: impl FnOnce() + Send + 'static) {
        *self.armed.lock().unwrap() = Some(Box::new(run));
        self.reads.store(0, Ordering::SeqCst);
    }
}

/// Lets a renewal stop between its write and the look at whether that came too late. In that time the record would have ended, and the same
/// member, which has given the renewal up, registers anew and acquires a slot. What becomes of both, once the renewal goes on.
async fn registered_between_write_and_look(passes: Duration) -> (Vec<String>, usize) {
    let (scratch, hand, trap) = (Scratch::new(), Hand::new(), Trap::default());
    let backend = trap.backend(&scratch, &hand);
    let a = registration("a", 1, TTL);
    backend.register(&a).await.unwrap();
    hand.advance(TTL / 2);
    trap.arm({
        let (hand, path, a) = (hand.clone(), scratch.path(), a.clone());
        // On a thread with a runtime, because the one of this test waits for the clock.
        move || {
            let registers = async move {
                hand.advance(passes);
                let anew = with_clock(&path, hand.clock());
                anew.register(&a).await.unwrap();
                assert_eq!(granted(&anew, &a.record_id(), &slots(0..1)).await.len(), 1);
            };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            std::thread::spawn(move || runtime.block_on(registers)).join().unwrap();
        }
    });
    assert_eq!(*backend.renew(&a.record_id(), TTL).await.unwrap_err().kind(), ErrorKind::Lost);
    let claims: i64 = sqlx::query_scalar("SELECT count(*) FROM claim").fetch_one(&mut scratch.sql().await).await.unwrap();
    (seen(&hand.backend(&scratch)).await.1, usize::try_from(claims).unwrap())
}

#[tokio::test]
async fn a_registration_outlives_an_earlier_renewal_that_came_too_late() {
    for passes in [TTL * 3 / 4, TTL * 5 / 4] {
        let left = registered_between_write_and_look(passes).await;
        assert_eq!(left, (vec!["a".to_owned()], 1), "registered {passes:?} after the renewal was written");
    }
    make(Some(Mistake::UndoByIncarnation));
    let left = registered_between_write_and_look(TTL * 3 / 4).await;
    make(None);
    assert_eq!(left, (Vec::new(), 0), "the mistake is made, and this test cannot see it");
}

#[tokio::test]
async fn a_record_of_another_boot_is_dead_whatever_its_deadline() {
    let scratch = Scratch::new();
    let backend = scratch.backend();
    let a = registration("a", 1, PATIENCE);
    backend.register(&a).await.unwrap();
    let (before, _) = seen(&backend).await;
    run_sql(&scratch.path(), "UPDATE member SET boot_id = 'yesterday', deadline = 9223372036854775807").await;
    assert_eq!(*backend.renew(&a.record_id(), PATIENCE).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(*backend.update(&a).await.unwrap_err().kind(), ErrorKind::Lost);
    let (after, members) = seen(&scratch.backend()).await;
    assert!(members.is_empty() && after > before);
    run_sql(&scratch.path(), "UPDATE store SET counter = counter + 10").await;
    // Another incarnation need not wait for it either.
    backend.register(&a).await.unwrap();
    run_sql(&scratch.path(), "UPDATE member SET boot_id = 'yesterday', deadline = 9223372036854775807").await;
    backend.register(&registration("a", 2, PATIENCE)).await.unwrap();
}

#[tokio::test]
async fn opening_deletes_what_is_dead_in_groups_that_are_not_looked_at() {
    let (scratch, hand) = (Scratch::new(), Hand::new());
    hand.backend(&scratch).register(&registration("a", 1, TTL)).await.unwrap();
    hand.advance(TTL);
    let other = shardwise_core::GroupName::new("others").unwrap();
    hand.backend(&scratch).members(&other).await.unwrap();
    assert_eq!(rows(&mut scratch.sql().await).await, 0);
}

#[tokio::test]
async fn numbers_of_joining_rise_over_departures_groups_and_restarts() {
    let scratch = Scratch::new();
    let joined = async |backend: &LocalBackend, registration: &Registration| {
        backend.register(registration).await.unwrap();
        let view = backend.members(&registration.group).await.unwrap().view;
        view.member(&registration.member.instance_id).unwrap().joined
    };
    let mut last = 0;
    for (id, group, incarnation) in [("a", "g", 1), ("b", "gg", 1), ("a", "gg", 1), ("c", "g", 1), ("a", "g", 2)] {
        let backend = scratch.backend();
        let group = shardwise_core::GroupName::new(group).unwrap();
        let registration = Registration { group, ..registration(id, incarnation, PATIENCE) };
        let number = joined(&backend, &registration).await;
        assert!(number > last, "{id}: {number} after {last}");
        assert_eq!(joined(&backend, &registration).await, number, "the same life keeps its number");
        last = number;
        backend.deregister(&registration.record_id()).await.unwrap();
    }
}

#[tokio::test]
async fn a_renewal_never_shortens_a_longer_one() {
    let (scratch, hand) = (Scratch::new(), Hand::new());
    let backend = hand.backend(&scratch);
    let a = registration("a", 1, TTL * 10);
    backend.register(&a).await.unwrap();
    backend.renew(&a.record_id(), TTL).await.unwrap();
    hand.advance(TTL * 5);
    assert_eq!(seen(&backend).await.1, ["a"]);
}
