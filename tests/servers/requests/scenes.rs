//! One test for each kind of destination, and for what happens to requests on their way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use shardwise::ClaimName;
use shardwise::requests::{Among, AskError, NoRoute, Request, RouteCause, SessionId, To};
use shardwise_testkit::Lag;
use tokio_util::sync::CancellationToken;

use super::fleet::{Fleet, LONG, SETTLED_WITHIN, Sharing, instance, keys, post};
use super::{TTL, after_ttl};
use crate::meeting::{Kind, until};

on_all_at_once!(any_member_answers_and_a_dead_one_is_not_missed; soak: nats Nats, postgres Postgres, valkey Valkey);
on_all_at_once!(one_member_answers_for_itself; soak: nats Nats, postgres Postgres, valkey Valkey);
on_all_at_once!(exactly_one_handles_a_request_to_any_and_to_a_name; soak: nats Nats, postgres Postgres);
on_all_at_once!(the_owner_of_a_key_answers_also_while_it_changes; soak: nats Nats, postgres Postgres);
on_all_at_once!(a_session_is_reached_and_ends_with_its_member; soak: nats Nats, postgres Postgres);
on_all_at_once!(a_hot_key_is_spread_and_a_quiet_one_is_not; soak: nats Nats, postgres Postgres, valkey Valkey);
on_all_at_once!(after_sigkill_the_next_owner_answers_soon_after_the_ttl; soak: nats Nats, postgres Postgres);
on_all_at_once!(a_dropped_request_ends_its_handler; soak: nats Nats, postgres Postgres);

fn any_member_answers_and_a_dead_one_is_not_missed(kind: Option<Kind>) {
    let mut fleet = Fleet::start(kind, Sharing::Spread, 3);
    let asked = |fleet: &Fleet, wanted: &[&str]| {
        let mut answered = BTreeSet::<String>::new();
        // One that was slow on a busy machine is passed over for a while.
        until("all of them answer", SETTLED_WITHIN, || {
            answered.extend((0..60).map(|_| fleet.answer(&To::any(), Request::get("who"))));
            if wanted.iter().all(|name| answered.contains(*name)) { Ok(()) } else { Err(format!("{answered:?}")) }
        });
        assert_eq!(answered.len(), wanted.len(), "no other one answers: {answered:?}");
    };
    asked(&fleet, &["worker-0", "worker-1", "worker-2"]);
    fleet.kill("worker-1");
    // It is still in the view, and what it did not answer is asked of another one.
    asked(&fleet, &["worker-0", "worker-2"]);
}

fn one_member_answers_for_itself(kind: Option<Kind>) {
    let mut fleet = Fleet::start(kind, Sharing::Spread, 3);
    for name in fleet.names() {
        for request in [Request::get("who"), post("who", "")] {
            assert_eq!(fleet.answer(&To::Member(&instance(&name)), request), name);
        }
    }
    let unknown = fleet.ask(&To::Member(&instance("nobody")), Request::get("who"));
    assert_eq!(unknown, Err(AskError::NoRoute(NoRoute::UnknownMember)));
    // Each one's outcome by name, also of one that does not answer.
    fleet.signal("worker-2", Signal::SIGSTOP);
    let within = Duration::from_secs(2);
    let outcomes = fleet.runtime.block_on(fleet.router.ask_all(Among::all(), &post("who", ""), within)).unwrap();
    fleet.signal("worker-2", Signal::SIGCONT);
    let said: BTreeMap<_, _> =
        outcomes.iter().map(|(id, outcome)| (id.as_str(), outcome.as_ref().map(|answered| answered.by.as_str()))).collect();
    assert_eq!((said["worker-0"], said["worker-1"], said.len()), (Ok("worker-0"), Ok("worker-1"), 3), "{outcomes:?}");
    assert!(said["worker-2"].is_err(), "{outcomes:?}");
}

