//! Members that come, go, crash and lose their connections at random, a thousand steps on each backend.

use std::fmt::Write as _;
use std::time::Duration;

use crate::context::TaskContext;
use crate::run::{StepLog, TaskFailure};

/// How many steps make a round in the tests.
const STEPS_AT_ONCE: u32 = 20;
/// For building and for one run of both.
const LIMIT: Duration = Duration::from_mins(25);
/// Package, test file and test; both print the seed that repeats a run, and fail if a member is lost or left behind.
const TESTS: [(&str, &str, &str); 3] = [
    ("shardwise-backend-consul", "churn", "random_steps_lose_no_member_and_leave_none_behind"),
    ("shardwise-backend-consul", "churn", "killed_processes_are_gone_within_ttl_and_margin"),
    ("shardwise-backend-etcd", "load", "no_member_is_lost_and_none_is_made_up_in_a_thousand_changes"),
];

/// Runs each test with `rounds` rounds of twenty steps (the kills: ten in every tenth round).
pub(super) fn run(context: &TaskContext, rounds: u32) -> Result<String, TaskFailure> {
    let log = StepLog::begin(context, "soak")?;
    let mut text = format!(
        "{} random steps on Consul, 1,000 on etcd, and ten SIGKILLs in every tenth round on Consul: nobody lost, nobody left behind.\n",
        rounds * STEPS_AT_ONCE
    );
    for (package, file, test) in TESTS {
        let mut command = context.cargo(&["test", "--release", "--package", package, "--test", file, "--", "--exact", test, "--nocapture"]);
        command.env("SHARDWISE_TEST_ROUNDS", rounds.to_string());
        let output = log.run_for(command, LIMIT)?;
        let lines = output.lines().filter(|line| line.contains("SEED=") || line.contains("kills, TTL"));
        for line in lines {
            // Writing to a String cannot fail.
            let _ = write!(text, "\n- `{package}`: {line}");
        }
    }
    Ok(text + "\n")
}
