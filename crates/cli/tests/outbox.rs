//! `shardwise outbox`: real publishers on a real file.

#![expect(clippy::unwrap_used, reason = "tests report by panicking")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::process::Process;
use common::{PATIENCE, Place, eventually, workers};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use shardwise_outbox::sink::{ReadEvent, parse_line, read_events};
use shardwise_testkit::Port;

const SLOTS: u64 = 64;
/// A TTL that is long enough for no lease to expire on a slow machine, which would be a reason for repeats.
const STEADY: &str = "10s";

/// An outbox `orders`, ready, with a TTL of 1 s, small batches and a file as its sink.
fn outbox() -> Place {
    outbox_with_ttl("1s")
}

fn outbox_with_ttl(ttl: &str) -> Place {
    let place = Place::with_settings(
        &(workers(ttl, &format!("slots = {SLOTS}"))
            + "[default.outbox.orders]\npolicy = \"workers\"\nstore = \"sqlite:outbox.db\"\nsink = \"file:delivered.jsonl\"\n\
               batch = 20\nbackoff = \"100ms\"\npoll = \"100ms\"\n"),
    );
    assert_eq!(place.run(&["outbox", "init"]).well(), "the outbox is ready: outbox.db\n");
    place
}

fn publish(place: &Place, id: &str) -> Process {
    let mut command = place.command(&["outbox", "run"]);
    command.env("SHARDWISE__RESILIENCE__SHARDING__INSTANCE__ID", id);
    Process::start(command)
}

fn line(aggregate: u64, n: u64) -> String {
    json!({"aggregatetype": "order", "aggregateid": aggregate.to_string(), "type": "Changed", "payload": {"n": n}}).to_string() + "\n"
}

/// Writes this many more events, for a hundred aggregates in turn.
fn enqueue(place: &Place, events: u64) {
    let lines: Vec<String> = (0..events).map(|n| line(n % 100, n)).collect();
    let (mut left, mut locked) = (&lines[..], 0);
    while !left.is_empty() {
        let ran = place.run_with(&["outbox", "enqueue"], left.concat().as_bytes());
        if ran.code == Some(0) {
            assert_eq!(ran.text(), format!("{} events enqueued, 0 lines refused\n", left.len()));
            return;
        }
        // SQLite's lock is not fair: on a busy machine the publishers may keep it for as long as a write waits.
        let written =
            ran.err.split_once("locked by another process").and_then(|(_, rest)| rest.split_once("; ")?.1.split(' ').next()?.parse().ok());
        locked += 1;
        assert!(ran.code == Some(3) && locked < 10, "{ran:?}");
        left = &left[written.unwrap_or(0)..];
    }
}

fn status(place: &Place) -> Value {
    place.run(&["outbox", "status", "--json"]).json()
}

/// A publisher's number of slots, and when it was last seen; zeros if the store does not know it.
fn publisher(status: &Value, name: &str) -> (u64, f64) {
    let publishers = status["publishers"].as_array().unwrap();
    let found = publishers.iter().find(|publisher| publisher["publisher"] == name);
    found.map_or((0, 0.0), |found| (found["slots"].as_u64().unwrap(), found["seen_ago_seconds"].as_f64().unwrap_or(f64::MAX)))
}

/// Two publishers, the second one started when the first one works.
fn two(place: &Place) -> (Process, Process) {
    let a = publish(place, "a");
    eventually("a has all slots", PATIENCE, || (publisher(&status(place), "a").0 == SLOTS).then_some(()));
    (a, publish(place, "b"))
}

fn both_share(place: &Place) {
    eventually("both hold slots, together all", PATIENCE, || {
        let status = status(place);
        let (a, b) = (publisher(&status, "a").0, publisher(&status, "b").0);
        (a > 0 && b > 0 && a + b == SLOTS).then_some(())
    });
}

fn all_delivered(place: &Place) {
    eventually("nothing is pending", PATIENCE, || (status(place)["pending"] == 0).then_some(()));
}

