//! Sessions: state in one member's process, and the requests that reach it.

use std::collections::BTreeSet;

use shardwise::requests::{
    Addressee, NoRoute, Session, SessionEnd, SessionError, SessionId, SessionLimits, SessionRefusal, SessionRequest,
};
use tokio::time::sleep;

use super::*;

const LIMITS: SessionLimits = SessionLimits { idle: Duration::from_mins(1), life: Duration::from_mins(10), per_key: 100 };

/// Why sessions have ended, in order.
#[derive(Clone, Default)]
struct Ends(Arc<Mutex<Vec<SessionEnd>>>);

impl Ends {
    fn follow(&self, session: &Session) {
        let ends = self.clone();
        session.on_end(move |why| async move { ends.0.lock().unwrap().push(why) });
    }

    async fn are(&self, wanted: &[SessionEnd]) {
        eventually(&format!("sessions end: {wanted:?}"), || *self.0.lock().unwrap() == wanted).await;
    }
}

/// `say` answers by the member's name, `close` ends the session, `hang` never answers.
fn serves(service: &ShardingService) -> Running {
    let id = service.instance_id().to_string();
    service.on_session("say", move |_: SessionRequest| std::future::ready(id.clone())).unwrap();
    service.on_session("close", |request: SessionRequest| async move { request.session.end().to_string() }).unwrap();
    let running = Running::default();
    let counted = running.clone();
    let hangs = move |request: SessionRequest| {
        let call = counted.begin();
        async move {
            let _held = (request, call);
            std::future::pending::<String>().await
        }
    };
    service.on_session("hang", hangs).unwrap();
    running
}

async fn status(service: &ShardingService, id: &SessionId, path: &str) -> u16 {
    service.ask(&To::Session(id), post(path), LONG).await.unwrap().answer.status
}

