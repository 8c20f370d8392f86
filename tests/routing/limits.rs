//! Deadlines, backpressure and bad input.

use async_trait::async_trait;
use shardwise::core::KEY_BYTES_MAX;
use shardwise::discovery::{Clock, MemoryBackend};
use shardwise::requests::{Answer, Attempt, BODY_BYTES_MAX, MemberEndpoint, Transport, Undelivered, WITHIN_MAX};
use shardwise::testing::LocalTransport;
use shardwise::{InstanceId, ShardingFactory};
use tokio::time::Instant;

use super::*;

fn why(refused: Result<Answered, AskError>) -> String {
    match refused {
        Err(AskError::Invalid(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_valid_is_refused_at_once_and_named() {
    let fleet = fleet(1, OwnershipMode::Exclusive).await;
    says_who(fleet.service(0));
    let service = fleet.service(0);
    let begun = Instant::now();
    for within in [Duration::ZERO, Duration::from_nanos(1), WITHIN_MAX + Duration::from_millis(1), Duration::MAX] {
        let why = why(service.ask(&To::owner("k"), Request::get("who"), within).await);
        assert!(why.contains("the time limit is") && why.contains("from 1ms to 5m are allowed"), "{why}");
    }
    for within in [Duration::from_millis(1), WITHIN_MAX] {
        assert!(service.ask(&To::owner("k"), Request::get("who"), within).await.is_ok(), "{within:?}");
    }
    let longest = vec![b'k'; KEY_BYTES_MAX];
    assert!(service.ask(&To::owner(&longest), Request::get("who"), LONG).await.is_ok());
    let longer = vec![b'k'; KEY_BYTES_MAX + 1];
    assert!(why(service.ask(&To::owner(&longer), Request::get("who"), LONG).await).starts_with("the key has 65537 bytes"));
    let body = Request::post("who", "x/y", vec![0; BODY_BYTES_MAX + 1]);
    assert!(why(service.ask(&To::owner("k"), body, LONG).await).starts_with("the body has 1048577 bytes"));
    assert!(why(service.ask(&To::owner("k"), Request::get("a/../b"), LONG).await).starts_with("the path"));
    assert!(why(service.ask(&To::owner("k"), post("who").with_idempotency_key(""), LONG).await).contains("idempotency key"));
    assert!(matches!(service.tell(&To::owner("k"), post("who"), Duration::ZERO).await, Err(AskError::Invalid(_))));
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_a_request_and_its_handler() {
    let fleet = fleet(2, OwnershipMode::Exclusive).await;
    let key = key_of(&fleet, 0);
    let running = hangs(fleet.service(0));
    for from in 0..2 {
        let begun = Instant::now();
        let ended = fleet.service(from).ask(&To::owner(&key), post("hang"), Duration::from_millis(300)).await;
        // Whichever of the two clocks is first.
        let is_late = match &ended {
            Ok(answered) => answered.answer.status == 504,
            Err(error) => error.may_have_been_handled(),
        };
        assert!(is_late && begun.elapsed() <= Duration::from_millis(310), "{ended:?} after {:?}", begun.elapsed());
        running.are(0).await;
    }
}

/// A transport of a user that does not look at the limit of an attempt.
struct Endless;

#[async_trait]
impl Transport for Endless {
    async fn bring(&self, _: &MemberEndpoint, _: &Request, _: &Attempt) -> Result<Answer, Undelivered> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_transport_that_never_ends_holds_no_request_beyond_its_deadline() {
    let clock = Clock::tokio();
    let store = MemoryBackend::new(clock.clone());
    let factory = |id: &str| {
        let mut settings = settings(OwnershipMode::Exclusive, 1);
        settings.discovery.backend = "test".into();
        let builder = ShardingFactory::builder().policy(settings).clock(clock.clone()).backend("test", Arc::new(store.link()));
        builder.instance_id(InstanceId::new(id).unwrap()).build().unwrap()
    };
    let member = factory("a").create("workers").unwrap();
    LocalTransport::new().add(&member).unwrap();
    member.register_self().await.unwrap();
    let router = factory("caller").router("workers").await.unwrap();
    router.set_transport(Arc::new(Endless)).unwrap();
    eventually("it owns the key", || member.owns("k")).await;
    for request in [post("who"), Request::get("who")] {
        let begun = Instant::now();
        let ended = router.ask(&To::owner("k"), request, Duration::from_secs(3)).await.unwrap_err();
        let is_in_time = (Duration::from_secs(3)..Duration::from_millis(3_200)).contains(&begun.elapsed());
        assert!(is_in_time && ended.may_have_been_handled(), "{ended} after {:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_report_of_load_that_panics_costs_no_answer() {
    let fleet = fleet(2, OwnershipMode::Exclusive).await;
    let key = key_of(&fleet, 0);
    says_who(fleet.service(0));
    fleet.service(0).load(|| panic!("of the application"));
    for from in 0..2 {
        let answered = fleet.service(from).ask(&To::owner(&key), post("who"), LONG).await.unwrap();
        assert_eq!((answered.answer.status, answered.answer.load), (200, Some(1)), "the request itself is the one in progress");
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_member_is_asked_again_until_it_has_room() {
    let mut settings = settings(OwnershipMode::Exclusive, 1);
    settings.requests.at_once = 4;
    let fleet = TestFleet::start_as(2, settings).await;
    let key = key_of(&fleet, 0);
    let running = hangs(fleet.service(0));
    says_who(fleet.service(0));
    let hanging: Vec<_> = (0..4).map(|_| asks(fleet.service(1), &key, post("hang"), LONG)).collect();
    running.are(4).await;
    let busy = fleet.service(1).ask(&To::owner(&key), post("who"), Duration::from_secs(2)).await.unwrap_err();
    assert!(matches!(busy, AskError::Busy { within } if within == Duration::from_secs(2)) && !busy.may_have_been_handled(), "{busy}");
    let waits = asks(fleet.service(1), &key, post("who"), LONG);
    tokio::time::sleep(Duration::from_secs(1)).await;
    hanging[0].abort();
    assert_eq!(waits.await.unwrap().unwrap().answer.status, 200);
}

#[tokio::test(start_paused = true)]
async fn beyond_1024_waiting_requests_a_caller_is_busy_at_once() {
    let fleet = fleet(2, OwnershipMode::Exclusive).await;
    let key = key_of(&fleet, 0);
    hangs(fleet.service(0));
    let waiting: Vec<_> = (0..1_024).map(|_| asks(fleet.service(1), &key, post("hang"), LONG)).collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let begun = Instant::now();
    let busy = fleet.service(1).ask(&To::owner(&key), post("hang"), LONG).await.unwrap_err();
    assert_eq!((busy, begun.elapsed()), (AskError::Busy { within: Duration::ZERO }, Duration::ZERO));
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    eventually("there is room again", || waiting.iter().all(tokio::task::JoinHandle::is_finished)).await;
    let late = fleet.service(1).ask(&To::owner(&key), post("none"), LONG).await.unwrap();
    assert_eq!(late.answer.status, 404);
}