fn delivered(place: &Place) -> Vec<ReadEvent> {
    read_events(place.path("delivered.jsonl")).map(|events| events.map(Result::unwrap).collect()).unwrap_or_default()
}

fn stops(process: &mut Process) -> String {
    process.signal(Signal::SIGTERM);
    let ran = process.ends("after SIGTERM");
    let lines = ran.complaints();
    let (first, last) = (lines.first().copied().unwrap_or_default(), lines.last().copied().unwrap_or_default());
    assert!(ran.code == Some(0) && first.starts_with("publishing as ") && last.starts_with("stopped: "), "{ran:?}");
    last.to_owned()
}

/// Checks that nothing is lost, each aggregate's first deliveries are in order, and a slot's epoch never decreases. Returns the number of
/// repeats.
fn check(delivered: &[ReadEvent], written: u64) -> usize {
    let (mut seen, mut next, mut epochs) = (BTreeSet::new(), BTreeMap::<&str, u64>::new(), BTreeMap::<u32, u64>::new());
    for event in delivered {
        if !seen.insert(&event.id) {
            continue;
        }
        let next = next.entry(&event.key).or_insert(1);
        assert_eq!(event.sequence, *next, "out of order: {event:?}");
        *next += 1;
        let epoch = epochs.entry(event.slot).or_default();
        assert!(event.epoch >= *epoch, "an epoch went back from {epoch}: {event:?}");
        *epoch = event.epoch;
    }
    assert_eq!(seen.len() as u64, written, "lost or invented");
    delivered.len() - seen.len()
}

#[test]
fn refused_lines_are_reported_by_number_and_reason_and_the_good_ones_are_kept() {
    let place = outbox();
    let mut lines = line(1, 1).replace("{\"agg", "{\"id\":\"mine\",\"agg").into_bytes();
    lines.extend_from_slice(b"{\"aggregatetype\":\"\xff\"}\n");
    lines.extend_from_slice(line(1, 2).replace("order", "or\\u0000der").as_bytes());
    lines.extend_from_slice(line(1, 2).replace("order", "or\0der").as_bytes());
    lines.extend_from_slice(b"\n{\"aggregatetype\":\"order\",\"aggregateid\":\"1\",\"type\":\"Changed\"}\n");
    lines.extend_from_slice(line(1, 2).replace('2', &format!("\"{}\"", "x".repeat(1_048_577))).as_bytes());
    lines.extend_from_slice(line(1, 3).replace("{\"agg", "{\"id\":\"mine\",\"agg").as_bytes());
    lines.extend_from_slice(b"no JSON\n");
    lines.extend_from_slice(line(1, 4).replace("order", "with space/\u{1f980}").trim_end().as_bytes());
    place.write("events.jsonl", &lines);
    let refused = [
        (2, "not UTF-8 after byte 18"),
        (3, "NUL"),
        (4, "control character"),
        (6, "missing field `payload`"),
        (7, "at most 1048576"),
        (8, "an event with this id is in the outbox already"),
        (9, "this is not JSON: unexpected character at column 2"),
    ];

    let people = place.run(&["outbox", "enqueue", "--from", "events.jsonl"]);
    assert_eq!((people.code, people.text().as_str()), (Some(1), "2 events enqueued, 7 lines refused\n"));
    for (output, (number, why)) in people.err.lines().zip(refused) {
        assert!(output.starts_with(&format!("line {number}: ")) && output.contains(why), "{output}, expected: {why}");
    }
    assert_eq!(people.err.lines().count(), refused.len());

    let programs = place.run_with(&["outbox", "enqueue", "--json"], &lines);
    assert_eq!((programs.code, programs.err.as_str()), (Some(1), ""));
    let output = programs.json();
    assert_eq!(output["enqueued"], 1, "the id of the first line is taken by now: {output}");
    for (output, (number, why)) in output["refused"].as_array().unwrap()[1..].iter().zip(refused) {
        assert!(output["line"] == number && output["reason"].as_str().unwrap().contains(why), "{output}, expected: {why}");
    }
    assert_eq!(status(&place)["pending"], 3);
    assert!(!place.path("outbox.db-wal").exists(), "nothing is left beside a file that nobody uses");
}

