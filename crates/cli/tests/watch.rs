//! `shardwise watch`: real workers that join, share, die, pause and leave.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use common::lines::{longest_overlap, members, number, owns, sets};
use common::process::Process;
use common::{PATIENCE, Place, scenes, workers};
use nix::sys::signal::Signal;
use serde_json::Value;
use shardwise_testkit::Lag;

const SLOTS: u32 = 64;
const WATCH: [&str; 4] = ["watch", "--join", "--policy", "workers"];
const EVERYTHING: [&str; 6] = ["watch", "--join", "--policy", "workers", "--slots", "--renewals"];

fn start(place: &Place, id: &str, arguments: &[&str]) -> Process {
    let mut command = place.command(arguments);
    command.env("SHARDWISE__RESILIENCE__SHARDING__INSTANCE__ID", id);
    Process::start(command)
}

/// Starts a worker and waits until it is active.
fn join(place: &Place, id: &str, arguments: &[&str]) -> Process {
    let mut process = start(place, id, arguments);
    process.prints("is active", |line| line["state"] == "active");
    process
}

fn place(ttl: &str) -> Place {
    Place::of_workers(ttl, &format!("slots = {SLOTS}"))
}

#[test]
fn a_line_has_exactly_the_promised_fields() {
    let place = place("2s");
    place.write("items", "one\ntwo\n\nfour\n");
    let fields = |line: &Value| line.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    let promised = [
        "at",
        "monotonic_ns",
        "owned_until_ns",
        "policy",
        "instance_id",
        "state",
        "revision",
        "view_fingerprint",
        "policy_fingerprint",
        "members",
        "slots",
        "slots_owned",
        "stands_still",
        "away",
        "vanished",
        "gained",
        "lost",
    ];
    let mut plain = start(&place, "plain", &WATCH);
    let line = plain.prints("owns everything", |line| owns(line) == u64::from(SLOTS));
    assert_eq!(fields(&line), promised.map(str::to_owned).into());
    assert_eq!((&line["policy"], &line["instance_id"], &line["state"]), (&"workers".into(), &"plain".into(), &"active".into()));
    assert_eq!((&line["members"], number(&line, "gained"), number(&line, "lost")), (&serde_json::json!(["plain"]), 64, 0));
    assert!(line["at"].as_str().unwrap().ends_with('Z') && line["at"].as_str().unwrap().contains('T'), "{line}");
    assert_eq!(line["view_fingerprint"].as_str().unwrap().len(), 16);
    assert_eq!(line["policy_fingerprint"].as_str().unwrap().len(), 16);
    let left = number(&line, "owned_until_ns") - number(&line, "monotonic_ns");
    assert!(left <= 1_980_000_000, "the deadline is at most 0.99 TTLs ahead: {line}");
    plain.signal(Signal::SIGTERM);
    let ran = plain.ends("after SIGTERM");
    assert!(ran.code == Some(0) && ran.complaints().is_empty(), "{ran:?}");

    let mut full = start(&place, "full", &[&EVERYTHING[..], &["--items", "items"]].concat());
    let line = full.prints("owns everything", |line| owns(line) == u64::from(SLOTS));
    let more = ["gained_slots", "lost_slots", "items_owned"];
    assert_eq!(fields(&line), promised.into_iter().chain(more).map(str::to_owned).collect());
    assert_eq!((number(&line, "items_owned"), &line["gained_slots"]), (4, &serde_json::json!([[0, 63]])));
    let renewed = full.prints("a renewal", |line| number(line, "gained") == 0 && line["state"] == "active");
    assert!(number(&renewed, "owned_until_ns") > number(&line, "owned_until_ns"));
    full.signal(Signal::SIGINT);
    assert_eq!(full.ends("after SIGINT").code, Some(0), "Ctrl-C leaves in good order too");
    assert_eq!(full.printed.last().map(|line| (&line["state"], owns(line))), Some((&"left".into(), 0)));
}

