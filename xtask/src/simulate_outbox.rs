//! `cargo xtask simulate-outbox`: the lives of publishers in `crates/outbox/src/decide/simulation`, as many as wanted.

use std::fmt::Write as _;
use std::time::Duration;

use crate::context::TaskContext;
use crate::measured;
use crate::report::say;
use crate::run::{StepLog, TaskFailure};

/// From so many lives on the figures are worth keeping.
const WRITTEN_FROM: u64 = 1_000;
/// For building.
const ALLOWANCE: Duration = Duration::from_mins(20);
/// The time limit of one life, with others beside it.
const LIFE_MAX: Duration = Duration::from_secs(1);
const TEST: &str = "decide::simulation::tests::whatever_happens_order_and_fence_hold_and_everything_arrives";
const SECTION: &str = "simulate outbox";

/// Lives `seeds` lives from seed `from` on.
pub(crate) fn run(context: &TaskContext, seeds: u64, from: u64) -> Result<(), TaskFailure> {
    let log = StepLog::begin(context, "simulate-outbox")?;
    // Before it, because it takes long enough for changes.
    let head = measured::head(context);
    // As the tests are built, with every check of arithmetic, but for the optimiser: one life in five milliseconds instead of two hundred.
    let arguments = [
        "test",
        "--config",
        "profile.dev.package.shardwise-outbox.opt-level=3",
        "--package",
        "shardwise-outbox",
        "--all-features",
        "--lib",
        "--",
        "--exact",
        TEST,
        "--nocapture",
    ];
    let mut command = context.cargo(&arguments);
    command.env("SHARDWISE_SIMULATE_FROM", from.to_string()).env("SHARDWISE_SIMULATE_SEEDS", seeds.to_string());
    let limit = ALLOWANCE + LIFE_MAX * u32::try_from(seeds).unwrap_or(u32::MAX);
    let output = log.quietly(command, limit).map_err(|(failure, output)| failed(failure, &output))?;
    let text = table(&output, from, seeds)?;
    say(&text);
    if seeds < WRITTEN_FROM {
        return Ok(());
    }
    measured::write(context, SECTION, &format!("## {SECTION}\n\n{head}\n\n{text}"))
}

/// The failure, with the seed of its life and the command that repeats it.
fn failed(failure: TaskFailure, output: &str) -> TaskFailure {
    let repeat = output.lines().find_map(|line| line.strip_prefix("repeat with: "));
    repeat.map_or(failure, |command| TaskFailure::new("a life of the outbox's publishers failed").repeated_by(command.to_owned()))
}

/// The figures of the lives.
fn table(output: &str, from: u64, seeds: u64) -> Result<String, TaskFailure> {
    let mut text = format!(
        "Seeds {from} to {}: each the life of three publishers over a model of the store and of up to six destinations, with the real \
         decisions (`crates/outbox/src/decide`) on simulated time and a TTL of 3 s: late and lost answers, calls that are not executed, \
         or only after their caller gave up and asked again, pauses beyond the TTL, kills, refusals, an outage, shardings that disagree. \
         No batch was sent but by its slots' holder, each aggregate's first deliveries were in order and without a gap, memory was \
         bounded, and each life settled.\n\n| in all lives together | |\n|---|---:|\n",
        from + seeds - 1
    );
    let before = text.len();
    for (what, times) in output.lines().filter_map(|line| line.strip_prefix("count: ")?.rsplit_once(": ")) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "| {what} | {times} |");
    }
    if text.len() == before {
        return Err(TaskFailure::new(format!("the test {TEST} printed no figures")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_reported_and_none_are_an_error() {
        let text = table("running 1 test\ncount: lives: 9\ncount: events written: 7\n", 1, 1_000).unwrap();
        assert!(text.starts_with("Seeds 1 to 1000:") && text.ends_with("|---|---:|\n| lives | 9 |\n| events written | 7 |\n"), "{text}");
        assert!(table("running 0 tests", 1, 1).is_err());
    }

    #[test]
    fn a_failure_says_how_to_repeat_the_life() {
        let output = "thread panicked\nrepeat with: SHARDWISE_SEED=7 cargo test -p shardwise-outbox --lib simulation\n";
        let failure = failed(TaskFailure::new("exit code 101"), output).to_string();
        assert!(failure.contains("SHARDWISE_SEED=7"), "{failure}");
        assert_eq!(failed(TaskFailure::new("exit code 101"), "error: could not compile").to_string(), "exit code 101");
    }
}
