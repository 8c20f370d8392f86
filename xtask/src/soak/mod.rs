//! `cargo xtask soak NAME`: tests that take too long for every test run, with the figures into `docs/internals/measured.md`.

mod backlog;
mod churn;
mod demo;
mod exclusive;
mod exclusive_python;
mod exclusive_tables;
mod figures;
mod members;
mod mistakes;
mod outbox;
mod progress;
mod requests;
mod retention;
mod scene_cases;
mod scenes;

use std::process::Command;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use crate::context::TaskContext;
use crate::failure::TaskFailure;
use crate::measured;
use crate::report::say;
use crate::run::StepLog;
use crate::servers;

/// What of the command line is for soaks.
#[derive(Args)]
pub(crate) struct SoakArgs {
    /// Name of the soak; without it, the names that exist are listed.
    name: Option<String>,
    /// How often, if not as often as that soak usually runs.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    runs: Option<u32>,
    /// Of `outbox-backlog` alone: how many rows wait, if not ten million.
    #[arg(long)]
    rows: Option<u64>,
    /// Of `exclusive` alone: a known mistake that is put back into the library of all workers, and must be found.
    #[arg(long, value_name = "NAME", value_parser = mistakes::NAMES)]
    mistake: Option<String>,
    /// Of `members` alone: the crowd on this backend, and nothing else.
    #[arg(long, value_name = "NAME", value_parser = members::CROWDS)]
    backend: Option<String>,
}

/// The tests of `tests/servers`, with the features that they need.
const SERVERS: &str = "shardwise --features local,consul,etcd,nats,postgres,valkey,requests --test servers --";

/// The default number of faults in a fleet whose workers make a mistake.
const FAULTS_BY_MISTAKE: u32 = 10;

struct Soak {
    name: &'static str,
    /// The default number of runs, or of what [`SoakRun::runs`] counts in it.
    runs: u32,
    run: RunSoak,
}

type RunSoak = fn(&SoakRun<'_>) -> Result<SoakReport, TaskFailure>;

const fn soak(name: &'static str, runs: u32, run: RunSoak) -> Soak {
    Soak { name, runs, run }
}

const SOAKS: [Soak; 15] = [
    soak("demo", 20, demo::run),
    soak("churn", 50, churn::run),
    soak("exclusive", 200, |run| if run.mistake.is_some() { mistakes::run(run) } else { exclusive::run(run) }),
    soak("exclusive-python", 200, exclusive_python::run),
    soak("members", 20, members::run),
    soak("outbox", 1, outbox::run),
    soak("outbox-backlog", 1, backlog::run),
    soak("outbox-kafka", 1, outbox::kafka),
    soak("outbox-retention", 1_000, retention::run),
    soak("progress", 1_000, progress::run),
    soak("requests", 10, requests::run),
    soak("scenes", 1, scene_cases::run),
    soak("takeover", 50, |run| scenes::TAKEOVER.run(run)),
    soak("handover", 200, |run| scenes::HANDOVER.run(run)),
    soak("outage", 1, |run| scenes::OUTAGE.run(run)),
];

/// What a soak is run with.
struct SoakRun<'a> {
    log: StepLog<'a>,
    runs: u32,
    rows: Option<u64>,
    mistake: Option<&'a str>,
    backend: Option<&'a str>,
}

/// Figures for the page, and what of them is worse than it may be.
#[derive(Debug)]
struct SoakReport {
    text: String,
    short: Vec<String>,
}

impl SoakRun<'_> {
    /// Tests in release: the package and what follows it on the command line.
    fn tests(&self, arguments: &str) -> Command {
        let arguments: Vec<_> = ["test", "--release", "--package"].into_iter().chain(arguments.split(' ')).collect();
        let mut command = self.log.context.cargo(&arguments);
        command.env("SHARDWISE_SOAK_RUNS", self.runs.to_string());
        command
    }

    /// What these tests write down, each figure a line of JSON.
    fn figures(&self, limit: Duration, tests: impl IntoIterator<Item = Command>) -> Result<Vec<Value>, TaskFailure> {
        self.log.figures("SHARDWISE_SOAK_FIGURES", limit, tests)
    }
}

/// Runs the named soak, or lists the names.
pub(crate) fn run(context: &TaskContext, SoakArgs { name, runs, rows, mistake, backend }: &SoakArgs) -> Result<(), TaskFailure> {
    let (mistake, backend, names) = (mistake.as_deref(), backend.as_deref(), SOAKS.map(|soak| soak.name));
    let Some(name) = name else {
        say(&names.join("\n"));
        return Ok(());
    };
    let found = SOAKS.iter().find(|soak| soak.name == name);
    let soak = found.ok_or_else(|| TaskFailure::new(format!("no soak is called {name}; there are: {}", names.join(", "))))?;
    let options = [
        (mistake.is_some(), "--mistake", "exclusive"),
        (rows.is_some(), "--rows", "outbox-backlog"),
        (backend.is_some(), "--backend", "members"),
    ];
    for (is_given, option, of) in options {
        if is_given && name != of {
            return Err(TaskFailure::new(format!("{option} goes with the soak {of}, and not with {name}")));
        }
    }
    if name != "demo" {
        servers::fetch()?;
    }
    let runs = runs.unwrap_or(if mistake.is_some() { FAULTS_BY_MISTAKE } else { soak.runs });
    let given = [
        mistake.map(|mistake| format!(" --mistake {mistake}")),
        rows.map(|rows| format!(" --rows {rows}")),
        backend.map(|backend| format!(" --backend {backend}")),
    ];
    let repeat = format!("cargo xtask soak {name} --runs {runs}{}", given.into_iter().flatten().collect::<String>());
    let report = (soak.run)(&SoakRun { log: StepLog::begin(context, "soak")?, runs, rows: *rows, mistake, backend });
    let SoakReport { mut text, short } = report.map_err(|failure| failure.repeated_by(repeat))?;
    let short = short.join("; ");
    // Hours of it are worth a report even if they fail.
    if !short.is_empty() {
        text.extend(["\n**Short of what must be reached**: ", &short, ".\n"]);
    }
    say(&text);
    let of =
        mistake.map(|mistake| format!(", mistake {mistake}")).or_else(|| backend.map(|backend| format!(", {backend}"))).unwrap_or_default();
    let section = format!("soak {name}{of}");
    measured::write(context, &section, &measured::head(context), &text)?;
    if short.is_empty() { Ok(()) } else { Err(TaskFailure::new(short)) }
}