#[test]
fn two_workers_share_all_slots_and_one_has_all_after_the_others_sigkill() {
    let place = place("1s");
    let (mut a, mut b) = (join(&place, "a", &EVERYTHING), join(&place, "b", &EVERYTHING));
    a.prints("sees both", |line| members(line) == 2 && line["state"] == "active");
    let (of_a, of_b) = (sets(&a.printed).pop().unwrap(), sets(&b.printed).pop().unwrap());
    assert!(of_a.is_disjoint(&of_b), "both have {:?}", of_a.intersection(&of_b).collect::<Vec<_>>());
    assert_eq!(of_a.union(&of_b).copied().collect::<Vec<_>>(), (0..SLOTS).collect::<Vec<_>>());

    let (lag, killed) = (Lag::begin(), Instant::now());
    a.signal(Signal::SIGKILL);
    b.prints("has all", |line| owns(line) == u64::from(SLOTS));
    let (took, late) = (killed.elapsed(), lag.allowance());
    assert!(took < Duration::from_secs(2) + late, "{took:?} instead of the TTL and a second, with {late:?} for this machine");
    b.signal(Signal::SIGTERM);
    b.ends("after SIGTERM");
    a.ends("after SIGKILL");
    let overlap = longest_overlap(&a.printed, &b.printed);
    assert!(overlap < Duration::from_secs(1), "views differed for {overlap:?}");
}

