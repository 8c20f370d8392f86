//! Traces over OTLP: what a collector receives, what it must never receive, and that nothing depends on it.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests report by panicking")]

mod collector;
#[path = "../common/mod.rs"]
mod common;
#[path = "../serve/http.rs"]
#[allow(dead_code, reason = "each test file uses its own part")]
mod http;
mod outbox;
mod sidecar;
mod without;

use std::net::SocketAddr;
use std::process::Command;

use common::Place;
use common::process::Process;
use http::Answer;
use nix::sys::signal::Signal;

/// Must never reach a collector.
const TOKEN: &str = "correct-horse-battery-staple";
const KEY: &str = "tenant-recognisable-71c3";

/// The trace of a caller.
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

fn place(ttl: &str, policy: &str) -> Place {
    let place = Place::of_workers(ttl, policy);
    place.write("token", format!("{TOKEN}\n"));
    place
}

/// Makes a program export to that address, with a short delay.
fn exporting(mut command: Command, to: SocketAddr) -> Command {
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{to}")).env("OTEL_BSP_SCHEDULE_DELAY", "50");
    command
}

struct Served {
    process: Process,
    at: SocketAddr,
    id: String,
}

impl Served {
    fn start(command: Command) -> Self {
        let mut process = Process::start(command);
        let line = process.prints("it listens", |line| line["listening"].is_string());
        Self { process, at: line["listening"].as_str().unwrap().parse().unwrap(), id: line["instance_id"].as_str().unwrap().to_owned() }
    }

    fn command(place: &Place) -> Command {
        place.command(&["serve", "--policy", "workers", "--listen", "127.0.0.1:0", "--token-file", "token"])
    }

    fn get(&self, path: &str, token: &str, headers: &str) -> Answer {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n{headers}\r\n", self.at);
        http::raw(self.at, request.as_bytes())
    }

    fn metrics(&self) -> String {
        String::from_utf8(self.get("/metrics", TOKEN, "").body).unwrap()
    }

    /// Stops it gracefully; returns its stderr.
    fn stops(&mut self) -> String {
        self.process.signal(Signal::SIGTERM);
        let ran = self.process.ends("after SIGTERM");
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.err
    }
}

/// The value of a metric in the line with this label.
fn metric(text: &str, name: &str, label: &str) -> u64 {
    let line = text.lines().find(|line| line.starts_with(name) && line.contains(label));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_default()
}
