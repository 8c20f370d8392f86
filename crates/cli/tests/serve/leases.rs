//! Leases of workers: grants, handover and the end of a lease, over HTTP.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::common::lease::{Lease, request};
use crate::common::{PATIENCE, Place, eventually};
use crate::{Served, TOKEN, http};

pub(crate) const SLOTS: usize = 64;

pub(crate) fn exclusive(more: &str) -> Place {
    let place = Place::of_workers("2s", &format!("slots = {SLOTS}\nownership = \"exclusive\"\n{more}"));
    place.write("token", format!("{TOKEN}\n"));
    place
}

pub(crate) fn has_all(lease: &Lease) -> Vec<(u64, u64)> {
    eventually("it is granted everything", PATIENCE, || Some(lease.slots().0).filter(|slots| slots.len() == SLOTS))
}

pub(crate) fn refused(answer: &(u16, Value), status: u16, kind: &str) -> String {
    assert_eq!((answer.0, &answer.1["type"]), (status, &json!(format!("urn:shardwise:problem:{kind}"))), "{answer:?}");
    answer.1["detail"].as_str().unwrap().to_owned()
}

/// The request for the stream of that lease's grants.
pub(crate) fn stream_head(at: SocketAddr, lease: &Lease) -> String {
    format!("GET {} HTTP/1.1\r\nHost: {at}\r\nshardwise-lease: {}\r\n\r\n", Lease::path("grants"), lease.id)
}

pub(crate) fn follow(at: SocketAddr, lease: &Lease) -> TcpStream {
    let mut stream = http::connect(at);
    stream.write_all(stream_head(at, lease).as_bytes()).unwrap();
    stream
}

/// The lines of a stream of grants.
pub(crate) fn lines(stream: TcpStream) -> impl Iterator<Item = Value> {
    let lines = BufReader::new(stream).lines().map(Result::unwrap).filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(&line).unwrap())
}

#[test]
fn nothing_is_owned_without_a_lease_and_everything_with_one() {
    let place = exclusive("");
    let mut served = Served::start(&place, &[]);
    assert_eq!((&served.ownership()["worker"], &served.ownership()["slots_owned"]), (&json!("absent"), &json!(0)));
    let why = http::get(served.at, "/readyz").refuses(503, "no worker has a lease");
    assert!(why["detail"].as_str().unwrap().contains("POST /v1/policies/workers/leases"), "{why}");
    let owned = |headers: &[(&str, &str)]| request(served.at, "POST", &Lease::path("owned"), headers, Some(&json!(["a", "b"])));
    assert!(refused(&owned(&[]), 409, "lease-missing").contains("POST /v1/policies/workers/leases and send"));
    let ended = refused(&owned(&[("shardwise-lease", "no id")]), 410, "lease-ended");
    assert!(ended.contains("its id is not valid") && ended.ends_with("POST /v1/policies/workers/leases"), "{ended}");

    let lease = Lease::kept(served.at, 5_000);
    has_all(&lease);
    assert_eq!(lease.asks("POST", "owned", Some(&json!(["a", "b"]))), (200, json!(["a", "b"])));
    let (status, entered) = lease.asks("POST", "enter", Some(&json!({"keys": ["a", "b"]})));
    assert_eq!((status, entered.as_array().unwrap().len()), (200, 2), "{entered}");
    for key in entered.as_array().unwrap() {
        let valid = key["valid_ms"].as_u64().unwrap();
        assert!(key["epoch"].as_u64().unwrap() > 0 && (1..=5_000).contains(&valid), "{key}");
        eventually("the claim is seen", PATIENCE, || {
            let owner = served.get(&format!("owner/{}", key["key"].as_str().unwrap())).well("owner");
            ((&owner["slot"], &owner["epoch"], &owner["mine"]) == (&key["slot"], &key["epoch"], &json!(true))).then_some(())
        });
    }
    assert!(served.ownership()["lease_ends_in_ms"].as_u64().unwrap() <= 5_000);
    let second = request(served.at, "POST", &Lease::path("leases"), &[], Some(&json!({"ttl_ms": 1_000})));
    let why = refused(&second, 409, "lease-taken");
    assert!(why.contains("has been live for") && why.contains("use its id with owned and enter"), "{why}");

    assert_eq!(lease.asks("DELETE", &format!("leases/{}", lease.id), None).0, 204);
    assert_eq!(served.get("owner/a").well("owner")["mine"], false, "its lease has ended, and this member may hold the slot still");
    refused(&lease.asks("POST", "owned", Some(&json!(["a"]))), 410, "lease-ended");
    assert!(refused(&lease.asks("GET", "grants?wait=0", None), 410, "lease-ended").contains("ended by a request"));

    served.process.signal(Signal::SIGTERM);
    let ran = served.process.ends("after SIGTERM");
    let logged = ["owns nothing until its worker opens a lease", "the worker has a lease", "the worker's lease has ended"];
    for line in logged {
        assert_eq!(ran.err.matches(line).count(), 1, "{line}: {ran:?}");
    }
    let ended = ran.err.lines().find(|line| line.contains("the worker's lease has ended"));
    assert!(ended.is_some_and(|line| line.contains("it was ended by a request")), "{ran:?}");
}