/// A queue group is `Any` with `POST`; a name is held by one.
fn exactly_one_handles_a_request_to_any_and_to_a_name(kind: Option<Kind>) {
    const REQUESTS: usize = 100;
    let mut fleet = Fleet::start(kind, Sharing::Exclusive, 3);
    for number in 0..REQUESTS {
        assert_eq!(fleet.answer(&To::any(), post("count", format!("any-{number}"))), "counted");
    }
    let calls = fleet.calls();
    assert!(calls.len() == REQUESTS && calls.values().all(|calls| (calls.begun, calls.done) == (1, 1)), "{calls:?}");

    let name = ClaimName::new("singleton/desk").unwrap();
    let holder = |fleet: &Fleet| {
        let said: BTreeSet<_> = (0..20).map(|_| fleet.answer(&To::Holder(&name), Request::get("who"))).collect();
        assert_eq!(said.len(), 1, "one member holds it, under one epoch: {said:?}");
        let said = said.into_iter().next().unwrap();
        let (id, epoch) = said.split_once(' ').unwrap();
        (id.to_owned(), epoch.parse::<u64>().unwrap())
    };
    let (first, epoch) = holder(&fleet);
    fleet.kill(&first);
    let (second, later) = holder(&fleet);
    assert!(second != first && later > epoch, "{first} under {epoch}, then {second} under {later}");
}

