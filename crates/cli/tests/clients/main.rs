//! The clients in other languages, with running sidecars. Their tests are in their own languages; this program provides the sidecars, and
//! tests the examples as processes: workers that lose their sidecars, and the alert monitor, which is there in Rust too.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests report by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod monitors;
mod progress;
mod python;
mod rust;
mod typescript;
mod workers;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::process::Process;
use common::{Place, Ran, run_within};

/// Readable, and long enough to be accepted.
const TOKEN: &str = "correct-horse-battery-staple";

struct Sidecar {
    process: Process,
    url: String,
}

impl Sidecar {
    /// Starts a member of the group `workers` in that place, with additional arguments.
    fn start(place: &Place, arguments: &[&str]) -> Self {
        Self::serve(place, &[&["--policy", "workers"], arguments].concat())
    }

    /// Starts one with these arguments.
    fn serve(place: &Place, arguments: &[&str]) -> Self {
        let mut process = Process::start(place.command(&[&["serve", "--listen", "127.0.0.1:0"], arguments].concat()));
        let line = process.prints("it listens", |line| line["listening"].is_string());
        Self { process, url: format!("http://{}", line["listening"].as_str().unwrap()) }
    }
}

fn place() -> Place {
    let place = Place::of_workers("5s", "slots = 256");
    place.write("token", format!("{TOKEN}\n"));
    place
}

fn client(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients").join(name).canonicalize().unwrap()
}

/// Runs a client's own tests, which are many and wait for leases to expire.
fn run_tests(tests: Command) -> Ran {
    run_within(Duration::from_mins(10), tests, b"")
}

/// The same with two sidecars that require a token.
fn beside_two_sidecars(mut tests: Command) -> Ran {
    let place = place();
    let [one, other] = [(); 2].map(|()| Sidecar::start(&place, &["--token-file", "token"]));
    tests.env("SHARDWISE_ONE", &one.url).env("SHARDWISE_OTHER", &other.url).env("SHARDWISE_TOKEN", TOKEN);
    // A loopback address must never be requested through a proxy.
    tests.env("HTTP_PROXY", "http://127.0.0.1:9").env("http_proxy", "http://127.0.0.1:9");
    run_tests(tests)
}

#[test]
fn each_client_is_one_small_file() {
    for file in ["python/src/shardwise_client/__init__.py", "typescript/src/index.ts"] {
        let lines = std::fs::read_to_string(client(file)).unwrap().lines().count();
        assert!(lines < 320, "{file} has {lines} lines");
    }
}
