//! `shardwise demo`, run as a new user runs it. Few runs, because each starts five processes.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests report by panicking")]

mod common;

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::process::Process;
use common::{PATIENCE, Place, eventually, run};
use nix::sys::signal::Signal;
use serde_json::Value;
use shardwise_outbox::sink::read_events;

fn number(verdict: &Value, field: &str) -> u64 {
    verdict[field].as_u64().unwrap_or_else(|| panic!("no number {field}: {verdict}"))
}

/// A demo has five processes. Several demos at a time would starve each other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Its times are asserted of a release build with the machine for itself, by `cargo xtask soak demo`: a debug build is late while other
/// tests run. Settings of the user's own workers do not reach it.
#[test]
fn the_verdict_as_json_is_clean_and_has_exactly_the_promised_fields() {
    let _alone = alone();
    let place = Place::empty();
    let mut command = place.command(&["demo", "--events", "1500", "--rate", "300", "--ttl", "2s", "--json", "--aggregates", "7"]);
    command.env("SHARDWISE_ENV", "production").env("SHARDWISE__RESILIENCE__SHARDING__ENABLED", "false");
    let verdict = run(command, b"").well();
    assert_eq!(verdict.lines().count(), 1, "one object and nothing else");
    let verdict: Value = serde_json::from_str(&verdict).unwrap();
    let promised =
        ["events", "delivered", "repeated", "repeated_late", "lost", "out_of_order", "takeover_ms", "handover_ms", "events_per_second"];
    assert_eq!(verdict.as_object().unwrap().keys().map(String::as_str).collect::<BTreeSet<_>>(), promised.into());
    assert!(number(&verdict, "events") >= 1_500, "writing goes on until both changes have settled: {verdict}");
    assert_eq!(number(&verdict, "delivered"), number(&verdict, "events"));
    assert_eq!((number(&verdict, "lost"), number(&verdict, "out_of_order")), (0, 0), "{verdict}");
    assert!(number(&verdict, "repeated_late") <= number(&verdict, "repeated"), "{verdict}");
    assert!(number(&verdict, "takeover_ms") > 0 && number(&verdict, "events_per_second") > 0, "{verdict}");
}

