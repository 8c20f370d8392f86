//! `shardwise end-absence`: the operator confirms that a worker which has left for a while will not return.

use clap::Args;
use serde::Serialize;
use shardwise::{InstanceId, ShardingFactory};

use super::group::PolicyArg;
use super::{block_on, load_settings, waiting, waits_for};
use crate::args::Common;
use crate::exit::{CliFailure, Code, Result};
use crate::output::{self, Format};

/// Confirm that a worker which has left for a while will not return
#[derive(Debug, Args)]
#[command(after_help = "\
With rejoin_grace in the policy, the slots of a worker that was stopped in good order wait for it. This command ends the wait early, and the \
others take over at once. A worker that is not away is not touched. On Consul, use the agent at which the worker was registered.
Exit code 1: no member has that id.

  shardwise end-absence worker-1")]
pub(crate) struct EndAbsence {
    #[command(flatten)]
    policy: PolicyArg,
    /// End the absence of the worker with this instance.id
    #[arg(value_name = "ID")]
    instance_id: String,
}

#[derive(Serialize)]
struct EndAbsenceReport<'a> {
    policy: &'a str,
    instance_id: &'a str,
    /// Whether such an absence existed.
    ended: bool,
}

impl EndAbsence {
    pub(crate) fn run(&self, common: &Common) -> Result<Code> {
        block_on(self.end(common))
    }

    async fn end(&self, common: &Common) -> Result<Code> {
        let instance_id = &self.instance_id;
        let id = InstanceId::new(instance_id).map_err(|error| CliFailure::new(Code::Usage, format!("{instance_id:?}: {error}")))?;
        let settings = load_settings(common)?;
        let policy = &self.policy.of(&settings)?;
        let factory = ShardingFactory::from_settings(settings)?;
        let ended = waiting(waits_for(policy), factory.end_absence(policy, &id)).await?;
        match common.format() {
            Format::Json => output::json_line(&EndAbsenceReport { policy, instance_id, ended })?,
            Format::Human if ended => output::text(&format!("{policy}: the others take over what {id} held\n"))?,
            Format::Human => output::text(&format!("{policy}: no member is called {id}\n"))?,
        }
        Ok(if ended { Code::Ok } else { Code::No })
    }
}
