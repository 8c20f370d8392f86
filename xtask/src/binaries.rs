//! The steps `test` and `test-more`: the test binaries of a lane are built once and run three at a time. Those against real servers wait
//! most of their time for leases to expire, so one after the other would leave the cores idle for half of the step.
//!
//! A manifest's `[package.metadata.lanes]` names in `second` the test binaries of the second lane. `split` names binaries whose tests are
//! in both: those in the first lane by parts of their names, the rest in the second. All others are in the first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cargo_metadata::{Artifact, Message, Package, Target, TargetKind};

use crate::beside;
use crate::context::TaskContext;
use crate::report::say;
use crate::run::{StepLog, TaskFailure, count_tests};
use crate::steps::{StepPass, TestLane};

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
    /// Which of its tests run.
    arguments: Vec<String>,
}

impl Binary {
    /// Whether it is an integration test of one of these names.
    fn is_one_of(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.name.ends_with(&format!("--test-{name}")))
    }
}

/// Builds and runs the tests of a lane with all features.
pub(crate) fn all(log: &StepLog<'_>, lane: TestLane) -> Result<StepPass, TaskFailure> {
    let lanes = LaneTable::read(log.context)?;
    let which = lanes.selected(log.context, lane);
    let which: Vec<_> = which.iter().map(String::as_str).collect();
    // Twice, because of the two one is for people to read and the other for us; what is built already costs no time.
    let build = [&["test", "--workspace", "--all-features", "--no-run"], &which[..]].concat();
    log.run(log.context.cargo(&build))?;
    let built = log.run(log.context.cargo(&[&build[..], &["--message-format", "json"]].concat()))?;
    let binaries = binaries(log.context, &built, |package, target| lanes.arguments(lane, package, target));
    let (alone, together): (Vec<_>, Vec<_>) = binaries.into_iter().partition(|binary| binary.is_one_of(&ALONE));
    let mut outcomes = beside::each(in_order(together), AT_ONCE, |binary| run(log, &binary));
    outcomes.extend(alone.iter().map(|binary| run(log, binary)));
    summed(outcomes)
}

/// Which tests are in which lane, by package and test binary.
#[derive(Debug, Default, PartialEq)]
struct LaneTable {
    second: BTreeSet<(String, String)>,
    /// The parts of names of those in the first lane.
    split: BTreeMap<(String, String), Vec<String>>,
}

impl LaneTable {
    fn read(context: &TaskContext) -> Result<Self, TaskFailure> {
        let mut lanes = Self::default();
        for package in context.packages() {
            let name = package.name.to_string();
            let reported = &package.metadata["lanes"];
            let texts = |list: &serde_json::Value| -> Vec<String> {
                list.as_array().into_iter().flatten().filter_map(serde_json::Value::as_str).map(str::to_owned).collect()
            };
            lanes.second.extend(texts(&reported["second"]).into_iter().map(|test| (name.clone(), test)));
            let split = reported["split"].as_object().into_iter().flatten();
            lanes.split.extend(split.map(|(test, parts)| ((name.clone(), test.clone()), texts(parts))));
            // Its tests would be missing from the lane that the manifest names.
            let mut named = lanes.second.iter().chain(lanes.split.keys()).filter(|(of, _)| *of == name);
            if let Some((_, unknown)) = named.find(|(_, test)| tests_of(package).all(|known| known != test)) {
                return Err(TaskFailure::new(format!("{name}: its lanes name {unknown:?}, which is none of its tests")));
            }
        }
        Ok(lanes)
    }

    /// The arguments for a binary's tests of a lane; `None` if it has none there.
    fn arguments(&self, lane: TestLane, package: &str, target: &Target) -> Option<Vec<String>> {
        if !target.is_kind(TargetKind::Test) {
            return (lane == TestLane::First).then(Vec::new);
        }
        let key = (package.to_owned(), target.name.clone());
        match (self.split.get(&key), lane) {
            (Some(parts), TestLane::First) => Some(parts.clone()),
            (Some(parts), TestLane::Second) => Some(parts.iter().flat_map(|part| ["--skip".to_owned(), part.clone()]).collect()),
            (None, _) => (self.second.contains(&key) == (lane == TestLane::Second)).then(Vec::new),
        }
    }

