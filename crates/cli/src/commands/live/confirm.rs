//! `shardwise confirm-loss` and `shardwise end-absence`: the operator confirms that members are gone for good.

use clap::Args;
use serde_json::json;
use shardwise::InstanceId;

use crate::commands::group::PolicyArg;
use crate::commands::{IS_IT_THERE, waiting, waits_for};
use crate::common::Common;
use crate::exit::{CliFailure, Code, Result};
use crate::output::count;

#[derive(Debug, Args)]
#[command(after_help = "\
If more members vanish at once than the policy's max_loss allows, the others do not take over their slots. They wait until enough members \
are back, under any id, or until this command confirms the loss.
Exit code 1: no member is waiting for confirmation.

  shardwise confirm-loss")]
pub(crate) struct ConfirmLoss {
    #[command(flatten)]
    group: PolicyArg,
}

#[derive(Debug, Args)]
#[command(after_help = "\
With rejoin_grace in the policy, the slots of a worker that was stopped gracefully wait for it. This command ends the wait early and \
frees the slots: the others take them at once, unless fewer than min_members are active. A worker that is not away is not touched. On \
Consul, use the agent at which the worker was registered.
Exit code 1: no member has that id.

  shardwise end-absence worker-1")]
pub(crate) struct EndAbsence {
    #[command(flatten)]
    group: PolicyArg,
    /// End the absence of the worker with this instance.id
    #[arg(value_name = "ID")]
    instance_id: String,
}

impl ConfirmLoss {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        let (factory, policy) = self.group.open(common)?;
        // How many members waited for this and now continue.
        let members = waiting(&waits_for(&factory, &policy), IS_IT_THERE, factory.confirm_loss(&policy)).await?;
        common.print(&json!({"policy": policy, "members": members}), || match members as u64 {
            0 => format!("{policy}: no member is waiting for confirmation\n"),
            waited => format!("{policy}: confirmed; {} may take over what the missing ones had\n", count(waited, "member")),
        })?;
        Ok(if members == 0 { Code::No } else { Code::Ok })
    }
}

impl EndAbsence {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        let given = &self.instance_id;
        let id = InstanceId::new(given).map_err(|error| CliFailure::usage(format!("{given:?}: {error}")))?;
        let (factory, policy) = self.group.open(common)?;
        let ended = waiting(&waits_for(&factory, &policy), IS_IT_THERE, factory.end_absence(&policy, &id)).await?;
        common.print(&json!({"policy": policy, "instance_id": given, "ended": ended}), || {
            if ended {
                // Below min_members no member takes them.
                format!("{policy}: {id} is removed; its slots are free for the others\n")
            } else {
                format!("{policy}: no member is called {id}\n")
            }
        })?;
        Ok(if ended { Code::Ok } else { Code::No })
    }
}
