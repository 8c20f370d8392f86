//! `cargo xtask simulate`: the lives of `tests/simulation`, as many as wanted.

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
const TEST: &str = "no_slot_has_two_holders_and_in_the_end_each_has_one";

/// Kinds of faults of calls and watches, in the words of the table.
const IN_WORDS: [(&str, &str); 8] = [
    ("Delay", "late: calls, answers and news"),
    ("DropEvent", "news kept back"),
    ("ExecuteAfterAnother", "of those carried out after their caller gave up: after it asked again"),
    ("ExecuteLate", "calls carried out after their caller gave up"),
    ("FailAfter", "calls carried out whose answer was lost"),
    ("FailBefore", "calls not carried out"),
    ("FailWatch", "watches that could prove nothing"),
    ("RepeatEvent", "news told twice"),
];

/// Lives `seeds` lives from seed `from` on.
pub(crate) fn run(context: &TaskContext, seeds: u64, from: u64) -> Result<(), TaskFailure> {
    let log = StepLog::begin(context, "simulate")?;
    // As the tests are built, with every check of arithmetic; where they are many, the
    // build that is faster by a little optimizing is worth its time.
    let arguments =
        ["test", "--package", "shardwise", "--features", "testing", "--test", "simulation", "--", "--exact", TEST, "--nocapture"];
    let mut command = context.cargo(&arguments);
    command.env("SHARDWISE_SIMULATE_FROM", from.to_string()).env("SHARDWISE_SIMULATE_SEEDS", seeds.to_string());
    if seeds >= WRITTEN_FROM {
        command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
    }
    let limit = ALLOWANCE + LIFE_MAX * u32::try_from(seeds).unwrap_or(u32::MAX);
    let output = log.quietly(command, limit).map_err(|(failure, output)| failed(failure, &output))?;
    let text = table(&output, from, seeds)?;
    say(&text);
    if seeds < WRITTEN_FROM {
        return Ok(());
    }
    measured::write(context, "simulate", &format!("## simulate\n\n{}\n\n{text}", measured::head(context)))
}

/// The failure, with the seed of its life and the command that repeats it.
fn failed(failure: TaskFailure, output: &str) -> TaskFailure {
    let wrong = output.lines().find_map(|line| line.strip_prefix("seed ")).and_then(|lines_of| lines_of.split_once(": "));
    wrong.map_or(failure, |(seed, why)| {
        TaskFailure::new(format!("seed {seed}: {why}")).repeated_by(format!("cargo xtask simulate --seeds 1 --from {seed}"))
    })
}

/// The figures of the lives.
fn table(output: &str, from: u64, seeds: u64) -> Result<String, TaskFailure> {
    let lines_of = |kind| output.lines().filter_map(move |line| line.strip_prefix(kind)?.rsplit_once(": "));
    let mut text = format!(
        "Seeds {from} to {}: each the life of a fleet of four to seven workers with 24 slots, one in twenty of up to 16 with 256 slots, \
         under exclusive ownership, the real machine and driver over the memory backend on simulated time, with a TTL of 3 s and clocks \
         up to 1 % off; with and without `version_rule`, `rejoin_grace` and waiting for work that does not end; with two singletons, up \
         to four daemons and a timer. No slot and no name had two holders, no period was fired twice, no holder was refused by the fenced \
         table, a restart in good order moved nothing, and each life settled.\n\n| in all lives together | |\n|---|---:|\n",
        from + seeds - 1
    );
    let in_words = |what| IN_WORDS.iter().find(|(kind, _)| *kind == what).map_or(what, |(_, words)| *words);
    let rows = lines_of("count: ").map(|(what, times)| (in_words(what).to_owned(), times.to_owned()));
    let rows: Vec<_> = rows.chain(lines_of("worst ms: ").map(|(what, ms)| (format!("worst: {what}, ms"), ms.to_owned()))).collect();
    if rows.is_empty() {
        return Err(TaskFailure::new(format!("the test {TEST} printed no figures")));
    }
    for (what, value) in rows {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "| {what} | {value} |");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_reported_in_the_order_of_the_output() {
        let text =
            table("running 1 test\ncount: Delay: 9\ncount: crashes: 7\nworst ms: taken over after a death: 3000\n", 0, 1_000).unwrap();
        assert!(text.starts_with("Seeds 0 to 999:"), "{text}");
        assert!(
            text.ends_with(
                "|---|---:|\n| late: calls, answers and news | 9 |\n| crashes | 7 |\n| worst: taken over after a death, ms | 3000 |\n"
            ),
            "{text}"
        );
        assert!(table("running 0 tests", 0, 1).is_err());
    }

    #[test]
    fn a_failure_names_the_life_and_repeats_it() {
        let output = "thread panicked at main.rs:\nseed 41: slot 3 has two holders: a and b\nrepeat with: cargo xtask simulate --seeds 1 \
                      --from 41\n";
        let failure = failed(TaskFailure::new("exit code 101"), output).to_string();
        assert_eq!(failure, "seed 41: slot 3 has two holders: a and b; repeat with: cargo xtask simulate --seeds 1 --from 41");
        assert_eq!(failed(TaskFailure::new("exit code 101"), "error: could not compile").to_string(), "exit code 101");
    }
}
