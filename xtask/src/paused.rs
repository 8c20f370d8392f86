//! The examples of a paused process that is refused, and of orders with their events, each beside the server that it writes to.

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
/// The example whose orders and events are counted; in the others a paused worker is refused.
const ORDERS: &str = "orders_postgres";
/// A line of its output, and how its last line begins.
const ORDERS_SAY: (&str, &str) = ("10 orders placed, 20 events booked, each once", "10 orders placed, 20 events booked, each once");
/// The same of the others: the account has the payments of both workers from before the first one was refused.
const PAUSED_SAY: (&str, &str) = ("second worker: paid 10, 80 are left", "first worker:  owns account-42: false; payment refused: ");

/// Whether the example of that name is one of these.
pub(crate) fn is_paused(example: &str) -> bool {
    example == ORDERS || example.starts_with("paused_")
}

/// Runs the example of that name beside its server.
pub(crate) fn run(context: &TaskContext, example: &str, binary: &Path) -> Result<(), TaskFailure> {
    servers::drive(async {
        match example {
            ORDERS | "paused_postgres" => {
                let database = Postgres::shared().await.map_err(servers::failed)?.database().await.map_err(servers::failed)?;
                let lines = if example == ORDERS { ORDERS_SAY } else { PAUSED_SAY };
                says(context, binary, ("DATABASE_URL", &database.url()), lines).await
            }
            "paused_etcd" => {
                let server = Etcd::single().await.map_err(servers::failed)?;
                says(context, binary, ("ETCD_ENDPOINT", &server.address()), PAUSED_SAY).await
            }
            _ => says(context, binary, ("DATABASE_URL", ""), PAUSED_SAY).await,
        }
    })
}

/// Runs the example, which must succeed, write that line, and end with one that begins like that.
async fn says(
    context: &TaskContext,
    binary: &Path,
    (variable, value): (&str, &str),
    (line, last): (&str, &str),
) -> Result<(), TaskFailure> {
    let mut command = tokio::process::Command::from(servers::user(context, &binary.to_string_lossy()));
    command.env(variable, value).stdin(Stdio::null()).kill_on_drop(true);
    let failed = |why: String| TaskFailure::new(format!("{} {why}", binary.display()));
    let output = timeout(LIMIT, command.output()).await;
    let output = output.map_err(|_| failed(format!("has not ended after {} s", LIMIT.as_secs())))?;
    let output = output.map_err(|error| failed(format!("cannot be run: {error}")))?;
    let (said, complaint) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let ended_so = said.lines().last().is_some_and(|said| said.starts_with(last));
    if output.status.success() && ended_so && said.lines().any(|said| said == line) {
        return Ok(());
    }
    Err(failed(format!("ended with {} instead of success with the lines {line:?} and, last, {last:?}:\n{said}{complaint}", output.status)))
}