#[test]
fn two_publishers_share_and_one_that_leaves_gives_back_at_once() {
    let place = outbox_with_ttl(STEADY);
    let (mut a, mut b) = two(&place);
    both_share(&place);
    enqueue(&place, 2_000);
    all_delivered(&place);
    assert_eq!(check(&delivered(&place), 2_000), 0, "repeats without any reason");
    let human = place.run(&["outbox", "status"]).well();
    assert!(human.starts_with("0 events pending\n0 aggregates retrying, 0 blocked, 0 events parked\n"), "{human}");
    for name in ["a", "b"] {
        let row = human.lines().find(|line| line.split_whitespace().next() == Some(name)).unwrap_or_else(|| panic!("no {name}: {human}"));
        assert_eq!(row.split_whitespace().nth(1), Some("alive"));
    }

    let output = stops(&mut a);
    assert!(!output.starts_with("stopped: 0 delivered"), "it did nothing: {output}");
    assert!(!status(&place)["publishers"].to_string().contains("\"a\""), "it has left before it ended");
    eventually("b has all, before a TTL", Duration::from_secs(8), || (publisher(&status(&place), "b").0 == SLOTS).then_some(()));
    assert!(!stops(&mut b).starts_with("stopped: 0 delivered"));
    let left = status(&place);
    assert_eq!((&left["free_slots"], &left["publishers"]), (&SLOTS.into(), &json!([])), "all slots are free at once");
    let human = place.run(&["outbox", "status"]).well();
    assert!(human.ends_with("no publisher\n64 slots without a living publisher\n"), "{human}");
}

#[test]
fn a_publisher_stopped_beyond_its_ttl_marks_nothing_that_another_has_taken() {
    let place = outbox();
    let mut written = 0;
    let (mut a, mut b) = two(&place);
    for attempt in 1.. {
        both_share(&place);
        let so_far = delivered(&place).len();
        enqueue(&place, 5_000);
        written += 5_000;
        eventually("it goes on", PATIENCE, || (delivered(&place).len() > so_far + 100).then_some(()));
        a.signal(Signal::SIGSTOP);
        if b_takes_over(&place) {
            break;
        }
        // Paused inside a write, it blocks every other process, as documented. Then the scene is repeated.
        assert!(attempt < 10, "stopped {attempt} times inside a write");
        a.signal(Signal::SIGCONT);
        eventually("both are seen again", PATIENCE, || (publisher(&status(&place), "b").1 < 0.5).then_some(()));
    }
    all_delivered(&place);
    enqueue(&place, 1_000);
    all_delivered(&place);
    a.signal(Signal::SIGCONT);
    both_share(&place);
    enqueue(&place, 1_000);
    all_delivered(&place);
    let stopped = stops(&mut a) + &stops(&mut b);
    let repeats = check(&delivered(&place), written + 2_000);
    // Only events in flight at a stop are repeated.
    assert!(repeats as u64 * 10 < written, "{repeats} repeats; {stopped}");
}

/// Whether b gets all slots while a is paused. It does not if a was paused inside a write: then b cannot touch the store either, or it has
/// no slots because it cannot renew its membership.
fn b_takes_over(place: &Place) -> bool {
    eventually("b has all, or cannot write", PATIENCE, || {
        let (slots, seen_ago) = publisher(&status(place), "b");
        (slots == SLOTS || slots == 0 || seen_ago > 1.0).then_some(slots == SLOTS)
    })
}

/// Puts a directory in the place of the file that a running publisher writes. One that starts there refuses it at once.
fn break_sink(place: &Place) {
    let path = place.path("delivered.jsonl");
    eventually("the publisher has checked its sink, and so made the file", PATIENCE, || std::fs::remove_file(&path).ok());
    std::fs::create_dir(&path).unwrap();
}

