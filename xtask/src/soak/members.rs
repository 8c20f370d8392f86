//! The whole library with many members in one process (`tests/servers/members.rs`): 300 on one Consul agent, 1,000 on one etcd.

use std::time::Duration;

use serde_json::Value;

use super::figures::{Figures, each_backend, number};
use super::{SoakReport, SoakRun};
use crate::run::TaskFailure;

/// For building, and for one run on each.
const ALLOWANCE: Duration = Duration::from_mins(20);
const RUN_MAX: Duration = Duration::from_mins(10);
const BACKENDS: [&str; 2] = ["consul", "etcd"];

/// The figures of a run, and what each is.
const FIGURES: [(&str, &str); 18] = [
    ("members", "members"),
    ("ttl_s", "TTL, s"),
    ("window_s", "watched for, s"),
    ("start_ms", "all registered at once: until all see all, ms"),
    ("start_rebuilds", "placements that one member asked for in that time, at most"),
    ("connections", "connections to the server, of all members together"),
    ("memory_kb", "memory of the process for each member, kB"),
    ("to_server_bytes", "**steady**, for each member in a second: bytes to the server"),
    ("from_server_bytes", "bytes from the server"),
    ("member_us", "processor of the members' process, µs"),
    ("server_us", "processor of the server, µs"),
    ("placement_ms", "one placement of the group from nothing, ms"),
    ("join_ms", "**one more joins**: until in force at all, ms"),
    ("join_used_ms", "processor of all members together, ms"),
    ("join_rebuilds", "placements that one member asked for, at most"),
    ("leave_ms", "**and leaves**: until in force at all, ms"),
    ("leave_used_ms", "processor of all members together, ms"),
    ("leave_rebuilds", "placements that one member asked for, at most"),
];

/// Runs it that often. The test holds the requirements.
pub(super) fn run(soak: &SoakRun<'_>) -> Result<SoakReport, TaskFailure> {
    let tests = (0..soak.runs).map(|_| soak.tests("shardwise --features local,consul,etcd,requests --test servers -- members::"));
    let reported = soak.figures(ALLOWANCE + RUN_MAX, tests)?;
    Ok(SoakReport { text: table(soak.runs, &reported)?, short: Vec::new() })
}

/// The median of each figure on each backend.
fn table(runs: u32, reported: &[Value]) -> Result<String, TaskFailure> {
    let mut text = format!(
        "Median of {runs}. All members in one process, each a `ShardingService` of a separate factory, in one group with 16,384 slots. \
         While the group is watched nothing happens but heartbeats, three in each TTL, and no member asks for a placement. Processor time \
         of the proxy that counts the bytes is left out.\n\n| | consul | etcd |\n|---|---:|---:|\n"
    );
    for (field, what) in FIGURES {
        let figures = |backend: &str| Figures::of(reported.iter().filter(|run| run["backend"] == backend), field);
        text += &each_backend(what, BACKENDS, |backend| Some(number(figures(backend).median()?)))?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_of_both_backends_is_reported() {
        let run = |backend: &str, value: f64| {
            let mut run = serde_json::json!({ "backend": backend });
            for (field, _) in FIGURES {
                run[field] = value.into();
            }
            run
        };
        let reported = [run("consul", 300.0), run("etcd", 1_000.0)];
        assert!(table(1, &reported).unwrap().contains("| members | 300 | 1000 |\n"));
        assert!(table(1, &reported[..1]).unwrap_err().to_string().contains("etcd has no figure of: members"));
    }
}
