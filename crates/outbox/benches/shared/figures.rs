//! The size of a run, and where its figures go.

use std::io::Write as _;

use serde_json::Value;

/// Whether this is a measurement, and not a test of the benchmark.
pub(crate) fn in_earnest() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// Whether this part is to run: all parts, unless `SHARDWISE_OUTBOX_ONLY` names some, separated by commas.
pub(crate) fn wanted(name: &str) -> bool {
    let only = std::env::var("SHARDWISE_OUTBOX_ONLY").unwrap_or_default();
    only.is_empty() || only.split(',').any(|part| part == name)
}

/// Reports one figure on the terminal and in the file that `SHARDWISE_OUTBOX_FIGURES` names.
pub(crate) fn print_figure(figure: &Value) {
    println!("{figure}");
    if let Some(path) = std::env::var_os("SHARDWISE_OUTBOX_FIGURES") {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        writeln!(file, "{figure}").unwrap();
    }
}
