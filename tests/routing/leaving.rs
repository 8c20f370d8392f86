//! A member leaves in good order while requests to it are in progress.

use shardwise::ServiceState;
use shardwise::requests::{Addressee, RoundRobin, Undelivered};
use tokio::time::{Instant, sleep};

use super::*;

/// How long a handler of `work` takes: less than `drain_timeout`.
const TAKES: Duration = Duration::from_secs(1);

/// Requests to one instance at `work` take a while; those to any, at `who`, are answered at once. Both by the member's name.
fn works(service: &ShardingService) -> Running {
    let (running, id) = (Running::default(), service.instance_id().to_string());
    let (counted, name) = (running.clone(), id.clone());
    let work = move |_: Request| {
        let (call, name) = (counted.begin(), name.clone());
        async move {
            let _call = call;
            sleep(TAKES).await;
            name
        }
    };
    service.on_request("work", work).unwrap();
    service.on_any("who", move |_: Request| std::future::ready(id.clone())).unwrap();
    running
}

/// Has it leave, in a task, and waits until it does. The task returns how long it took.
async fn leaves(service: &ShardingService) -> tokio::task::JoinHandle<Duration> {
    let (begun, leaver) = (Instant::now(), service.clone());
    let leaving = tokio::spawn(async move {
        leaver.deregister_self().await.unwrap();
        begun.elapsed()
    });
    eventually("it is leaving", || service.state() == ServiceState::Draining).await;
    leaving
}

/// A request to that member, in a task.
fn asks_member(by: &ShardingService, member: &ShardingService, path: &str) -> tokio::task::JoinHandle<Result<Answered, AskError>> {
    let (by, id, request) = (by.clone(), member.instance_id().clone(), post(path));
    tokio::spawn(async move { by.ask(&To::Member(&id), request, LONG).await })
}

#[tokio::test(start_paused = true)]
async fn a_leaving_member_answers_what_it_has_and_refuses_what_comes() {
    for ownership in [OwnershipMode::Eventual, OwnershipMode::Exclusive] {
        let fleet = fleet(2, ownership).await;
        let running = works(fleet.service(0));
        let leaver = fleet.service(0);
        let asked = asks_member(fleet.service(1), leaver, "work");
        running.are(1).await;
        let leaving = leaves(leaver).await;
        for (to, path) in [(Addressee::Instance, "work"), (Addressee::Any, "who")] {
            let mut late = post(path);
            late.to = to;
            let refused = leaver.answer(late).await;
            assert!(matches!(&refused, Err(Undelivered::Unsent(why)) if why.contains("leaving its group")), "{ownership:?}: {refused:?}");
        }
        assert_eq!(leaver.answer(Request::get("status")).await.unwrap().status, 200, "this is no work");

        let answered = asked.await.unwrap().unwrap();
        assert_eq!((text(&answered).as_str(), &answered.by), (leaver.instance_id().as_str(), leaver.instance_id()));
        let took = leaving.await.unwrap();
        assert!(took + Duration::from_millis(100) >= TAKES && took < Duration::from_secs(2), "{ownership:?}: it has left after {took:?}");
        assert!(matches!(leaver.answer(post("work")).await, Err(Undelivered::Unsent(_))), "and it takes nothing afterwards");
        leaver.register_self().await.unwrap();
        assert_eq!(leaver.answer(post("work")).await.unwrap().status, 200, "until it joins again");
    }
}

/// A handler of `on_owned` under eventual ownership is waited for as well, although its key may have another owner by then.
#[tokio::test(start_paused = true)]
async fn a_leaving_member_waits_for_its_handlers_up_to_drain_timeout() {
    let fleet = fleet(2, OwnershipMode::Eventual).await;
    let (key, running) = (key_of(&fleet, 0), hangs(fleet.service(0)));
    let asked = asks(fleet.service(1), &key, post("hang"), LONG);
    running.are(1).await;
    let took = leaves(fleet.service(0)).await.await.unwrap();
    assert!((Duration::from_secs(2)..Duration::from_secs(4)).contains(&took), "{took:?} of a drain_timeout of 2 s");
    let unknown = asked.await.unwrap().unwrap_err();
    assert!(unknown.may_have_been_handled(), "{unknown}");
    running.are(0).await;
}

/// A caller that cannot hear that a member leaves asks it, is refused, and goes on to the others.
#[tokio::test(start_paused = true)]
async fn what_a_leaving_member_refuses_goes_on_to_another_one() {
    let mut fleet = fleet(3, OwnershipMode::Eventual).await;
    let running: Vec<_> = (0..3).map(|member| works(fleet.service(member))).collect();
    let (leaver, caller) = (fleet.service(0).clone(), fleet.service(2).clone());
    caller.set_pick(RoundRobin::default()).unwrap();
    let all = || caller.route(&To::any()).is_ok_and(|route| route.width() == 3);
    eventually("the caller sees all", all).await;
    let asked = asks_member(&caller, &leaver, "work");
    running[0].are(1).await;
    fleet.partition(2);
    let leaving = leaves(&leaver).await;
    for _ in 0..9 {
        let answered = caller.ask(&To::any(), post("who"), LONG).await.unwrap();
        assert_ne!(answered.by, *leaver.instance_id());
        assert!(all(), "the leaver is still among its choices");
    }
    assert_eq!(asked.await.unwrap().unwrap().by, *leaver.instance_id());
    leaving.await.unwrap();
}
