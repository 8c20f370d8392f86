//! A member with a hostile id: no terminal output begins a line with it, moves the cursor or changes the text direction because of it.
//! JSON output contains it unchanged.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::common::process::Process;
use crate::{Served, place};

/// An id, also used as a zone and a version: a line that looks like ours, a cleared screen, a title, and right-to-left text.
const EVIL: &str = "evil\nshardwise: all is well\r\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}txet\u{2066}\u{200b}";
const SHOWN: &str = r"evil\nshardwise: all is well\r\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}txet\u{2066}\u{200b}";

/// Whether a terminal would print the text unchanged, with no line breaks except ours.
fn is_plain(text: &str) -> bool {
    let is_unsafe = |c: char| c.is_control() && !matches!(c, '\n' | '\t') || "\u{202e}\u{2066}\u{200b}".contains(c);
    !text.contains(is_unsafe) && !text.lines().any(|line| line.starts_with("shardwise: all is well"))
}

fn evil(place: &crate::Place) -> Served {
    let mut command = place.command(&["serve", "--policy", "workers", "--listen", "127.0.0.1:0"]);
    for key in ["ID", "ZONE", "VERSION"] {
        command.env(format!("SHARDWISE__RESILIENCE__SHARDING__INSTANCE__{key}"), EVIL);
    }
    command.env("RUST_LOG", "shardwise=debug");
    let mut process = Process::start(command);
    let line = process.prints("it listens", |line| line["listening"].is_string());
    Served { process, at: line["listening"].as_str().unwrap().parse().unwrap(), id: line["instance_id"].as_str().unwrap().to_owned() }
}

#[test]
fn what_others_call_themselves_is_escaped_for_people_and_exact_for_programs() {
    let place = place();
    let mut one = evil(&place);
    one.settles(1, |owned| owned == 256);
    assert_eq!(one.id, EVIL);

    let people: [&[&str]; 6] = [
        &["members", "--policy", "workers"],
        &["owner", "tenant-7", "--policy", "workers"],
        &["explain", "tenant-7", "--policy", "workers"],
        &["drain", EVIL, "--policy", "workers"],
        &["undrain", EVIL, "--policy", "workers"],
        &["end-absence", EVIL, "--policy", "workers"],
    ];
    for command in people {
        let ran = place.run(command);
        assert!(
            is_plain(&ran.text()) && is_plain(&ran.err) && format!("{}{}", ran.text(), ran.err).contains(SHOWN),
            "{command:?}: {ran:?}"
        );
    }
    // JSON preserves the value, and a terminal that prints the JSON is not controlled by it.
    let json = place.run(&["members", "--policy", "workers", "--json"]).well();
    let parsed: Value = serde_json::from_str(&json).unwrap();
    assert!(is_plain(&json) && parsed["members"][0]["instance_id"] == EVIL, "{json:?}");
    let members = place.run(people[0]).well();
    let row = members.lines().nth(1).unwrap();
    assert_eq!(row.matches(SHOWN).count(), 3, "its id, zone and version are in its row: {members}");
    place.write("members", format!("{}\n", serde_json::json!({"id": EVIL})));
    let ran = place.run_with(&["ring", "owners", "--members-file", "members"], b"tenant-7\n").well();
    assert_eq!(ran, format!("tenant-7\t{SHOWN}\n"));
    let ran = place.run(&["ring", "plan", "--members-file", "members", "--join", "b"]).well();
    assert!(is_plain(&ran) && ran.contains(SHOWN), "{ran}");

    let mut follow = place.command(&["rebalances", "--follow", "--policy", "workers"]);
    let mut child = follow.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(is_plain(&line) && line.contains(&format!("+{SHOWN}")), "{line}");

    let exact = |value: &Value, what: &str| assert_eq!(value, EVIL, "{what}");
    let output = place.run(&["members", "--policy", "workers", "--json"]).json();
    for field in ["instance_id", "zone", "version"] {
        exact(&output["members"][0][field], field);
    }
    exact(&place.run(&["owner", "tenant-7", "--policy", "workers", "--json"]).json()["owner"], "owner");
    exact(&place.run(&["explain", "tenant-7", "--policy", "workers", "--json"]).json()["owner"]["id"], "explain");
    exact(&one.get("members").well("members")["members"][0]["instance_id"], "members over HTTP");
    exact(&one.get("owner/tenant-7").well("owner")["owner"], "owner over HTTP");
    exact(&one.get("explain/tenant-7").well("explain")["owner"]["instance_id"], "explain over HTTP");
    exact(&one.ownership()["instance_id"], "ownership over HTTP");

    one.process.signal(Signal::SIGTERM);
    let log = one.process.ends("after SIGTERM").err;
    assert!(log.contains(SHOWN), "it names itself in its log: {log}");
    let forged: Vec<_> = log.lines().filter(|line| !line.starts_with("20") || !is_plain(line)).collect();
    assert!(forged.is_empty(), "lines that are none of ours: {forged:?}");
}
