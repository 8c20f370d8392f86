//! `shardwise outbox` with a PostgreSQL store: real publishers on a real server.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "tests report by panicking")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::process::Process;
use common::{PATIENCE, Place, eventually, workers};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use shardwise_outbox::sink::read_events;
use shardwise_testkit::{Database, Postgres, PostgresOptions};
use tokio::runtime::Runtime;

const SLOTS: u64 = 64;

/// A fresh database with an outbox, and settings that name it.
fn outbox() -> (Runtime, Database, Place) {
    let runtime = Runtime::new().unwrap();
    let server = runtime.block_on(Postgres::shared()).unwrap();
    outbox_on(runtime, &server, "")
}

/// `meets`: a line of the policy that says where the publishers meet.
fn outbox_on(runtime: Runtime, server: &Arc<Postgres>, meets: &str) -> (Runtime, Database, Place) {
    let database = runtime.block_on(server.database()).unwrap();
    let place = Place::with_settings(
        &(workers("1s", &format!("slots = {SLOTS}\n{meets}\n"))
            + &format!(
                "[default.outbox.orders]\npolicy = \"workers\"\nstore = \"{}\"\nstore_password_file = \"password\"\n\
                 sink = \"file:delivered.jsonl\"\nbatch = 50\npoll = \"100ms\"\n",
                database.url()
            )),
    );
    place.write("password", "the server asks for none\n");
    (runtime, database, place)
}

fn line(aggregate: u64, n: u64) -> String {
    json!({"aggregatetype": "order", "aggregateid": aggregate.to_string(), "type": "Changed", "payload": {"n": n}}).to_string() + "\n"
}

fn status(place: &Place) -> Value {
    place.run(&["outbox", "status", "--json"]).json()
}

fn publish(place: &Place, id: &str) -> Process {
    let mut command = place.command(&["outbox", "run"]);
    command.env("SHARDWISE__RESILIENCE__SHARDING__INSTANCE__ID", id);
    Process::start(command)
}

#[test]
fn two_publishers_share_the_outbox_and_one_that_is_killed_is_followed() {
    let (_runtime, database, place) = outbox();
    let url = database.url();
    place.run(&["outbox", "status"]).fails(4, &["it has no outbox where its search_path leads: run `shardwise outbox init`"]);
    let ready = place.run(&["outbox", "init"]).well();
    let address = url.split_once('@').unwrap().1;
    assert_eq!(ready, format!("the outbox is ready: {address}\n"));
    assert_eq!(place.run(&["outbox", "init", "--json"]).json(), json!({"store": url}));
    a_killed_publisher_is_followed(&place);
}

/// On several machines they need nothing but the database that they publish from.
#[test]
fn publishers_meet_in_the_database_of_their_outbox() {
    let runtime = Runtime::new().unwrap();
    let server = runtime.block_on(Postgres::shared()).unwrap();
    let (runtime, database, place) = outbox_on(runtime, &server, "discovery.backend = \"outbox\"");
    let ready = place.run(&["outbox", "init"]).well();
    assert!(ready.contains("\nits publishers meet there: made the tables in the schema shardwise of "), "{ready}");
    let again = place.run(&["outbox", "init", "--json"]).json();
    assert!(again["backend"].as_str().unwrap().contains("up to date"), "{again}");
    a_killed_publisher_is_followed(&place);
    let rows = runtime.block_on(database.execute("SELECT name FROM shardwise.member_group")).unwrap();
    assert_eq!(rows.len(), 1, "they have met there: {rows:?}");
    assert!(!place.path("shardwise.db").exists(), "and not in a file");
}