#[test]
fn a_handover_waits_until_the_worker_has_finished() {
    let place = exclusive("drain_timeout = \"60s\"");
    let (one, two) = (Served::start(&place, &[]), Served::start(&place, &[]));
    let first = Lease::kept(one.at, 5_000);
    let before = has_all(&first);
    first.finishes(false);
    let second = Lease::kept(two.at, 5_000);
    eventually("half of it is to go", PATIENCE, || (first.slots().1.len() > SLOTS / 4).then_some(()));
    let owner = |slot: u64| {
        let seen = two.get("holders").well("holders");
        seen["slots"][usize::try_from(slot).unwrap()].clone()
    };
    // Longer than a handover takes where nothing has to be waited for.
    std::thread::sleep(Duration::from_secs(1));
    let go = first.slots().1;
    assert_eq!((owner(go[0])["holder"].as_str(), second.slots().0.len()), (Some(one.id.as_str()), 0));
    let stays = before.iter().find(|(slot, _)| !go.contains(slot)).unwrap();
    let (_, table) = first.asks("GET", "grants?wait=0", None);
    let number = |slot: u64| table["grants"].as_array().unwrap().iter().find(|grant| grant["slot"] == slot).unwrap()["grant"].clone();
    let finished = json!({"grants": [number(go[0]), number(stays.0)]});
    assert_eq!(first.asks("POST", "grants/finished", Some(&finished)), (200, json!({"finished": 1})), "the other one was not asked for");
    let (slot, epoch) = eventually("one slot moves", PATIENCE, || second.slots().0.first().copied());
    let epoch_before = before.iter().find(|(known, _)| *known == slot).unwrap().1;
    assert!(slot == go[0] && epoch > epoch_before, "slot {slot} under {epoch} after {epoch_before}");

    first.finishes(true);
    eventually("the rest moves", PATIENCE, || {
        let ((stay, go), (moved, _)) = (first.slots(), second.slots());
        (go.is_empty() && !moved.is_empty() && stay.len() + moved.len() == SLOTS).then_some(())
    });
}

#[test]
fn what_a_dead_worker_held_is_held_by_others_after_its_lease_and_no_epoch_comes_twice() {
    let place = exclusive("");
    let (mut one, two) = (Served::start(&place, &[]), Served::start(&place, &[]));
    let second = Lease::kept(two.at, 5_000);
    has_all(&second);
    let first = Lease::kept(one.at, 5_000);
    let before = eventually("both have a share", PATIENCE, || {
        let (mine, theirs) = (first.slots().0, second.slots().0);
        (!mine.is_empty() && mine.len() + theirs.len() == SLOTS).then_some(mine)
    });
    first.dies();
    // The soak `exclusive-python` measures how long it takes.
    has_all(&second);

    // The next worker has nothing under an epoch of the former one, however soon it comes.
    let again = Lease::kept(one.at, 5_000);
    let after = eventually("it has a share again", PATIENCE, || Some(again.slots().0).filter(|slots| !slots.is_empty()));
    again.asks("DELETE", &format!("leases/{}", again.id), None);
    let next = Lease::kept(one.at, 5_000);
    let last = eventually("and the next one", PATIENCE, || Some(next.slots().0).filter(|slots| !slots.is_empty()));
    let highest = |slots: &[(u64, u64)], slot: u64| slots.iter().find(|(known, _)| *known == slot).map_or(0, |(_, epoch)| *epoch);
    for (slot, epoch) in &after {
        assert!(*epoch > highest(&before, *slot), "slot {slot}: {epoch}");
    }
    for (slot, epoch) in &last {
        assert!(*epoch > highest(&after, *slot), "slot {slot}: {epoch}");
    }
    // Regression: the log did not distinguish a worker that stopped from one that died.
    next.asks("DELETE", &format!("leases/{}", next.id), None);
    one.process.signal(Signal::SIGTERM);
    let log = one.process.ends("after SIGTERM").err;
    for why in ["it was not renewed for 5s", "it was ended by a request"] {
        assert!(log.lines().any(|line| line.contains("the worker's lease has ended") && line.contains(why)), "{why}: {log}");
    }
}

