//! A real sidecar, alone in its group, and its measurements from outside.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::client::Client;

/// How often the metrics are read: several times between two renewals.
pub(crate) const POLL_EVERY: Duration = Duration::from_millis(200);
/// Short, so that there are many renewals in a minute.
const SETTINGS: &str = "[default.resilience.sharding.discovery]\nttl = \"3s\"\n\
                        [default.resilience.sharding.policies.workers]\ngroup_name = \"workers\"\n";

pub(crate) fn path(rest: &str) -> String {
    format!("/v1/policies/workers/{rest}")
}

/// A running sidecar; killed when dropped.
pub(crate) struct Served {
    child: Child,
    pub(crate) at: SocketAddr,
    pub(crate) id: String,
    _place: Arc<TempDir>,
}

/// A folder with settings, with more lines for the policy. Sidecars in one folder are in one group.
pub(crate) fn folder(policy: &str) -> Arc<TempDir> {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("settings.toml"), format!("{SETTINGS}{policy}\n")).unwrap();
    Arc::new(folder)
}

impl Served {
    /// With more lines for its policy.
    pub(crate) fn start(policy: &str) -> Self {
        Self::start_in(&folder(policy), &[])
    }

    /// With more arguments.
    pub(crate) fn start_in(place: &Arc<TempDir>, arguments: &[&str]) -> Self {
        Self::start_by(Path::new(env!("CARGO_BIN_EXE_shardwise")), place, arguments)
    }

    /// That of another version.
    pub(crate) fn start_by(program: &Path, place: &Arc<TempDir>, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SHARDWISE")).for_each(|(name, _)| {
            command.env_remove(name);
        });
        command.args(["serve", "--policy", "workers", "--listen", "127.0.0.1:0"]).args(arguments).current_dir(place.path());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("it does not serve ({error}): {line}"));
        let [at, id] = ["listening", "instance_id"].map(|field| ready[field].as_str().unwrap().to_owned());
        Self { child, at: at.parse().unwrap(), id, _place: Arc::clone(place) }
    }

    /// The processor time that it has used.
    pub(crate) fn processor(&self) -> Duration {
        processor_of(self.child.id())
    }

    /// The peak memory use since [`Served::forget_peak`], in bytes.
    pub(crate) fn peak(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    pub(crate) fn forget_peak(&self) {
        std::fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5").unwrap();
    }

    fn metrics(&self) -> String {
        Client::connect(self.at).text("/metrics")
    }

    /// The remaining lease time in seconds when the last renewal was answered.
    pub(crate) fn margin(&self) -> f64 {
        loop {
            let metrics = self.metrics();
            let line = metrics.lines().find(|line| line.starts_with("shardwise_deadline_margin_seconds{"));
            // Before the first renewal there is no such line.
            if let Some(line) = line {
                return line.rsplit(' ').next().unwrap().parse().unwrap();
            }
            std::thread::sleep(POLL_EVERY);
        }
    }

    /// How often its lease expired meanwhile.
    pub(crate) fn lost(&self) -> usize {
        let history: Value = serde_json::from_str(&Client::connect(self.at).text(&path("rebalances"))).unwrap();
        history["rebalances"].as_array().unwrap().iter().filter(|event| event["cause"] == "fenced").count()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // The process may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The processor time that a process has used, also in threads that have ended.
pub(crate) fn processor_of(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // Behind the name of the program, which may contain spaces, the 12th and 13th fields are the times of the program and of the kernel.
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks: u64 = fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    // Linux reports a hundred ticks a second to every program.
    Duration::from_millis(ticks * 10)
}
