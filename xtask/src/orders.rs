//! The example `orders_postgres`, beside a server of its own.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use shardwise_testkit::Postgres;
use tokio::time::timeout;

use crate::context::TaskContext;
use crate::run::TaskFailure;
use crate::servers;

const LIMIT: Duration = Duration::from_mins(1);
const LAST_LINE: &str = "10 orders placed, 20 events booked, each once";

/// Whether the example of that name is the one.
pub(crate) fn is_orders(example: &str) -> bool {
    example == "orders_postgres"
}

/// Runs it.
pub(crate) fn run(context: &TaskContext, binary: &Path) -> Result<(), TaskFailure> {
    servers::drive(async {
        let database = Postgres::shared().await.map_err(servers::failed)?.database().await.map_err(servers::failed)?;
        let mut command = tokio::process::Command::from(servers::user(context, &binary.to_string_lossy()));
        command.env("DATABASE_URL", database.url()).stdin(Stdio::null()).kill_on_drop(true);
        let told = timeout(LIMIT, command.output()).await;
        let told = told.map_err(|_| TaskFailure::new(format!("{} has not ended after {} s", binary.display(), LIMIT.as_secs())))?;
        let told = told.map_err(|error| TaskFailure::new(format!("{}: {error}", binary.display())))?;
        let (said, complaint) = (String::from_utf8_lossy(&told.stdout), String::from_utf8_lossy(&told.stderr));
        if told.status.success() && said.lines().last() == Some(LAST_LINE) {
            return Ok(());
        }
        Err(TaskFailure::new(format!("{} ended with {}, and not with \"{LAST_LINE}\":\n{said}{complaint}", binary.display(), told.status)))
    })
}
