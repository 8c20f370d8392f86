//! Commands that end by themselves, and what they say: each of these tests takes seconds and needs no process of its own, so they are one
//! binary.

#![expect(clippy::unwrap_used, reason = "tests report by panicking")]

mod ask;
#[path = "../common/mod.rs"]
mod common;
mod confirm_loss;
mod end_absence;
#[cfg(target_os = "linux")]
mod errors;
mod help;
mod holders;
mod ring;

use common::Place;
use common::process::Process;

/// A worker of that name, which has joined.
fn join(place: &Place, id: &str) -> Process {
    let mut command = place.command(&["watch", "--join", "--policy", "workers"]);
    command.env("SHARDWISE__RESILIENCE__SHARDING__INSTANCE__ID", id);
    let mut process = Process::start(command);
    process.prints("is active", |line| line["state"] == "active");
    process
}
