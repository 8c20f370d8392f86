//! Members that come, go, crash and lose their connections at random, a thousand steps on each backend.

use std::time::Duration;

use super::{SoakReport, SoakRun};
use crate::failure::TaskFailure;

/// How many steps make a round in the tests.
const STEPS_AT_ONCE: u32 = 20;
/// For building and for one run of each.
const LIMIT: Duration = Duration::from_mins(25);
/// In which a renewal and two evictions of one beat race on NATS.
const RACES: u32 = 10_000;
/// Package, target and test; they print the seed that repeats a run, and fail if a member is lost or left behind.
const TESTS: [(&str, &str, &str); 7] = [
    ("shardwise-backend-consul", "--test churn", "random_steps_lose_no_member_and_leave_none_behind"),
    ("shardwise-backend-consul", "--test churn", "killed_processes_are_gone_within_ttl_and_margin"),
    ("shardwise-backend-etcd", "--test load", "no_member_is_lost_and_none_is_made_up_in_a_thousand_changes"),
    ("shardwise-backend-postgres", "--test churn", "no_member_is_lost_and_none_is_made_up_in_a_thousand_changes"),
    ("shardwise-backend-nats", "--test churn", "nobody_is_lost_and_nobody_is_a_phantom"),
    ("shardwise-backend-valkey", "--test churn", "no_member_is_lost_and_none_is_made_up_in_a_thousand_changes"),
    ("shardwise-backend-nats", "--lib", "race_tests::of_a_renewal_and_two_evictions_one_wins"),
];

/// Runs each test with rounds of twenty steps (the kills: ten in every tenth round).
pub(super) fn run(soak: &SoakRun<'_>) -> Result<SoakReport, TaskFailure> {
    let steps = soak.runs * STEPS_AT_ONCE;
    let mut text = format!(
        "{steps} random steps on Consul and NATS, 1,000 on the others, and ten SIGKILLs in every tenth round on Consul: none lost, none left \
         behind. On NATS a renewal and two evictions of one beat raced {RACES} times: one of them won each time.\n"
    );
    for (package, target, test) in TESTS {
        let mut command = soak.tests(&format!("{package} {target} -- --exact {test} --nocapture"));
        command.env("SHARDWISE_TEST_ROUNDS", soak.runs.to_string()).env("SHARDWISE_CHURN", steps.to_string());
        command.env("SHARDWISE_RACES", RACES.to_string());
        let output = soak.log.run_for(command, LIMIT)?;
        for line in output.lines().filter(|line| ["SEED=", "kills, TTL", "renewed "].iter().any(|part| line.contains(part))) {
            text.extend(["\n- `", package, "`: ", line]);
        }
    }
    Ok(SoakReport { text: text + "\n", short: Vec::new() })
}
