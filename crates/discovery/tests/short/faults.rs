//! What the wrapper for faults does to calls and events, and that a seed repeats it.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use shardwise_core::{GroupName, Incarnation, InstanceId, Member};
use shardwise_discovery::{Clock, Discovery, ErrorKind, FaultRates, Faults, MemoryBackend, Registration, WatchEvent};

const PROVE_EVERY: Duration = Duration::from_secs(1);

fn group() -> GroupName {
    GroupName::new("g").expect("a valid name")
}

fn registration(id: &str) -> Registration {
    let member = Member { incarnation: Incarnation::new(1), ..Member::named(InstanceId::new(id).expect("a valid name")) };
    Registration { group: group(), member, ttl: Duration::from_secs(3), claims: false }
}

fn faulty(rates: FaultRates) -> (MemoryBackend, Faults) {
    let store = MemoryBackend::new(Clock::tokio());
    (store.clone(), Faults::new(Arc::new(store), 1, rates))
}

async fn members(backend: &impl Discovery) -> usize {
    backend.members(&group()).await.expect("the store answers").view.members().len()
}

#[tokio::test(start_paused = true)]
async fn a_call_fails_before_or_after_it_was_carried_out() {
    for (rates, carried_out) in
        [(FaultRates { fail_before: 1.0, ..FaultRates::NONE }, 0), (FaultRates { fail_after: 1.0, ..FaultRates::NONE }, 1)]
    {
        let (store, faults) = faulty(rates);
        let error = faults.register(&registration("a")).await.expect_err("every call fails");
        assert!(*error.kind() == ErrorKind::Unavailable && error.is_retryable(), "{error}");
        assert_eq!(members(&store).await, carried_out, "{error}");
        faults.set_rates(FaultRates::NONE);
        faults.register(&registration("a")).await.expect("the faults are over");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_lost_and_the_renewal_says_so() {
    let (store, faults) = faulty(FaultRates { lose_lease: 1.0, ..FaultRates::NONE });
    let registration = registration("a");
    faults.register(&registration).await.expect("registering has no faults");
    let error = faults.renew(&registration.record_id(), registration.ttl).await.expect_err("the record is gone");
    assert_eq!(*error.kind(), ErrorKind::Lost);
    assert_eq!(members(&store).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_is_late() {
    let (_, faults) = faulty(FaultRates { delay: 1.0, delay_max: Duration::from_secs(5), ..FaultRates::NONE });
    let before = tokio::time::Instant::now();
    members(&faults).await;
    assert!((Duration::from_millis(1)..=Duration::from_secs(5)).contains(&before.elapsed()), "{:?}", before.elapsed());
}

const LATE: FaultRates = FaultRates { execute_late: 1.0, execute_late_max: Duration::from_secs(5), ..FaultRates::NONE };

/// It is asked again meanwhile, and that call is carried out first.
#[tokio::test(start_paused = true)]
async fn a_call_is_carried_out_after_its_caller_gave_up_and_asked_again() {
    let (store, faults) = faulty(LATE);
    let registration = registration("a");
    let given_up = tokio::time::timeout(Duration::from_secs(1), faults.register(&registration)).await;
    assert!(given_up.is_err() || given_up.is_ok_and(|answer| answer.is_err_and(|error| error.is_retryable())), "never an answer");
    assert_eq!((members(&store).await, faults.pending()), (0, 1), "not carried out yet");
    faults.set_rates(FaultRates::NONE);
    faults.register(&registration).await.expect("asked again");
    faults.deregister(&registration.record_id()).await.expect("and it leaves");
    assert_eq!(members(&store).await, 0);
    tokio::time::sleep(LATE.execute_late_max).await;
    assert_eq!((members(&store).await, faults.pending()), (1, 0), "the first call has been carried out behind the others");
    let happened = faults.happened();
    assert_eq!((happened.get("ExecuteLate"), happened.get("ExecuteAfterAnother")), (Some(&1), Some(&1)));
}

/// A request that is with the backend already outlives the connection that brought it.
#[tokio::test(start_paused = true)]
async fn a_call_is_carried_out_late_though_its_caller_is_cut_off_by_then() {
    let store = MemoryBackend::new(Clock::tokio());
    let link = store.link();
    let faults = Faults::new(Arc::new(link.clone()), 1, LATE).with_late_by(Arc::new(store.link()));
    let answer = tokio::time::timeout(Duration::from_secs(1), faults.register(&registration("a"))).await;
    assert!(!matches!(answer, Ok(Ok(_))), "{answer:?}");
    link.set_reachable(false);
    tokio::time::sleep(LATE.execute_late_max).await;
    assert_eq!(members(&store).await, 1);
}

#[tokio::test(start_paused = true)]
async fn an_event_is_repeated() {
    let (_, faults) = faulty(FaultRates { repeat_event: 1.0, ..FaultRates::NONE });
    let mut events = faults.watch(&group(), PROVE_EVERY);
    let first = events.next().await.expect("the watch goes on").expect("no fault");
    assert_eq!(events.next().await.expect("the watch goes on").expect("no fault"), first);
}

#[tokio::test(start_paused = true)]
async fn a_change_that_was_kept_back_comes_with_the_next_event_and_not_in_its_old_shape() {
    let (store, faults) = faulty(FaultRates::NONE);
    let mut events = faults.watch(&group(), PROVE_EVERY);
    assert!(matches!(events.next().await, Some(Ok(WatchEvent::View(_)))));
    faults.set_rates(FaultRates { fail_watch: 1.0, ..FaultRates::NONE });
    store.register(&registration("a")).await.expect("the store answers");
    assert!(events.next().await.expect("the watch goes on").is_err(), "the change is kept back, and the watch owns up to a fault");
    faults.set_rates(FaultRates::NONE);
    let Some(Ok(WatchEvent::View(snapshot))) = events.next().await else { panic!("the next proof brings the view that was kept back") };
    assert_eq!(snapshot.view.members().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_brings_the_same_faults() {
    let rates = FaultRates { fail_before: 0.3, fail_after: 0.3, ..FaultRates::NONE };
    let mut seen = Vec::new();
    for seed in [5, 5, 6] {
        let faults = Faults::new(Arc::new(MemoryBackend::new(Clock::tokio())), seed, rates);
        let mut outcomes = Vec::new();
        for _ in 0..64 {
            outcomes.push(faults.members(&group()).await.is_ok());
        }
        seen.push(outcomes);
    }
    assert_eq!(seen[0], seen[1]);
    assert_ne!(seen[0], seen[2]);
}
