//! The demo over and over, each run with its own verdict.

use serde_json::Value;

use super::figures::{Figures, number_or_dash};
use super::{SoakReport, SoakRun};
use crate::failure::TaskFailure;
use crate::measured::row;
use crate::report::say;

/// TTL of the demo's publishers, in milliseconds; a crash must be over one second later.
const TTL_MS: u64 = 2_000;
/// A newcomer must hold its slots within this time of its start.
const HANDOVER_MS_MAX: u64 = 250;
/// The command with everything may have this many bytes.
const PROGRAM_BYTES_MAX: u64 = 35_000_000;

/// Runs the demo that often, to the first run that falls short.
pub(super) fn run(soak: &SoakRun<'_>) -> Result<SoakReport, TaskFailure> {
    let (context, runs) = (soak.log.context, soak.runs);
    soak.log.run(context.cargo(&["build", "--release", "--package", "shardwise-cli"]))?;
    let program = context.target().join("release/shardwise");
    let bytes = std::fs::metadata(&program).map_err(TaskFailure::at(program.display()))?.len();
    if bytes > PROGRAM_BYTES_MAX {
        return Err(TaskFailure::new(format!("{} has {bytes} bytes; at most {PROGRAM_BYTES_MAX} are wanted", program.display())));
    }
    let mut verdicts = Vec::new();
    for run in 1..=runs {
        let mut command = context.command(&program.to_string_lossy(), &["demo", "--json", "--ttl", "2s"]);
        command.env_remove("SHARDWISE_ENV");
        let output = command.output().map_err(TaskFailure::at(program.display()))?;
        let verdict: Value = serde_json::from_slice(&output.stdout)
            .map_err(|_| TaskFailure::new(format!("run {run} gave no verdict: {}", String::from_utf8_lossy(&output.stderr).trim())))?;
        say(&format!("{run:>4} of {runs}  {verdict}"));
        let number = |field: &str| verdict[field].as_u64().unwrap_or(u64::MAX);
        if !output.status.success() || number("takeover_ms") > TTL_MS + 1_000 || number("handover_ms") >= HANDOVER_MS_MAX {
            return Err(TaskFailure::new(format!("run {run} of {runs} falls short: {verdict}")));
        }
        verdicts.push(verdict);
    }
    let size = format!("\nThe command, built with everything, has {}.{} MB.\n", bytes / 1_000_000, bytes / 100_000 % 10);
    Ok(SoakReport { text: table(&verdicts) + &size, short: Vec::new() })
}

/// Median and worst of every number of the verdicts.
fn table(verdicts: &[Value]) -> String {
    let mut text = format!(
        "{} runs of `shardwise demo --ttl 2s`, all clean: three publishers, one SIGKILL, one newcomer.\n\n| | median | worst \
         |\n|---|---:|---:|\n",
        verdicts.len()
    );
    for field in ["takeover_ms", "handover_ms", "repeated", "repeated_late", "lost", "out_of_order"] {
        let figures = Figures::of(verdicts, field);
        text += &row([format!("`{field}`"), number_or_dash(figures.median()), number_or_dash(figures.worst())]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_median_and_worst() {
        let verdict = |ms: u64| serde_json::json!({"takeover_ms": ms, "handover_ms": ms, "lost": 0});
        let text = table(&[verdict(30), verdict(10), verdict(20)]);
        assert!(text.contains("| `takeover_ms` | 20 | 30 |\n") && text.contains("| `lost` | 0 | 0 |\n"), "{text}");
    }
}
