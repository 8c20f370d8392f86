//! The example in Rust, whose workers are members without a sidecar.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

/// Variables that `cargo test` sets. Some build scripts look at them and would run again, here and at the next build.
const OF_TESTS: [&str; 4] = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"];

/// The program, built once with the features of the step `examples`, after which cargo finds it built. A fresh clone compiles its
/// dependencies here, so this has no time limit.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--workspace", "--all-features", "--example", "alert_monitor", "--message-format", "json"]);
        cargo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
        for (name, _) in std::env::vars_os() {
            if OF_TESTS.iter().any(|start| name.to_string_lossy().starts_with(start)) {
                cargo.env_remove(name);
            }
        }
        let output = cargo.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let messages = String::from_utf8(output.stdout).unwrap();
        let mut messages = messages.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let artifact = messages.find(|message| message["target"]["name"] == "alert_monitor" && message["executable"].is_string()).unwrap();
        artifact["executable"].as_str().unwrap().into()
    })
}

/// The alert monitor.
pub(crate) fn monitor() -> Command {
    Command::new(built())
}
