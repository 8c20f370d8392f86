//! The way to `cargo xtask soak exclusive`, which runs these scenes more often and for longer, and collects their figures.

use std::fs::OpenOptions;
use std::io::Write as _;

use serde_json::Value;

/// How many times to repeat a scene, if this is a soak.
pub(crate) fn wanted() -> Option<usize> {
    std::env::var("SHARDWISE_SOAK_RUNS").ok().map(|runs| runs.parse().unwrap())
}

/// Reports a run's figures to the soak and to the test's output.
pub(crate) fn note(figures: &Value) {
    println!("{figures}");
    if let Some(file) = std::env::var_os("SHARDWISE_SOAK_FIGURES") {
        writeln!(OpenOptions::new().create(true).append(true).open(file).unwrap(), "{figures}").unwrap();
    }
}
