//! The steps `test` and `test-more`: the test binaries of a lane are built once and run four at a time. Those against real servers wait
//! most of their time for leases to expire, so one after the other would leave the cores idle for half of the step.
//!
//! A manifest's `[package.metadata.lanes]` names in `second` the test binaries of the second lane. `split` names binaries whose tests are
//! in both: those in the first lane by parts of their names, the rest in the second. All others are in the first. `halves` names binaries
//! that run as two processes at once, because one would be left alone at the end: the tests with these parts of names, and the rest.

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cargo_metadata::{Artifact, Message, Package, Target, TargetKind};
use serde_json::Value;

use crate::failure::TaskFailure;
use crate::pass::{StepPass, TestLane};
use crate::report::say;
use crate::run::{StepLog, count_tests};
use crate::{parallel, servers};

const AT_ONCE: usize = 4;
/// Before the number of a binary's other process in its name.
const PART: &str = "-part-";
/// No binary takes longer; one that does hangs. With both cores busy elsewhere the longest take twenty minutes.
const BINARY_LIMIT: Duration = Duration::from_mins(35);
/// The longest begin first, so that none of them is left alone at the end.
const LONGEST: [&str; 19] = [
    "servers",
    "postgres",
    "serve",
    "page",
    "clients",
    "sinks",
    "demo",
    "simulation",
    "model",
    "lives",
    "conformance",
    "claims_conformance",
    "rolling",
    "other_fleets",
    "racing",
    "network",
    "faults",
    "exclusive_python",
    "churn",
];
/// These have hundreds of members or thousands of claims, and run alone when the others are done: beside others they would measure those.
const ALONE: [&str; 4] = ["load", "claims_load", "claims_measured", "claims_speed"];

/// A test binary, and how one would run it by hand.
#[derive(Debug, PartialEq)]
struct Binary {
    name: String,
    executable: PathBuf,
    folder: PathBuf,
    repeat: String,
    arguments: Vec<String>,
}

impl Binary {
    /// Whether it is an integration test of one of these names.
    fn is_one_of(&self, names: &[&str]) -> bool {
        let name = self.name.split(PART).next().unwrap_or_default();
        names.iter().any(|wanted| name.ends_with(&format!("--test-{wanted}")))
    }
}

/// Builds and runs the tests of a lane with all features.
pub(crate) fn all(log: &StepLog<'_>, lane: TestLane) -> Result<StepPass, TaskFailure> {
    let packages = log.context.packages();
    check_lanes(&packages)?;
    let build = build(log, lane)?;
    let mut build: Vec<_> = build.iter().map(String::as_str).collect();
    // Twice, because of the two one is for people to read and the other for us; what is built already costs no time.
    let fetched = beside_fetching(|| log.run(log.context.cargo(&build)))?;
    build.extend(["--message-format", "json"]);
    let binaries = binaries(&packages, lane, &log.run(log.context.cargo(&build))?);
    let (alone, together): (Vec<_>, Vec<_>) = binaries.into_iter().partition(|binary| binary.is_one_of(&ALONE));
    let mut outcomes = log.beside_cargo(|| parallel::each(in_order(together), AT_ONCE, |binary| run(log, &binary)));
    outcomes.extend(alone.iter().map(|binary| run(log, binary)));
    let pass = summed(outcomes)?;
    let notes: Vec<_> = pass.note.iter().chain(&fetched).cloned().collect();
    Ok(StepPass { note: (!notes.is_empty()).then(|| notes.join("; ")), ..pass })
}

/// Cargo's arguments that build the tests of a lane. What is in the second lane alone is not built for the first, but each lane has all
/// packages: with others, crates that are needed for building too would be built anew, with all that depends on them.
pub(crate) fn build(log: &StepLog<'_>, lane: TestLane) -> Result<Vec<String>, TaskFailure> {
    let packages = log.context.packages();
    let mut build = vec!["test", "--workspace", "--all-features", "--no-run"];
    if lane == TestLane::First {
        build.extend(["--lib", "--bins"]);
    }
    let of_lane = packages.iter().flat_map(|package| tests_of(package).filter(move |test| arguments(lane, package, test).is_some()));
    let names: BTreeSet<&str> = of_lane.map(|test| test.name.as_str()).collect();
    if lane == TestLane::First {
        check_names(&packages, &names)?;
    }
    build.extend(names.into_iter().flat_map(|name| ["--test", name]));
    Ok(build.into_iter().map(str::to_owned).collect())
}

/// Builds while the servers are fetched that the tests run against, which are downloads for the most part. Answers what was fetched.
fn beside_fetching(build: impl FnOnce() -> Result<String, TaskFailure>) -> Result<Option<String>, TaskFailure> {
    let (built, fetched) = std::thread::scope(|scope| {
        let fetching = scope.spawn(servers::fetch);
        let built = build();
        (built, fetching.join().unwrap_or_else(|_| Err(TaskFailure::new("fetching the servers panicked"))))
    });
    built?;
    let fetched = fetched?;
    Ok((!fetched.is_empty()).then(|| format!("fetched {}", fetched.join(", "))))
}

