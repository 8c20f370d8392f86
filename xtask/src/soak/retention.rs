//! An outbox in PostgreSQL into which much is written and out of which all goes
//! again (`crates/outbox/tests/postgres/retention.rs`): its size.

use std::fmt::Write as _;
use std::time::Duration;

use crate::context::TaskContext;
use crate::report::say;
use crate::run::{StepLog, TaskFailure};

const ALLOWANCE: Duration = Duration::from_mins(20);
const ROUND_MAX: Duration = Duration::from_secs(5);
const TABLES: usize = 3;

/// Runs that many rounds and returns the sizes. The test holds their limits.
pub(super) fn run(context: &TaskContext, rounds: u32) -> Result<String, TaskFailure> {
    let log = StepLog::begin(context, "soak")?;
    let arguments =
        ["test", "--release", "--package", "shardwise-outbox", "--all-features", "--test", "postgres", "--", "retention::", "--nocapture"];
    let mut command = context.cargo(&arguments);
    command.env("SHARDWISE_SOAK_RUNS", rounds.to_string());
    let repeat = format!("cargo xtask soak outbox-retention --runs {rounds}");
    let lines =
        log.figures("SHARDWISE_SOAK_FIGURES", ALLOWANCE + ROUND_MAX * rounds, [command]).map_err(|failure| failure.repeated_by(repeat))?;
    if lines.len() != TABLES {
        return Err(TaskFailure::new(format!("{} tables told their size, and not {TABLES}", lines.len())));
    }
    let mut text = format!(
        "{rounds} rounds of 1,200 events, each written, delivered, swept and vacuumed: 400 keys that never come again and 20 that always \
         do. Sizes with indexes, in bytes.\n\n| table | after 4 rounds | at the end |\n|---|---:|---:|\n"
    );
    for line in &lines {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "| `{}` | {} | {} |", line["table"].as_str().unwrap_or_default(), line["settled"], line["last"]);
    }
    say(&text);
    Ok(text)
}