#[tokio::test(start_paused = true)]
async fn requests_of_a_session_reach_the_member_that_opened_it() {
    for ownership in [OwnershipMode::Eventual, OwnershipMode::Exclusive] {
        let fleet = fleet(3, ownership).await;
        (0..3).for_each(|member| drop(serves(fleet.service(member))));
        for member in 0..3 {
            let session = fleet.service(member).open_session(&key_of(&fleet, member), LIMITS).unwrap();
            let id: SessionId = session.id().to_string().parse().unwrap();
            for from in 0..3 {
                let answered = fleet.service(from).ask(&To::Session(&id), post("say"), LONG).await.unwrap();
                assert_eq!(text(&answered), format!("worker-{member}"));
            }
            assert_eq!(status(fleet.service(0), &id, "close").await, 200);
            assert_eq!((session.ended().await, status(fleet.service(0), &id, "say").await), (SessionEnd::Closed, 410));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_when_it_is_idle_and_when_its_life_is_over() {
    let fleet = fleet(2, OwnershipMode::Eventual).await;
    let running = serves(fleet.service(0));
    let (ends, opener) = (Ends::default(), fleet.service(0));
    let limits = SessionLimits { idle: Duration::from_secs(2), life: Duration::from_secs(10), per_key: 2 };
    let idle = opener.open_session("k", limits).unwrap();
    let used = opener.open_session("k", limits).unwrap();
    ends.follow(&idle);
    ends.follow(&used);
    let refused = opener.open_session("k", limits).unwrap_err();
    assert_eq!(refused, SessionError::Refused(SessionRefusal::PerKey { most: 2 }));
    for _ in 0..3 {
        sleep(Duration::from_secs(1)).await;
        assert_eq!(status(fleet.service(1), used.id(), "say").await, 200);
    }
    ends.are(&[SessionEnd::Idle]).await;
    assert_eq!(status(fleet.service(1), idle.id(), "say").await, 410);
    // Idle time does not run during a request, and the longest life does.
    let (asking, id) = (fleet.service(1).clone(), *used.id());
    let hanging = tokio::spawn(async move { asking.ask(&To::Session(&id), post("hang"), LONG).await });
    running.are(1).await;
    ends.are(&[SessionEnd::Idle, SessionEnd::Expired]).await;
    running.are(0).await;
    assert_eq!(hanging.await.unwrap().unwrap().answer.status, 502, "it is unknown what became of it");
    opener.open_session("k", limits).unwrap();
}

/// It ends by `finish`, and its callback ends before the slot moves.
#[tokio::test(start_paused = true)]
async fn under_exclusive_ownership_a_session_ends_when_its_slot_moves() {
    let mut fleet = fleet(1, OwnershipMode::Exclusive).await;
    serves(fleet.service(0));
    let keys: Vec<_> = (0..20).map(|key| format!("key-{key}")).collect();
    let sessions: Vec<_> = keys.iter().map(|key| fleet.service(0).open_session(key, LIMITS).unwrap()).collect();
    // The keys whose sessions are being rolled back.
    let rolling_back = Arc::new(Mutex::new(BTreeSet::new()));
    for (key, session) in keys.iter().cloned().zip(&sessions) {
        let rolling_back = Arc::clone(&rolling_back);
        session.on_end(move |_| async move {
            rolling_back.lock().unwrap().insert(key.clone());
            sleep(Duration::from_millis(500)).await;
            rolling_back.lock().unwrap().remove(&key);
        });
    }
    fleet.join().await;
    eventually("sessions of moving slots end", || !rolling_back.lock().unwrap().is_empty()).await;
    loop {
        let now = rolling_back.lock().unwrap().clone();
        if now.is_empty() {
            break;
        }
        assert!(now.iter().all(|key| !fleet.owners(key).contains(&1)), "a slot has moved before its session was rolled back");
        sleep(Duration::from_millis(5)).await;
    }
    fleet.settled().await;
    for (key, session) in keys.iter().zip(&sessions) {
        let has_moved = fleet.owners(key) == [1];
        assert_eq!(status(fleet.service(1), session.id(), "say").await, if has_moved { 410 } else { 200 });
        if has_moved {
            assert_eq!(session.ended().await, SessionEnd::Moved);
        }
    }
    let elsewhere = fleet.service(1).open_session(keys.iter().find(|key| fleet.owners(*key) == [0]).unwrap(), LIMITS).unwrap_err();
    assert!(matches!(elsewhere, SessionError::NotHeld(_)), "{elsewhere}");
}

#[tokio::test(start_paused = true)]
async fn a_session_has_ended_once_its_member_is_gone() {
    let mut fleet = fleet(2, OwnershipMode::Eventual).await;
    (0..2).for_each(|member| drop(serves(fleet.service(member))));
    let killed = *fleet.service(0).open_session("k", LIMITS).unwrap().id();
    fleet.kill(0);
    let begun = tokio::time::Instant::now();
    let ended = fleet.service(1).ask(&To::Session(&killed), post("say"), LONG).await.unwrap_err();
    assert_eq!(ended, AskError::NoRoute(NoRoute::SessionEnded));
    assert!(begun.elapsed() > Duration::from_secs(1) && begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());

    let (ends, left) = (Ends::default(), fleet.service(1).open_session("k", LIMITS).unwrap());
    ends.follow(&left);
    fleet.service(1).deregister_self().await.unwrap();
    assert_eq!(*ends.0.lock().unwrap(), [SessionEnd::Left], "leaving waits for the callback");
    assert!(matches!(fleet.service(1).open_session("k", LIMITS), Err(SessionError::NotHeld(_))));
    let late = Ends::default();
    late.follow(&left);
    late.are(&[SessionEnd::Left]).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_no_session_is_refused_and_another_members_is_not_mine() {
    let fleet = fleet(2, OwnershipMode::Eventual).await;
    (0..2).for_each(|member| drop(serves(fleet.service(member))));
    let other = fleet.service(1).open_session("k", LIMITS).unwrap();
    let direct = |id: &str| {
        let mut request = post("say");
        (request.to, request.session) = (Addressee::Session, Some(id.to_owned()));
        fleet.service(0).answer(request)
    };
    assert_eq!(direct("nonsense").await.unwrap().status, 400);
    assert!(direct(&other.id().to_string()).await.is_err());
    let forged = SessionId::new(fleet.service(0).incarnation(), [0; 16]);
    assert_eq!(direct(&forged.to_string()).await.unwrap().status, 410);
    let told = fleet.service(1).tell(&To::Session(&forged), post("say"), LONG).await.unwrap_err();
    assert!(matches!(&told, AskError::Barred(why) if why.contains("The session has ended")), "{told}");
}

#[tokio::test(start_paused = true)]
async fn thousands_of_sessions_come_and_go() {
    let fleet = fleet(1, OwnershipMode::Eventual).await;
    let limits = SessionLimits { idle: Duration::from_secs(5), life: Duration::from_mins(1), per_key: u32::MAX };
    let ended = Arc::new(AtomicUsize::new(0));
    for number in 0..30_000_u32 {
        let session = fleet.service(0).open_session(&number, limits).unwrap();
        let ended = Arc::clone(&ended);
        session.on_end(move |_| async move {
            ended.fetch_add(1, Ordering::Relaxed);
        });
    }
    eventually("all end", || ended.load(Ordering::Relaxed) == 30_000).await;
}
