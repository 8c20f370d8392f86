//! `clients/python`, with any installed Python 3.9 or newer.

use std::process::Command;

use shardwise_testkit::python_with;

use crate::common::run;
use crate::workers::{self, Workers};
use crate::{beside_two_sidecars, client};

/// The tested releases, which still support Python 3.9.
const PACKAGES: [&str; 3] = ["anyio==4.12.0", "httpx==0.28.1", "mypy==1.19.1"];

fn python() -> Command {
    let mut command = Command::new(python_with(&PACKAGES).unwrap());
    command.current_dir(client("python")).env("PYTHONPATH", "src:examples").env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

#[test]
fn it_agrees_with_its_types() {
    let mut mypy = python();
    let cache = std::env::temp_dir().join(format!("shardwise-mypy-{}", std::process::id()));
    mypy.args(["-m", "mypy", "--strict", "--cache-dir"]).arg(&cache).args(["src", "examples", "tests"]);
    let ran = run(mypy, b"");
    // A leftover directory is no reason to fail.
    let _ = std::fs::remove_dir_all(&cache);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn it_agrees_with_two_sidecars() {
    let mut tests = python();
    tests.args(["-W", "error", "-m", "unittest", "tests.test_client", "tests.test_types", "tests.test_worker"]);
    let ran = beside_two_sidecars(tests);
    assert!(ran.code == Some(0) && ran.err.contains("Ran 16 tests"), "{ran:?}");
}

#[test]
fn workers_follow_their_sidecars() {
    workers::follow_their_sidecars(&Workers { command: python, program: client("python").join("examples/worker.py") });
}
