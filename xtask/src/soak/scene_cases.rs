//! `cargo xtask soak scenes`: every scene of `tests/servers`, of the library and of the command, on the backends that have only some of
//! them in a test run.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::{SERVERS, SoakReport, SoakRun};
use crate::failure::TaskFailure;
use crate::measured::row;

/// The last part of a test's name. `local`, Consul and etcd have every scene in every test run.
const BACKENDS: [&str; 3] = ["nats", "postgres", "valkey"];
/// For building, and for one run of all cases. Those that only wait run beside each other.
const ALLOWANCE: Duration = Duration::from_mins(20);
const RUN_MAX: Duration = Duration::from_mins(90);
const AT_ONCE: u32 = 2;
/// Those of the command are fewer. One that fails is named by the failure.
const OF_COMMAND: &str = "shardwise-cli --test servers --";

/// How often a scene was begun on a backend, and how often it has passed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct CaseCount {
    begun: u32,
    passed: u32,
}

/// By scene and backend.
type CaseCounts<'a> = BTreeMap<&'a str, BTreeMap<&'a str, CaseCount>>;

/// Runs the scenes in the size of a test run, that often.
pub(super) fn run(soak: &SoakRun<'_>) -> Result<SoakReport, TaskFailure> {
    let names = BACKENDS.map(|backend| format!("::{backend}")).join(" ");
    let mut failures = Vec::new();
    let mut reported = Vec::new();
    for _ in 0..soak.runs {
        let of = |tests: &str, at_once: u32| {
            let mut tests = soak.tests(&format!("{tests} --include-ignored --test-threads={at_once} {names}"));
            // With it they would have the size of other soaks.
            tests.env_remove("SHARDWISE_SOAK_RUNS");
            tests
        };
        let tests = [of(SERVERS, AT_ONCE), of(OF_COMMAND, 1)];
        let (figures, failure) = soak.log.figures_and_failure("SHARDWISE_SOAK_FIGURES", ALLOWANCE + RUN_MAX, tests)?;
        reported.extend(figures);
        failures.extend(failure);
    }
    let counts = counts(&reported);
    match failures.pop() {
        // Nothing was begun: it was not even built.
        Some(failure) if counts.is_empty() => Err(failure),
        failure => Ok(SoakReport { text: table(soak.runs, &counts), short: shortfalls(&counts, failure.as_ref()) }),
    }
}

fn counts(reported: &[Value]) -> CaseCounts<'_> {
    let mut counts = CaseCounts::new();
    for run in reported.iter().filter(|run| run["scene"] == "case") {
        let (Some(case), Some(backend)) = (run["case"].as_str(), run["backend"].as_str()) else { continue };
        let case = case.strip_prefix("servers::").unwrap_or(case);
        let count = counts.entry(case).or_default().entry(backend).or_default();
        if run["passed"] == true {
            count.passed += 1;
        } else {
            count.begun += 1;
        }
    }
    counts
}

fn table(runs: u32, counts: &CaseCounts<'_>) -> String {
    let mut text = format!(
        "{runs} runs of each scene that the backend can have, in the size of a test run, on one server (the faults on three of NATS). Valkey \
         refuses exclusive ownership, so it has those with eventual ownership.\n\n| scene | {} |\n|---|{}\n",
        BACKENDS.join(" | "),
        "---|".repeat(BACKENDS.len())
    );
    for (case, by_backend) in counts {
        let cell = |backend: &str| match by_backend.get(backend) {
            None => "–".to_owned(),
            Some(CaseCount { begun, passed }) if passed == begun => "passed".into(),
            Some(CaseCount { begun, passed }) => format!("**passed {passed} of {begun}**"),
        };
        text += &row(std::iter::once(format!("`{case}`")).chain(BACKENDS.map(cell)));
    }
    text
}

/// The cases that have not passed each time, the backends without any case, and the failure if neither explains it.
fn shortfalls(counts: &CaseCounts<'_>, failure: Option<&TaskFailure>) -> Vec<String> {
    let each = counts.iter().flat_map(|(case, by_backend)| by_backend.iter().map(move |(backend, count)| (case, backend, count)));
    let failed = each.filter(|(.., count)| count.passed < count.begun);
    let mut short: Vec<_> =
        failed.map(|(case, backend, CaseCount { begun, passed })| format!("{backend}: {case} passed {passed} of {begun}")).collect();
    let absent = BACKENDS.iter().filter(|backend| !counts.values().any(|by_backend| by_backend.contains_key(**backend)));
    short.extend(absent.map(|backend| format!("{backend}: no scene was begun")));
    if let Some(failure) = failure.filter(|_| short.is_empty()) {
        short.push(failure.to_string());
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(case: &str, backend: &str, passed: bool) -> Value {
        serde_json::json!({ "scene": "case", "case": format!("servers::{case}"), "backend": backend, "passed": passed })
    }

    #[test]
    fn a_case_that_was_begun_and_has_not_passed_falls_short() {
        let mut reported: Vec<_> = [false, true].map(|passed| line("wiped::a", "nats", passed)).into();
        reported.push(line("wiped::a", "postgres", false));
        reported.push(serde_json::json!({ "scene": "wiped", "backend": "nats" }));
        let counts = counts(&reported);
        let text = table(1, &counts);
        assert!(text.ends_with("| `wiped::a` | passed | **passed 0 of 1** | – |\n"), "{text}");
        let failure = TaskFailure::new("exit code 101");
        let short = shortfalls(&counts, Some(&failure));
        assert_eq!(short, ["postgres: wiped::a passed 0 of 1", "valkey: no scene was begun"]);
    }

    #[test]
    fn a_failure_that_no_case_explains_is_reported_too() {
        let reported: Vec<_> = BACKENDS.iter().flat_map(|backend| [false, true].map(|passed| line("wiped::a", backend, passed))).collect();
        let counts = counts(&reported);
        assert_eq!(shortfalls(&counts, None), Vec::<String>::new());
        assert_eq!(shortfalls(&counts, Some(&TaskFailure::new("taken for hung"))), ["taken for hung"]);
    }
}
