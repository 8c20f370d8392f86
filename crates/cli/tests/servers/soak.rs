//! The way to `cargo xtask soak`, which runs these very scenes more often and for longer, and collects their figures.

use std::fs::OpenOptions;
use std::io::Write;

use serde_json::Value;

/// How often a scene is repeated: as often as the soak says, otherwise as often as `usually`.
pub(crate) fn runs(usually: u32) -> u32 {
    std::env::var("SHARDWISE_SOAK_RUNS").map_or(usually, |runs| runs.parse().unwrap())
}

/// Whether this is a soak.
pub(crate) fn is_on() -> bool {
    std::env::var_os("SHARDWISE_SOAK_RUNS").is_some()
}

/// Tells one run's figures: to the soak, and to whoever reads the test's output.
pub(crate) fn note(figures: &Value) {
    println!("{figures}");
    if let Some(file) = std::env::var_os("SHARDWISE_SOAK_FIGURES") {
        writeln!(OpenOptions::new().create(true).append(true).open(file).unwrap(), "{figures}").unwrap();
    }
}
