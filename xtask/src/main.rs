//! The project's own tasks, run as `cargo xtask NAME`. Nothing here is shipped.
//!
//! A task is a list of commands that you could type; what is added is the order, the clock, and one line that says how to
//! repeat what failed. Every command's whole output is kept under `target/xtask/`.

mod backends;
mod bench;
mod binaries;
mod book;
mod checks;
mod context;
mod deny;
mod examples;
mod failure;
mod files;
mod fuzz;
mod instructions;
mod judged;
mod lean;
mod leases;
mod measured;
mod outbox;
mod outside;
mod package;
mod parallel;
mod pass;
mod peers;
mod readme;
mod report;
mod requests;
mod run;
mod servers;
mod sidecar;
mod simulate;
mod soak;
mod steps;
mod tools;
mod vectors;
mod writers;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use context::TaskContext;
use failure::TaskFailure;
use report::say;

/// Tasks of the shardwise project.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run the tests: the first lane, or with --all everything that must hold before a change is merged, as in CI.
    Test(TestArgs),
    /// Build the book of docs/ into target/book, and check the links of all Markdown.
    Book,
    /// Run a benchmark in release and write its figures into docs/internals/measured.md.
    Bench {
        /// Name of the benchmark; without it, the names that exist are listed.
        name: Option<String>,
    },
    /// Try the parsers and the placement with inputs that libFuzzer makes up.
    Fuzz {
        /// Name of the target; without it, all are tried.
        target: Option<String>,
        /// Seconds for each target.
        #[arg(long, default_value_t = 60)]
        seconds: u32,
    },
    /// Count the instructions of the work in benches/instructions and write what it may take from now on.
    Instructions,
    /// Fetch the servers that the tests run against into target/servers, without root and without touching the system.
    Servers,
    /// Simulate fleets under exclusive ownership with seeded faults.
    ///
    /// A thousand runs or more write their figures into docs/internals/measured.md.
    Simulate(SimulateArgs),
    /// Simulate an outbox's publishers with seeded faults.
    ///
    /// A thousand runs or more write their figures into docs/internals/measured.md.
    SimulateOutbox(SimulateArgs),
    /// Simulate the observers of silent members with seeded faults.
    ///
    /// A thousand runs or more write their figures into docs/internals/measured.md.
    SimulateSilence(SimulateArgs),
    /// Repeat what takes too long for every test run, and write the figures into docs/internals/measured.md.
    Soak(soak::SoakArgs),
}

#[derive(Args)]
struct SimulateArgs {
    /// How many runs.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seeds: u64,
    /// The first seed; without it 1 of an outbox, and 0 of the others.
    #[arg(long)]
    from: Option<u64>,
}

#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
struct TestArgs {
    /// Run this step only; may be given several times.
    #[arg(long, value_name = "STEP")]
    only: Vec<String>,
    /// Run the second lane too: the tests that take long, fuzzing, packages, benchmarks, licences.
    #[arg(long)]
    all: bool,
    /// List the steps and run nothing.
    #[arg(long)]
    list: bool,
    /// Go on after a failed step and fail at the end.
    #[arg(long)]
    keep_going: bool,
    /// Show the commands' output while they run.
    #[arg(long, short)]
    verbose: bool,
}

fn main() -> ExitCode {
    match run(Cli::parse().task) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            say(&failure.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Whether every requested check passed.
fn run(task: Task) -> Result<bool, TaskFailure> {
    // A benchmark's own output shows how far it is.
    let verbose = matches!(&task, Task::Test(TestArgs { verbose: true, .. }) | Task::Bench { .. });
    let context = TaskContext::load(verbose, matches!(&task, Task::Test(_)))?;
    match task {
        Task::Test(args) => return steps::run(&context, &args),
        Task::Book => book::run(&context)?,
        Task::Bench { name } => bench::run(&context, name.as_deref())?,
        Task::Fuzz { target, seconds } => fuzz::run(&context, target.as_deref(), seconds)?,
        Task::Instructions => instructions::write(&context)?,
        Task::Servers => servers::run()?,
        Task::Simulate(SimulateArgs { seeds, from }) => simulate::FLEETS.run(&context, seeds, from.unwrap_or(0))?,
        Task::SimulateOutbox(SimulateArgs { seeds, from }) => simulate::OUTBOX.run(&context, seeds, from.unwrap_or(1))?,
        Task::SimulateSilence(SimulateArgs { seeds, from }) => simulate::SILENCE.run(&context, seeds, from.unwrap_or(0))?,
        Task::Soak(args) => soak::run(&context, &args)?,
    }
    Ok(true)
}
