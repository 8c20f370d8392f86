//! `cargo xtask simulate`: the lives of `tests/simulation`, as many as wanted; `cargo xtask simulate-outbox`: those of publishers in
//! `crates/outbox/src/decide/simulation`; and `cargo xtask simulate-silence`: those of observers in `crates/discovery/tests/silence`.

use std::time::Duration;

use crate::context::TaskContext;
use crate::failure::TaskFailure;
use crate::measured::{self, row};
use crate::report::say;
use crate::run::StepLog;

/// From so many lives on the figures are worth keeping.
const WRITTEN_FROM: u64 = 1_000;
const ALLOWANCE: Duration = Duration::from_mins(20);
const LIFE_MAX: Duration = Duration::from_secs(1);

/// A test that lives lives from seeds.
pub(crate) struct Simulation {
    section: &'static str,
    package: &'static [&'static str],
    test: &'static str,
    /// As the tests are built, with every check of arithmetic; but from so many lives on a build with this setting of cargo's is worth its
    /// time.
    optimised: (u64, &'static str),
    /// What was lived, for the reader of the figures.
    what: &'static str,
}

pub(crate) const FLEETS: Simulation = Simulation {
    section: "simulate",
    package: &["--package", "shardwise", "--features", "testing", "--test", "simulation"],
    test: "no_slot_has_two_holders_and_in_the_end_each_has_one",
    optimised: (WRITTEN_FROM, "profile.dev.opt-level=1"),
    what: "the life of a fleet of four to seven workers with 24 slots, one in twenty of up to 16 with 256 slots, under exclusive ownership, \
           the real machine and driver over the memory backend on simulated time, with a TTL of 3 s and clocks up to 1 % off; with and \
           without `version_rule`, `rejoin_grace` and waiting for work that does not end; with two singletons, up to four daemons and a \
           timer; in one of ten the checks of all workers failed at once. No slot and no name had two holders, no period was fired twice, no \
           holder was refused by the fenced table, at least half of the workers stayed active, a restart in good order moved nothing, and \
           each life settled.",
};

pub(crate) const OUTBOX: Simulation = Simulation {
    section: "simulate outbox",
    package: &["--package", "shardwise-outbox", "--all-features", "--lib"],
    test: "decide::simulation::tests::whatever_happens_order_and_fence_hold_and_everything_arrives",
    // One life in five milliseconds instead of two hundred.
    optimised: (0, "profile.dev.package.shardwise-outbox.opt-level=3"),
    what: "the life of three publishers over a model of the store and of up to six destinations, with the real decisions \
           (`crates/outbox/src/decide`) on simulated time and a TTL of 3 s: late and lost answers, calls that are not executed, or only \
           after their caller gave up and asked again, pauses beyond the TTL, kills, refusals, an outage, shardings that disagree. No batch \
           was sent but by its slots' holder, each aggregate's first deliveries were in order and without a gap, memory was bounded, and \
           each life settled.",
};

pub(crate) const SILENCE: Simulation = Simulation {
    section: "simulate silence",
    package: &["--package", "shardwise-discovery", "--test", "silence"],
    test: "living_members_are_not_evicted_and_dead_ones_are",
    optimised: (WRITTEN_FROM, "profile.dev.package.shardwise-discovery.opt-level=3"),
    what: "the life of a group of four to seven members, one in ten of up to 16, each with its own observer \
           (`crates/discovery/src/silence`), over a model of a store that ends no lease, on simulated time with a TTL of 3 s and clocks up \
           to 0.5 % off; in half of them with lists, in the others with events that are pushed: late and lost calls and answers, calls \
           carried out after their caller gave up, stops, kills, cuts in one direction or both, outages of up to three TTLs, lost records, \
           jumps of the store's wall clock. No member was evicted while its lease was valid, or because of an outage of the store alone, \
           no claim had two holders, and each killed member was evicted in time.",
};

/// Kinds of faults of calls and watches, in the words of the table.
const IN_WORDS: [(&str, &str); 8] = [
    ("Delay", "late: calls, answers and news"),
    ("DropEvent", "news kept back"),
    ("ExecuteAfterAnother", "of those carried out after their caller gave up: after it asked again"),
    ("ExecuteLate", "calls carried out after their caller gave up"),
    ("FailAfter", "calls carried out whose answer was lost"),
    ("FailBefore", "calls not carried out"),
    ("FailWatch", "watches that could prove nothing"),
    ("RepeatEvent", "news sent twice"),
];

