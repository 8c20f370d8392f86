//! An outbox in PostgreSQL with ten million rows (`crates/outbox/tests/postgres/backlog.rs`): what a poll takes.

use std::time::Duration;

use serde_json::Value;

use super::figures::number_or_dash;
use super::{SoakReport, SoakRun};
use crate::failure::TaskFailure;
use crate::measured::row;

/// The default number of rows, and the fewest: each of 1,024 slots must have enough for a poll.
const ROWS: u64 = 10_000_000;
const ROWS_MIN: u64 = 2_000_000;
const ALLOWANCE: Duration = Duration::from_mins(40);
/// A poll takes less, 99 of 100 times, and reads so many events at most
/// (`PublisherOptions::POLL_EVENTS`). What follows full readings may take more at a time.
const P99_MS_MAX: f64 = 10.0;
const POLL_EVENTS: u64 = 250;
/// Those: a bound to notice by.
const FOLLOWING_P99_MS_MAX: f64 = 60.0;
/// Held slots, sizes of a batch, with and without what is held back.
const FIGURES: usize = 4 * 2 * 2;

/// Fills the outbox, polls, and reports the times.
pub(super) fn run(soak: &SoakRun<'_>) -> Result<SoakReport, TaskFailure> {
    let rows = soak.rows.unwrap_or(ROWS);
    if rows < ROWS_MIN {
        return Err(TaskFailure::new(format!("--rows is {rows}: {ROWS_MIN} or more is needed")));
    }
    let mut tests = soak.tests("shardwise-outbox --all-features --test postgres -- backlog:: --nocapture");
    tests.env("SHARDWISE_SOAK_ROWS", rows.to_string());
    let runs = soak.figures(ALLOWANCE, [tests])?;
    Ok(SoakReport { text: table(rows, &runs), short: shortfall(&runs).into_iter().collect() })
}

fn table(rows: u64, runs: &[Value]) -> String {
    let mut text = format!(
        "{rows} pending events of {} aggregates in PostgreSQL (default durability), 1,024 slots. A poll reads 250 events, and while \
         readings come back full the next one takes twice as many, up to `batch` (1,000). Each goes on where the one before ended; {} of \
         each size. Held back: as many events more behind one blocked aggregate of a slot that is held. Blocks: what the server touches \
         for a thousand events, each of which lies in a block of its own.\n\n| slots held | events | held back | blocks | p50, ms | p99, \
         ms | worst, ms |\n|---:|---:|---:|---:|---:|---:|---:|\n",
        rows / 10,
        runs.first().map_or(&Value::Null, |run| &run["polls"])
    );
    for run in runs {
        let cell = |field| number_or_dash(run[field].as_f64());
        text += &row(["held", "batch", "held_back", "blocks", "p50_ms", "p99_ms", "worst_ms"].map(cell));
    }
    text
}

fn shortfall(runs: &[Value]) -> Option<String> {
    if runs.len() != FIGURES {
        return Some(format!("there are {} figures, and not {FIGURES}", runs.len()));
    }
    let most = |run: &Value| if run["batch"] == POLL_EVENTS { P99_MS_MAX } else { FOLLOWING_P99_MS_MAX };
    let slow = |run: &&Value| run["p99_ms"].as_f64().is_none_or(|p99| p99 >= most(run));
    if runs.iter().all(|run| run["batch"] != POLL_EVENTS) {
        return Some(format!("no figure is of a poll, which reads {POLL_EVENTS} events"));
    }
    let slow = runs.iter().find(slow)?;
    Some(format!("one in a hundred took {} ms or more: {slow}", most(slow)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_poll_and_a_missing_figure_fall_short() {
        let run = |p99: f64| {
            serde_json::json!({
                "held": 16, "batch": 250, "held_back": 0, "polls": 300, "blocks": 3_100, "p50_ms": 1.25, "p99_ms": p99, "worst_ms": 120.4
            })
        };
        let mut runs = vec![run(9.9); FIGURES];
        assert_eq!(shortfall(&runs), None);
        assert!(shortfall(&runs[1..]).is_some());
        assert!(table(10, &runs).contains("\n| 16 | 250 | 0 | 3100 | 1.2 | 9.9 | 120 |\n"), "{}", table(10, &runs));
        runs[3] = run(10.0);
        assert!(shortfall(&runs).unwrap().contains("\"p99_ms\":10.0"));
        runs[3]["batch"] = 1_000.into();
        assert_eq!(shortfall(&runs), None);
        runs[3]["p99_ms"] = 60.0.into();
        assert!(shortfall(&runs).is_some());
        for run in &mut runs {
            run["batch"] = 1_000.into();
        }
        assert!(shortfall(&runs).is_some());
    }
}
