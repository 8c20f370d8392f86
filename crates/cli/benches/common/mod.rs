//! Shared by the benchmarks of the sidecar: a running one, a client for it, and the figures.

#![allow(dead_code, reason = "each benchmark uses its own part")]

pub(crate) mod client;
pub(crate) mod served;

use std::io::Write as _;

use serde_json::Value;

/// Whether this is a measurement, and not a test of the benchmark.
pub(crate) fn in_earnest() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// Reports one figure on the terminal, and in the file that this variable names.
pub(crate) fn print_figure(variable: &str, figure: &Value) {
    println!("{figure}");
    if let Some(path) = std::env::var_os(variable) {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        writeln!(file, "{figure}").unwrap();
    }
}