#[test]
fn a_sink_that_cannot_be_written_loses_nothing() {
    let place = outbox();
    let mut publisher = publish(&place, "a");
    break_sink(&place);
    enqueue(&place, 300);
    let failing = eventually("the status tells of failures", PATIENCE, || {
        Some(status(&place)).filter(|status| status["retrying_aggregates"].as_u64() > Some(0))
    });
    assert_eq!((&failing["pending"], &failing["parked"], &failing["blocked_aggregates"]), (&300.into(), &0.into(), &0.into()));
    assert!(failing["oldest_pending_age_seconds"].as_f64() > Some(0.0), "{failing}");
    let human = place.run(&["outbox", "status"]).well();
    assert!(human.starts_with("300 events pending, the oldest for "), "{human}");
    let why = &failing["retrying"];
    assert!(why["error"].as_str().unwrap().contains("delivered.jsonl: this is a directory"), "{failing}");
    assert!(why["key"].as_str().unwrap().starts_with("order/") && why["pending"].as_u64() >= Some(3), "{failing}");
    assert!(why["next_attempt_in_seconds"].as_f64() <= Some(30.0) && why["failed_ago_seconds"].is_f64(), "{failing}");
    let (output, failed) = human.split_once("\n  last failed ").unwrap_or_else(|| panic!("it does not say why: {human}"));
    assert!(output.contains(" waiting; the next attempt is "), "{human}");
    assert!(failed.lines().next().unwrap().contains("delivered.jsonl: this is a directory"), "{human}");
    std::fs::remove_dir(place.path("delivered.jsonl")).unwrap();
    all_delivered(&place);
    assert_eq!(status(&place)["retrying"], Value::Null);
    stops(&mut publisher);
    check(&delivered(&place), 300);
}

#[test]
fn what_is_not_there_is_named_with_what_to_do() {
    let place = outbox();
    place.run(&["outbox", "status", "--name", "ordesr"]).fails(2, &["\"ordesr\"", "known: orders"]);
    place.run(&["outbox", "enqueue", "--from", "none.jsonl"]).fails(3, &["none.jsonl"]);
    assert_eq!(place.run(&["outbox", "init", "--json"]).json(), json!({"store": "sqlite:outbox.db"}), "again is no harm");
    std::fs::remove_file(place.path("outbox.db")).unwrap();
    for command in ["status", "enqueue", "run"] {
        place.run(&["outbox", command]).fails(3, &["outbox.db", "shardwise outbox init"]);
    }
    let place = Place::with_settings(&std::fs::read_to_string(place.path("settings.toml")).unwrap());
    place.write("outbox.db", "this is no database, and long enough to be looked at closely\n".repeat(100));
    for command in ["init", "status", "enqueue", "run"] {
        place.run(&["outbox", command]).fails(4, &["outbox.db", "database"]);
    }
    Place::of_workers("1s", "").run(&["outbox", "status"]).fails(2, &["[default.outbox.NAME]", "shardwise init --outbox"]);
}

/// Regression: a blocked write cannot be cancelled, and the process waited for it forever, and later for longer than its policy allows.
#[test]
fn a_pipe_that_is_not_read_keeps_the_publisher_for_the_policys_drain_timeout_only() {
    let place = outbox();
    // Many times the capacity of a pipe.
    let lines: String = (0..500u64).map(|n| line(n % 100, n).replace("Changed", &format!("Changed{}", "x".repeat(200)))).collect();
    place.run_with(&["outbox", "enqueue"], lines.as_bytes()).well();
    let mut command = place.command(&["outbox", "run"]);
    command.env("SHARDWISE__OUTBOX__ORDERS__SINK", "stdout");
    command.env("SHARDWISE__RESILIENCE__SHARDING__POLICIES__WORKERS__DRAIN_TIMEOUT", "1s");
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let (mut pending, mut looks_alike) = (500, 0);
    eventually("the pipe is full", PATIENCE, || {
        let now = status(&place)["pending"].as_u64().unwrap();
        looks_alike = if now == pending { looks_alike + 1 } else { 0 };
        pending = now;
        (now < 500 && looks_alike == 20).then_some(())
    });
    let asked = Instant::now();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGTERM).unwrap();
    let ended = eventually("it ends", Duration::from_secs(15), || child.try_wait().unwrap());
    assert!(ended.success(), "{ended}");
    assert!(asked.elapsed() > Duration::from_millis(900), "it did not wait for what is in flight: {:?}", asked.elapsed());
    let mut piped = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut piped).unwrap();
    let in_the_pipe = piped.split(|byte| *byte == b'\n').filter_map(parse_line).count() as u64;
    let marked = 500 - status(&place)["pending"].as_u64().unwrap();
    assert!(0 < marked && marked <= in_the_pipe, "{marked} were marked, {in_the_pipe} can be read");
}

