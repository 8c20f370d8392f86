//! Commands show a group on a real server and drain a member; a sidecar is another member.

use serde_json::Value;

use crate::common::lines::owns;
use crate::common::process::Process;
use crate::meeting::{Kind, Meeting, SLOTS, SOON, is_active_of, leave, policy, settle};

on_both!(the_terminal_drains_a_member_and_a_sidecar_joins);

fn the_terminal_drains_a_member_and_a_sidecar_joins(kind: Kind) {
    let meeting = Meeting::direct(kind, "3s", &policy("workers", ""));
    let mut fleet = meeting.fleet("workers", ["worker-1", "worker-2"]);
    let place = &meeting.place;
    let members = || place.run(&["members", "--json"]).json();
    let state = |output: &Value| output["members"].as_array().unwrap().iter().map(|member| member["state"].clone()).collect::<Vec<_>>();
    assert_eq!(state(&members()), ["active", "active"]);
    assert!(place.run(&["owner", "tenant-7"]).well().starts_with("worker-"));

    place.run(&["drain", "worker-1"]).well();
    fleet[1].shows(SOON, "it has everything", |line| owns(line) == u64::from(SLOTS));
    fleet[0].shows(SOON, "it owns nothing", |line| owns(line) == 0 && line["state"] == "active");
    assert_eq!(state(&members()), ["drained", "active"]);
    assert_eq!(place.run(&["owner", "tenant-7"]).well(), "worker-2\n");

    let mut sidecar = Process::start(place.command(&["serve", "--policy", "workers", "--listen", "127.0.0.1:0"]));
    sidecar.prints("it has joined", |line| line["listening"].is_string());
    fleet[1].shows(SOON, "it gives half to the sidecar", |line| is_active_of(3)(line) && owns(line) < u64::from(SLOTS));
    sidecar.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(sidecar.ends("after SIGTERM").code, Some(0));

    place.run(&["undrain", "worker-1"]).well();
    fleet[0].shows(SOON, "it has its share again", |line| is_active_of(2)(line) && owns(line) > 0);
    fleet[1].shows(SOON, "it has given it back", |line| is_active_of(2)(line) && owns(line) < u64::from(SLOTS));
    settle(&mut fleet);
    leave(&mut fleet);
}