/// Requests that may not be repeated go on while an owner leaves in good order: each is answered, and handled once.
fn the_owner_of_a_key_answers_also_while_it_changes(kind: Option<Kind>) {
    let mut fleet = Fleet::start(kind, Sharing::Exclusive, 3);
    let keys = keys();
    for key in &keys {
        // A slot may change hands once more after the fleet has settled, as on a busy machine.
        until("the holder of the key answers", SETTLED_WITHIN, || {
            let held = fleet.router.observer().holder(key.as_str()).map_err(|error| error.to_string())?.held;
            let holder = held.ok_or("nobody holds it")?.claim.holder.instance_id.to_string();
            let answered = fleet.answer(&To::owner(key), post("who", ""));
            if answered == holder { Ok(()) } else { Err(format!("{answered} answers, and {holder} holds it")) }
        });
    }
    let leaver = fleet.owner(&keys[0]);
    let (router, over) = (Arc::clone(&fleet.router), CancellationToken::new());
    let lanes: Vec<_> = keys
        .iter()
        .cloned()
        .enumerate()
        .map(|(lane, key)| {
            let (router, over) = (Arc::clone(&router), over.clone());
            fleet.runtime.spawn(async move {
                let mut sent = 0_u32;
                while !over.is_cancelled() {
                    let request = post("work", format!("{lane}-{sent} 10"));
                    let answered = router.ask(&To::owner(&key), request, LONG).await.unwrap_or_else(|error| panic!("{key}: {error}"));
                    assert_eq!(answered.answer.status, 200, "{answered:?}");
                    sent += 1;
                }
                sent
            })
        })
        .collect();
    fleet.leave(&leaver);
    fleet.settle();
    over.cancel();
    let mut sent = 0;
    for lane in lanes {
        sent += fleet.runtime.block_on(lane).unwrap();
    }
    let calls = fleet.calls();
    let once = calls.values().filter(|calls| (calls.begun, calls.done, calls.dropped) == (1, 1, 0)).count();
    assert_eq!((once, calls.len()), (sent as usize, sent as usize), "each request is handled once");
    until("other members own its keys", SETTLED_WITHIN, || {
        let left: Vec<_> = keys.iter().filter(|key| fleet.owner(key) == leaver).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
}

fn a_session_is_reached_and_ends_with_its_member(kind: Option<Kind>) {
    let mut fleet = Fleet::start(kind, Sharing::Exclusive, 3);
    let mut opened = BTreeMap::new();
    for key in keys() {
        let answered = fleet.ask(&To::owner(&key), post("open", "30000")).unwrap();
        let said = String::from_utf8(answered.answer.body).unwrap();
        let (id, minter) = said.split_once(' ').unwrap_or_else(|| panic!("{said}"));
        opened.insert(id.parse::<SessionId>().unwrap(), (answered.by.to_string(), minter.to_owned()));
    }
    for (id, (by, minter)) in &opened {
        let answered = fleet.ask(&To::Session(id), post("say", "")).unwrap();
        assert_eq!((answered.by.as_str(), String::from_utf8_lossy(&answered.answer.body).as_ref()), (by.as_str(), minter.as_str()));
    }
    let (closed, (victim, _)) = opened.first_key_value().unwrap();
    assert_eq!(fleet.answer(&To::Session(closed), post("close", "")), "true");
    assert_eq!(fleet.ask(&To::Session(closed), post("say", "")).unwrap().answer.status, 410);
    fleet.kill(victim);
    // The id is the same one's, and another incarnation never answers for it.
    fleet.admit(victim);
    for (id, _) in opened.iter().filter(|(_, (by, _))| by == victim) {
        until("its sessions have ended", SETTLED_WITHIN, || match fleet.ask(&To::Session(id), Request::get("say")) {
            Err(AskError::NoRoute(NoRoute::SessionEnded)) => Ok(()),
            // The connection may have broken with the first request on it.
            Err(error) => Err(error.to_string()),
            Ok(answered) => panic!("a session of {victim}, which is dead, is answered: {answered:?}"),
        });
    }
}

fn a_hot_key_is_spread_and_a_quiet_one_is_not(kind: Option<Kind>) {
    const AT_ONCE: usize = 24;
    let fleet = Fleet::start(kind, Sharing::Spread, 3);
    let answers = Mutex::new(BTreeSet::new());
    until("a hot key is spread", SETTLED_WITHIN, || {
        let asks = (0..AT_ONCE).map(|_| async {
            let answered = fleet.router.ask(&To::owner("hot"), post("slow", ""), LONG).await.unwrap();
            String::from_utf8(answered.answer.body).unwrap()
        });
        answers.lock().unwrap().extend(fleet.runtime.block_on(futures::future::join_all(asks)));
        let route = fleet.router.route(&To::owner("hot")).map_err(|error| error.to_string())?;
        let helpers = answers.lock().unwrap().iter().filter(|by| by.ends_with(" helps")).count();
        if route.width() > 1 && route.cause() == RouteCause::Spread && helpers > 0 {
            Ok(())
        } else {
            Err(format!("{route:?}, {answers:?}"))
        }
    });
    let owner = fleet.router.observer().owner("hot").unwrap().unwrap();
    assert_eq!(fleet.router.route(&To::owner("hot")).unwrap().set().next(), Some(&owner), "its owner first");
    let quiet = fleet.answer(&To::owner("quiet"), post("slow", ""));
    let route = fleet.router.route(&To::owner("quiet")).unwrap();
    assert_eq!((route.width(), route.cause(), route.member().as_str()), (1, RouteCause::Placement, quiet.as_str()));
}

fn after_sigkill_the_next_owner_answers_soon_after_the_ttl(kind: Option<Kind>) {
    let mut fleet = Fleet::start(kind, Sharing::Exclusive, 3);
    let key = keys().remove(0);
    let victim = fleet.owner(&key);
    // In progress at its death: it may have been handled.
    let (router, once) = (Arc::clone(&fleet.router), key.clone());
    let pending = fleet.runtime.spawn(async move { router.ask(&To::owner(&once), post("hang", "once"), LONG).await });
    fleet.calls_are("once", |calls| calls.begun == 1);
    let (lag, killed) = (Lag::begin(), Instant::now());
    fleet.kill(&victim);
    let answered = fleet.ask(&To::owner(&key), Request::get("who")).unwrap();
    let (took, late) = (killed.elapsed(), lag.allowance());
    assert_ne!(answered.by.as_str(), victim);
    assert!(took <= TTL + after_ttl(kind) + late, "{took:?} after the kill, with a TTL of {TTL:?} and {late:?} for this machine");
    crate::figures::note(&serde_json::json!({ "scene": "first success", "backend": fleet.place.name(), "took_ms": took.as_millis() }));
    let unknown = fleet.runtime.block_on(pending).unwrap();
    assert!(unknown.as_ref().is_err_and(AskError::may_have_been_handled), "{unknown:?}");
    assert_eq!(fleet.calls()["once"].begun, 1, "it is not sent again");
}

fn a_dropped_request_ends_its_handler(kind: Option<Kind>) {
    let mut fleet = Fleet::start(kind, Sharing::Exclusive, 2);
    let key = keys().remove(0);
    let (router, asked) = (Arc::clone(&fleet.router), key.clone());
    let asking = fleet.runtime.spawn(async move { router.ask(&To::owner(&asked), post("hang", "dropped"), LONG).await });
    fleet.calls_are("dropped", |calls| calls.begun == 1);
    asking.abort();
    fleet.calls_are("dropped", |calls| (calls.begun, calls.done, calls.dropped) == (1, 0, 1));
    // Its guard is gone too, so the slot can move: with a handler that never ends the owner would not leave.
    let owner = fleet.owner(&key);
    fleet.leave(&owner);
    assert_ne!(fleet.answer(&To::owner(&key), post("who", "")), owner);
}