#[test]
fn the_stream_says_what_is_granted_to_go_and_over() {
    let place = exclusive("");
    let (one, two) = (Served::start(&place, &[]), Served::start(&place, &[]));
    let first = Lease::kept(one.at, 5_000);
    has_all(&first);
    let mut lines = lines(follow(one.at, &first));
    let mut next = |kind: &str| lines.find(|line| line["type"] == kind).unwrap_or_else(|| panic!("no line {kind}"));
    let all = next("all");
    assert_eq!((all["grants"].as_array().unwrap().len(), &all["slots"], &all["lost"]), (SLOTS, &json!(SLOTS), &json!([])), "{all}");
    assert!(next("alive").get("lost").is_none(), "only a whole list has all that are lost");
    let second = Lease::kept(two.at, 5_000);
    let finish = next("finish");
    let grant = &finish["grants"][0];
    assert!(grant["finish"] == true && finish["version"].as_u64() > all["version"].as_u64(), "{finish}");
    second.dies();
    next("granted");
    assert_eq!(first.asks("DELETE", &format!("leases/{}", first.id), None).0, 204);
    assert!(next("ended")["why"].as_str().unwrap().contains("ended by a request"));
}

#[test]
fn a_worker_that_does_not_read_its_grants_is_not_renewed() {
    let place = exclusive("");
    let served = Served::start(&place, &[]);
    let lease = Lease::once(served.at, 10_000);
    let refusal = eventually("it is not renewed", PATIENCE, || {
        std::thread::sleep(Duration::from_millis(200));
        let answer = lease.asks("PUT", &format!("leases/{}", lease.id), None);
        (answer.0 != 200).then_some(answer)
    });
    assert!(refused(&refusal, 410, "lease-ended").contains("were not read"), "{refusal:?}");
}

#[test]
fn singletons_and_timers_are_held_over_http() {
    let place = exclusive("");
    let (one, two) = (Served::start(&place, &[]), Served::start(&place, &[]));
    let leases = [Lease::kept(one.at, 5_000), Lease::kept(two.at, 5_000)];
    let offer = json!({"singletons": ["leader"], "timers": [{"name": "tick", "every_ms": 1_000}]});
    for lease in &leases {
        assert_eq!(lease.asks("PUT", "names", Some(&offer)), (200, json!({"names": 2})));
    }
    let named = |lease: &Lease, name: &str| {
        let (_, table) = lease.asks("GET", "grants?wait=0", None);
        table["grants"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|grant| grant["name"] == name && grant["finish"] == false)
            .cloned()
            .collect::<Vec<_>>()
    };
    let holder = |name: &str| {
        eventually(name, PATIENCE, || {
            let held = [named(&leases[0], name), named(&leases[1], name)];
            assert!(held.iter().all(|held| held.len() <= 1), "one grant each: {held:?}");
            if held.iter().all(|held| held.len() == 1) {
                // Between the two readings it may have gone from the first worker to the second.
                assert_ne!(named(&leases[0], name), held[0], "one holder: {held:?}");
                return None;
            }
            held.into_iter().enumerate().find_map(|(at, mut held)| Some((at, held.pop()?)))
        })
    };
    let (_, leader) = holder("singleton/leader");
    assert!(leader["epoch"].as_u64().unwrap() > 0 && leader["period"].is_null(), "{leader}");
    let (at, fired) = holder("timer/tick");
    let number = fired["period"]["number"].as_u64().unwrap();
    assert_eq!(fired["period"]["due_ms"], number * 1_000, "{fired}");
    assert_eq!(leases[at].asks("POST", "grants/finished", Some(&json!({"grants": [fired["grant"]]}))).1, json!({"finished": 1}));
    let (_, next) = holder("timer/tick");
    assert!(next["period"]["number"].as_u64().unwrap() > number, "no period is fired twice");
    let (at, leader) = holder("singleton/leader");
    assert_eq!(leases[at].asks("PUT", "names", Some(&json!({}))).0, 200);
    let moved = eventually("the other one leads", PATIENCE, || named(&leases[1 - at], "singleton/leader").pop());
    assert!(moved["epoch"].as_u64() > leader["epoch"].as_u64(), "{moved}");
}

