//! The commands that show the live group without joining it.

use nix::sys::signal::Signal;
use serde_json::json;

use crate::common::process::Process;
use crate::common::{PATIENCE, Place, eventually};
use crate::{Served, place};

#[test]
fn the_terminal_sees_what_the_group_sees_and_drains_a_member() {
    let place = place();
    let nobody = place.run(&["members", "--json"]);
    assert!(nobody.code == Some(1) && nobody.json()["members"] == json!([]), "{nobody:?}");
    // Regression: without --follow it was refused.
    let mut follower = Process::start(place.command(&["rebalances", "--json"]));
    follower.prints("no member is there", |line| line["members"] == 0);

    // One after the other: the first member of an empty group moves nothing.
    let one = Served::start(&place, &[]);
    follower.prints("one is there", |line| line["members"] == 1);
    let other = Served::start(&place, &[]);
    follower.prints("both are there", |line| line["members"] == 2 && line["moved"].as_u64().is_some_and(|moved| moved > 0));
    let output = place.run(&["members", "--json"]).json();
    let ids: Vec<_> = output["members"].as_array().unwrap().iter().map(|member| member["instance_id"].as_str().unwrap()).collect();
    assert!(ids.contains(&one.id.as_str()) && ids.contains(&other.id.as_str()) && ids.len() == 2, "{output}");
    // The command is not a member. The sidecars' own views may follow a moment after its view.
    one.settles(2, |_| true);
    other.settles(2, |_| true);

    let owner = place.run(&["owner", "tenant-7"]).well();
    assert_eq!(owner.trim(), one.get("owner/tenant-7").well("owner")["owner"]);
    let explained = place.run(&["explain", "tenant-7"]).well();
    assert!(explained.contains(&format!("owner  {}", owner.trim())) && explained.contains("point  position"), "{explained}");
    assert_eq!(place.run(&["explain", "tenant-7", "--json"]).json()["owner"]["id"], owner.trim());

    place.run(&["drain", &one.id]).well();
    assert!(place.run(&["drain", &one.id]).well().contains("before"), "twice is no error");
    follower.prints("it drains", |line| line["state_changed"][0]["to"] == "draining");
    other.settles(2, |owned| owned == 256);
    let table = place.run(&["members"]).well();
    assert!(table.lines().any(|line| line.contains(&one.id) && line.contains("drained")), "{table}");
    place.run(&["undrain", &one.id, "--json"]).well();
    one.settles(2, |owned| owned > 0);
    place.run(&["drain", "nobody"]).fails(4, &["no member \"nobody\"", &one.id]);

    follower.signal(Signal::SIGTERM);
    assert_eq!(follower.ends("after SIGTERM").code, Some(0));
}

#[test]
fn with_several_policies_one_has_to_be_named() {
    let place = place();
    let settings = std::fs::read_to_string(place.path("settings.toml")).unwrap();
    place.write("settings.toml", settings + "[default.resilience.sharding.policies.others]\ngroup_name = \"others\"\n");
    place.run(&["owner", "x"]).fails(2, &["--policy NAME", "others, workers"]);
    assert_eq!(place.run(&["owner", "x", "--policy", "others"]).code, Some(1), "nobody owns anything there");
}

#[test]
fn completions_and_manual_know_every_command() {
    let place = place();
    for shell in ["bash", "zsh", "fish"] {
        let completions = place.run(&["completions", shell]).well();
        for command in ["serve", "members", "rebalances", "undrain", "follow"] {
            assert!(completions.contains(command), "{shell} does not complete {command}");
        }
    }
    assert!(place.run(&["man"]).well().contains(".TH shardwise"));
    place.run(&["man", "--out", "man1"]).well();
    eventually("the pages are there", PATIENCE, || place.path("man1/shardwise-serve.1").is_file().then_some(()));
    std::fs::write(place.path("taken"), "").unwrap();
    place.run(&["man", "--out", "taken/man1"]).fails(3, &["taken/man1"]);
}

