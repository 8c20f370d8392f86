//! `cargo xtask soak NAME`: tests that take too long for every test run, with the figures into `docs/internals/measured.md`.

mod backlog;
mod churn;
mod demo;
mod exclusive;
mod figures;
mod members;
mod mistakes;
mod outbox;
mod retention;
mod scenes;

use crate::context::TaskContext;
use crate::measured;
use crate::report::say;
use crate::run::TaskFailure;
use crate::servers;
pub(crate) use mistakes::names as mistakes_known;
use scenes::SCENES;

/// The default number of runs of the demo.
const DEMO_RUNS: u32 = 20;
/// The default number of rounds of twenty random steps.
const CHURN_ROUNDS: u32 = 50;

/// The default number of faults on each backend.
const FAULTS: u32 = 200;

/// The default number of rounds of writing, delivering and sweeping.
const RETENTION_ROUNDS: u32 = 1_000;

/// The default number of faults in a fleet whose workers make a mistake.
const FAULTS_BY_MISTAKE: u32 = 10;

/// Runs the named soak, or lists the names.
pub(crate) fn run(
    context: &TaskContext,
    name: Option<&str>,
    runs: Option<u32>,
    rows: Option<u64>,
    mistake: Option<&str>,
) -> Result<(), TaskFailure> {
    let Some(name) = name else {
        say(&names().join("\n"));
        return Ok(());
    };
    let scene = SCENES.iter().find(|scene| scene.name == name);
    if mistake.is_some() && name != "exclusive" {
        return Err(TaskFailure::new(format!("--mistake goes with the soak exclusive, and not with {name}")));
    }
    if rows.is_some() && name != "outbox-backlog" {
        return Err(TaskFailure::new(format!("--rows goes with the soak outbox-backlog, and not with {name}")));
    }
    if !names().contains(&name) {
        return Err(TaskFailure::new(format!("no soak is called {name}; there are: {}", names().join(", "))));
    }
    if name != "demo" {
        servers::fetch()?;
    }
    let mut short = Vec::new();
    let text = match scene {
        _ if let Some(mistake) = mistake => mistakes::run(context, mistake, runs.unwrap_or(FAULTS_BY_MISTAKE))?,
        _ if name == "demo" => demo::run(context, runs.unwrap_or(DEMO_RUNS))?,
        _ if name == "churn" => churn::run(context, runs.unwrap_or(CHURN_ROUNDS))?,
        _ if name == "exclusive" => {
            let (text, found) = exclusive::run(context, runs.unwrap_or(FAULTS))?;
            short = found;
            text
        }
        _ if name == "outbox" => outbox::run(context, runs.unwrap_or(1))?,
        _ if name == "members" => members::run(context, runs.unwrap_or(1))?,
        _ if name == "outbox-backlog" => backlog::run(context, rows.unwrap_or(backlog::ROWS))?,
        _ if name == "outbox-retention" => retention::run(context, runs.unwrap_or(RETENTION_ROUNDS))?,
        Some(scene) => scenes::run(context, scene, runs.unwrap_or(scene.runs))?,
        None => return Err(TaskFailure::new(format!("no soak is called {name}; there are: {}", names().join(", ")))),
    };
    let section = mistake.map_or_else(|| format!("soak {name}"), |mistake| format!("soak {name}, mistake {mistake}"));
    measured::write(context, &section, &format!("## {section}\n\n{}\n\n{text}", measured::head(context)))?;
    if short.is_empty() { Ok(()) } else { Err(TaskFailure::new(short.join("; "))) }
}

fn names() -> Vec<&'static str> {
    ["demo", "churn", "exclusive", "members", "outbox", "outbox-backlog", "outbox-retention"]
        .into_iter()
        .chain(SCENES.iter().map(|scene| scene.name))
        .collect()
}
