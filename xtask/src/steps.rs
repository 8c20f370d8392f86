//! The steps of `cargo xtask test`, in the order in which they run: the soonest and cheapest failures first.

use std::time::Instant;

use crate::context::TaskContext;
use crate::failure::TaskFailure;
use crate::pass::{StepPass, TestLane};
use crate::report::{ReportRow, say, table};
use crate::run::StepLog;
use crate::{TestArgs, book, checks, deny, examples, fuzz, instructions, lean, outside, package, readme, vectors};

struct TestStep {
    lane: TestLane,
    name: &'static str,
    what: &'static str,
    run: RunStep,
    /// What cargo does for it, if that may be done while an earlier step waits.
    ahead: &'static [&'static str],
}

type RunStep = fn(&StepLog<'_>) -> Result<StepPass, TaskFailure>;

const fn first(name: &'static str, what: &'static str, run: RunStep) -> TestStep {
    TestStep { lane: TestLane::First, name, what, run, ahead: &[] }
}

const fn second(name: &'static str, what: &'static str, run: RunStep) -> TestStep {
    TestStep { lane: TestLane::Second, name, what, run, ahead: &[] }
}

impl TestStep {
    const fn prepared_by(self, ahead: &'static [&'static str]) -> Self {
        Self { ahead, ..self }
    }
}

const STEPS: &[TestStep] = &[
    first("fetch", "dependencies, as Cargo.lock has them", checks::fetch),
    first("fmt", "formatting", checks::fmt),
    first(
        "test",
        "unit, property and simulation tests, conformance on real servers, one process test of each kind, all features",
        checks::test,
    ),
    first("clippy", "lints of what the tests are built from, warnings are errors", checks::clippy),
    // Compiled while the tests wait for leases.
    first("examples", "examples, built and run", examples::step).prepared_by(examples::BUILD),
    first("doctest", "code in the documentation", checks::doctest),
    second("test-more", "the other tests of processes, servers, faults and load, all features", checks::test_more),
    second("clippy-more", "lints of everything else", checks::clippy_more),
    second("lean", "the command without features, as `cargo demo` builds it, and with two or three of them", lean::step),
    second("vectors", "the golden vectors, read a second time in Python", vectors::replay),
    second("test-default", "the library's tests with its default features", checks::test_default),
    second("tls", "a program outside the workspace joins over TLS, whatever its default provider is", outside::tls),
    second("author", "a third-party backend outside the workspace, under the conformance suites", outside::author),
    second("readme", "the commands of the README and of the start pages, as written", readme::step),
    second("benches", "benchmarks, compiled and run once", checks::benches),
    second("instructions", "what a key costs, counted by callgrind", instructions::check),
    second("fuzz", "parsers and placement with inputs that libFuzzer makes up", fuzz::step),
    second("book", "the book of docs/, and the links and lines of all Markdown", book::step),
    second("doc", "the documentation, warnings are errors", checks::doc),
    second("msrv", "the oldest Rust that is promised", checks::msrv),
    second("package", "every published crate, packed and built from the packages", package::package),
    second("deny", "licences, sources and banned or doubled crates", deny::check),
    second("advisories", "known vulnerabilities of dependencies", deny::advisories),
];

/// Lists the steps, or runs the first lane, all steps, or those named, and returns whether all passed.
/// The first failure ends the run unless `keep_going` is set.
pub(crate) fn run(context: &TaskContext, TestArgs { only, all, keep_going, list, .. }: &TestArgs) -> Result<bool, TaskFailure> {
    if *list {
        for step in STEPS {
            let lane = if step.lane == TestLane::First { "" } else { "--all" };
            say(&format!("{:<14}{lane:<7}{}", step.name, step.what));
        }
        return Ok(true);
    }
    if let Some(unknown) = only.iter().find(|name| STEPS.iter().all(|step| step.name != **name)) {
        return Err(TaskFailure::new(format!("no step is called {unknown}: cargo xtask test --list shows the names")));
    }
    let mut rows: Vec<ReportRow> = Vec::new();
    let is_wanted = |step: &&TestStep| match only.as_slice() {
        [] => *all || step.lane == TestLane::First,
        names => names.iter().any(|name| name == step.name),
    };
    for step in STEPS.iter().filter(is_wanted) {
        let later = STEPS.iter().skip_while(|other| other.name != step.name).filter(is_wanted);
        let ahead = later.map(|step| step.ahead).filter(|ahead| !ahead.is_empty()).collect();
        rows.push(run_one(context, step, ahead)?);
        if !*keep_going && rows.iter().any(|row| row.failed > 0) {
            break;
        }
    }
    say(&format!("\n{}", table(&rows)));
    if !*all && only.is_empty() {
        let later: Vec<_> = STEPS.iter().filter(|step| step.lane == TestLane::Second).map(|step| step.name).collect();
        say(&format!("NOT CHECKED in this lane: {}; `cargo xtask test --all` runs them too", later.join(", ")));
    }
    Ok(rows.iter().all(|row| row.failed == 0))
}

/// Runs a step; a failure is reported at once, in one line, and again next to the step's numbers in the table.
fn run_one(context: &TaskContext, step: &TestStep, ahead: Vec<&'static [&'static str]>) -> Result<ReportRow, TaskFailure> {
    say(&format!("{}: {}", step.name, step.what));
    let begun = Instant::now();
    let log = StepLog::begin(context, step.name)?.with_ahead(ahead);
    let outcome = (step.run)(&log);
    let took = begun.elapsed();
    let (failed, pass) = match outcome {
        Ok(pass) => {
            let note = pass.note.as_ref().map_or_else(String::new, |note| format!(" ({note})"));
            say(&format!("{}: ok in {:.1} s{note}", step.name, took.as_secs_f64()));
            (0, pass)
        }
        Err(failure) => {
            say(&format!("{}: FAILED after {:.1} s: {failure}", step.name, took.as_secs_f64()));
            let note = format!("repeat with: cargo xtask test --only {}", step.name);
            (failure.failed, StepPass::noting(failure.passed, Some(note)))
        }
    };
    Ok(ReportRow { step: step.name, took, failed, pass })
}
