//! The steps that are cargo's own work.

use std::collections::BTreeSet;

use cargo_metadata::diagnostic::DiagnosticLevel;
use cargo_metadata::{Message, TargetKind};

use crate::binaries;
use crate::failure::TaskFailure;
use crate::pass::{StepPass, TestLane};
use crate::run::{StepLog, count_tests};

pub(crate) fn fetch(log: &StepLog<'_>) -> Result<StepPass, TaskFailure> {
    // Says so if Cargo.lock is out of date, instead of repairing it; the steps that follow need no such care.
    cargo(log, &["fetch", "--locked"])
}

pub(crate) fn fmt(log: &StepLog<'_>) -> Result<StepPass, TaskFailure> {
    cargo(log, &["fmt", "--all", "--check", "--", "--color", "never"])
}

/// What clippy and the compiler said while the tests of the first lane were built.
pub(crate) fn clippy(log: &StepLog<'_>) -> Result<StepPass, TaskFailure> {
    let build = binaries::build(log, TestLane::First)?;
    lints(log, &build.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The same of everything else: the tests of the second lane, examples and benchmarks.
pub(crate) fn clippy_more(log: &StepLog<'_>) -> Result<StepPass, TaskFailure> {
    lints(log, &["test", "--workspace", "--all-features", "--all-targets", "--no-run"])
}

/// Any warning is an error. Cargo repeats the warnings about what is built already.
fn lints(log: &StepLog<'_>, build: &[&str]) -> Result<StepPass, TaskFailure> {
    let mut build = build.to_vec();
    build.extend(["--message-format", "json"]);
    let messages = log.run(log.context.cargo(&build))?;
    let said: BTreeSet<_> = Message::parse_stream(messages.as_bytes())
        .filter_map(|message| match message {
            Ok(Message::CompilerMessage(said)) if said.message.level == DiagnosticLevel::Warning => said.message.rendered,
            _ => None,
        })
        .collect();
    if said.is_empty() {
        return Ok(StepPass::many(1));
    }
    let all = said.iter().map(String::as_str).collect::<String>();
    Err(TaskFailure::counted(format!("warnings:\n{all}"), 0, said.len() as u64))
}

fn cargo(log: &StepLog<'_>, arguments: &[&str]) -> Result<StepPass, TaskFailure> {
    log.run(log.context.cargo(arguments)).map(|_| StepPass::many(1))
}

pub(crate) fn test(log: &StepLog<'_>) -> Result<StepPass, TaskFailure> {
    binaries::all(log, TestLane::First)
}

pub(crate) fn test_more(log: &StepLog<'_>) -> Result<StepPass, TaskFailure> {
    binaries::all(log, TestLane::Second)
}

/// Without the optional features two things can break: the code may not compile, and the error about a backend that is not built in may
/// be wrong. The tests from outside cover workers and fleets with all features.
pub(crate) fn test_default(log: &StepLog<'_>) -> Result<StepPass, TaskFailure> {
    log.run(log.context.cargo(&["check", "--package", "shardwise", "--tests"]))?;
    tests(log, &["test", "--package", "shardwise", "--lib", "--test", "settings", "--no-fail-fast"])
}

pub(crate) fn doctest(log: &StepLog<'_>) -> Result<StepPass, TaskFailure> {
    tests(log, &["test", "--workspace", "--all-features", "--doc", "--no-fail-fast"])
}

fn tests(log: &StepLog<'_>, arguments: &[&str]) -> Result<StepPass, TaskFailure> {
    let (passed, _, ignored) = count_tests(&log.run(log.context.cargo(arguments))?);
    let note = (ignored > 0).then(|| format!("{ignored} ignored"));
    Ok(StepPass::noting(passed, note))
}

pub(crate) fn benches(log: &StepLog<'_>) -> Result<StepPass, TaskFailure> {
    let benches = log.context.targets(&TargetKind::Bench);
    // Under `cargo test` Criterion runs each benchmark once, and the profile is the one already built. Named one by one, because
    // `--benches` would run the libraries' unit tests again.
    let mut arguments = vec!["test", "--workspace", "--all-features"];
    arguments.extend(benches.iter().flat_map(|(_, name)| ["--bench", *name]));
    log.run(log.context.cargo(&arguments))?;
    Ok(StepPass::many(benches.len() as u64))
}

pub(crate) fn doc(log: &StepLog<'_>) -> Result<StepPass, TaskFailure> {
    // Libraries only: the binary is called `shardwise` like the library, and both would be written to one place.
    let mut command = log.context.cargo(&["doc", "--workspace", "--all-features", "--no-deps", "--lib"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    log.run(command)?;
    Ok(StepPass::many(1))
}

/// The steps before have proved it if they ran on that very version; otherwise that version checks the shipped code.
pub(crate) fn msrv(log: &StepLog<'_>) -> Result<StepPass, TaskFailure> {
    let stated = log.context.packages().into_iter().find_map(|package| package.rust_version.clone());
    let stated = stated.ok_or_else(|| TaskFailure::new("no package states a rust-version"))?;
    let oldest = format!("{}.{}", stated.major, stated.minor);
    let running = log.run(log.context.command("rustc", &["--version"]))?;
    let note = format!("{oldest}, the Rust of this run: {}", running.trim());
    if running.split_whitespace().nth(1).is_some_and(|version| version.starts_with(&format!("{oldest}."))) {
        return Ok(StepPass::noting(1, Some(note)));
    }
    let folder = log.context.scratch("msrv");
    let folder = folder.to_string_lossy();
    let arguments = ["run", "--install", &oldest, "cargo", "check", "--workspace", "--all-features", "--target-dir", &folder];
    log.run(log.context.command("rustup", &arguments))?;
    Ok(StepPass::noting(1, Some(oldest)))
}
