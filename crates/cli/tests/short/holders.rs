//! `shardwise holders` and `shardwise daemons`, and the holder that `owner` and `explain` show, with real sidecars and leases.

use std::net::SocketAddr;

use crate::common::lease::{Lease, request};
use crate::common::process::Process;
use crate::common::{PATIENCE, Place, eventually};
use serde_json::{Value, json};

const EXCLUSIVE: &str = "slots = 64\nownership = \"exclusive\"";

/// A sidecar, and the lease of its worker, which ends first.
struct Sidecar {
    lease: Lease,
    at: SocketAddr,
    _process: Process,
}

impl Sidecar {
    fn start(place: &Place, id: &str) -> Self {
        let mut process = Process::start(place.command(&["serve", "--policy", "workers", "--id", id, "--listen", "127.0.0.1:0"]));
        let line = process.prints("it listens", |line| line["listening"].is_string());
        let at = line["listening"].as_str().unwrap().parse().unwrap();
        Self { lease: Lease::kept(at, 10_000), at, _process: process }
    }
}

#[test]
fn who_holds_each_slot_is_shown_and_where_another_member_should() {
    let place = Place::of_workers("5s", EXCLUSIVE);
    let (one, _two) = (Sidecar::start(&place, "one"), Sidecar::start(&place, "two"));
    eventually("each holds its share", PATIENCE, || {
        let all = place.run(&["holders", "--json"]).json();
        let slots = all["slots"].as_array().unwrap();
        let agree = |slot: &Value| slot["why"].is_null() && slot["incarnation"].is_string() && slot["epoch"].as_u64().is_some();
        let holds = |id: &str| slots.iter().any(|slot| slot["holder"] == id);
        (slots.len() == 64 && slots.iter().all(agree) && holds("one") && holds("two")).then_some(())
    });
    let text = place.run(&["holders"]).well();
    assert!(text.starts_with("member") && text.contains("64 slots, each is held by the member that the placement names"), "{text}");
    assert!(!text.contains("wanted"), "nothing differs: {text}");
    let listed = place.run(&["holders", "--slots"]).well();
    assert!(listed.lines().any(|line| line.starts_with("63 ")), "{listed}");

    let owner = place.run(&["owner", "tenant-7"]);
    let id = owner.text().strip_suffix('\n').unwrap().to_owned();
    let holds = format!("holder {id} under epoch ");
    assert!(owner.code == Some(0) && !id.contains('\n'), "scripts read one line: {owner:?}");
    assert!(owner.err.contains(&holds) && owner.err.contains("since before this command looked\n"), "{owner:?}");
    let explained = place.run(&["explain", "tenant-7"]).well();
    assert!(explained.lines().any(|line| line.starts_with(&holds)) && explained.contains("point  position"), "{explained}");
    let explained = place.run(&["explain", "tenant-7", "--json"]).json();
    assert_eq!(explained["holder"], id);
    eventually("the sidecar has seen the same", PATIENCE, || {
        let (_, over_http) = request(one.at, "GET", &Lease::path("explain/tenant-7"), &[], None);
        let same = |field: &&str| explained.get(*field).is_some() && explained[*field] == over_http[*field];
        ["holder", "incarnation", "epoch", "wanted", "why"].iter().all(same).then_some(())
    });

    // The worker of one goes on working, so the slots stay where they are.
    one.lease.finishes(false);
    place.run(&["drain", "one"]).well();
    eventually("two should hold what one holds", PATIENCE, || {
        let text = place.run(&["holders"]).text();
        text.lines().any(|line| line.contains(" one ") && line.contains(" two ") && line.contains(" drain ")).then_some(())
    });
    one.lease.finishes(true);
    eventually("two holds everything", PATIENCE, || {
        let text = place.run(&["holders"]).text();
        (text.contains("each is held") && text.lines().any(|line| line.starts_with("two ") && line.contains(" 64 "))).then_some(())
    });
}

/// Regression: `holders` said only that no member holds anything.
#[test]
fn where_no_worker_has_a_lease_holders_gives_the_same_reason_as_owner() {
    let place = Place::of_workers("5s", EXCLUSIVE);
    let mut process = Process::start(place.command(&["serve", "--policy", "workers", "--id", "one", "--listen", "127.0.0.1:0"]));
    process.prints("it listens", |line| line["listening"].is_string());
    for command in [&["holders"][..], &["owner", "tenant-7"]] {
        let ran = place.run(command);
        let reason = "no owner: no member has a worker that works; see shardwise members --policy workers\n";
        assert!(ran.code == Some(1) && ran.err.contains(reason), "{command:?}: {ran:?}");
    }
}

