//! The examples in which a process that was paused is refused, each beside the server that it writes to.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use shardwise_testkit::{Etcd, Postgres};
use tokio::time::timeout;

use crate::context::TaskContext;
use crate::run::TaskFailure;
use crate::servers;

/// For the lease of the paused worker to end, on a busy machine.
const LIMIT: Duration = Duration::from_mins(1);
/// What the examples say at their end, if the first worker was refused and the account shows the payments of both before that.
const LAST_LINE: (&str, &str) = ("first worker:  owns account-42: false; payment refused: ", "second worker: paid 10, 80 are left");

/// Whether the example of that name is one of these.
pub(crate) fn is_paused(example: &str) -> bool {
    example.starts_with("paused_")
}

/// Runs the example of that name beside its server.
pub(crate) fn run(context: &TaskContext, example: &str, binary: &Path) -> Result<(), TaskFailure> {
    servers::drive(async {
        match example {
            "paused_postgres" => {
                let database = Postgres::shared().await.map_err(servers::failed)?.database().await.map_err(servers::failed)?;
                is_refused(context, binary, ("DATABASE_URL", &database.url())).await
            }
            "paused_etcd" => {
                let server = Etcd::single().await.map_err(servers::failed)?;
                is_refused(context, binary, ("ETCD_ENDPOINT", &server.address())).await
            }
            _ => is_refused(context, binary, ("DATABASE_URL", "")).await,
        }
    })
}

async fn is_refused(context: &TaskContext, binary: &Path, (variable, value): (&str, &str)) -> Result<(), TaskFailure> {
    let mut command = tokio::process::Command::from(servers::user(context, &binary.to_string_lossy()));
    command.env(variable, value).stdin(Stdio::null()).kill_on_drop(true);
    let told = timeout(LIMIT, command.output()).await;
    let told = told.map_err(|_| TaskFailure::new(format!("{} has not ended after {} s", binary.display(), LIMIT.as_secs())))?;
    let told = told.map_err(|error| TaskFailure::new(format!("{}: {error}", binary.display())))?;
    let (said, complaint) = (String::from_utf8_lossy(&told.stdout), String::from_utf8_lossy(&told.stderr));
    let (refused, paid) = LAST_LINE;
    let last = said.lines().last().is_some_and(|line| line.starts_with(refused));
    if told.status.success() && last && said.lines().any(|line| line == paid) {
        return Ok(());
    }
    Err(TaskFailure::new(format!("{} ended with {}, and nothing was refused:\n{said}{complaint}", binary.display(), told.status)))
}