#[test]
fn real_events_come_from_git_and_everything_is_kept_for_a_look() {
    let _alone = alone();
    let place = Place::empty();
    let format = r#"{"aggregatetype":"author","aggregateid":"%ae","type":"commit","payload":"%H"}"#;
    let mut git = Command::new("git");
    git.args(["log", "--reverse", "--max-count=400", &format!("--format={format}")]).current_dir(env!("CARGO_MANIFEST_DIR"));
    let log = git
        .output()
        .unwrap_or_else(|error| panic!("git is needed for this test, whose events are the commits of this repository: {error}"));
    assert!(log.status.success(), "git log failed: {}", String::from_utf8_lossy(&log.stderr));
    let commits = String::from_utf8_lossy(&log.stdout).lines().count();
    place.write("events.jsonl", [&b"{\"aggregatetype\":\"author\"}\n"[..], &log.stdout].concat());

    let ran = place.run(&["demo", "--from", "events.jsonl", "--ttl", "1s", "--keep", "kept"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.text().contains("Nothing lost, nothing out of order."), "{ran:?}");
    assert!(!ran.err.contains("created a new store"), "only its workers' logs have that: {ran:?}");
    assert!(ran.text().contains(&format!("{commits} events written, {commits} delivered")), "{ran:?}");
    for course in [
        ["line 1: missing field", "3 publishers share", "gets SIGKILL", "taken over after"],
        ["gets SIGKILL", "joins", "after its start", "kept"],
    ] {
        let mut rest = ran.err.as_str();
        for part in course {
            let at = rest.find(part).unwrap_or_else(|| panic!("no {part:?}, or not in its turn: {ran:?}"));
            rest = &rest[at..];
        }
    }

    let kept: BTreeSet<_> = std::fs::read_dir(place.path("kept")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    for name in ["settings.toml", "outbox.db", "delivered.jsonl", "worker-1.log", "worker-2.log", "worker-3.log", "worker-4.log"] {
        assert!(kept.contains(std::ffi::OsStr::new(name)), "{name} is not kept: {kept:?}");
    }
    let delivered: BTreeSet<_> = read_events(place.path("kept/delivered.jsonl")).unwrap().map(|event| event.unwrap().id).collect();
    assert_eq!(delivered.len(), commits);
    let status = place.run(&["outbox", "status", "--settings", "kept/settings.toml", "--json"]).json();
    assert_eq!((&status["pending"], status["publishers"].to_string().contains("\"alive\":true")), (&0.into(), false), "{status}");

    place.run(&["demo", "--keep", "kept"]).fails(2, &["kept", "not empty", "name a new directory"]);
}

#[test]
fn events_that_cannot_be_had_end_it_before_it_begins() {
    let place = Place::empty();
    place.run(&["demo", "--from", "none.jsonl"]).fails(3, &["none.jsonl"]);
    place.run(&["demo", "--from", "-"]).fails(2, &["--from has no event", "aggregatetype"]);
    place.run(&["demo", "--ttl", "1ms"]).fails(2, &["ttl", "1ms"]);
}

/// A line that the store would refuse must not end the demo in the middle.
#[test]
fn events_that_the_store_would_refuse_are_refused_before_it_begins() {
    let place = Place::empty();
    let event = |more: &str, payload: &str| {
        format!("{{\"aggregatetype\":\"order\",\"aggregateid\":\"1\",\"type\":\"Changed\",\"payload\":\"{payload}\"{more}}}\n")
    };
    let payload = event("", &"p".repeat(1_048_575));
    let headers = event(&format!(",\"headers\":{{\"h\":\"{}\"}}", "h".repeat(65_536)), "");
    let no_event = "{\"aggregatetype\":\"order\"}\n".repeat(30);
    let ran = place.run_with(&["demo", "--from", "-"], (payload + &headers + &no_event).as_bytes());
    let lines: Vec<_> = ran.err.lines().collect();
    assert!(ran.code == Some(2) && ran.out.is_empty(), "{ran:?}");
    assert_eq!(lines[0], "line 1: the payload has 1048577 bytes; at most 1048576 are allowed");
    assert_eq!(lines[1], "line 2: the headers have 65544 bytes; at most 65536 are allowed");
    assert!(lines[19].starts_with("line 20: missing field") && lines[20] == "12 lines more refused", "a few are enough: {lines:?}");
    assert!(lines[21].starts_with("shardwise: --from has no event") && lines.len() == 22, "{lines:?}");
}

#[test]
fn the_newcomer_joins_only_when_the_victims_slots_are_taken_over() {
    let _alone = alone();
    let place = Place::empty();
    // Everything is written at once, long before the victim's absence can be noticed. The second line has the id of the first.
    let event = |n: u32| {
        format!("{{\"aggregatetype\":\"order\",\"aggregateid\":\"{n}\",\"type\":\"Changed\",\"payload\":{n},\"id\":\"{}\"}}\n", n.max(1))
    };
    place.write("events.jsonl", (0..300).map(event).collect::<String>());
    // One of two workers is killed, and the other takes over alone.
    let ran = place.run(&["demo", "--ttl", "1s", "--workers", "2", "--from", "events.jsonl"]);
    let at = |what: &str| ran.err.find(what).unwrap_or_else(|| panic!("no {what:?}: {ran:?}"));
    let course = [at("gets SIGKILL"), at("taken over after"), at("joins"), at("after its start")];
    assert!(ran.code == Some(0) && course.is_sorted(), "{ran:?}");
    assert!(ran.err.starts_with("line 2: an earlier line has the id \"1\" too\n"), "{ran:?}");
    assert!(ran.text().contains("299 events written, 299 delivered"), "{ran:?}");
    assert!(ran.text().contains("1 of the lines of --from refused"), "{ran:?}");
}

/// The ids of the child processes of `parent`.
fn children(parent: i32) -> Vec<i32> {
    let stat = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    // After the name, which ends at the last parenthesis: state, parent.
    let started = |pid: &i32| stat(*pid).rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok()) == Some(parent);
    pids.filter(started).collect()
}

fn is_publisher(pid: i32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| String::from_utf8_lossy(&line).contains("shardwise-demo-"))
}

#[test]
fn however_it_ends_no_process_and_no_directory_stays() {
    let _alone = alone();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        let place = Place::empty();
        let mut demo = Process::start(place.command(&["demo", "--json", "--ttl", "10s"]));
        let publishers = eventually("three publishers run", PATIENCE, || {
            let children = children(demo.pid());
            (children.len() == 3 && children.iter().all(|pid| is_publisher(*pid))).then_some(children)
        });
        demo.signal(signal);
        let ran = demo.ends("after the signal");
        if signal == Signal::SIGKILL {
            // The killed demo can do nothing more; the publishers notice by themselves.
            eventually("all publishers are gone", PATIENCE, || publishers.iter().all(|pid| !is_publisher(*pid)).then_some(()));
            continue;
        }
        ran.fails(1, &["interrupted"]);
        assert!(publishers.iter().all(|pid| !is_publisher(*pid)), "a publisher outlived the demo after {signal}");
        assert_eq!(std::fs::read_dir(place.path("")).unwrap().count(), 0, "its directory is still there after {signal}");
    }
}