#[test]
fn under_eventual_ownership_a_lease_only_says_that_the_worker_lives() {
    let place = Place::of_workers("2s", "slots = 64");
    let served = Served::start(&place, &[]);
    served.settles(1, |owned| owned == 64);
    // A client that takes the policy for an exclusive one must not make leases count.
    refused(&Lease::asked(served.at, &[], &json!({"ttl_ms": 1_000})), 409, "conflict");
    let lease = Lease::once(served.at, 5_000);
    refused(&lease.asks("GET", "grants?wait=0", None), 409, "conflict");
    eventually("its lease ends and so does its share", PATIENCE, || {
        let seen = served.ownership();
        (seen["worker"] == "absent" && seen["slots_owned"] == 0).then_some(())
    });
    let _back = Lease::kept(served.at, 5_000);
    served.settles(1, |owned| owned == 64);
}

#[test]
fn the_workers_token_admits_to_its_routes_alone() {
    let place = exclusive("");
    let worker = "workers-show-this-one-here";
    place.write("worker", format!("{worker}\n"));
    let served = Served::start(&place, &["--token-file", "token", "--worker-token-file", "worker"]);
    let ask = |method: &str, rest: &str, token: Option<&str>, body: Option<Value>| {
        let bearer = token.map(|token| format!("Bearer {token}"));
        let headers: Vec<(&str, &str)> = bearer.iter().map(|bearer| ("Authorization", bearer.as_str())).collect();
        request(served.at, method, &Lease::path(rest), &headers, body.as_ref())
    };
    let ttl = || Some(json!({"ttl_ms": 1_000}));
    refused(&ask("POST", "leases", None, ttl()), 401, "unauthorized");
    refused(&ask("POST", "leases", Some("not-the-right-one-at-all"), ttl()), 401, "unauthorized");
    assert_eq!(ask("POST", "leases", Some(worker), ttl()).0, 201);
    for (method, rest, body) in [("GET", "ownership", None), ("GET", "members", None), ("POST", "drain", Some(json!({"instance_id": "x"})))]
    {
        refused(&ask(method, rest, Some(worker), body), 403, "forbidden");
    }
    assert_eq!(ask("GET", "ownership", Some(TOKEN), None).0, 200);
    eventually("an operator may do it too", PATIENCE, || (ask("POST", "leases", Some(TOKEN), ttl()).0 == 201).then_some(()));

    place
        .run(&["serve", "--policy", "workers", "--listen", "127.0.0.1:0", "--token-file", "token", "--worker-token-file", "token"])
        .fails(2, &["--worker-token-file"]);
}

#[test]
fn bad_input_is_refused_with_what_to_do() {
    let place = exclusive("");
    let served = Served::start(&place, &[]);
    let opens = |body: Value| request(served.at, "POST", &Lease::path("leases"), &[], Some(&body));
    for bad in [json!({}), json!({"ttl_ms": 999}), json!({"ttl_ms": 60_001}), json!({"ttl_ms": -1}), json!({"ttl_ms": 5_000, "more": 1})] {
        refused(&opens(bad), 400, "bad-request");
    }
    let lease = Lease::kept(served.at, 5_000);
    has_all(&lease);
    let many: Vec<String> = (0..1_001).map(|number| number.to_string()).collect();
    refused(&lease.asks("POST", "enter", Some(&json!({"keys": many}))), 400, "bad-request");
    refused(&lease.asks("POST", "enter", Some(&json!({"keys": ["x".repeat(65_537)]}))), 400, "bad-key");
    for bad in ["grants?wait=30001", "grants?wait=x", "grants?after=1", "grants?other=1"] {
        refused(&lease.asks("GET", bad, None), 400, "bad-request");
    }
    for bad in [json!({"timers": [{"name": "t"}]}), json!({"daemons": vec!["x"; 65]})] {
        refused(&lease.asks("PUT", "names", Some(&bad)), 400, "bad-request");
    }
    refused(&lease.asks("PUT", "names", Some(&json!({"timers": [{"name": "t", "every_ms": 10}]}))), 409, "conflict");
    let twice = json!({"timers": [{"name": "t", "every_ms": 1_000}, {"name": "t", "every_ms": 2_000}]});
    refused(&lease.asks("PUT", "names", Some(&twice)), 409, "conflict");
    let _waiting: Vec<_> = (0..8).map(|_| follow(served.at, &lease)).collect();
    eventually("more than eight do not follow", PATIENCE, || (lease.asks("GET", "grants?wait=0", None).0 == 429).then_some(()));
}
