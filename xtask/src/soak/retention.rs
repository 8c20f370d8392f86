//! An outbox in PostgreSQL into which much is written and out of which all goes again (`crates/outbox/tests/postgres/retention.rs`): its size.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;

use crate::context::TaskContext;
use crate::report::say;
use crate::run::{StepLog, TaskFailure};

const ALLOWANCE: Duration = Duration::from_mins(20);
const ROUND_MAX: Duration = Duration::from_secs(5);
const TABLES: usize = 3;

/// Does that many rounds and tells the sizes. What they may be is in the test.
pub(super) fn run(context: &TaskContext, rounds: u32) -> Result<String, TaskFailure> {
    let log = StepLog::begin(context, "soak")?;
    let collected = context.scratch("soak-outbox-retention.jsonl");
    let unreadable = |e: std::io::Error| TaskFailure::new(format!("{}: {e}", collected.display()));
    std::fs::write(&collected, "").map_err(unreadable)?;
    let arguments =
        ["test", "--release", "--package", "shardwise-outbox", "--all-features", "--test", "postgres", "--", "retention::", "--nocapture"];
    let mut command = context.cargo(&arguments);
    command.env("SHARDWISE_SOAK_RUNS", rounds.to_string()).env("SHARDWISE_SOAK_FIGURES", &collected);
    let repeat = format!("cargo xtask soak outbox-retention --runs {rounds}");
    log.run_for(command, ALLOWANCE + ROUND_MAX * rounds).map_err(|failure| failure.repeated_by(repeat))?;
    let told = std::fs::read_to_string(&collected).map_err(unreadable)?;
    let told: Vec<Value> = told.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if told.len() != TABLES {
        return Err(TaskFailure::new(format!("{} tables told their size, and not {TABLES}", told.len())));
    }
    let mut text = format!(
        "{rounds} rounds of 1,200 events, each written, delivered, swept and vacuumed: 400 keys that never come again and 20 that always do. Sizes with \
         indexes, in bytes.\n\n| table | after 4 rounds | at the end |\n|---|---:|---:|\n"
    );
    for line in &told {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "| `{}` | {} | {} |", line["table"].as_str().unwrap_or_default(), line["settled"], line["last"]);
    }
    say(&text);
    Ok(text)
}
