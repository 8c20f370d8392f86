//! Drained members: the messages when all are drained, plans with one, and members that vanish.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use sqlx::Connection as _;

use crate::common::Place;
use crate::common::process::Process;
use crate::{Served, http, place};

const JSON: &str = "Content-Type: application/json\r\n";

/// Asks for keys of which it owns none; the header says why.
fn owns_none(served: &Served, state: &str) {
    let answer = served.post("owned", JSON, "[\"tenant-7\",\"tenant-8\"]");
    assert!(answer.status == 200 && answer.head.contains(&format!("shardwise-state: {state}")), "{state}: {answer:?}");
    assert_eq!(answer.json(), json!([]));
}

/// Regression: everything spoke of `min_members`, the header said `active`, and the drain said nothing.
#[test]
fn where_all_are_drained_everything_says_so_and_how_to_undo_it() {
    let place = place();
    let mut one = Served::start(&place, &[]);
    one.settles(1, |owned| owned == 256);
    let undo = format!("shardwise undrain {} --policy workers", one.id);
    let drain = place.run(&["drain", &one.id]);
    assert!(drain.code == Some(0) && drain.text().contains("is asked to drain"), "{drain:?}");
    assert!(drain.err.contains("drained, no key has an owner: no active member is left") && drain.err.contains(&undo), "{drain:?}");
    one.settles(1, |owned| owned == 0);

    owns_none(&one, "unassigned");
    let ready = http::get(one.at, "/readyz").refuses(503, "not ready");
    for reason in [&one.ownership()["hint"], &ready["detail"]] {
        let reason = reason.as_str().unwrap();
        assert!(reason.contains("all members are drained") && reason.contains("shardwise undrain ID --policy workers"), "{reason}");
        assert!(!reason.contains("min_members"), "{reason}");
    }
    for command in [&["owner", "tenant-7"][..], &["owner", "tenant-7", "--json"], &["explain", "tenant-7"], &["route", "tenant-7"]] {
        let ran = place.run(command);
        assert!(ran.code == Some(1) && ran.err.contains("all members are drained") && ran.err.contains(&undo), "{command:?}: {ran:?}");
    }
    // Regression: these said nothing, or that the members are not known yet.
    let no_owner = format!("no owner: all members are drained; to undo it: {undo}");
    let members = place.run(&["members"]);
    assert!(members.code == Some(0) && members.err.contains(&no_owner), "{members:?}");
    let asked = place.run(&["ask", "--key", "tenant-7", "status", "--within", "300ms"]);
    let why = format!("no member took the request within 300ms: all members are drained; to undo it: {undo}; it was not handled");
    assert!(asked.code == Some(3) && asked.err.contains(&why), "{asked:?}");
    let route = one.get("route?key=tenant-7").refuses(503, "no member serves it");
    assert!(route["detail"].as_str().unwrap().contains("all members are drained"), "{route}");
    let join = json!({"join": [{"instance_id": one.id}]}).to_string();
    let plan = one.post("plan", JSON, join).well("it is undrained");
    assert!(plan["after"]["members"] == 1 && plan["moved_share"] == 1.0 && plan["moves"][0]["to"] == one.id, "{plan}");

    place.run(&["undrain", &one.id]).well();
    one.settles(1, |owned| owned == 256);
    one.process.signal(Signal::SIGTERM);
    let log = one.process.ends("after SIGTERM").err;
    for line in ["this worker is drained by an operator", "this worker is no longer drained"] {
        assert_eq!(log.matches(line).count(), 1, "{line}, once: {log}");
    }
}

/// Regression: `owner` spoke of `min_members`, and `members` showed a drained member as one that leaves.
#[test]
fn a_list_of_drained_members_that_cannot_be_read_is_reported() {
    let place = place();
    let one = Served::start(&place, &[]);
    place.run(&["drain", &one.id, "--wait"]);
    one.settles(1, |owned| owned == 0);
    let store = format!("sqlite:{}", place.path("shardwise.db").display());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut store = sqlx::SqliteConnection::connect(&store).await.unwrap();
        sqlx::raw_sql("UPDATE note SET text = 'no JSON' WHERE name = 'drained'").execute(&mut store).await.unwrap();
        store.close().await.unwrap();
    });
    let unread = "the list of drained members cannot be read";
    for command in ["owner", "explain"] {
        let ran = place.run(&[command, "tenant-7"]);
        assert!(ran.code == Some(1) && ran.err.contains(unread) && ran.err.contains("edited by hand"), "{command}: {ran:?}");
        assert!(!ran.err.contains("min_members"), "{command}: {ran:?}");
    }
    let members = place.run(&["members"]);
    assert!(members.code == Some(0) && members.err.contains(unread) && members.text().contains("draining"), "{members:?}");
}

