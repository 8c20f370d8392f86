//! `cargo xtask servers`: the real servers that the tests run against, unpacked into `target/servers`.

use std::process::Command;

use shardwise_testkit::servers::{self, SERVERS};

use crate::context::TaskContext;
use crate::failure::TaskFailure;
use crate::report::say;

pub(crate) fn run() -> Result<(), TaskFailure> {
    let fetched = fetch()?;
    for title in SERVERS.iter().map(servers::ServerPackage::title) {
        say(&format!("{title}: {}", if fetched.contains(&title) { "fetched" } else { "was there" }));
    }
    Ok(())
}

pub(crate) fn drive<T>(work: impl Future<Output = Result<T, TaskFailure>>) -> Result<T, TaskFailure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(TaskFailure::at("no runtime"))?.block_on(work)
}

/// A program as a user starts it, without settings that the environment may have for others.
pub(crate) fn user(context: &TaskContext, program: &str) -> Command {
    let mut command = context.command(program, &[]);
    for (name, _) in std::env::vars_os() {
        if ["SHARDWISE_", "CONSUL_"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command
}

/// Fetches what is missing, and answers with its titles.
pub(crate) fn fetch() -> Result<Vec<String>, TaskFailure> {
    let fetched = servers::fetch().map_err(|error| TaskFailure::from(error).repeated_by("cargo xtask servers".into()))?;
    Ok(fetched.iter().map(|server| server.title()).collect())
}
