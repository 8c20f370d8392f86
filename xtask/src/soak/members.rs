//! The whole library with many members: in one process (`tests/servers/members.rs`; 300 on one Consul agent, 1,000 on one etcd), and in
//! sixteen of which members join, leave and are killed (`tests/servers/crowd`).

use std::time::Duration;

use serde_json::Value;

use super::exclusive_tables::{Columns, of};
use super::figures::{Figures, each_backend, number, number_or_dash};
use super::{SERVERS, SoakReport, SoakRun};
use crate::failure::TaskFailure;

/// For building, and for one run on each.
const ALLOWANCE: Duration = Duration::from_mins(20);
const RUN_MAX: Duration = Duration::from_mins(10);
const BACKENDS: [&str; 2] = ["consul", "etcd"];
/// For a crowd to meet, and for its rolling restart, on one backend.
const CROWD_MAX: Duration = Duration::from_hours(1);
pub(super) const CROWDS: [&str; 5] = ["consul", "etcd", "nats", "postgres", "valkey"];

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

/// The figures of a crowd, and what each is.
const CROWD: [(&str, &str); 21] = [
    ("seed", "seed (SHARDWISE_SEED)"),
    ("members", "members"),
    ("processes", "processes"),
    ("ttl_s", "TTL, s"),
    ("window_s", "watched for, s"),
    ("changes", "joins and leaves"),
    ("kills", "processes killed, with all their members"),
    ("leaders", "leading servers killed, or the only one; none on Valkey, which forgets all members then"),
    ("lost", "**leases lost of members that were not killed**"),
    ("overlaps", "**slots held by two members at once**"),
    ("agreed_p50_ms", "until all have one fingerprint after a join or leave, p50, ms"),
    ("agreed_p99_ms", "p99, ms"),
    ("agreed_after_kill_ms", "after a kill, worst, ms"),
    ("member_us", "for each member in a second: processor of the members, µs"),
    ("server_us", "processor of the servers, µs"),
    ("bytes", "bytes to and from the servers"),
    ("connections", "connections of a process"),
    ("memory_kib_h", "memory of the process that grows fastest, KiB an hour"),
    ("moved", "slots that began to be held by another member"),
    ("beyond", "of them beyond those that the placements before and after each change demand"),
    ("rolling_s", "a rolling restart of all processes, s"),
];

/// Runs the first once, and the crowd for that many minutes on each backend, or on one. The tests hold the requirements, except for lost
/// leases.
pub(super) fn run(soak: &SoakRun<'_>) -> Result<SoakReport, TaskFailure> {
    let wanted = CROWDS.iter().position(|name| soak.backend.is_none_or(|wanted| wanted == *name)).unwrap_or_default();
    let backends = if soak.backend.is_some() { &CROWDS.as_slice()[wanted..=wanted] } else { CROWDS.as_slice() };
    let tests = |scene: &str| soak.tests(&format!("{SERVERS} --nocapture --test-threads=1 {scene}"));
    let limit = ALLOWANCE + RUN_MAX.max(Duration::from_mins(u64::from(soak.runs)) + CROWD_MAX);
    let steady = if soak.backend.is_none() { table(&soak.figures(limit, [tests("members::")])?)? } else { String::new() };
    let (mut crowds, mut failed) = (Vec::new(), None);
    // Each takes half an hour, so one that fails does not keep the others from being measured.
    for backend in backends {
        let crowd = tests(&format!("--exact crowd::a_crowd_comes_and_goes::{backend}"));
        let (figures, failure) = soak.log.figures_and_failure("SHARDWISE_SOAK_FIGURES", limit, [crowd])?;
        crowds.extend(figures);
        failed = failed.or(failure);
    }
    match (crowd_table(backends, &crowds), failed) {
        (Ok(text), failed) => {
            let short = shortfalls(&crowds).into_iter().chain(failed.map(|failure| failure.to_string()));
            Ok(SoakReport { text: steady + &text, short: short.collect() })
        }
        // A backend without figures: why says its failure.
        (Err(missing), failed) => Err(failed.unwrap_or(missing)),
    }
}

