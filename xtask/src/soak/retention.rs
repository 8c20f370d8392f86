//! An outbox in PostgreSQL into which much is written and out of which all goes
//! again (`crates/outbox/tests/postgres/retention.rs`): its size.

use std::time::Duration;

use super::{SoakReport, SoakRun};
use crate::failure::TaskFailure;
use crate::measured::row;

const ALLOWANCE: Duration = Duration::from_mins(20);
const ROUND_MAX: Duration = Duration::from_secs(5);
const TABLES: usize = 3;

/// Runs that many rounds and reports the sizes. The test holds their limits.
pub(super) fn run(soak: &SoakRun<'_>) -> Result<SoakReport, TaskFailure> {
    let tests = soak.tests("shardwise-outbox --all-features --test postgres -- retention:: --nocapture");
    let lines = soak.figures(ALLOWANCE + ROUND_MAX * soak.runs, [tests])?;
    if lines.len() != TABLES {
        return Err(TaskFailure::new(format!("there are sizes of {} tables, and not of {TABLES}", lines.len())));
    }
    let rows: String = lines.iter().map(|line| row(["table", "settled", "last"].map(|field| &line[field]))).collect();
    let text = format!(
        "{} rounds of 1,200 events, each written, delivered, swept and vacuumed: 400 keys that never come again and 20 that always do. \
         Sizes with indexes, in bytes.\n\n| table | after 4 rounds | at the end |\n|---|---:|---:|\n{}",
        soak.runs,
        rows.replace('"', "`")
    );
    Ok(SoakReport { text, short: Vec::new() })
}
