//! `shardwise end-absence`: the operator's word that a worker which has left for a while will not come back.

use clap::Args;
use serde::Serialize;
use shardwise::{InstanceId, ShardingFactory};

use super::{block_on, load_settings, waiting, waits_for};
use crate::args::Common;
use crate::exit::{CliFailure, Code, Result};
use crate::output::{self, Format};

/// Say that a worker which has left for a while will not come back
#[derive(Debug, Args)]
#[command(after_help = "\
With rejoin_grace in the policy, the slots of a worker that was stopped in good order wait for it.
This ends that before the time is over: the others take over at once. A worker that is not away is
left alone. On Consul, use the agent at which the worker was. Exit code 1: nobody of that name is
there.")]
pub(crate) struct EndAbsence {
    /// The policy of the worker
    #[arg(long, value_name = "NAME")]
    policy: String,
    /// The worker's instance.id
    #[arg(value_name = "ID")]
    instance_id: String,
}

#[derive(Serialize)]
struct EndAbsenceReport<'a> {
    policy: &'a str,
    instance_id: &'a str,
    /// Whether somebody of that name was there.
    ended: bool,
}

impl EndAbsence {
    pub(crate) fn run(&self, common: &Common) -> Result<Code> {
        block_on(self.end(common))
    }

    async fn end(&self, common: &Common) -> Result<Code> {
        let Self { policy, instance_id } = self;
        let id = InstanceId::new(instance_id).map_err(|error| CliFailure::new(Code::Usage, format!("{instance_id:?}: {error}")))?;
        let factory = ShardingFactory::from_settings(load_settings(common)?)?;
        let ended = waiting(waits_for(policy), factory.end_absence(policy, &id)).await?;
        match common.format() {
            Format::Json => output::json_line(&EndAbsenceReport { policy, instance_id, ended })?,
            Format::Human if ended => output::text(&format!("{policy}: the others take over what was {id}'s\n"))?,
            Format::Human => output::text(&format!("{policy}: nobody called {id} is there\n"))?,
        }
        Ok(if ended { Code::Ok } else { Code::No })
    }
}
