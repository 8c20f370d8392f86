//! The way to `cargo xtask soak`, which runs these scenes more often and for longer, or more of them, and collects their figures.

use std::fs::OpenOptions;
use std::io::Write as _;

use serde_json::{Value, json};

/// How many times to repeat a scene, if this is a soak.
pub(crate) fn wanted() -> Option<usize> {
    std::env::var("SHARDWISE_SOAK_RUNS").ok().map(|runs| runs.parse().unwrap())
}

/// Reports a run's figures to the soak and to the test's output.
pub(crate) fn note(figures: &Value) {
    println!("{figures}");
    if let Some(file) = std::env::var_os("SHARDWISE_SOAK_FIGURES") {
        // In one write: another test may report at the same moment.
        let line = format!("{figures}\n");
        OpenOptions::new().create(true).append(true).open(file).unwrap().write_all(line.as_bytes()).unwrap();
    }
}

/// Runs a scene on one backend, and reports to `cargo xtask soak scenes` that it has begun and that it has passed. Other soaks need no such
/// figures.
pub(crate) fn case(scene: &str, backend: &str, run: impl FnOnce()) {
    let report = |passed: bool| {
        if wanted().is_none() {
            note(&json!({ "scene": "case", "case": scene, "backend": backend, "passed": passed }));
        }
    };
    report(false);
    run();
    report(true);
}