/// Each figure of the members in one process.
fn table(reported: &[Value]) -> Result<String, TaskFailure> {
    let mut text = String::from(
        "All members in one process, each a `ShardingService` of a separate factory, in one group with 16,384 slots. \
         While the group is watched nothing happens but heartbeats, three in each TTL, and no member asks for a placement. Processor time \
         of the proxy that counts the bytes is left out.\n\n| | consul | etcd |\n|---|---:|---:|\n",
    );
    for (field, what) in FIGURES {
        let figures = |backend: &str| Figures::of(reported.iter().filter(|run| run["backend"] == backend), field);
        text += &each_backend(what, &BACKENDS, |backend| Some(number(figures(backend).median()?)))?;
    }
    Ok(text)
}

fn crowd_table(backends: &'static [&'static str], crowds: &[Value]) -> Result<String, TaskFailure> {
    let columns = Columns(backends);
    let mut text = String::from(
        "\nA crowd: sixteen processes, of which each shares one connection and one watch among its members, on three servers of Consul, \
         etcd and NATS and one of PostgreSQL and Valkey, all on this machine, each with fsync. Ownership is exclusive with 4,096 slots, \
         but eventual on Valkey. Every 10 s a member joins or leaves; a process is killed three times, and started again once its members \
         are gone, whose leases end first; the leading server is killed twice, for a second. On Consul all are registered at one agent \
         that does not lead. Of a server that was killed the processor time before that is missing.\n\n",
    );
    text += &columns.head();
    for (field, what) in CROWD {
        text += &columns.row(what, |backend| {
            let figure = &of(crowds, "crowd", backend).next()?[field];
            Some(if field == "seed" { figure.to_string() } else { number_or_dash(figure.as_f64()) })
        })?;
    }
    Ok(text)
}

/// Leases and slots for which there is no excuse. Missing figures were reported before.
fn shortfalls(crowds: &[Value]) -> Vec<String> {
    let wrong = |run: &Value, field: &str| {
        let count = run[field].as_u64().unwrap_or(u64::MAX);
        (count > 0).then(|| format!("{}: {field} is {}", run["backend"].as_str().unwrap_or_default(), run[field]))
    };
    // Of the eventual ownership on Valkey no overlaps are counted.
    let counted = |run: &Value| if run["backend"] == "valkey" { 1 } else { 2 };
    let each = crowds.iter().flat_map(|run| ["lost", "overlaps"].into_iter().take(counted(run)).map(move |field| (run, field)));
    each.filter_map(|(run, field)| wrong(run, field)).collect()
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
        assert!(table(&reported).unwrap().contains("| members | 300 | 1000 |\n"));
        assert!(table(&reported[..1]).unwrap_err().to_string().contains("etcd has no figure of: members"));
    }

    #[test]
    fn a_lost_lease_falls_short_and_a_backend_without_figures_is_missed() {
        let run = |backend: &str, lost: u64| {
            let mut run = serde_json::json!({ "scene": "crowd", "backend": backend });
            for (field, _) in CROWD {
                run[field] = 0.into();
            }
            run["lost"] = lost.into();
            run
        };
        let mut crowds: Vec<_> = CROWDS.map(|backend| run(backend, 0)).into();
        assert_eq!(shortfalls(&crowds), Vec::<String>::new());
        crowds[2] = run("nats", 3);
        assert_eq!(shortfalls(&crowds), ["nats: lost is 3"]);
        assert!(crowd_table(&CROWDS, &crowds).unwrap().contains("members that were not killed** | 0 | 0 | 3 | 0 | 0 |\n"));
        assert!(crowd_table(&CROWDS, &crowds[1..]).unwrap_err().to_string().starts_with("consul has no figure of"));
        assert!(crowd_table(&CROWDS[2..=2], &crowds[2..3]).unwrap().contains("| | nats |\n"));
    }
}