/// The daemons of a set, as the command lists them.
fn daemons(place: &Place, set: &str) -> Vec<Value> {
    place.run(&["daemons", set, "--json"]).json()["daemons"].as_array().unwrap().clone()
}

fn all_held(place: &Place, set: &str, number: usize) -> Option<()> {
    let daemons = daemons(place, set);
    let held = daemons.iter().filter(|daemon| daemon["holder"].is_string() && daemon["epoch"].as_u64().is_some());
    (daemons.len() == number && held.count() == number).then_some(())
}

#[test]
fn the_number_of_daemons_is_set_and_who_holds_each_is_shown() {
    let place = Place::of_workers("3s", EXCLUSIVE);
    let empty = place.run(&["holders"]);
    assert!(empty.code == Some(1) && empty.text().contains("64 held by no member") && !empty.text().contains("each is held"), "{empty:?}");
    let fleet = ["one", "two"].map(|id| Sidecar::start(&place, id));
    for sidecar in &fleet {
        assert_eq!(sidecar.lease.asks("PUT", "names", Some(&json!({"daemons": ["ingest", ""]}))), (200, json!({"names": 2})));
    }
    let unset = place.run(&["daemons", "ingest"]);
    assert!(unset.code == Some(1) && unset.text().contains("the number is not set, so none runs"), "{unset:?}");
    let first = place.run(&["daemons", "ingest", "3"]).well();
    assert_eq!(first, "daemon/ingest: 3 daemons; members that offer this set read it within a TTL\n");
    eventually("all three run", PATIENCE, || all_held(&place, "ingest", 3));
    assert_eq!(daemons(&place, "ingest")[2]["number"], 2);
    let text = place.run(&["daemons", "ingest"]).well();
    assert!(text.starts_with("daemon  holder") && text.ends_with("daemon/ingest: 3 daemons, 3 held\n"), "{text}");
    let text = place.run(&["holders"]).well();
    assert!(text.lines().any(|line| line.starts_with("daemon/ingest/2 ")), "{text}");

    let fewer = place.run(&["daemons", "ingest", "1", "--json"]).json();
    assert_eq!(fewer, json!({"policy": "workers", "set": "ingest", "count": 1, "before": 3, "changed": true}));
    assert_eq!(place.run(&["daemons", "ingest", "1"]).well(), "daemon/ingest: 1 daemon, as before\n");
    eventually("the highest two end", PATIENCE, || all_held(&place, "ingest", 1));
    // Regression: a misspelled set was stored, and nothing said that no member has it.
    let sets = "shardwise: no member holds a daemon of the set \"\"; sets with daemons that are held: \"ingest\"";
    let other = place.run(&["daemons", "", "2"]);
    // Members may hold them by the time the command looks.
    assert!(other.code == Some(0) && other.complaints().iter().all(|line| *line == sets), "{other:?}");
    eventually("the set without a name is another one", PATIENCE, || all_held(&place, "", 2));

    place.run(&["daemons", "ingest", "1025"]).fails(2, &["1025 daemons are too many; 0 to 1024 are allowed"]);
    let unset = place.run(&["daemons", "misspelled"]);
    assert!(unset.code == Some(1) && unset.err.contains("sets with daemons that are held: \"\", \"ingest\""), "{unset:?}");
    assert!(place.run(&["daemons", "misspelled", "1"]).err.contains("no member holds a daemon of the set \"misspelled\""));
    let idle = place.run(&["daemons", "misspelled"]);
    assert!(idle.code == Some(0) && idle.err.contains("check that a member offers the daemons \"misspelled\""), "{idle:?}");
}

#[test]
fn under_eventual_ownership_there_are_no_holders_and_no_daemons() {
    let place = Place::of_workers("3s", "slots = 64");
    let mut worker = Process::start(place.command(&["watch", "--join", "--policy", "workers", "--id", "one"]));
    worker.prints("is active", |line| line["state"] == "active");
    place
        .run(&["holders"])
        .fails(2, &["policy workers: ownership is eventual, so no member holds a claim; ask for the owner of a key: shardwise owner KEY"]);
    for command in [&["daemons", "ingest"][..], &["daemons", "ingest", "3"]] {
        // Regression: a running group with another ownership refuses the member, so the advice names another group.
        place.run(command).fails(2, &["use a policy with ownership = \"exclusive\" and its own group_name"]);
    }
    assert_eq!(place.run(&["owner", "tenant-7"]).well(), "one\n");
    let explained = place.run(&["explain", "tenant-7", "--json"]).json();
    assert_eq!((&explained["owner"]["id"], &explained["holder"]), (&json!("one"), &Value::Null));
}