/// The key comes from the writer and the message from the sink: neither may control the operator's terminal.
#[test]
fn a_status_for_people_has_nothing_that_a_terminal_obeys() {
    let place = outbox();
    let lines = line(1, 1).replace("\"1\"", "\"1\\u001b[2J\\n2\"");
    let mut publisher = publish(&place, "a");
    break_sink(&place);
    place.run_with(&["outbox", "enqueue"], lines.as_bytes()).well();
    let failing = eventually("it fails", PATIENCE, || Some(status(&place)).filter(|status| status["retrying"].is_object()));
    assert_eq!(failing["retrying"]["key"], "order/1\u{1b}[2J\n2", "programs get the key as it is");
    let human = place.run(&["outbox", "status"]).well();
    assert!(human.contains(r" ago: order/1\u{1b}[2J 2: ") && !human.contains('\u{1b}'), "{human:?}");
    stops(&mut publisher);
}

#[test]
fn unblock_says_when_there_is_nothing_to_unblock() {
    let place = outbox();
    let ran = place.run(&["outbox", "unblock", "--key", "order/1"]);
    assert_eq!((ran.code, ran.text().trim()), (Some(1), "order/1 is not blocked; `shardwise outbox list` shows what is, as TYPE/ID"));
    assert_eq!(place.run(&["outbox", "unblock"]).text(), "0 aggregates unblocked\n");
}

