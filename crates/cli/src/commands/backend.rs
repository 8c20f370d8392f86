//! `shardwise backend`: prepares the place where workers meet, and leaves it for another one.

use clap::{Args, Subcommand};
use serde_json::json;
use shardwise::core::ClaimStore;

use super::group::PolicyArg;
use super::{IS_IT_THERE, waiting, waits_for};
use crate::common::Common;
use crate::exit::{CliFailure, Code, Result};

/// How far the floor is above the epoch that was taken: for years the epochs of a worker that runs on the old backend by mistake stay below
/// it, although a backend may count every write of all its users.
const FLOOR_AHEAD: u64 = 1_000_000_000_000;

#[derive(Debug, Subcommand)]
pub(crate) enum BackendCommand {
    /// Create the backend's tables or bucket, or bring them up to date
    #[command(after_help = "\
The backend postgres needs this once for each database and schema, and nats where workers may not create their bucket. The user needs the \
right to create tables, or a stream; workers need less: see the backend's page. Does nothing if everything is there, and workers may run \
meanwhile.

  shardwise backend init")]
    Init(InitBackendArgs),
    /// Print the `epoch_floor` with which workers go on in another backend
    #[command(after_help = "\
For moving a group with exclusive ownership. Stop all its workers, run this with the settings of the old backend, and write the line that it \
prints into the policy before any worker starts on the new one. Then your database accepts the new owners and refuses the old ones.
The command joins the group for a moment without a share and takes one epoch, which is above all that were granted before. The printed floor \
is far above it, because a worker that is started on the old backend by mistake goes on counting there.
Exit code 4: the group has members.

  shardwise backend epoch --settings old.toml")]
    Epoch(BackendEpochArgs),
}

impl BackendCommand {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        match self {
            Self::Init(args) => args.run(common).await,
            Self::Epoch(args) => args.run(common).await,
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

#[derive(Debug, Args)]
pub(crate) struct BackendEpochArgs {
    #[command(flatten)]
    policy: PolicyArg,
}

impl BackendEpochArgs {
    async fn run(&self, common: &Common) -> Result<Code> {
        let (factory, policy) = self.policy.open(common)?;
        let epoch = waiting(&waits_for(&factory, &policy), IS_IT_THERE, factory.take_epoch(&policy)).await?.get();
        let floor = floor_above(epoch).ok_or_else(|| {
            let max = ClaimStore::FLOOR_MAX;
            let why = format!("policy {policy}: epoch {epoch} is above the highest epoch_floor, {max}: keep this backend");
            CliFailure::new(Code::Refused, why)
        })?;
        common.print(&json!({ "policy": policy, "epoch": epoch, "epoch_floor": floor }), || {
            format!("{policy}: every epoch granted before is below {epoch}; for another backend write:\nepoch_floor = {floor}\n")
        })?;
        Ok(Code::Ok)
    }
}

/// The floor for the next backend; `None` if no floor is above the epoch.
fn floor_above(epoch: u64) -> Option<u64> {
    (epoch <= ClaimStore::FLOOR_MAX).then(|| epoch.saturating_add(FLOOR_AHEAD).min(ClaimStore::FLOOR_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_is_never_below_the_epoch_and_always_allowed() {
        assert_eq!(floor_above(7), Some(FLOOR_AHEAD + 7));
        assert_eq!(floor_above(ClaimStore::FLOOR_MAX - 7), Some(ClaimStore::FLOOR_MAX));
        assert_eq!(floor_above(ClaimStore::FLOOR_MAX + 1), None);
    }
}