    /// What cargo is asked to build for a lane: what is in the second alone is not built for the first.
    fn selected(&self, context: &TaskContext, lane: TestLane) -> Vec<String> {
        let mut tests = BTreeSet::new();
        for package in context.packages() {
            let of_lane = package
                .targets
                .iter()
                .filter(|target| target.is_kind(TargetKind::Test) && self.arguments(lane, &package.name, target).is_some());
            tests.extend(of_lane.map(|target| target.name.clone()));
        }
        let units = if lane == TestLane::First { ["--lib", "--bins"].as_slice() } else { &[] };
        units.iter().map(|kind| (*kind).to_owned()).chain(tests.into_iter().flat_map(|name| ["--test".to_owned(), name])).collect()
    }
}

fn tests_of(package: &Package) -> impl Iterator<Item = &str> {
    package.targets.iter().filter(|target| target.is_kind(TargetKind::Test)).map(|target| target.name.as_str())
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
    let arguments: Vec<_> = binary.arguments.iter().map(String::as_str).collect();
    let mut command = step.context.command(&binary.executable.to_string_lossy(), &arguments);
    command.current_dir(&binary.folder).env("CARGO_MANIFEST_DIR", &binary.folder);
    let begun = Instant::now();
    let output = log.run_for(command, BINARY_LIMIT).map_err(|failure| failure.repeated_by(binary.repeat.clone()))?;
    let (passed, _, ignored) = count_tests(&output);
    if passed == 0 && !binary.arguments.is_empty() {
        let why = format!("{}: no test has a name with one of {:?}, as its manifest says", binary.name, binary.arguments);
        return Err(TaskFailure::new(why).repeated_by(binary.repeat.clone()));
    }
    say(&format!("    {}: {passed} passed in {:.1} s", binary.name, begun.elapsed().as_secs_f64()));
    Ok((passed, ignored))
}

/// The test binaries that cargo names and of which something runs.
fn binaries(context: &TaskContext, messages: &str, arguments: impl Fn(&str, &Target) -> Option<Vec<String>>) -> Vec<Binary> {
    let binary = |artifact: Artifact| {
        let package = context.packages().into_iter().find(|package| package.manifest_path == artifact.manifest_path)?;
        let arguments = arguments(&package.name, &artifact.target)?;
        let which = match &artifact.target {
            target if target.is_kind(TargetKind::Test) => format!("--test {}", target.name),
            target if target.is_kind(TargetKind::Bin) => format!("--bin {}", target.name),
            _ => "--lib".into(),
        };
        let which_tests = if arguments.is_empty() { String::new() } else { format!(" -- {}", arguments.join(" ")) };
        Some(Binary {
            name: format!("{} {which}", package.name).replace(' ', "-"),
            executable: artifact.executable?.into_std_path_buf(),
            folder: package.manifest_path.parent()?.as_std_path().to_path_buf(),
            repeat: format!("cargo test --package {} --all-features {which}{which_tests}", package.name),
            arguments,
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
        let named = |name: &str| Binary {
            name: name.into(),
            executable: PathBuf::new(),
            folder: PathBuf::new(),
            repeat: String::new(),
            arguments: Vec::new(),
        };
        let names = ["a---lib", "b---test-faults", "c---test-slots", "d---test-servers", "e---test-conformance"].map(named);
        let order: Vec<_> = in_order(names.into()).into_iter().map(|binary| binary.name).collect();
        assert_eq!(order, ["d---test-servers", "e---test-conformance", "b---test-faults", "a---lib", "c---test-slots"]);
    }
}
