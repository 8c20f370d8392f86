//! `shardwise serve` as a process: its answers and refusals. No request changes ownership.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests report by panicking")]

mod answers;
mod ask_limits;
mod asked;
mod bad;
#[path = "../../../../tests/common/channel.rs"]
#[allow(clippy::expect_used, reason = "helpers of tests report by panicking")]
mod channel;
#[path = "../common/mod.rs"]
mod common;
mod daemons;
mod descriptors;
mod drain_timeout;
mod drained;
mod fakes;
mod forwarded;
mod health;
mod holders;
mod hostile;
mod http;
#[path = "../../../../tests/common/http2.rs"]
#[allow(clippy::expect_used, reason = "helpers of tests report by panicking")]
mod http2;
mod impostors;
mod kept;
mod lease_limits;
mod leases;
mod leaving;
mod live;
mod logged;
mod members;
mod middle;
mod observing;
mod peers;
mod schema;
mod unfinished;
mod worker_refusals;

use std::net::SocketAddr;

use serde_json::Value;

use common::process::Process;
use common::{PATIENCE, Place, eventually};
use http::Answer;

/// Readable, and long enough to be accepted.
const TOKEN: &str = "correct-horse-battery-staple";

struct Served {
    process: Process,
    at: SocketAddr,
    id: String,
}

impl Served {
    /// Starts a member of the group `workers` in that place, with additional arguments.
    fn start(place: &Place, arguments: &[&str]) -> Self {
        let mut process =
            Process::start(place.command(&[&["serve", "--policy", "workers", "--listen", "127.0.0.1:0"], arguments].concat()));
        let line = process.prints("it listens", |line| line["listening"].is_string());
        Self { process, at: line["listening"].as_str().unwrap().parse().unwrap(), id: line["instance_id"].as_str().unwrap().to_owned() }
    }

    fn path(rest: &str) -> String {
        format!("/v1/policies/workers/{rest}")
    }

    fn get(&self, rest: &str) -> Answer {
        http::get(self.at, &Self::path(rest))
    }

    fn post(&self, rest: &str, headers: &str, body: impl AsRef<[u8]>) -> Answer {
        http::post(self.at, &Self::path(rest), headers, body.as_ref())
    }

    /// Posts JSON with the token.
    fn acts(&self, rest: &str, body: &Value) -> Answer {
        self.post(rest, &format!("Content-Type: application/json\r\nAuthorization: Bearer {TOKEN}\r\n"), body.to_string())
    }

    fn ownership(&self) -> Value {
        self.get("ownership").well("ownership")
    }

    /// Waits until the sidecar sees this many members and `slots` holds for its own number of slots.
    fn settles(&self, members: u64, slots: impl Fn(u64) -> bool) {
        eventually("the group has settled", PATIENCE, || {
            let seen = self.ownership();
            (seen["members"] == members && slots(seen["slots_owned"].as_u64().unwrap())).then_some(())
        });
    }

    /// The memory in use, in bytes.
    fn memory(&self) -> u64 {
        memory_of(self.process.pid())
    }
}

fn memory_of(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

fn place() -> Place {
    let place = Place::of_workers("5s", "slots = 256");
    place.write("token", format!("{TOKEN}\n"));
    place
}
