//! `shardwise backend`: prepares the place where workers meet.

use clap::{Args, Subcommand};
use serde_json::json;

use super::group::PolicyArg;
use super::{IS_IT_THERE, waiting, waits_for};
use crate::args::Common;
use crate::exit::{Code, Result};

#[derive(Debug, Subcommand)]
pub(crate) enum BackendCommand {
    /// Create the backend's tables or bucket, or bring them up to date
    #[command(after_help = "\
The backend postgres needs this once for each database and schema, and nats where workers may not create their bucket. The user needs the \
right to create tables, or a stream; workers need less: see the backend's page. Does nothing if everything is there, and workers may run \
meanwhile.

  shardwise backend init")]
    Init(InitBackendArgs),
}

impl BackendCommand {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        match self {
            Self::Init(args) => args.run(common).await,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct InitBackendArgs {
    #[command(flatten)]
    policy: PolicyArg,
}

impl InitBackendArgs {
    async fn run(&self, common: &Common) -> Result<Code> {
        let (factory, policy) = self.policy.open(common)?;
        let done = waiting(&waits_for(&factory, &policy), IS_IT_THERE, factory.init_backend(&policy)).await?;
        common.print(&json!({ "policy": policy, "done": done }), || format!("{done}\n"))?;
        Ok(Code::Ok)
    }
}
