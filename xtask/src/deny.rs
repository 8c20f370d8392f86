//! What may come into the dependency tree: `deny.toml`, held by cargo-deny.

use std::process::Command;
use std::time::Duration;

use crate::failure::TaskFailure;
use crate::pass::StepPass;
use crate::run::StepLog;
use crate::tools::InstalledTool;

const CARGO_DENY: InstalledTool = InstalledTool { name: "cargo-deny", version: "0.20.2", arguments: &[] };
/// Set to `required`, it makes a failure of what cannot be checked.
const REQUIRED: &str = "SHARDWISE_ADVISORIES";
/// Fetching the advisory database takes seconds; a network that swallows packets must not hold the run up.
const FETCH_LIMIT: Duration = Duration::from_secs(30);

pub(crate) fn check(log: &StepLog<'_>) -> Result<StepPass, TaskFailure> {
    let tool = CARGO_DENY.path(log)?;
    log.run(deny(log, &tool, &["check", "bans", "licenses", "sources"]))?;
    Ok(StepPass::many(1))
}

/// Checked where the database can be had; where not, the run ends with a line that says so, because a closed network is no fault of the
/// tree, unless that is made a failure.
pub(crate) fn advisories(log: &StepLog<'_>) -> Result<StepPass, TaskFailure> {
    let tool = CARGO_DENY.path(log)?;
    let mut fetch = deny(log, &tool, &["fetch", "db"]);
    fetch.env("GIT_TERMINAL_PROMPT", "0");
    if log.quietly(fetch, FETCH_LIMIT).is_err() {
        return unfetched(std::env::var(REQUIRED).ok().as_deref());
    }
    log.run(deny(log, &tool, &["check", "--disable-fetch", "advisories"]))?;
    Ok(StepPass::many(1))
}

/// A run that could not look is no run that found nothing.
fn unfetched(wanted: Option<&str>) -> Result<StepPass, TaskFailure> {
    let why = "the advisory database cannot be fetched from here";
    match wanted {
        Some("required") => Err(TaskFailure::new(format!("{why}, and {REQUIRED} is required"))),
        _ => Ok(StepPass::not_checked(format!("{why}; with {REQUIRED}=required that is a failure"))),
    }
}

fn deny(log: &StepLog<'_>, tool: &str, arguments: &[&str]) -> Command {
    let scope = ["--workspace", "--all-features", "--locked", "--color", "never"];
    log.context.command(tool, &[&scope, arguments].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_looked_up_is_reported_and_fails_where_it_is_required() {
        let passed = unfetched(None).unwrap();
        assert!(passed.checks == 0 && passed.not_checked.is_some_and(|why| why.contains("SHARDWISE_ADVISORIES=required")));
        assert!(unfetched(Some("wanted")).is_ok());
        let failure = unfetched(Some("required")).map(|_| ()).unwrap_err();
        assert!(failure.failed == 1 && failure.to_string().contains("cannot be fetched"), "{failure}");
    }
}
