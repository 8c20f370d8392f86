//! Requests between worker processes on real backends (`tests/servers/requests`): thousands under faults, thousands of sessions, restarts
//! of every member, and kills of owners.

use std::time::Duration;

use serde_json::Value;

use super::exclusive_tables::{BACKENDS, COLUMNS, of};
use super::figures::{Figures, number};
use super::{SERVERS, SoakReport, SoakRun};
use crate::failure::TaskFailure;

/// For building, for servers to start, and for restarts and kills.
const ALLOWANCE: Duration = Duration::from_hours(1);
/// For a thousand requests under faults and three thousand sessions, on each backend.
const THOUSAND_MAX: Duration = Duration::from_mins(3);
/// What waits for faults, on all backends beside each other, and what is measured, on one after the other.
const SCENES: [&str; 2] = ["requests::trouble requests::sessions --test-threads=1", "requests::restarts --test-threads=1"];
/// From SIGKILL of an owner to the first success: the TTL and half a second.
const FIRST_SUCCESS_MAX_MS: f64 = 3_500.0;
/// How long 99 of 100 keys are without an answer while they are handed over in good order.
const HANDOVER_P99_MAX_MS: f64 = 50.0;

/// What requests under faults came to, and what each figure is.
const FAULTS: [(&str, &str); 9] = [
    ("requests", "requests that may not be repeated"),
    ("answered", "answered"),
    ("not_handled", "certainly not handled, as their callers learned"),
    ("unknown", "of unknown outcome"),
    ("unknown_done", "of these, handled in full"),
    ("unknown_in_part", "begun and not ended"),
    ("unknown_not_begun", "not handled"),
    ("twice", "**handled twice**"),
    ("overlaps", "**handled by two owners of a slot at one moment**"),
];

/// The figures of sessions, and of a rolling restart.
const SESSIONS: [(&str, &str); 4] = [
    ("opened", "sessions"),
    ("misdirected", "**answered by a member that did not open them**"),
    ("after_death", "of killed members, asked again: all have ended"),
    ("growth_kb", "memory of a member that lived: more after the last round than after the first, kB"),
];
const ROLLING: [(&str, &str); 6] = [
    ("answered", "repeatable requests answered"),
    ("errors", "**errors**"),
    ("handovers", "keys handed over"),
    ("median_ms", "without an answer, median, ms"),
    ("p99_ms", "p99, ms"),
    ("worst_ms", "worst, ms"),
];

/// Sends that many thousands of requests on each backend, and opens three times as many sessions. The tests hold the requirements, except
/// for the times.
pub(super) fn run(soak: &SoakRun<'_>) -> Result<SoakReport, TaskFailure> {
    let tests = SCENES.map(|scenes| soak.tests(&format!("{SERVERS} --nocapture {scenes}")));
    let runs = soak.figures(ALLOWANCE + THOUSAND_MAX * soak.runs, tests)?;
    Ok(SoakReport { text: tables(&runs)?, short: shortfalls(&runs) })
}

fn tables(runs: &[Value]) -> Result<String, TaskFailure> {
    let mut text = String::from(
        "Real worker processes with a TTL of 3 s and 16 slots, on clusters of three servers, all on this machine, and a caller that is not a \
         member. Under faults: four workers, reached through proxies, and 32 requests at a time to the owners of 16 keys, with handlers of up \
         to 20 ms that take one request of a key at a time. Each worker writes down when it begins with a request and when it ends, and for \
         how long it holds the slot; what the callers learned is compared with that.\n\n",
    );
    text += &COLUMNS.faults(runs, &FAULTS)?;
    text += "\nSessions: three workers under eventual ownership; in each of three rounds all are used once, a third is closed, the others are \
             left alone for their idle time of 2 s, and a worker is killed and started again under its name.\n\n";
    text += &fields(runs, "sessions", &SESSIONS)?;
    text += "\nRolling restart: each of three workers leaves and comes back, ten times over, while each key is asked one request after the \
             other, with `GET` and with idempotency keys. Without an answer: from the last answer of one owner to the first of the next \
             one.\n\n";
    text += &fields(runs, "rolling", &ROLLING)?;
    text += "\nSIGKILL of an owner, ten times: until the last of its keys has its first answer.\n\n";
    text += &COLUMNS.head();
    let first = |backend: &str| Figures::of(of(runs, "first success", backend), "took_ms");
    text += &COLUMNS.row("median, ms", |backend| first(backend).median().map(number))?;
    text += &COLUMNS.row("worst, ms", |backend| first(backend).worst().map(number))?;
    Ok(text)
}

/// A table of one scene.
fn fields(runs: &[Value], scene: &str, fields: &[(&str, &str)]) -> Result<String, TaskFailure> {
    let mut text = COLUMNS.head();
    for (field, what) in fields {
        text += &COLUMNS.row(what, |backend| Some(number(of(runs, scene, backend).next()?[*field].as_f64()?)))?;
    }
    Ok(text)
}

/// Times that exceed their limits. Missing figures were reported before.
fn shortfalls(runs: &[Value]) -> Vec<String> {
    let mut found = Vec::new();
    for backend in BACKENDS {
        for (what, scene, field, max) in [
            ("the first success after a kill", "first success", "took_ms", FIRST_SUCCESS_MAX_MS),
            ("99 % of handovers", "rolling", "p99_ms", HANDOVER_P99_MAX_MS),
        ] {
            if let Some(ms) = Figures::of(of(runs, scene, backend), field).worst().filter(|ms| *ms > max) {
                found.push(format!("{backend}: {what} took up to {} ms, allowed are {max} ms", number(ms)));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn runs(first: f64, p99: f64) -> Vec<Value> {
        let scenes = |backend: &str| {
            let scene = |scene: &str, fields: &[(&str, &str)]| {
                let mut run = json!({ "scene": scene, "backend": backend, "seed": 7, "counts": { "SIGKILL": 3 } });
                for (field, _) in fields {
                    run[*field] = 4.into();
                }
                run
            };
            let mut rolling = scene("rolling", &ROLLING);
            rolling["p99_ms"] = p99.into();
            let kills = [first / 2.0, first].map(|ms| json!({ "scene": "first success", "backend": backend, "took_ms": ms }));
            [scene("faults", &FAULTS), scene("sessions", &SESSIONS), rolling].into_iter().chain(kills).collect::<Vec<_>>()
        };
        BACKENDS.iter().flat_map(|backend| scenes(backend)).collect()
    }

    #[test]
    fn every_figure_of_every_backend_is_reported_or_missed() {
        let text = tables(&runs(3_100.0, 12.5)).unwrap();
        assert!(text.contains("| SIGKILL | 3 | 3 | 3 |\n") && text.contains("| p99, ms | 12.5 | 12.5 | 12.5 |\n"), "{text}");
        assert!(text.ends_with("| worst, ms | 3100 | 3100 | 3100 |\n"), "{text}");
        let missing: Vec<_> = runs(1.0, 1.0).into_iter().filter(|run| run["scene"] != "sessions").collect();
        assert!(tables(&missing).unwrap_err().to_string().starts_with("local has no figure of: sessions"));
    }

    #[test]
    fn what_takes_too_long_falls_short_by_its_worst() {
        assert_eq!(shortfalls(&runs(3_500.0, 50.0)), Vec::<String>::new());
        let found = shortfalls(&runs(3_501.0, 51.0));
        assert_eq!(found.len(), 6, "{found:?}");
        assert_eq!(found[1], "local: 99 % of handovers took up to 51 ms, allowed are 50 ms");
    }
}