#[test]
fn looking_makes_no_store() {
    let place = Place::of_workers("2s", "");
    let looked = place.run(&["members"]);
    assert_eq!((looked.code, String::from_utf8_lossy(&looked.out).contains("0 members")), (Some(1), true), "{looked:?}");
    let owner = place.run(&["owner", "tenant-7"]);
    assert_eq!((owner.code, owner.err.contains("active members: none")), (Some(1), true), "{owner:?}");
    let files: Vec<_> = std::fs::read_dir(place.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(files, ["settings.toml"]);
    // A follower that is already running sees the first member join.
    let mut follower = Process::start(place.command(&["rebalances", "--follow", "--json"]));
    follower.prints("no member is there", |line| line["members"] == 0);
    let _one = Served::start(&place, &[]);
    follower.prints("one is there", |line| line["members"] == 1);
}

#[test]
fn a_drain_shows_before_the_member_has_heard_of_it_and_can_be_waited_for() {
    let place = Place::of_workers("20s", "slots = 64");
    let (one, other) = (Served::start(&place, &[]), Served::start(&place, &[]));
    one.settles(2, |owned| owned > 0);
    one.process.signal(Signal::SIGSTOP);
    place.run(&["drain", &one.id]).well();
    let line = |place: &Place| place.run(&["members"]).well().lines().find(|line| line.contains(&one.id)).unwrap().to_owned();
    assert!(line(&place).contains("drain requested"), "{}", line(&place));
    let output = place.run(&["members", "--json"]).json();
    let member = output["members"].as_array().unwrap().iter().find(|member| member["instance_id"] == one.id).unwrap().clone();
    assert_eq!((&member["state"], &member["drain_requested"]), (&"active".into(), &true.into()));
    one.process.signal(Signal::SIGCONT);
    let waited = place.run(&["drain", &one.id, "--wait", "--json"]).json();
    assert_eq!((&waited["changed"], &waited["owns_nothing"]), (&false.into(), &true.into()), "{waited}");
    assert!(line(&place).contains(" drained "), "{}", line(&place));
    other.settles(2, |owned| owned == 64);
}

#[test]
fn a_command_that_waits_for_its_backend_says_so() {
    let consul = "[default.resilience.sharding]\ndiscovery.backend = \"consul\"\ndiscovery.ttl = \"4s\"\n\
                  discovery.consul.address = \"http://127.0.0.1:1\"\npolicies.workers.group_name = \"workers\"\n";
    let outbox = "[default.outbox.orders]\npolicy = \"workers\"\nstore = \"sqlite:outbox.db\"\nsink = \"stdout\"\n";
    let place = Place::with_settings(&format!("{consul}{outbox}"));
    place.run(&["outbox", "init"]).well();
    for command in [&["members", "--policy", "workers"][..], &["outbox", "run"]] {
        let ran = place.run(command);
        // Regression: the note named neither the address nor the error.
        ran.fails(3, &["still waiting for the discovery backend of policy \"workers\" (consul at http://127.0.0.1:1) after 2s; "]);
        let note = ran.err.lines().find(|line| line.contains("still waiting for"));
        assert!(note.is_some_and(|note| note.contains("cannot reach Consul") && !note.contains("is it running")), "{ran:?}");
    }
}

/// Regression: of these backends it named no address.
#[test]
fn a_command_that_waits_says_where_its_backend_is_and_no_password() {
    for (backend, address, shown) in [
        ("valkey", "url = \"redis://127.0.0.1:1\"", "redis://127.0.0.1:1"),
        ("nats", "urls = [\"nats://127.0.0.1:1\", \"nats://127.0.0.1:2\"]", "nats://127.0.0.1:1, nats://127.0.0.1:2"),
        ("postgres", "url = \"postgres://worker:hush@127.0.0.1:1/work\"", "postgres://***@127.0.0.1:1/work"),
    ] {
        let discovery = format!("[default.resilience.sharding]\ndiscovery.backend = \"{backend}\"\ndiscovery.{backend}.{address}\n");
        let place = Place::with_settings(&format!("{discovery}policies.workers.group_name = \"workers\"\n"));
        let ran = place.run(&["members", "--policy", "workers"]);
        assert!(ran.code == Some(3) && ran.err.contains(&format!("policy \"workers\" ({backend} at {shown}) after 2s; ")), "{ran:?}");
        assert!(!ran.err.contains("hush"), "{ran:?}");
    }
}
