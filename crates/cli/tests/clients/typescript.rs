//! `clients/typescript`: its tests with the oldest supported Node; its compiler and the example workers with the installed Node.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use shardwise_testkit::node_modules;

use crate::common::run;
use crate::workers::{self, Workers};
use crate::{beside_two_sidecars, client};

/// The last release of the oldest Node in `package.json`, as an npm package.
const OLDEST: &str = "18.20.5";

/// The development dependencies in `package.json`.
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

/// The client compiled to JavaScript, once.
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
    run_by("node".into())
}

/// The program of the npm package on Linux; elsewhere the installed one.
fn oldest_node() -> Command {
    let cpu = if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" };
    let package = format!("node-linux-{cpu}");
    let program = || node_modules(&[&format!("{package}@{OLDEST}")]).unwrap().join(&package).join("bin/node");
    run_by(if cfg!(target_os = "linux") { program() } else { "node".into() })
}

fn run_by(program: PathBuf) -> Command {
    let mut node = Command::new(program);
    node.current_dir(compiled()).env_remove("NODE_OPTIONS");
    node
}

/// Without Node's types: the client uses nothing that a browser lacks.
#[test]
fn it_is_for_browsers_too() {
    let mut tsc = tsc("tsconfig.json");
    tsc.arg("--noEmit");
    let ran = run(tsc, b"");
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn it_agrees_with_two_sidecars() {
    let mut version = oldest_node();
    version.arg("--version");
    assert!(!cfg!(target_os = "linux") || run(version, b"").well().trim() == format!("v{OLDEST}"));
    let mut tests = oldest_node();
    tests.args(["--test-reporter=tap", "tests/all.js"]);
    tests.env("SHARDWISE_TSC", modules().join("typescript/bin/tsc")).env("SHARDWISE_CLIENT", client("typescript").join("src/index.js"));
    let ran = beside_two_sidecars(tests);
    assert!(ran.code == Some(0) && ran.text().contains("# pass 16"), "{ran:?}");
}

#[test]
fn workers_follow_their_sidecars() {
    workers::follow_their_sidecars(&Workers { command: node, program: compiled().join("examples/worker.js") });
}
