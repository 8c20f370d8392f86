//! Requests that a server in front of a worker takes and has handled in another process.

use shardwise::requests::{Answer, SessionId, Undelivered};
use shardwise::{ClaimName, Incarnation};
use tokio::time::{Instant, sleep};

use super::*;

/// How long the other process takes.
const TAKES: Duration = Duration::from_secs(5);

/// Has requests to keys handled elsewhere, with the fence as the answer. Counts those that were begun.
fn handles_elsewhere(service: &ShardingService) -> Arc<AtomicUsize> {
    let begun = Arc::new(AtomicUsize::new(0));
    let (of_service, counted) = (service.clone(), Arc::clone(&begun));
    service.on_others(move |request| {
        let (service, begun) = (of_service.clone(), Arc::clone(&counted));
        async move {
            let work = |owned: Owned| async move {
                begun.fetch_add(1, Ordering::SeqCst);
                sleep(TAKES).await;
                Ok(Answer::text(format!("{:?}", owned.fence().map(|fence| fence.epoch.get()))))
            };
            service.handle_owned(request, work).await
        }
    });
    begun
}

#[tokio::test(start_paused = true)]
async fn a_request_to_a_key_is_handled_elsewhere_under_its_guard() {
    let fleet = fleet(2, OwnershipMode::Exclusive).await;
    let begun = [0, 1].map(|member| handles_elsewhere(fleet.service(member)));
    let key = key_of(&fleet, 0);
    for from in 0..2 {
        let answered = fleet.service(from).ask(&To::owner(&key), post("x"), LONG).await.unwrap();
        let epoch = fleet.service(from).route(&To::owner(&key)).unwrap().epoch().unwrap().get();
        assert_eq!((answered.by.as_str(), text(&answered)), (fleet.service(0).instance_id().as_str(), format!("Some({epoch})")));
    }
    // Another member takes none, whichever caller brings it.
    let mut astray = post("x");
    (astray.to, astray.key) = (shardwise::requests::Addressee::Owner, Some(shardwise::core::OwnedKey::of(key.as_str())));
    assert!(matches!(fleet.service(1).answer_within(astray, LONG).await, Err(Undelivered::NotMine(_))));
    assert_eq!(begun.each_ref().map(|begun| begun.load(Ordering::SeqCst)), [2, 0]);

    // The slot waits for it, as long as the policy lets it.
    let asked = asks(fleet.service(1), &key, post("x"), LONG);
    eventually("it is begun", || begun[0].load(Ordering::SeqCst) == 3).await;
    let leaving = Instant::now();
    fleet.service(0).deregister_self().await.unwrap();
    assert!(leaving.elapsed() >= Duration::from_secs(1), "it has left after {:?}", leaving.elapsed());
    asked.abort();
}

/// Regression: when the time of a teller was over, its request counted as refused, and was sent and handled again.
#[tokio::test(start_paused = true)]
async fn a_teller_waits_for_another_process_and_sends_nothing_twice() {
    let fleet = fleet(2, OwnershipMode::Exclusive).await;
    let begun = handles_elsewhere(fleet.service(0));
    let key = key_of(&fleet, 0);
    for from in 0..2 {
        let (before, telling) = (begun.load(Ordering::SeqCst), Instant::now());
        fleet.service(from).tell(&To::owner(&key), post("x"), LONG).await.unwrap();
        assert!(telling.elapsed() >= TAKES, "{:?}", telling.elapsed());
        let late = fleet.service(from).tell(&To::owner(&key), post("x"), Duration::from_secs(1)).await.unwrap_err();
        assert!(late.may_have_been_handled(), "{late}");
        sleep(TAKES).await;
        assert_eq!(begun.load(Ordering::SeqCst) - before, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn names_and_sessions_of_other_members_are_not_taken() {
    let fleet = fleet(1, OwnershipMode::Exclusive).await;
    let service = fleet.service(0);
    let mut to_holder = post("x");
    to_holder.name = Some(ClaimName::new("singleton/nobody").unwrap());
    let taken = service.handle_held(to_holder, |held| async move { Ok(Answer::text(held.name.to_string())) }).await;
    assert!(matches!(taken, Err(Undelivered::NotMine(None))), "{taken:?}");
    assert_eq!(service.check_session(&SessionId::new(service.incarnation(), [7; 16])), Ok(()));
    let others = SessionId::new(Incarnation::new(7), [7; 16]);
    assert_eq!(service.check_session(&others), Err(Undelivered::NotMine(None)));
}