/// An outbox that is ready and empty; two publishers share it, and deliver everything in order.
fn a_killed_publisher_is_followed(place: &Place) {
    let lines: String = (0..500).map(|n| line(n % 50, n)).collect();
    assert_eq!(place.run_with(&["outbox", "enqueue"], lines.as_bytes()).well(), "500 events enqueued, 0 lines refused\n");
    assert_eq!(status(place)["pending"], 500);
    let (a, mut b) = (publish(place, "a"), publish(place, "b"));
    eventually("both hold slots, together all", PATIENCE, || {
        let slots: Vec<u64> = status(place)["publishers"].as_array().unwrap().iter().map(|p| p["slots"].as_u64().unwrap()).collect();
        (slots.len() == 2 && slots.iter().all(|slots| *slots > 0) && slots.iter().sum::<u64>() == SLOTS).then_some(())
    });
    a.signal(Signal::SIGKILL);
    assert_eq!(place.run_with(&["outbox", "enqueue"], lines.as_bytes()).well(), "500 events enqueued, 0 lines refused\n");
    eventually("nothing is pending", PATIENCE, || (status(place)["pending"] == 0).then_some(()));
    b.signal(Signal::SIGTERM);
    assert_eq!(b.ends("after SIGTERM").code, Some(0));
    let (mut seen, mut last) = (BTreeSet::new(), BTreeMap::<String, u64>::new());
    for event in read_events(place.path("delivered.jsonl")).unwrap().map(Result::unwrap) {
        if seen.insert(event.id) {
            let before = last.insert(event.key.clone(), event.sequence).unwrap_or(0);
            assert!(event.sequence > before, "{}: {} after {before}", event.key, event.sequence);
        }
    }
    assert_eq!(seen.len(), 1_000);
}

#[test]
fn refused_lines_are_reported_and_take_no_others_with_them() {
    let (runtime, database, place) = outbox();
    place.run(&["outbox", "init"]).well();
    let with_id = line(1, 1).replace("{\"agg", "{\"id\":\"mine\",\"agg");
    let lines = [line(1, 0), with_id.clone(), with_id, line(1, 2).replace("order", ""), "no JSON\n".into(), line(1, 3)].concat();
    let output = place.run_with(&["outbox", "enqueue", "--json"], lines.as_bytes());
    assert_eq!(output.code, Some(1));
    let output = output.json();
    assert_eq!((&output["enqueued"], &output["refused_total"]), (&json!(3), &json!(3)));
    assert_eq!(output["refused"][0], json!({"line": 3, "reason": "an event with this id is in the outbox already"}));
    assert_eq!(output["refused"].as_array().unwrap().iter().map(|r| r["line"].clone()).collect::<Vec<_>>(), [3, 4, 5]);
    assert_eq!(status(&place)["pending"], 3);
    let block = "INSERT INTO outbox_head (aggregate, blocked_at, last_error) SELECT id, now(), 'no' FROM outbox_aggregate";
    runtime.block_on(database.execute(block)).unwrap();
    assert_eq!(status(&place)["blocked"][0]["key"], "order/1");
    assert_eq!(place.run(&["outbox", "unblock", "--key", "order/1"]).well(), "1 aggregate unblocked\n");
    assert_eq!(status(&place)["blocked_aggregates"], 0);
}

#[test]
fn what_is_wrong_with_the_store_is_one_line() {
    let (_runtime, database, place) = outbox();
    std::fs::remove_file(place.path("password")).unwrap();
    place.run(&["outbox", "init"]).fails(2, &["the file with the outbox's password", "password, cannot be read: "]);
    let elsewhere = |url: &str| {
        let mut command = place.command(&["outbox", "status"]);
        place.write("password", "hush");
        command.env("SHARDWISE__OUTBOX__ORDERS__STORE", url);
        common::run(command, b"")
    };
    elsewhere(&format!("{}_not_there", database.url())).fails(3, &["does not exist: create the database, or check its name"]);
    elsewhere("postgres://me@127.0.0.1:1/app").fails(3, &["outbox 127.0.0.1:1/app: the server cannot be reached"]);
    elsewhere("postgres://me:hush@127.0.0.1:1/app").fails(2, &["store is ***: leave the password out"]);
    elsewhere("postgres://me@127.0.0.1:1/app?sslmod=x").fails(2, &["has the parameter sslmod, which is not known"]);
}