#[test]
fn after_a_restore_numbers_are_lifted_and_what_waits_is_counted() {
    let place = outbox();
    enqueue(&place, 3);
    place.run(&["outbox", "restored", "--epoch-above", "7"]).fails(2, &["--sequence-above"]);
    place.run(&["outbox", "restored", "--epoch-above", "x", "--sequence-above", "7"]).fails(2, &["--epoch-above"]);
    let ran = place.run(&["outbox", "restored", "--epoch-above", "7", "--sequence-above", "1000"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.text().starts_with("epochs go on above 8, sequences above 1000\n")
            && ran.err.contains("up to 3 events wait and keep sequences"),
        "{ran:?}"
    );
    let mut publisher = publish(&place, "a");
    all_delivered(&place);
    enqueue(&place, 3);
    all_delivered(&place);
    stops(&mut publisher);
    let delivered = delivered(&place);
    assert!(delivered.iter().all(|event| event.epoch > 8), "{delivered:?}");
    let mut sequences: Vec<_> = delivered.iter().map(|event| event.sequence).collect();
    sequences.sort_unstable();
    assert!(
        sequences[..3].iter().all(|sequence| *sequence <= 3) && sequences[3..].iter().all(|sequence| *sequence > 1_000),
        "{sequences:?}"
    );
}

/// Publishes with a sink that cannot be written until an event is parked by SQL; the operator does the rest.
#[test]
fn dead_letters_are_listed_replayed_and_discarded_and_all_of_it_is_written_down() {
    let place = outbox_with_ttl(STEADY);
    let lines: String = (1..=4).map(|n| line(7, n).replace("{\"agg", &format!("{{\"id\":\"e-{n}\",\"agg"))).collect();
    place.run_with(&["outbox", "enqueue"], lines.as_bytes()).well();
    assert_eq!(place.run(&["outbox", "list"]).well(), "no dead letter\n");
    assert_eq!(place.run(&["outbox", "replay", "--all", "--reason", "x"]).well(), "nothing is parked\n");
    place.run(&["outbox", "replay", "e-1"]).fails(2, &["--reason"]);
    place.run(&["outbox", "discard", "e-1", "--reason", " "]).fails(2, &["who does this, and why?"]);
    sql(
        &place,
        "UPDATE outbox SET parked_at = 0, parked_error = '422' WHERE id IN ('e-2', 'e-3');
         UPDATE outbox_aggregate SET done_seq = 4",
    );
    let listed = place.run(&["outbox", "list", "--key", "order/7", "--json"]).json();
    let found = &listed["dead_letters"][0];
    assert_eq!(
        (&found["id"], &found["state"], &found["error"], &listed["cut"]),
        (&json!("e-2"), &json!("parked"), &json!("422"), &json!(false))
    );
    assert!(place.run(&["outbox", "list"]).well().contains("e-2    order/7    Changed  2         parked"));
    let output = place.run(&["outbox", "replay", "e-2", "e-1", "--reason", "fixed", "--as", "ann"]);
    assert_eq!((output.code, output.text().lines().next()), (Some(1), Some("e-2: replayed, its sequence is now 5")));
    assert!(output.text().contains("e-1: neither parked nor at the head"));
    assert_eq!(place.run(&["outbox", "replay-aggregate", "order/8", "--reason", "x"]).code, Some(1));
    place
        .run(&["outbox", "replay-aggregate", "order/7", "--limit", "1", "--reason", "x"])
        .fails(4, &["has 3 events from there on, more than 1"]);
    let output = place.run(&["outbox", "replay-aggregate", "order/7", "--reason", "from there on"]).well();
    assert_eq!(output, "3 events sent again, the sequence goes on with 6\n");
    let mut a = publish(&place, "a");
    all_delivered(&place);
    a.signal(Signal::SIGTERM);
    assert_eq!(a.ends("after SIGTERM").code, Some(0));
    let lines = std::fs::read_to_string(place.path("delivered.jsonl")).unwrap();
    let events: Vec<Value> = lines.lines().filter(|line| !line.is_empty()).map(|line| serde_json::from_str(line).unwrap()).collect();
    let seen: Vec<_> =
        events.iter().map(|e| (e["id"].as_str().unwrap(), e["sequence"].as_str().unwrap(), e["replayed"].as_str())).collect();
    assert_eq!(seen, [("e-3", "6", Some("3")), ("e-4", "7", Some("4")), ("e-2", "8", Some("2"))]);
    sql(&place, "UPDATE outbox SET parked_at = 0 WHERE id = 'e-3'");
    assert_eq!(place.run(&["outbox", "discard", "e-3", "--reason", "not wanted"]).well(), "e-3: discarded\n");
    assert_eq!(place.run(&["outbox", "discard", "e-3", "--reason", "not wanted"]).code, Some(1));
    let audit = place.run(&["outbox", "audit", "--json"]).json();
    let lines = audit["audit"].as_array().unwrap();
    let done: Vec<_> = lines.iter().map(|e| (e["action"].as_str().unwrap(), e["event"].as_str().unwrap())).collect();
    assert_eq!(done, [("discard", "e-3"), ("replay-aggregate", "e-3"), ("replay", "e-2")]);
    assert_eq!((&lines[2]["who"], &lines[2]["why"]), (&json!("ann"), &json!("fixed")));
    assert!(!lines[0]["who"].as_str().unwrap().is_empty(), "the user of the process");
    assert!(place.run(&["outbox", "audit"]).well().contains("ann"));
}

/// Runs statements on the outbox's file, like an application.
fn sql(place: &Place, statements: &'static str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = shardwise_outbox::SqliteStore::open(place.path("outbox.db")).await.unwrap();
        let mut tx = store.begin().await.unwrap();
        sqlx::raw_sql(statements).execute(&mut *tx).await.unwrap();
        store.commit(tx).await.unwrap();
        store.close().await;
    });
}

/// Sends one request and returns the whole answer; empty if the connection is closed without one.
fn asked(port: u16, request: &str) -> String {
    asked_with(port, request, &format!("host: 127.0.0.1:{port}"))
}

