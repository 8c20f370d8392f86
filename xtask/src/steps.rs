//! The steps of `cargo xtask test`, in the order in which they run: what fails soonest and cheapest first.

use std::time::Instant;

use crate::context::TaskContext;
use crate::report::{ReportRow, say, table};
use crate::run::{StepLog, TaskFailure};
use crate::{checks, deny, fuzz, instructions, outside, package, servers, vectors};

/// What a step that went well has to say.
pub(crate) struct StepPass {
    /// How many tests, vectors or examples passed; 1 for a step that is one check.
    pub(crate) checks: u64,
    /// What the reader should know.
    pub(crate) note: Option<String>,
    /// Why nothing was checked.
    pub(crate) not_checked: Option<String>,
}

impl StepPass {
    pub(crate) fn one() -> Self {
        Self::many(1)
    }

    pub(crate) fn many(checks: u64) -> Self {
        Self { checks, note: None, not_checked: None }
    }

    pub(crate) fn noting(checks: u64, note: Option<String>) -> Self {
        Self { note, ..Self::many(checks) }
    }

    pub(crate) fn not_checked(why: String) -> Self {
        Self { not_checked: Some(why), ..Self::noting(0, Some("NOT CHECKED".into())) }
    }
}

struct TestStep {
    name: &'static str,
    what: &'static str,
    run: fn(&StepLog<'_>) -> Result<StepPass, TaskFailure>,
}

const STEPS: &[TestStep] = &[
    TestStep { name: "fetch", what: "dependencies, as Cargo.lock has them", run: checks::fetch },
    TestStep { name: "servers", what: "the real servers that the tests run against", run: servers::step },
    TestStep { name: "fmt", what: "formatting", run: checks::fmt },
    TestStep { name: "vectors", what: "the golden vectors, read a second time in Python", run: vectors::replay },
    TestStep { name: "clippy", what: "lints, warnings are errors", run: checks::clippy },
    TestStep { name: "test", what: "unit, property, conformance and end-to-end tests, all features", run: checks::test },
    TestStep { name: "test-default", what: "the library's tests with its default features", run: checks::test_default },
    TestStep { name: "doctest", what: "code in the documentation", run: checks::doctest },
    TestStep { name: "examples", what: "examples, built and run", run: checks::examples },
    TestStep { name: "tls", what: "a program outside the workspace joins over TLS, whatever its default provider is", run: outside::tls },
    TestStep { name: "benches", what: "benchmarks, compiled and run once", run: checks::benches },
    TestStep { name: "instructions", what: "what a key costs, counted by callgrind", run: instructions::check },
    TestStep { name: "fuzz", what: "parsers and placement with inputs that libFuzzer makes up", run: fuzz::step },
    TestStep { name: "doc", what: "the documentation, warnings are errors", run: checks::doc },
    TestStep { name: "msrv", what: "the oldest Rust that is promised", run: checks::msrv },
    TestStep { name: "package", what: "every published crate, packed and built from the packages", run: package::package },
    TestStep { name: "deny", what: "licences, sources and banned or doubled crates", run: deny::check },
    TestStep { name: "advisories", what: "known vulnerabilities of dependencies", run: deny::advisories },
];

/// Prints the steps.
pub(crate) fn list() {
    for step in STEPS {
        say(&format!("{:<14}{}", step.name, step.what));
    }
}

/// Runs all steps, or those named, and tells whether all went well; the first that fails ends the run unless it is to keep going.
pub(crate) fn run(context: &TaskContext, only: &[String], keep_going: bool) -> Result<bool, TaskFailure> {
    if let Some(unknown) = only.iter().find(|name| STEPS.iter().all(|step| step.name != **name)) {
        return Err(TaskFailure::new(format!("no step is called {unknown}: cargo xtask test --list shows the names")));
    }
    let mut rows: Vec<ReportRow> = Vec::new();
    for step in STEPS.iter().filter(|step| only.is_empty() || only.iter().any(|name| name == step.name)) {
        rows.push(run_one(context, step)?);
        if !keep_going && rows.iter().any(|row| row.failed > 0) {
            break;
        }
    }
    say(&format!("\n{}", table(&rows)));
    Ok(rows.iter().all(|row| row.failed == 0))
}

/// Runs a step; a failure is told at once, in one line, and again beside the step's numbers in the table.
fn run_one(context: &TaskContext, step: &TestStep) -> Result<ReportRow, TaskFailure> {
    say(&format!("{}: {}", step.name, step.what));
    let begun = Instant::now();
    let log = StepLog::begin(context, step.name)?;
    let outcome = (step.run)(&log);
    let took = begun.elapsed();
    let row = |passed, failed, note| ReportRow { step: step.name, took, passed, failed, note, not_checked: None };
    Ok(match outcome {
        Ok(passed) => {
            let note = passed.note.as_ref().map_or_else(String::new, |note| format!(" ({note})"));
            say(&format!("{}: ok in {:.1} s{note}", step.name, took.as_secs_f64()));
            ReportRow { not_checked: passed.not_checked, ..row(passed.checks, 0, passed.note) }
        }
        Err(failure) => {
            say(&format!("{}: FAILED after {:.1} s: {failure}", step.name, took.as_secs_f64()));
            let note = format!("repeat with: cargo xtask test --only {}", step.name);
            row(failure.passed, failure.failed, Some(note))
        }
    })
}