fn holds_all(place: &Place) {
    eventually("it holds all slots", PATIENCE, || (status(place)["publishers"][0]["slots"] == SLOTS).then_some(()));
}

/// The server is killed, and returns with an earlier state.
#[test]
fn a_publisher_whose_commits_are_gone_ends_and_says_what_to_do() {
    let runtime = Runtime::new().unwrap();
    let server = runtime.block_on(Postgres::start(PostgresOptions::default())).unwrap();
    let (runtime, database, place) = outbox_on(runtime, &server, "");
    place.run(&["outbox", "init"]).well();
    place.run_with(&["outbox", "enqueue"], line(1, 1).as_bytes()).well();
    let mut publisher = publish(&place, "a");
    holds_all(&place);
    eventually("nothing is pending", PATIENCE, || (status(&place)["pending"] == 0).then_some(()));
    // It returns with everything, and no publisher ends.
    runtime.block_on(server.restart()).unwrap();
    place.run_with(&["outbox", "enqueue"], line(1, 2).as_bytes()).well();
    eventually("it goes on", PATIENCE, || (status(&place)["pending"] == 0).then_some(()));
    // In one transaction: the connections are closed before the publisher sees any of it.
    let back = "BEGIN; UPDATE outbox_slot SET epoch = epoch - 1; COMMIT";
    publisher.signal(Signal::SIGSTOP);
    runtime.block_on(database.execute(back)).unwrap();
    runtime.block_on(server.restart()).unwrap();
    publisher.signal(Signal::SIGCONT);
    let ended = publisher.ends("without its commits");
    assert_eq!(ended.code, Some(5), "{ended:?}");
    for words in [
        "commits that were confirmed to this publisher are missing: the epochs of ",
        "shardwise outbox restored --epoch-above N --sequence-above N",
        "this publisher knows of epoch ",
    ] {
        assert!(ended.err.contains(words), "{words:?} is not in: {}", ended.err);
    }
    // A server that was killed goes on some numbers later, but below this one.
    let lifted = place.run(&["outbox", "restored", "--epoch-above", "100", "--sequence-above", "4000"]);
    assert_eq!((lifted.code, lifted.text().as_str()), (Some(0), "epochs go on above 101, sequences above 4000\n"), "{lifted:?}");
    place.run_with(&["outbox", "enqueue"], line(1, 3).as_bytes()).well();
    let mut next = publish(&place, "b");
    let delivered = || read_events(place.path("delivered.jsonl")).unwrap().map(Result::unwrap).collect::<Vec<_>>();
    eventually("the next one delivers", PATIENCE, || delivered().iter().any(|event| event.sequence == 4_001).then_some(()));
    next.signal(Signal::SIGTERM);
    assert_eq!(next.ends("after SIGTERM").code, Some(0));
}

#[test]
fn a_publisher_that_starts_on_another_timeline_warns_until_that_is_settled() {
    let (runtime, database, place) = outbox();
    place.run(&["outbox", "init"]).well();
    let log = || {
        let mut publisher = publish(&place, "a");
        holds_all(&place);
        publisher.signal(Signal::SIGTERM);
        let ended = publisher.ends("after SIGTERM");
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.err
    };
    let warning = "has another timeline than when its publishers came first";
    assert!(!log().contains(warning), "the first one");
    assert!(!log().contains(warning), "nothing has changed");
    runtime.block_on(database.execute("UPDATE outbox_meta SET timeline = '1/1'")).unwrap();
    for _ in 0..2 {
        let log = log();
        assert!(log.contains(warning) && log.contains("shardwise outbox restored --epoch-above N"), "{log}");
    }
    let settled = place.run(&["outbox", "restored", "--epoch-above", "0", "--sequence-above", "0", "--json"]).json();
    assert_eq!((&settled["aggregates"], &settled["waiting"], &settled["publishers_alive"]), (&json!(0), &json!(0), &json!(0)), "{settled}");
    assert!(!log().contains(warning), "it is settled");
}