#[test]
fn below_min_members_an_empty_list_is_no_answer_either() {
    let place = Place::of_workers("5s", "slots = 256\nmin_members = 2");
    let one = Served::start(&place, &[]);
    owns_none(&one, "unassigned");
    let few = "active members: 1; 2 needed (min_members)";
    let (members, route) = (place.run(&["members"]), place.run(&["route", "tenant-7"]));
    assert!(members.code == Some(0) && members.err.contains(&format!("no owner: {few}")), "{members:?}");
    assert!(route.code == Some(1) && route.err.contains(&format!("no route: {few}")), "{route:?}");
    let other = Served::start(&place, &[]);
    other.settles(2, |owned| owned > 0);
    let drain = place.run(&["drain", &other.id]);
    assert!(drain.code == Some(0) && drain.err.contains("active members left: 1; 2 needed (min_members)"), "{drain:?}");
}

#[test]
fn a_plan_knows_who_is_drained() {
    let place = place();
    let (one, other) = (Served::start(&place, &[]), Served::start(&place, &[]));
    one.settles(2, |owned| owned > 0 && owned < 256);
    place.run(&["drain", &other.id]).well();
    one.settles(2, |owned| owned == 256);
    // A drained worker among active ones answers as usual: others own these keys.
    other.settles(2, |owned| owned == 0);
    owns_none(&other, "active");
    let plan = |wanted: Value| one.post("plan", JSON, wanted.to_string());
    assert_eq!(plan(json!({"leave": [other.id]})).well("it owns nothing")["moves"], json!([]));
    let joins = plan(json!({"join": [{"instance_id": other.id}]})).well("it is undrained");
    assert!(joins["after"]["members"] == 2 && joins["moved_share"].as_f64().unwrap() > 0.3, "{joins}");
    let nobody = plan(json!({"leave": ["nobody"]})).refuses(404, "nobody");
    assert!(nobody["detail"].as_str().unwrap().contains(&other.id), "{nobody}");

    // The exit code of a member that was not drained, whether it exists or not.
    let known = place.run(&["undrain", &one.id]);
    assert!(known.code == Some(1) && known.complaints().is_empty() && known.text().contains("is not drained"), "{known:?}");
    let unknown = place.run(&["undrain", "nobody"]);
    let listed = format!("the group has no member \"nobody\"; drained are: {}", other.id);
    assert!(unknown.code == Some(1) && unknown.err.contains(&listed), "{unknown:?}");
}

/// Regression: for half a TTL after `undrain`, `drain` counted the record of that member, which still showed the drain.
#[test]
fn a_member_that_was_just_undrained_counts_at_once() {
    let place = Place::of_workers("20s", "slots = 64");
    let (one, other) = (Served::start(&place, &[]), Served::start(&place, &[]));
    one.settles(2, |owned| owned > 0 && owned < 64);
    place.run(&["drain", &other.id, "--wait"]).well();
    // It cannot change its record while it is stopped.
    other.process.signal(Signal::SIGSTOP);
    place.run(&["undrain", &other.id]).well();
    place.run(&["drain", &one.id]).well();
    other.process.signal(Signal::SIGCONT);
    other.settles(2, |owned| owned == 64);
    let drain = place.run(&["drain", &other.id]);
    assert!(drain.code == Some(0) && drain.err.contains("drained, no key has an owner: no active member is left"), "{drain:?}");
}

/// Regression: `rebalances` and `watch` said of both only that they were gone.
#[test]
fn members_that_vanished_are_listed_apart_from_those_that_left() {
    let place = place();
    let _stays = Served::start(&place, &[]);
    let [mut leaves, mut dies] = [(); 2].map(|()| Served::start(&place, &[]));
    let start = |arguments: &[&str]| Process::start(place.command(arguments));
    let mut watches = [start(&["watch", "--join", "--id", "watcher"]), start(&["watch"])];
    let mut follower = start(&["rebalances", "--follow", "--json"]);
    for watch in &mut watches {
        watch.prints("all are there", |line| line["members"].as_array().is_some_and(|members| members.len() == 4));
    }
    follower.prints("all are there", |line| line["members"] == 4);

    let mut sees = |id: &str, vanished: &Value| {
        for watch in &mut watches {
            let is_gone = |line: &Value| line["members"].as_array().is_some_and(|members| members.iter().all(|member| member != id));
            assert_eq!(watch.prints("it is gone", is_gone)["vanished"], *vanished);
        }
        assert_eq!(follower.prints("it is gone", |line| line["left"] == json!([id]))["vanished"], *vanished);
    };
    leaves.process.signal(Signal::SIGTERM);
    assert_eq!(leaves.process.ends("after SIGTERM").code, Some(0));
    sees(&leaves.id, &json!([]));
    dies.process.signal(Signal::SIGKILL);
    dies.process.ends("after SIGKILL");
    sees(&dies.id, &json!([dies.id]));
}