fn tests_of(package: &Package) -> impl Iterator<Item = &Target> {
    package.targets.iter().filter(|target| target.is_kind(TargetKind::Test))
}

/// What a manifest says of lanes names tests that exist: others would be missing from the lane that it names.
fn check_lanes(packages: &[&Package]) -> Result<(), TaskFailure> {
    for package in packages {
        let lanes = &package.metadata["lanes"];
        let keys = |of: &str| lanes[of].as_object().into_iter().flat_map(|object| object.keys().map(String::as_str)).collect::<Vec<_>>();
        let mut named = texts(&lanes["second"]).chain(keys("split")).chain(keys("halves"));
        let exists = |name: &str| tests_of(package).any(|test| test.name == name);
        if let Some(unknown) = named.find(|name| !exists(name)) {
            return Err(TaskFailure::new(format!("{}: its lanes name {unknown:?}, which is none of its tests", package.name)));
        }
    }
    Ok(())
}

/// Cargo builds a test by its name in every package: with these names of the first lane it builds no test of the second.
fn check_names(packages: &[&Package], names: &BTreeSet<&str>) -> Result<(), TaskFailure> {
    for package in packages {
        let is_built = |test: &Target| names.contains(test.name.as_str()) && arguments(TestLane::First, package, test).is_none();
        if let Some(test) = tests_of(package).find(|test| is_built(test)) {
            let why =
                format!("{}: the first lane has a test {:?} too, so this one of the second would be built for it", package.name, test.name);
            return Err(TaskFailure::new(format!("{why}; rename one")));
        }
    }
    Ok(())
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// The arguments for a target's tests of a lane; `None` if it has none there.
fn arguments(lane: TestLane, package: &Package, target: &Target) -> Option<Vec<String>> {
    if !target.is_kind(TargetKind::Test) {
        return (lane == TestLane::First).then(Vec::new);
    }
    let lanes = &package.metadata["lanes"];
    let parts = &lanes["split"][&target.name];
    match (parts.is_array(), lane) {
        (true, TestLane::First) => Some(texts(parts).map(str::to_owned).collect()),
        (true, TestLane::Second) => Some(texts(parts).flat_map(|part| ["--skip".to_owned(), part.to_owned()]).collect()),
        (false, _) => {
            let is_second = texts(&lanes["second"]).any(|name| name == target.name);
            (is_second == (lane == TestLane::Second)).then(Vec::new)
        }
    }
}

/// The arguments of each process that runs a target's tests of a lane.
fn processes(lane: TestLane, package: &Package, target: &Target) -> Vec<Vec<String>> {
    let Some(arguments) = arguments(lane, package, target) else { return Vec::new() };
    let half: Vec<_> = texts(&package.metadata["lanes"]["halves"][&target.name]).map(str::to_owned).collect();
    if half.is_empty() {
        return vec![arguments];
    }
    let rest = half.iter().flat_map(|part| ["--skip".to_owned(), part.clone()]).collect();
    [half, rest].map(|half| [arguments.clone(), half].concat()).into()
}

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
    let mut command = step.context.compiling(step.context.command(&binary.executable.to_string_lossy(), &arguments));
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
fn binaries(packages: &[&Package], lane: TestLane, messages: &str) -> Vec<Binary> {
    let binary = |artifact: &Artifact, (part, arguments): (usize, Vec<String>)| {
        let package = packages.iter().find(|package| package.manifest_path == artifact.manifest_path)?;
        let which = match &artifact.target {
            target if target.is_kind(TargetKind::Test) => format!("--test {}", target.name),
            target if target.is_kind(TargetKind::Bin) => format!("--bin {}", target.name),
            _ => "--lib".into(),
        };
        let which_tests = if arguments.is_empty() { String::new() } else { format!(" -- {}", arguments.join(" ")) };
        let part = if part == 0 { String::new() } else { format!("{PART}{part}") };
        Some(Binary {
            name: format!("{} {which}{part}", package.name).replace(' ', "-"),
            executable: artifact.executable.clone()?.into_std_path_buf(),
            folder: package.manifest_path.parent()?.as_std_path().to_path_buf(),
            repeat: format!("cargo test --package {} --all-features {which}{which_tests}", package.name),
            arguments,
        })
    };
    let artifact = |message| match message {
        Ok(Message::CompilerArtifact(artifact)) if artifact.profile.test => {
            let package = packages.iter().find(|package| package.manifest_path == artifact.manifest_path);
            let processes = package.map(|package| processes(lane, package, &artifact.target)).unwrap_or_default();
            processes.into_iter().enumerate().filter_map(|process| binary(&artifact, process)).collect()
        }
        _ => Vec::new(),
    };
    Message::parse_stream(messages.as_bytes()).flat_map(artifact).collect()
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
        let names = ["a---lib", "b---test-faults", "c---test-slots", "d---test-servers-part-1", "e---test-conformance"].map(named);
        let order: Vec<_> = in_order(names.into()).into_iter().map(|binary| binary.name).collect();
        assert_eq!(order, ["d---test-servers-part-1", "e---test-conformance", "b---test-faults", "a---lib", "c---test-slots"]);
    }
}
