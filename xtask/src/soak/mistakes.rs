//! `cargo xtask soak exclusive --mistake NAME`: a known mistake is put back into the
//! library of real workers, and the fault test must find it.

use std::time::Duration;

use serde_json::Value;

use super::{SERVERS, SoakReport, SoakRun};
use crate::failure::TaskFailure;
use crate::measured::row;

const TEST: &str = "faults::mistakes::the_mistake_of_a_soak_is_found::local_consul_and_etcd";
/// For building and for servers to start.
const ALLOWANCE: Duration = Duration::from_mins(20);
const FAULT_MAX: Duration = Duration::from_secs(30);

/// The mistakes that real workers show, by the names in `crates/core/src/mistakes.rs`; the test refuses a name that it does not know. A
/// renewal that is undone too late takes a stop at one instant of its process: the simulation has it.
pub(super) const NAMES: [&str; 3] = ["deadline-from-answer", "release-before-drain", "epoch-per-member"];

/// Causes that many faults in a fleet that makes the mistake, on each backend on which it shows, and reports the findings.
pub(super) fn run(soak: &SoakRun<'_>) -> Result<SoakReport, TaskFailure> {
    let mistake = soak.mistake.unwrap_or_default();
    let mut tests = soak.tests(&format!("{SERVERS} --nocapture --exact {TEST}"));
    tests.env("SHARDWISE_SOAK_MISTAKE", mistake);
    let figures = soak.figures(ALLOWANCE + FAULT_MAX * soak.runs, [tests])?;
    Ok(SoakReport { text: table(mistake, &figures)?, short: Vec::new() })
}

fn table(mistake: &str, figures: &[Value]) -> Result<String, TaskFailure> {
    if figures.is_empty() {
        return Err(TaskFailure::new(format!("the test {TEST} printed no figures")));
    }
    let rows: String = figures.iter().map(|run| row(["backend", "seed", "faults", "overlaps", "falls"].map(|field| &run[field]))).collect();
    let rows = rows.replace('"', "");
    Ok(format!(
        "Four real worker processes whose library makes the mistake `{mistake}`, on clusters of three servers. It is found: that the same \
         test finds nothing without it says something.\n\n| backend | seed | things done to the fleet | slots held by two workers at one \
         moment | slots held under an epoch that is not above an earlier one |\n|---|---:|---:|---:|---:|\n{rows}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_reported_for_each_backend_and_nothing_is_no_figure() {
        let run = serde_json::json!({ "scene": "mistake", "backend": "etcd", "seed": 7, "faults": 3, "overlaps": 5, "falls": 0 });
        let text = table("release-before-drain", &[run]).unwrap();
        assert!(text.ends_with("| etcd | 7 | 3 | 5 | 0 |\n"), "{text}");
        assert!(table("release-before-drain", &[]).is_err());
    }
}
