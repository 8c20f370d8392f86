//! `clients/typescript`, with whatever Node is there from 18 on.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use shardwise_testkit::node_modules;

use crate::common::run;
use crate::workers::{self, Workers};
use crate::{beside_two_sidecars, client};

/// What `package.json` names for development.
fn packages() -> Vec<String> {
    let manifest: serde_json::Value = serde_json::from_slice(&std::fs::read(client("typescript").join("package.json")).unwrap()).unwrap();
    assert!(manifest.get("dependencies").is_none(), "at run time it needs nothing");
    let packages = manifest["devDependencies"].as_object().unwrap();
    packages.iter().map(|(name, version)| format!("{name}@{}", version.as_str().unwrap())).collect()
}

fn modules() -> PathBuf {
    let packages = packages();
    node_modules(&packages.iter().map(String::as_str).collect::<Vec<_>>()).unwrap()
}

fn tsc(project: &str) -> Command {
    let modules = modules();
    let mut tsc = Command::new("node");
    tsc.arg(modules.join("typescript/bin/tsc")).args(["--strict", "--project", project, "--typeRoots"]).arg(modules.join("@types"));
    tsc.current_dir(client("typescript"));
    tsc
}

/// Everything as JavaScript; compiled once.
fn compiled() -> &'static Path {
    static COMPILED: OnceLock<PathBuf> = OnceLock::new();
    COMPILED.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients-typescript");
        let mut tsc = tsc("tsconfig.tests.json");
        tsc.arg("--outDir").arg(&folder);
        let ran = run(tsc, b"");
        assert_eq!(ran.code, Some(0), "{ran:?}");
        std::fs::write(folder.join("package.json"), r#"{"type": "module"}"#).unwrap();
        folder
    })
}

fn node() -> Command {
    let mut node = Command::new("node");
    node.current_dir(compiled()).env_remove("NODE_OPTIONS");
    node
}

/// Without Node's types: it uses nothing that a browser lacks.
#[test]
fn it_is_for_browsers_too() {
    let mut tsc = tsc("tsconfig.json");
    tsc.arg("--noEmit");
    let ran = run(tsc, b"");
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn it_agrees_with_two_sidecars() {
    let mut tests = node();
    tests.args(["--test-reporter=tap", "tests/client.test.js"]);
    let ran = beside_two_sidecars(tests);
    assert!(ran.code == Some(0) && ran.text().contains("# pass 8"), "{ran:?}");
}

#[test]
fn workers_follow_their_sidecars() {
    workers::follow_their_sidecars(&Workers { command: node, program: compiled().join("examples/worker.js") });
}
