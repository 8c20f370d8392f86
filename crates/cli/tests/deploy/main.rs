//! The files in `deploy/`: docker and kubectl do not run here, so the tests parse the files and compare everything that must fit the
//! program.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests report by panicking")]

mod beyond;
#[path = "../common/mod.rs"]
mod common;
mod compose;
mod grafana;
mod images;
mod kubernetes;
mod live;
mod notes;
mod pods;
mod prometheus;
mod publishers;
mod systemd;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use shardwise_testkit::python_with;

use common::{Place, run};

/// The tested releases.
const PACKAGES: [&str; 2] = ["pyyaml==6.0.3", "kubernetes-validate==1.37.0"];

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name).canonicalize().unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn text(name: &str) -> String {
    std::fs::read_to_string(file(name)).unwrap()
}

fn python() -> Command {
    Command::new(python_with(&PACKAGES).unwrap())
}

fn yaml(name: &str) -> Vec<Value> {
    let mut read = python();
    read.args(["-c", "import json, sys, yaml; json.dump(list(yaml.safe_load_all(open(sys.argv[1]))), sys.stdout)"]).arg(file(name));
    let ran = run(read, b"");
    assert_eq!(ran.code, Some(0), "{name}: {ran:?}");
    ran.json().as_array().unwrap().clone()
}

fn strings(list: &Value) -> Vec<&str> {
    list.as_array().unwrap_or_else(|| panic!("no list: {list}")).iter().map(|each| each.as_str().unwrap()).collect()
}

/// Checks that the program accepts these arguments: followed by `--help` they print help, and unknown ones fail.
fn takes(arguments: &[&str]) {
    let ran = Place::empty().run(&[arguments, &["--help"]].concat());
    assert!(ran.code == Some(0) && ran.text().contains("Usage: shardwise"), "{arguments:?}: {ran:?}");
}

/// Where containers have their secrets.
const SECRETS: &str = "/run/secrets/";

/// The settings, with the secrets that they name below this place, which get this content.
fn with_secrets(place: &Place, content: &str, secret: &str) -> String {
    let here = place.path("secrets").display().to_string();
    for name in content.split(&format!("\"{SECRETS}")).skip(1).map(|rest| rest.split('"').next().unwrap()) {
        std::fs::create_dir_all(place.path("secrets").join(name).parent().unwrap()).unwrap();
        place.write(&format!("secrets/{name}"), secret);
    }
    content.replace(&format!("\"{SECRETS}"), &format!("\"{here}/"))
}

/// Checks that our loader accepts these settings with these variables; returns the effective values.
fn settings(content: &str, variables: &[(&str, &str)]) -> impl Fn(&str) -> String + use<> {
    let place = Place::empty();
    place.write("settings.toml", with_secrets(&place, content, "a password"));
    let here = format!("{}/", place.path("secrets").display());
    let mut command = place.command(&["settings", "--json"]);
    command.envs(variables.iter().copied());
    let ran = run(command, b"");
    assert_eq!(ran.code, Some(0), "{content}\n{ran:?}");
    let rows = ran.json();
    move |key| {
        let row = rows.as_array().unwrap().iter().find(|row| row["key"] == key);
        row.unwrap_or_else(|| panic!("{key} is not set"))["value"].as_str().unwrap().replace(&here, SECRETS)
    }
}

/// How long a stop may take by these settings: the policy's `drain_timeout`, one TTL and 2 s to deregister.
fn stops_within(get: &impl Fn(&str) -> String, policy: &str) -> u64 {
    seconds(&get(&format!("resilience.sharding.policies.{policy}.drain_timeout"))) + ttl(get, policy) + 2
}

/// The policy's TTL in seconds, its own or that of all policies.
fn ttl(get: &impl Fn(&str) -> String, policy: &str) -> u64 {
    seconds(&get(&format!("resilience.sharding.policies.{policy}.discovery.ttl")))
}

/// Seconds of `30s`.
fn seconds(duration: &str) -> u64 {
    duration.strip_suffix('s').and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no seconds: {duration}"))
}

/// Checks that an image is named with a version or by its digest.
fn is_pinned(image: &str) {
    let tag = image.split_once(':').unwrap_or_else(|| panic!("{image} has no version")).1;
    let is_version = tag.starts_with(|first: char| first.is_ascii_digit()) && tag.matches('.').count() >= 1;
    assert!(is_version || image.contains("@sha256:"), "{image} moves by itself");
}

fn listens_at(arguments: &[&str]) -> u16 {
    let at = arguments.iter().position(|argument| *argument == "--listen").unwrap();
    arguments[at + 1].rsplit(':').next().unwrap().parse().unwrap()
}

/// The port that `shardwise probe` asks, if this is such a command.
fn probes(command: &[&str]) -> u16 {
    assert_eq!(command[..2], ["shardwise", "probe"]);
    takes(&command[1..]);
    let at = command.iter().position(|argument| *argument == "--at").map_or("127.0.0.1:8087", |at| command[at + 1]);
    at.rsplit(':').next().unwrap().parse().unwrap()
}
