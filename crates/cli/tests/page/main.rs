//! The page of `shardwise serve` in a real browser: its display of real processes, and its actions.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests report by panicking")]
#![expect(clippy::print_stdout, reason = "prints what was measured")]

mod acting;
mod beyond;
#[path = "../common/mod.rs"]
mod common;
mod fleet;
mod foreign;
mod holders;
#[path = "../serve/http.rs"]
mod http;
mod requests;
mod shown;
mod stuck;
mod trouble;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use shardwise_testkit::{PageView, Tab};

use common::process::Process;
use common::{PATIENCE, Place, eventually};

struct Worker {
    process: Process,
    at: SocketAddr,
    scheme: &'static str,
}

impl Worker {
    fn start(place: &Place, number: u32, arguments: &[&str]) -> Self {
        Self::start_at(place, number, "127.0.0.1:0", arguments)
    }

    fn start_at(place: &Place, number: u32, listen: &str, arguments: &[&str]) -> Self {
        let mut command = place.command(&[&["serve", "--policy", "workers", "--listen", listen], arguments].concat());
        let zone = ["eu-a", "eu-b", "eu-c"][number as usize % 3];
        for (key, value) in [("ID", format!("worker-{number}")), ("ZONE", zone.to_owned()), ("VERSION", "2.4.1".to_owned())] {
            command.env(format!("SHARDWISE__RESILIENCE__SHARDING__INSTANCE__{key}"), value);
        }
        let mut process = Process::start(command);
        let line = process.prints("it listens", |line| line["listening"].is_string());
        let scheme = if line["tls"] == true { "https" } else { "http" };
        Self { process, at: line["listening"].as_str().unwrap().parse().unwrap(), scheme }
    }

    fn url(&self) -> String {
        format!("{}://{}/", self.scheme, self.at)
    }

    fn get(&self, rest: &str) -> Value {
        http::get(self.at, &format!("/v1/policies/workers/{rest}")).well(rest)
    }

    /// Waits until the sidecar sees this many members: first the worker itself, then its observer.
    fn sees(&self, members: u64) {
        eventually("the worker sees so many members", PATIENCE, || (self.get("ownership")["members"] == members).then_some(()));
        eventually("the group has so many members", PATIENCE, || {
            // The rate of these requests is limited.
            std::thread::sleep(Duration::from_millis(50));
            (self.get("members")["members"].as_array().unwrap().len() as u64 == members).then_some(())
        });
    }
}

/// Nowhere the page is wider than the screen. With `SHARDWISE_PICTURES=1` pictures of it go to `target/screenshots`, for people.
fn pictures(tab: &Tab<'_>, name: &str) {
    let is_drawn = std::env::var_os("SHARDWISE_PICTURES").is_some();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/screenshots");
    for (screen, how) in [("desktop", PageView::DESKTOP), ("phone", PageView::PHONE)] {
        tab.set_view(how).unwrap();
        // Two frames later everything is drawn in its new size.
        let drawn = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))";
        tab.eval(drawn).unwrap();
        let wide = tab.eval("document.documentElement.scrollWidth <= window.innerWidth").unwrap();
        assert_eq!(wide, true, "the page is wider than the screen: {screen}");
        for (light, how) in [("light", how), ("dark", how.dark())].into_iter().filter(|_| is_drawn) {
            tab.set_view(how).unwrap();
            tab.eval(drawn).unwrap();
            tab.screenshot(&folder.join(format!("{name}-{screen}-{light}.png"))).unwrap();
        }
    }
}
