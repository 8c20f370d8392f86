//! `clients/python`, with any installed Python 3.9 or newer.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use shardwise_testkit::python_with;

use crate::common::run;
use crate::workers::{self, Workers};
use crate::{beside_two_sidecars, client, run_tests};

/// The tested releases, which still support Python 3.9.
const PACKAGES: [&str; 10] = [
    "aiosqlite==0.21.0",
    "anyio==4.12.0",
    "asyncpg==0.31.0",
    "hatchling==1.27.0",
    "httpx==0.28.1",
    "mypy==1.19.1",
    "psycopg==3.2.13",
    "psycopg-binary==3.2.13",
    "uhashring==2.4",
    "xxhash==3.6.0",
];
/// Tests that need no sidecar.
const ALONE: [&str; 12] = [
    "tests.test_ask",
    "tests.test_examples",
    "tests.test_lease",
    "tests.test_names",
    "tests.test_owned_requests",
    "tests.test_progress",
    "tests.test_requests",
    "tests.test_runs",
    "tests.test_slots",
    "tests.test_sync",
    "tests.test_table",
    "tests.test_wire",
];
const MODULE_LINES_MAX: usize = 300;

/// Python with the client as its users install it.
pub(crate) fn python() -> Command {
    let mut command = Command::new(python_with(&PACKAGES).unwrap());
    let path = env::join_paths([installed(), &client("python").join("examples")]).unwrap();
    command.current_dir(client("python")).env("PYTHONPATH", path).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// The alert monitor.
pub(crate) fn monitor() -> Command {
    let mut command = python();
    command.arg(client("python").join("examples/alert_monitor.py"));
    command
}

fn pip(arguments: &[&Path]) {
    let mut pip = Command::new(python_with(&PACKAGES).unwrap());
    pip.args(["-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check"]).args(arguments);
    let ran = run(pip, b"");
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

/// The folder in which the client's wheel is installed, once.
fn installed() -> &'static Path {
    static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients-python");
        // Of an earlier run, if there was one.
        let _ = std::fs::remove_dir_all(&folder);
        let (wheels, packages) = (folder.join("wheels"), folder.join("packages"));
        let [wheel, install, no_deps, apart, into, target] =
            ["wheel", "install", "--no-deps", "--no-build-isolation", "--wheel-dir", "--target"].map(Path::new);
        pip(&[wheel, no_deps, apart, into, &wheels, &client("python")]);
        let built: Vec<PathBuf> = std::fs::read_dir(&wheels).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(built.len() == 1 && built[0].extension().is_some_and(|kind| kind == "whl"), "{built:?}");
        pip(&[install, no_deps, target, &packages, &built[0]]);
        packages
    })
}

#[test]
fn its_modules_are_small() {
    let folder = client("python/src/shardwise_client");
    let modules = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    for module in modules {
        let lines = std::fs::read_to_string(&module).unwrap().lines().count();
        assert!(lines < MODULE_LINES_MAX, "{} has {lines} lines", module.display());
    }
}

#[test]
fn it_agrees_with_its_types() {
    let mut mypy = python();
    let cache = std::env::temp_dir().join(format!("shardwise-mypy-{}", std::process::id()));
    mypy.env_remove("PYTHONPATH").args(["-m", "mypy", "--strict", "--cache-dir"]).arg(&cache);
    mypy.args(["src", "examples", "tests", "benches"]);
    let ran = run(mypy, b"");
    // A leftover directory is no reason to fail.
    let _ = std::fs::remove_dir_all(&cache);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn its_benchmark_runs() {
    let mut bench = python();
    bench.args(["benches/owned.py", "100"]);
    let ran = run(bench, b"");
    assert!(ran.code == Some(0) && ran.text().contains("\"ratio\""), "{ran:?}");
}

#[test]
fn it_agrees_with_two_sidecars() {
    let mut tests = python();
    tests.args(["-W", "error", "-m", "unittest", "tests.test_client", "tests.test_types", "tests.test_worker"]);
    let ran = beside_two_sidecars(tests);
    assert!(ran.code == Some(0) && ran.err.contains("Ran 17 tests") && !ran.err.contains("skipped"), "{ran:?}");
}

#[test]
fn it_keeps_its_rules_without_a_sidecar() {
    let mut tests = python();
    tests.args(["-W", "error", "-m", "unittest"]).args(ALONE);
    let ran = run_tests(tests);
    // Before Python 3.11 one test of cancellation cannot be met.
    assert!(ran.code == Some(0) && ran.err.contains("Ran ") && !ran.err.contains("Ran 0 tests"), "{ran:?}");
}

#[test]
fn its_leases_hold_beside_sidecars() {
    let mut tests = python();
    tests.args(["-W", "error", "-m", "unittest", "tests.test_exclusive"]).env("SHARDWISE_BIN", env!("CARGO_BIN_EXE_shardwise"));
    let ran = run_tests(tests);
    assert!(ran.code == Some(0) && !ran.err.contains("skipped"), "{ran:?}");
}

#[test]
fn workers_follow_their_sidecars() {
    workers::follow_their_sidecars(&Workers { command: python, program: client("python").join("examples/worker.py") });
}