impl Simulation {
    pub(crate) fn run(&self, context: &TaskContext, seeds: u64, from: u64) -> Result<(), TaskFailure> {
        let log = StepLog::begin(context, &self.section.replace(' ', "-"))?;
        // Before it, because it takes long enough for changes.
        let head = measured::head(context);
        let (optimised_from, setting) = self.optimised;
        let optimised = if seeds >= optimised_from { &["--config", setting][..] } else { &[] };
        let arguments = [&["test"][..], optimised, self.package, &["--", "--exact", self.test, "--nocapture"]].concat();
        let mut command = context.cargo(&arguments);
        command.env("SHARDWISE_SIMULATE_FROM", from.to_string()).env("SHARDWISE_SIMULATE_SEEDS", seeds.to_string());
        let limit = ALLOWANCE + LIFE_MAX * u32::try_from(seeds).unwrap_or(u32::MAX);
        let output = log.quietly(command, limit).map_err(|(failure, output)| failed(failure, &output))?;
        let text = self.table(&output, from, seeds)?;
        say(&text);
        if seeds < WRITTEN_FROM { Ok(()) } else { measured::write(context, self.section, &head, &text) }
    }

    fn table(&self, output: &str, from: u64, seeds: u64) -> Result<String, TaskFailure> {
        let lines_of = |kind| output.lines().filter_map(move |line| line.strip_prefix(kind)?.rsplit_once(": "));
        let in_words = |what| IN_WORDS.iter().find(|(kind, _)| *kind == what).map_or(what, |(_, words)| *words);
        let counts = lines_of("count: ").map(|(what, times)| row([in_words(what), times]));
        let rows: String = counts.chain(lines_of("worst ms: ").map(|(what, ms)| row([&*format!("worst: {what}, ms"), ms]))).collect();
        if rows.is_empty() {
            return Err(TaskFailure::new(format!("the test {} printed no figures", self.test)));
        }
        let last = from + seeds - 1;
        Ok(format!("Seeds {from} to {last}: each {}\n\n| in all lives together | |\n|---|---:|\n{rows}", self.what))
    }
}

/// The failure, with what the test wrote about the life and the command that repeats it.
fn failed(failure: TaskFailure, output: &str) -> TaskFailure {
    let line = |start: &str| output.lines().find(|line| line.starts_with(start));
    match line("repeat with: ").and_then(|line| line.split_once(": ")) {
        Some((_, repeat)) => TaskFailure::new(line("seed ").unwrap_or("a simulated life failed")).repeated_by(repeat.to_owned()),
        None => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_reported_in_the_order_of_the_output() {
        let output = "running 1 test\ncount: Delay: 9\ncount: crashes: 7\nworst ms: taken over after a death: 3000\n";
        let text = FLEETS.table(output, 0, 1_000).unwrap();
        assert!(text.starts_with("Seeds 0 to 999: each the life of a fleet"), "{text}");
        assert!(
            text.ends_with(
                "|---|---:|\n| late: calls, answers and news | 9 |\n| crashes | 7 |\n| worst: taken over after a death, ms | 3000 |\n"
            ),
            "{text}"
        );
        assert!(OUTBOX.table("running 0 tests", 0, 1).is_err());
    }

    #[test]
    fn a_failure_names_the_life_and_repeats_it() {
        let failure = |output: &str| failed(TaskFailure::new("exit code 101"), output).to_string();
        let output = "thread panicked at main.rs:\nseed 41: slot 3 has two holders: a and b\nrepeat with: cargo xtask simulate --seeds 1 \
                      --from 41\n";
        assert_eq!(failure(output), "seed 41: slot 3 has two holders: a and b; repeat with: cargo xtask simulate --seeds 1 --from 41");
        let output = "thread panicked\nrepeat with: SHARDWISE_SEED=7 cargo test -p shardwise-outbox --lib simulation\n";
        assert!(failure(output).contains("; repeat with: SHARDWISE_SEED=7"));
        assert_eq!(failure("error: could not compile"), "exit code 101");
    }
}
