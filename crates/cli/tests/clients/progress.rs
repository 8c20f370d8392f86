//! Progress in both clients, on a real PostgreSQL. SQLite is in their own tests.

use std::path::Path;

use shardwise_testkit::{Database, Postgres, node_modules};
use tokio::runtime::Runtime;

use crate::common::run;
use crate::{client, python, typescript};

/// A Node that has `node:sqlite`, and the driver for PostgreSQL.
const NODE: &str = "24.11.1";
const PG: &str = "pg@8.16.3";

/// A new database, and what keeps its server running.
fn database() -> (Runtime, Database) {
    let runtime = Runtime::new().unwrap();
    let database = runtime.block_on(async { Postgres::shared().await.unwrap().database().await.unwrap() });
    (runtime, database)
}

#[test]
fn python_resumes_and_saves() {
    let (_runtime, database) = database();
    let mut tests = python::python();
    tests.args(["-W", "error", "-m", "unittest", "tests.test_progress_postgres"]).env("SHARDWISE_POSTGRES", database.url());
    let ran = run(tests, b"");
    assert!(ran.code == Some(0) && ran.err.contains("Ran 6 tests") && !ran.err.contains("skipped"), "{ran:?}");
}

#[test]
fn typescript_resumes_and_saves() {
    let (_runtime, database) = database();
    let mut tests = typescript::node_of(NODE);
    tests.args(["--test-reporter=tap", "tests/progress.test.js"]).env("SHARDWISE_POSTGRES", database.url());
    tests.env("SHARDWISE_PG", node_modules(&[PG]).unwrap().join("pg")).env("SHARDWISE_README", client("typescript").join("README.md"));
    tests.env("SHARDWISE_SQL", Path::new(env!("CARGO_MANIFEST_DIR")).join("../fencing/sql"));
    let ran = run(tests, b"");
    assert!(ran.code == Some(0) && ran.text().contains("# pass 10"), "{ran:?}");
}