fn asked_with(port: u16, request: &str, headers: &str) -> String {
    let mut answer = String::new();
    if let Ok(mut stream) = std::net::TcpStream::connect(("127.0.0.1", port)) {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = write!(stream, "{request} HTTP/1.1\r\n{headers}\r\nconnection: close\r\n\r\n");
        let _ = stream.read_to_string(&mut answer);
    }
    answer
}

fn readiness(port: u16) -> Value {
    serde_json::from_str(asked(port, "GET /readyz").rsplit("\r\n\r\n").next().unwrap()).unwrap()
}

/// Silent connections neither take resources of the publisher nor block probes.
#[test]
fn a_publisher_that_listens_reports_its_state() {
    let place = outbox_with_ttl(STEADY);
    let reserved = Port::reserve().unwrap();
    let port = reserved.number();
    let mut command = place.command(&["outbox", "run", "--listen", &port.to_string(), "--allow-host", "publisher.example"]);
    command.env("SHARDWISE__RESILIENCE__SHARDING__INSTANCE__ID", "a");
    let mut a = Process::start(command);
    eventually("it is ready", PATIENCE, || asked(port, "GET /readyz").starts_with("HTTP/1.1 200").then_some(()));
    place.run(&["outbox", "run", "--listen", &port.to_string()]).fails(3, &[&format!("cannot listen on 127.0.0.1:{port}")]);
    place.run(&["outbox", "run", "--listen", "localhost"]).fails(2, &["write a port, such as 9600"]);
    let body = readiness(port);
    assert_eq!((&body["ready"], &body["state"], &body["held_slots"]), (&json!(true), &json!("active"), &json!(SLOTS)));
    assert!(body["trouble"].is_null(), "{body}");
    for (headers, status) in [
        ("host: localhost", 200),
        ("host: publisher.example:9600", 200),
        ("host: evil.example", 421),
        ("x-host: none", 400),
        ("host: localhost\r\norigin: http://evil.example", 403),
    ] {
        for path in ["/livez", "/readyz", "/metrics"] {
            let answer = asked_with(port, &format!("GET {path}"), headers);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path} {headers}: {answer}");
        }
    }
    assert!(asked(port, "GET /livez").ends_with("alive\n"));
    assert!(asked(port, "GET /etc/passwd").starts_with("HTTP/1.1 404"));
    assert!(asked(port, "DELETE /metrics").starts_with("HTTP/1.1 405"));
    let silent: Vec<_> = (0..64).map(|_| std::net::TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
    assert!(asked(port, "GET /readyz").starts_with("HTTP/1.1 200"), "who is idle makes room");
    enqueue(&place, 300);
    all_delivered(&place);
    drop(silent);
    let metrics = eventually("all are counted", PATIENCE, || {
        let metrics = asked(port, "GET /metrics");
        metrics.contains("shardwise_outbox_delivered_total{sink=\"file delivered.jsonl\"} 300").then_some(metrics)
    });
    for line in
        ["# TYPE shardwise_outbox_publish_latency_seconds histogram", "shardwise_outbox_held_slots{", "shardwise_outbox_backlog_complete{"]
    {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    a.signal(Signal::SIGTERM);
    assert_eq!(a.ends("after SIGTERM").code, Some(0));
}

/// A destination's message may contain host names or secrets, so probes report only the kind of a failure.
#[test]
fn a_probe_hears_of_what_kind_the_trouble_is_and_nothing_of_what_was_said() {
    let place = outbox_with_ttl(STEADY);
    let reserved = [Port::reserve().unwrap(), Port::reserve().unwrap()];
    let [port, nobody] = reserved.each_ref().map(Port::number);
    let mut command = place.command(&["outbox", "run", "--listen", &port.to_string()]);
    command
        .env("SHARDWISE__OUTBOX__ORDERS__SINK", format!("http://127.0.0.1:{nobody}/hook"))
        .env("SHARDWISE__OUTBOX__ORDERS__SINK_PRIVATE", "true");
    let mut a = Process::start(command);
    eventually("it is ready", PATIENCE, || asked(port, "GET /readyz").starts_with("HTTP/1.1 200").then_some(()));
    enqueue(&place, 2);
    let output = eventually("the failure is reported", PATIENCE, || {
        Some(asked(port, "GET /readyz")).filter(|output| output.contains("\"trouble\":\"destination\""))
    });
    assert!(!output.contains(&nobody.to_string()) && !output.contains("hook"), "{output}");
    eventually("an operator sees it all", PATIENCE, || status(&place).to_string().contains(&nobody.to_string()).then_some(()));
    eventually("two aggregates are enough for an outage", PATIENCE, || (readiness(port)["destination_down"] == true).then_some(()));
    a.signal(Signal::SIGTERM);
    let ran = a.ends("after SIGTERM");
    let warnings: Vec<&str> = ran.err.lines().filter(|line| line.contains("the destination refuses every event")).collect();
    assert!(matches!(warnings[..], [line] if line.contains("WARN") && line.contains(&nobody.to_string())), "{ran:?}");
    assert_eq!(ran.code, Some(0));
}

/// Two machines use one group, each with a different file under the same outbox name: half of each outbox would have had no publisher.
#[test]
fn an_outbox_of_the_same_name_in_another_file_does_not_join_the_group() {
    let first = outbox();
    let a = publish(&first, "a");
    eventually("a has all slots", PATIENCE, || (publisher(&status(&first), "a").0 == SLOTS).then_some(()));

    let second = outbox();
    let mut joining = second.command(&["outbox", "run"]);
    joining.env("SHARDWISE__RESILIENCE__SHARDING__INSTANCE__ID", "b");
    joining.env("SHARDWISE__RESILIENCE__SHARDING__DISCOVERY__LOCAL__PATH", first.path("shardwise.db"));
    let refused = common::run(joining, b"");
    assert_eq!(refused.code, Some(4), "{}", refused.err);
    for part in [
        r#"this worker serves outbox "orders""#,
        r#"the group "workers" serves outbox "orders""#,
        r#"member "a""#,
        "with its own group_name",
    ] {
        assert!(refused.err.contains(part), "{part}: {}", refused.err);
    }
    enqueue(&first, 60);
    all_delivered(&first);
    drop(a);
}

#[test]
fn settings_in_which_two_outboxes_share_a_policy_are_refused_before_anything_is_made() {
    let outbox = |name: &str| format!("[default.outbox.{name}]\npolicy = \"workers\"\nstore = \"sqlite:{name}.db\"\nsink = \"stdout\"\n");
    let place = Place::with_settings(&(workers("1s", "") + &outbox("orders") + &outbox("notices")));
    for command in
        [&["outbox", "init", "--name", "orders"][..], &["outbox", "run", "--name", "notices"], &["outbox", "status", "--name", "orders"]]
    {
        let refused = place.run(command);
        assert_eq!(refused.code, Some(2), "{}", refused.err);
        for part in ["outbox.orders", "outbox.notices", "give each outbox its own policy"] {
            assert!(refused.err.contains(part), "{part}: {}", refused.err);
        }
    }
    assert!(!place.path("orders.db").exists() && !place.path("shardwise.db").exists(), "nothing was contacted");
}

/// Without a publisher, the status reports it with its exit code for scripts and with a line for people.
#[test]
fn events_without_a_publisher_are_stuck() {
    let place = outbox();
    enqueue(&place, 4);
    let shown = place.run(&["outbox", "status"]);
    assert_eq!(shown.code, Some(1), "{shown:?}");
    assert!(shown.text().contains("stuck: 4 events wait, and no publisher has ever run"), "{shown:?}");
    assert_eq!(status(&place)["stuck"][0]["cause"], "no_publisher");
    let a = publish(&place, "a");
    all_delivered(&place);
    assert_eq!(place.run(&["outbox", "status", "--json"]).code, Some(0));
    assert_eq!(status(&place)["stuck"], json!([]));
    drop(a);
}
