//! `clients/typescript`: its tests with the oldest supported Node; its compiler and the example workers with the installed Node.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use shardwise_testkit::{Port, node_modules};

use crate::common::{Place, run};
use crate::workers::{self, Workers};
use crate::{Sidecar, TOKEN, beside_two_sidecars, client};

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

/// The alert monitor.
pub(crate) fn monitor() -> Command {
    let mut command = node();
    command.arg(compiled().join("examples/alert_monitor.js"));
    command
}

fn oldest_node() -> Command {
    node_of(OLDEST)
}

/// The program of the npm package on Linux; elsewhere the installed one.
pub(crate) fn node_of(version: &str) -> Command {
    let cpu = if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" };
    let package = format!("node-linux-{cpu}");
    let program = || node_modules(&[&format!("{package}@{version}")]).unwrap().join(&package).join("bin/node");
    run_by(if cfg!(target_os = "linux") { program() } else { "node".into() })
}

fn run_by(program: PathBuf) -> Command {
    let mut node = Command::new(program);
    node.current_dir(compiled()).env_remove("NODE_OPTIONS");
    node
}

/// Two sidecars of a group with exclusive ownership. Each forwards requests to a port at which the tests answer.
struct Leased {
    /// Kept for as long as the sidecars run.
    _place: Place,
    sidecars: [Sidecar; 2],
    ports: [Port; 2],
}

impl Leased {
    fn start() -> Self {
        let place = Place::of_workers("2s", "slots = 256\nownership = \"exclusive\"");
        place.write("token", format!("{TOKEN}\n"));
        place.write("peers", "another-secret-for-the-members\n");
        let ports = [(); 2].map(|()| Port::reserve().unwrap());
        let sidecars = ports.each_ref().map(|port| {
            let worker = format!("http://{}", port.address());
            Sidecar::start(&place, &["--token-file", "token", "--peer-token-file", "peers", "--forward-to", &worker])
        });
        Self { _place: place, sidecars, ports }
    }

    fn named_to(&self, tests: &mut Command) {
        for (at, name) in ["ONE", "OTHER"].into_iter().enumerate() {
            tests.env(format!("SHARDWISE_LEASED_{name}"), &self.sidecars[at].url);
            tests.env(format!("SHARDWISE_FORWARD_{name}"), self.ports[at].number().to_string());
        }
    }
}

#[test]
fn each_module_is_small() {
    let modules = std::fs::read_dir(client("typescript").join("src")).unwrap().map(|entry| entry.unwrap().path());
    for module in modules {
        let lines = std::fs::read_to_string(&module).unwrap().lines().count();
        assert!(lines < 300, "{} has {lines} lines", module.display());
    }
}

/// As from the registry: packed, and installed into another project.
#[test]
fn the_package_can_be_installed() {
    let place = Place::empty();
    let (package, project) = (place.path("package"), place.path("project"));
    for folder in [&package, &project] {
        std::fs::create_dir(folder).unwrap();
    }
    // Without Node's types: the client uses nothing that a browser lacks.
    let mut build = tsc("tsconfig.json");
    build.arg("--outDir").arg(package.join("dist"));
    let ran = run(build, b"");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for file in ["package.json", "README.md"] {
        std::fs::copy(client("typescript").join(file), package.join(file)).unwrap();
    }
    let npm = |folder: &Path, arguments: &[&str]| {
        let mut npm = Command::new("npm");
        npm.args(arguments).args(["--ignore-scripts", "--no-audit", "--no-fund", "--offline", "--loglevel=error"]).current_dir(folder);
        let ran = run(npm, b"");
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.text()
    };
    let packed = npm(&package, &["pack", "--pack-destination", ".."]);
    std::fs::write(project.join("package.json"), r#"{"name": "a-worker", "private": true, "type": "module"}"#).unwrap();
    npm(&project, &["install", "--no-package-lock", &format!("../{}", packed.trim())]);
    let uses =
        "import { Client, RequestHandlers } from 'shardwise-client'; console.log(typeof new Client('workers').lease, RequestHandlers.name)";
    let mut node = oldest_node();
    node.args(["--input-type=module", "--eval", uses]).current_dir(&project);
    assert_eq!(run(node, b"").well(), "function RequestHandlers\n");
    // Its types need no library beyond those that a project of its target has.
    std::fs::write(project.join("uses.ts"), TYPED_USE).unwrap();
    let mut tsc = Command::new("node");
    tsc.arg(modules().join("typescript/bin/tsc")).args(["--strict", "--noEmit", "--module", "NodeNext", "--target", "ES2022", "uses.ts"]);
    tsc.current_dir(&project);
    let ran = run(tsc, b"");
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

const TYPED_USE: &str = r#"
import { Client, type Guard } from "shardwise-client";
export async function work(keys: string[]): Promise<string[]> {
  await using lease = await new Client("workers").lease({ ttlMs: 5_000 });
  lease.runOwned(keys, async (_key: string, guard: Guard) => { if (guard.isHeld) return; });
  // @ts-expect-error a string is no list
  lease.owned("abc");
  return lease.owned(keys);
}
"#;

#[test]
fn it_agrees_with_two_sidecars() {
    let mut version = oldest_node();
    version.arg("--version");
    assert!(!cfg!(target_os = "linux") || run(version, b"").well().trim() == format!("v{OLDEST}"));
    let mut tests = oldest_node();
    tests.args(["--test-reporter=tap", "tests/all.js"]);
    tests.env("SHARDWISE_TSC", modules().join("typescript/bin/tsc")).env("SHARDWISE_CLIENT", client("typescript").join("src/index.js"));
    let leased = Leased::start();
    leased.named_to(&mut tests);
    let ran = beside_two_sidecars(tests);
    assert!(ran.code == Some(0) && ran.text().contains("# pass 90"), "{ran:?}");
}

#[test]
fn workers_follow_their_sidecars() {
    workers::follow_their_sidecars(&Workers { command: node, program: compiled().join("examples/worker.js") });
}
