//! The interface to `cargo xtask soak`, which runs the same scenes more often and for longer, and collects their figures.

use std::fs::OpenOptions;
use std::io::Write;

use serde_json::Value;

/// How often a scene is repeated: as often as the soak says, otherwise `usually` times.
pub(crate) fn runs(usually: u32) -> u32 {
    std::env::var("SHARDWISE_SOAK_RUNS").map_or(usually, |runs| runs.parse().unwrap())
}

/// Whether this is a soak.
pub(crate) fn is_on() -> bool {
    std::env::var_os("SHARDWISE_SOAK_RUNS").is_some()
}

/// Reports one run's figures to the soak and in the test's output.
pub(crate) fn note(figures: &Value) {
    println!("{figures}");
    if let Some(file) = std::env::var_os("SHARDWISE_SOAK_FIGURES") {
        writeln!(OpenOptions::new().create(true).append(true).open(file).unwrap(), "{figures}").unwrap();
    }
}
