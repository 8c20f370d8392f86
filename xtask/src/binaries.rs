//! The step `test`: everything is built once, and the test binaries run three at a time. Those against real servers wait most of their time for leases to
//! end, so that one after the other would leave the cores idle for half of the step.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

use cargo_metadata::{Artifact, Message, TargetKind};

use crate::beside;
use crate::context::TaskContext;
use crate::report::say;
use crate::run::{StepLog, TaskFailure, count_tests};
use crate::steps::StepPass;

/// How many run at the same time.
const AT_ONCE: usize = 3;
/// No binary takes longer; one that does hangs. With both cores busy elsewhere the longest take ten minutes.
const BINARY_LIMIT: Duration = Duration::from_mins(25);
/// The longest begin first, so that none of them is left alone at the end.
const LONGEST: [&str; 6] = ["servers", "conformance", "sinks", "racing", "network", "faults"];
/// These have hundreds of members or thousands of claims, and run alone when the others are done: beside others they would measure those.
const ALONE: [&str; 4] = ["load", "claims_load", "claims_measured", "claims_speed"];

/// A test binary, and how one would run it by hand.
#[derive(Debug, PartialEq)]
struct Binary {
    name: String,
    executable: PathBuf,
    folder: PathBuf,
    repeat: String,
}

impl Binary {
    /// Whether it is an integration test of one of these names.
    fn is_one_of(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.name.ends_with(&format!("--test-{name}")))
    }
}

/// Builds and runs all tests of the workspace with all features.
pub(crate) fn all(log: &StepLog<'_>) -> Result<StepPass, TaskFailure> {
    // Twice, because of the two one is for people to read and the other for us; what is built already costs no time.
    let build = ["test", "--workspace", "--all-features", "--tests", "--no-run"];
    log.run(log.context.cargo(&build))?;
    let built = log.run(log.context.cargo(&[&build[..], &["--message-format", "json"]].concat()))?;
    let (alone, together): (Vec<_>, Vec<_>) = binaries(log.context, &built).into_iter().partition(|binary| binary.is_one_of(&ALONE));
    let mut outcomes = beside::each(in_order(together), AT_ONCE, |binary| run(log, &binary));
    outcomes.extend(alone.iter().map(|binary| run(log, binary)));
    summed(outcomes)
}

/// The counts of all, or a failure that names what failed.
fn summed(outcomes: Vec<Result<(u64, u64), TaskFailure>>) -> Result<StepPass, TaskFailure> {
    if outcomes.is_empty() {
        return Err(TaskFailure::new("cargo named no test binary"));
    }
    let (mut passed, mut ignored, mut failures) = (0, 0, Vec::new());
    for outcome in outcomes {
        match outcome {
            Ok((more, left)) => (passed, ignored) = (passed + more, ignored + left),
            Err(failure) => {
                passed += failure.passed;
                failures.push(failure);
            }
        }
    }
    if failures.is_empty() {
        return Ok(StepPass::noting(passed, (ignored > 0).then(|| format!("{ignored} ignored"))));
    }
    let failed = failures.iter().map(|failure| failure.failed).sum();
    let why: Vec<_> = failures.iter().map(ToString::to_string).collect();
    Err(TaskFailure::counted(why.join("\n    "), passed, failed))
}

/// Runs one to its end: how many tests passed, how many it left out.
fn run(step: &StepLog<'_>, binary: &Binary) -> Result<(u64, u64), TaskFailure> {
    let log = StepLog::begin(step.context, &format!("test-{}", binary.name))?;
    let mut command = step.context.command(&binary.executable.to_string_lossy(), &[]);
    command.current_dir(&binary.folder).env("CARGO_MANIFEST_DIR", &binary.folder);
    let output = log.run_for(command, BINARY_LIMIT).map_err(|failure| failure.repeated_by(binary.repeat.clone()))?;
    let (passed, _, ignored) = count_tests(&output);
    say(&format!("    {}: {passed} passed", binary.name));
    Ok((passed, ignored))
}

/// The test binaries that cargo names.
fn binaries(context: &TaskContext, messages: &str) -> Vec<Binary> {
    let binary = |artifact: Artifact| {
        let package = context.packages().into_iter().find(|package| package.manifest_path == artifact.manifest_path)?;
        let which = match &artifact.target {
            target if target.is_kind(TargetKind::Test) => format!("--test {}", target.name),
            target if target.is_kind(TargetKind::Bin) => format!("--bin {}", target.name),
            _ => "--lib".into(),
        };
        Some(Binary {
            name: format!("{} {which}", package.name).replace(' ', "-"),
            executable: artifact.executable?.into_std_path_buf(),
            folder: package.manifest_path.parent()?.as_std_path().to_path_buf(),
            repeat: format!("cargo test --package {} --all-features {which}", package.name),
        })
    };
    let artifact = |message| match message {
        Ok(Message::CompilerArtifact(artifact)) if artifact.profile.test => binary(artifact),
        _ => None,
    };
    Message::parse_stream(messages.as_bytes()).filter_map(artifact).collect()
}

fn in_order(mut binaries: Vec<Binary>) -> VecDeque<Binary> {
    binaries.sort_by_key(|binary| LONGEST.iter().position(|name| binary.is_one_of(&[name])).unwrap_or(LONGEST.len()));
    binaries.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_named_and_the_rest_is_counted() {
        let failed = TaskFailure::counted("exit code 101", 3, 2);
        let outcome = summed(vec![Ok((5, 1)), Err(failed.repeated_by("cargo test --test x".into())), Ok((7, 0))]);
        let failure = outcome.err().unwrap();
        assert_eq!((failure.passed, failure.failed), (15, 2));
        assert_eq!(failure.to_string(), "exit code 101; repeat with: cargo test --test x");
        let passed = summed(vec![Ok((5, 1)), Ok((7, 0))]).ok().unwrap();
        assert_eq!((passed.checks, passed.note.as_deref()), (12, Some("1 ignored")));
        assert!(summed(Vec::new()).is_err());
    }

    #[test]
    fn the_longest_begin_first() {
        let named = |name: &str| Binary { name: name.into(), executable: PathBuf::new(), folder: PathBuf::new(), repeat: String::new() };
        let names = ["a---lib", "b---test-faults", "c---test-slots", "d---test-servers", "e---test-conformance"].map(named);
        let order: Vec<_> = in_order(names.into()).into_iter().map(|binary| binary.name).collect();
        assert_eq!(order, ["d---test-servers", "e---test-conformance", "b---test-faults", "a---lib", "c---test-slots"]);
    }
}