#[test]
fn a_worker_that_leaves_hands_over_at_once() {
    let place = place("30s");
    let (mut a, mut b) = (join(&place, "a", &WATCH), join(&place, "b", &WATCH));
    a.prints("sees both", |line| members(line) == 2 && line["state"] == "active");
    let asked = Instant::now();
    a.signal(Signal::SIGTERM);
    b.prints_within(Duration::from_secs(10), "has all long before the TTL of 30 s", |line| owns(line) == u64::from(SLOTS));
    let ran = a.ends("after SIGTERM");
    assert!(ran.code == Some(0) && ran.complaints().is_empty(), "after {:?}: {ran:?}", asked.elapsed());
    let states: Vec<_> = a.printed.iter().rev().take(2).map(|line| line["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["left", "draining"]);
}

#[test]
fn a_worker_stopped_beyond_its_ttl_owns_nothing_until_it_has_joined_again() {
    let place = place("1s");
    scenes::stopped_beyond_its_ttl(join(&place, "a", &EVERYTHING), join(&place, "b", &EVERYTHING), SLOTS);
}

#[test]
fn any_name_may_join() {
    let place = place("5s");
    let ids = ["with space", "path/to/worker", "🦀 größe", "a,b=c", "\"quoted\" \\"];
    let mut fleet: Vec<_> = ids.iter().map(|id| join(&place, id, &WATCH)).collect();
    let mut sorted = ids;
    sorted.sort_unstable();
    for (process, id) in fleet.iter_mut().zip(ids) {
        if process.printed.last().is_some_and(|line| members(line) < ids.len()) {
            process.prints("sees all", |line| members(line) == ids.len());
        }
        let line = &process.printed[process.printed.len() - 1];
        assert_eq!((line["instance_id"].as_str(), &line["members"]), (Some(id), &serde_json::json!(sorted)));
    }
}

#[test]
fn workers_that_start_at_the_same_moment_all_see_each_other() {
    for _ in 0..3 {
        let place = place("5s");
        let mut fleet: Vec<_> = ["a", "b", "c", "d", "e"].iter().map(|id| start(&place, id, &WATCH)).collect();
        for process in &mut fleet {
            process.prints("sees all five and has its share", |line| members(line) == 5 && (1..=14).contains(&owns(line)));
        }
    }
}

#[test]
fn a_living_instance_id_is_refused_by_name() {
    let place = place("5s");
    let mut first = join(&place, "worker 1/🦀", &WATCH);
    let mut second = start(&place, "worker 1/🦀", &WATCH);
    refuses(&mut second, &["\"worker 1/🦀\"", "choose another id"]);
    first.catch_up();
    assert_eq!(first.printed.last().map(|line| (&line["state"], owns(line))), Some((&"active".into(), u64::from(SLOTS))), "nothing moved");
}

#[test]
fn other_placement_constants_are_refused_with_both_fingerprints() {
    let place = place("2s");
    let _first = join(&place, "first", &WATCH);
    place.write("other.toml", workers("2s", &format!("slots = {SLOTS}\nload_margin = 0.2")));
    let mut second = start(&place, "second", &[&WATCH[..], &["--settings", "other.toml"]].concat());
    let line = refuses(&mut second, &["the policy of this worker does not match the group", "load_margin", "make "]);
    let fingerprints = line.split(|c: char| !c.is_ascii_hexdigit()).filter(|word| word.len() == 16).collect::<BTreeSet<_>>();
    assert_eq!(fingerprints.len(), 2, "{line}");
    // Regression: an operator's command spoke of "this worker".
    let observes = place.run(&["owner", "tenant-7", "--settings", "other.toml"]);
    observes.fails(4, &["the policy of this command does not match the group", "load_margin"]);
}

/// Regression: `members` and `watch` showed no slots and did not say why.
#[test]
fn a_policy_that_does_not_match_the_groups_is_noted_where_owners_are_missing() {
    let place = place("2s");
    let _first = join(&place, "first", &WATCH);
    place.write("other.toml", workers("2s", &format!("slots = {SLOTS}\nload_margin = 0.2")));
    let note = "shardwise: the owners are not known: the policy of this command does not match the group";
    let listed = place.run(&["members", "--settings", "other.toml"]);
    assert!(listed.code == Some(0) && listed.text().contains("first") && listed.err.starts_with(note), "{listed:?}");
    assert_eq!(listed.err.lines().count(), 1, "{listed:?}");
    for command in ["watch", "rebalances"] {
        let more: &[&str] = if command == "rebalances" { &["--follow", "--json"] } else { &[] };
        let mut follower = Process::start(place.command(&[&[command, "--settings", "other.toml"][..], more].concat()));
        follower.prints("the group", |line| line["revision"].as_u64() > Some(0));
        follower.signal(Signal::SIGTERM);
        let ran = follower.ends("after SIGTERM");
        assert_eq!((ran.code, ran.err.matches(note).count()), (Some(0), 1), "{command}: {ran:?}");
    }
}

#[test]
fn a_members_file_that_is_no_database_is_named() {
    let place = place("2s");
    place.write("shardwise.db", "this is no database, and long enough to be looked at closely\n".repeat(100));
    refuses(&mut start(&place, "a", &WATCH), &["shardwise.db", "not an SQLite database"]);
}

/// Checks that it ends with exit code 4 and one line on stderr with these parts, having owned nothing.
fn refuses(process: &mut Process, parts: &[&str]) -> String {
    let ran = process.ends("refused");
    ran.fails(4, parts);
    assert!(process.printed.iter().all(|line| owns(line) == 0), "{:?}", process.printed);
    ran.err
}

#[test]
fn wrong_settings_end_before_anything_is_contacted() {
    let good = place("2s");
    good.run(&["watch", "--policy", "worker"]).fails(2, &["\"worker\"", "known: workers"]);
    good.run(&[&WATCH[..], &["--items", "none"]].concat()).fails(3, &["none: "]);
    let ttl = Place::of_workers("1s", "[default.resilience.sharding.policies.workers.discovery]\nrenew_every = \"500ms\"");
    ttl.run(&WATCH).fails(2, &["renew_every", "500ms"]);
    for place in [good, ttl] {
        assert!(!place.path("shardwise.db").exists(), "a members file was made for nothing");
    }
}

/// Regression: it printed nothing, because nothing ever changes.
#[test]
fn with_sharding_switched_off_one_line_says_so() {
    let place = place("2s");
    let mut command = place.command(&[&EVERYTHING[..], &["--items", "items"]].concat());
    command.env("SHARDWISE__RESILIENCE__SHARDING__ENABLED", "false");
    place.write("items", "one\ntwo\n");
    let mut process = Process::start(command);
    let line = process.prints("the only line", |_| true);
    assert_eq!((line["state"].as_str(), owns(&line), number(&line, "items_owned")), (Some("unsharded"), u64::from(SLOTS), 2), "{line}");
    assert_eq!((number(&line, "gained"), &line["gained_slots"]), (64, &serde_json::json!([[0, 63]])));
    process.signal(Signal::SIGTERM);
    let ran = process.ends("after SIGTERM");
    assert!(ran.code == Some(0) && ran.err.contains("this worker owns everything"), "{ran:?}");
}

/// Regression: it reported lost slots, and none gained, although the other numbers were already null.
#[test]
fn a_switch_to_a_key_placement_shows_the_served_policy_and_no_slots() {
    let place = place("2s");
    let next = "SHARDWISE__RESILIENCE__SHARDING__POLICIES__WORKERS__NEXT__PLACEMENT";
    let mut old = join(&place, "old", &WATCH);
    let mut command = place.command(&EVERYTHING);
    command.env("SHARDWISE__RESILIENCE__SHARDING__INSTANCE__ID", "new").env(next, "modulo");
    let mut new = Process::start(command);
    let before = new.prints("shares the slots", |line| owns(line) > 0 && members(line) == 2);
    assert_eq!(before["policy_fingerprint"], old.prints("sees both", |line| members(line) == 2)["policy_fingerprint"]);
    old.signal(Signal::SIGTERM);
    old.ends("after SIGTERM");
    let after = new.prints("has changed over", |line| line["slots"].is_null());
    for field in ["slots_owned", "gained", "lost", "gained_slots", "lost_slots"] {
        assert!(after[field].is_null() && after.as_object().unwrap().contains_key(field), "{field}: {after}");
    }
    assert!(after["policy_fingerprint"].is_string() && after["policy_fingerprint"] != before["policy_fingerprint"], "{after}");
    new.signal(Signal::SIGTERM);
    assert_eq!(new.ends("after SIGTERM").code, Some(0));
}

/// `timeout` and others signal the process and then its group, which contains the same process.
#[test]
fn a_signal_that_is_sent_twice_counts_once() {
    let place = place("2s");
    let mut in_time = 0;
    // The second signal may also come too late to matter, so this is repeated.
    for _ in 0..40 {
        let mut process = join(&place, "a", &WATCH);
        let first = Instant::now();
        process.signal(Signal::SIGTERM);
        process.prints("has heard the first", |line| line["state"] != "active");
        process.signal(Signal::SIGTERM);
        let doubled = first.elapsed() < Duration::from_millis(150);
        let ran = process.ends("after SIGTERM");
        if doubled {
            assert!(ran.code == Some(0) && ran.complaints().is_empty(), "{ran:?}");
            in_time += 1;
        }
        if in_time == 10 {
            return;
        }
    }
    // A busy machine manages it less often.
    assert!(in_time > 0, "too busy to send two signals within 150 ms even once");
}

/// Five processes get a `next`, one after the other, two of them by a SIGKILL: each changes over once, and at no revision are more slots
/// owned than exist.
#[test]
fn workers_that_are_restarted_with_next_change_over_once() {
    const NEXT: u64 = 160;
    let place = place("3s");
    let ids = ["a", "b", "c", "d", "e"];
    let mut workers: Vec<_> = ids.iter().map(|id| join(&place, id, &EVERYTHING)).collect();
    let mut former = Vec::new();
    for (at, id) in ids.iter().enumerate() {
        let signal = if at % 2 == 1 { Signal::SIGKILL } else { Signal::SIGTERM };
        workers[at].signal(signal);
        workers[at].ends("it is stopped");
        let mut command = place.command(&EVERYTHING);
        command.env("SHARDWISE__RESILIENCE__SHARDING__INSTANCE__ID", id);
        command.env("SHARDWISE__RESILIENCE__SHARDING__POLICIES__WORKERS__NEXT__SLOTS", NEXT.to_string());
        former.push(std::mem::replace(&mut workers[at], Process::start(command)));
        workers[at].prints("it is back", |line| line["state"] == "active");
    }
    for worker in &mut workers {
        worker.shows(PATIENCE, "all share the new slots", |line| {
            number(line, "slots") == NEXT && members(line) == ids.len() && owns(line) < NEXT / 2
        });
    }
    let mut owned = BTreeMap::<u64, (u64, BTreeMap<&str, u64>)>::new();
    for (at, id) in ids.iter().enumerate() {
        let lives = former[at].printed.iter().chain(&workers[at].printed);
        let active: Vec<_> = lives.filter(|line| line["state"] == "active").collect();
        let mut slots: Vec<_> = active.iter().map(|line| number(line, "slots")).collect();
        slots.dedup();
        assert_eq!(slots, [u64::from(SLOTS), NEXT], "{id}");
        for line in active {
            let (slots, shares) = owned.entry(number(line, "revision")).or_insert_with(|| (number(line, "slots"), BTreeMap::new()));
            assert_eq!(*slots, number(line, "slots"), "two rings at one view: {line}");
            shares.insert(id, owns(line));
        }
    }
    for (revision, (slots, shares)) in &owned {
        assert!(shares.values().sum::<u64>() <= *slots, "revision {revision}: {shares:?} of {slots}");
    }
    let (slots, last) = owned.last_entry().unwrap().get().clone();
    assert_eq!((slots, last.len(), last.values().sum::<u64>()), (NEXT, ids.len(), NEXT), "the last view is whole");
}

#[test]
fn without_join_it_observes_and_takes_no_slot() {
    let place = place("2s");
    let mut worker = join(&place, "worker", &WATCH);
    let mut observer = start(&place, "observer", &["watch", "--policy", "workers"]);
    let line = observer.prints("sees the worker", |line| line["members"] == serde_json::json!(["worker"]));
    assert_eq!((&line["state"], &line["policy"], &line["slots"]), (&"observing".into(), &"workers".into(), &SLOTS.into()));
    for null in ["monotonic_ns", "owned_until_ns", "instance_id", "slots_owned", "gained", "lost"] {
        assert!(line[null].is_null() && line.as_object().unwrap().contains_key(null), "{null}: {line}");
    }
    let mut second = join(&place, "second", &WATCH);
    observer.prints("sees both", |line| line["members"] == serde_json::json!(["second", "worker"]));
    let now = place.run(&["members", "--json"]).json();
    assert_eq!(now["members"].as_array().unwrap().len(), 2, "the observer is not a member: {now}");
    observer.signal(Signal::SIGTERM);
    let ran = observer.ends("after SIGTERM");
    assert_eq!(ran.code, Some(0));
    assert!(ran.err.contains("observing policy workers") && ran.err.contains("--join") && ran.err.lines().count() == 1, "{}", ran.err);
    for process in [&mut worker, &mut second] {
        process.signal(Signal::SIGTERM);
        assert_eq!(process.ends("after SIGTERM").code, Some(0));
    }
    for needs in ["--slots", "--renewals"] {
        place.run(&["watch", "--policy", "workers", needs]).fails(2, &["--join"]);
    }
}

#[test]
fn the_ring_of_an_outbox_is_joined_by_no_other() {
    let outbox = "[default.outbox.orders]\npolicy = \"workers\"\nstore = \"sqlite:outbox.db\"\nsink = \"file:events.jsonl\"\n";
    let place = Place::with_settings(&(workers("2s", &format!("slots = {SLOTS}")) + outbox));
    let refused = ["outbox \"orders\"", "policy \"workers\"", "wait indefinitely"];
    place.run(&WATCH).fails(2, &refused);
    place.run(&["serve", "--policy", "workers", "--listen", "127.0.0.1:0"]).fails(2, &[&refused[..], &["--observe workers"]].concat());
    assert!(!place.path("shardwise.db").exists(), "nothing was contacted");
    let mut observer = start(&place, "observer", &["watch", "--policy", "workers"]);
    observer.prints("observes it", |line| line["state"] == "observing");
    observer.signal(Signal::SIGTERM);
    assert_eq!(observer.ends("after SIGTERM").code, Some(0));
}
