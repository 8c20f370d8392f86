//! `shardwise confirm-loss`: the operator's word that members which have vanished are gone for good.

use clap::Args;
use serde::Serialize;
use shardwise::ShardingFactory;

use super::{block_on, load_settings, waiting, waits_for};
use crate::args::Common;
use crate::exit::{Code, Result};
use crate::output::{self, Format};

/// Say that members which have vanished are gone for good
#[derive(Debug, Args)]
#[command(after_help = "\
With max_loss in the policy, nobody takes over what workers had that vanished, if more of them than
that vanish at once. It is taken over when enough are back, under whatever id. If they are gone for
good, this lets the others take over. Exit code 1: nobody was waiting for it.")]
pub(crate) struct ConfirmLoss {
    /// The policy whose workers wait
    #[arg(long, value_name = "NAME")]
    policy: String,
}

#[derive(Serialize)]
struct ConfirmLossReport<'a> {
    policy: &'a str,
    /// How many members stood still and go on.
    members: usize,
}

impl ConfirmLoss {
    pub(crate) fn run(&self, common: &Common) -> Result<Code> {
        block_on(self.confirm(common))
    }

    async fn confirm(&self, common: &Common) -> Result<Code> {
        let factory = ShardingFactory::from_settings(load_settings(common)?)?;
        let members = waiting(waits_for(&self.policy), factory.confirm_loss(&self.policy)).await?;
        match common.format() {
            Format::Json => output::json_line(&ConfirmLossReport { policy: &self.policy, members })?,
            Format::Human if members == 0 => output::text(&format!("{}: nobody stands still, there is nothing to confirm\n", self.policy))?,
            Format::Human => output::text(&format!("{}: {members} workers take over what the missing ones had\n", self.policy))?,
        }
        Ok(if members == 0 { Code::No } else { Code::Ok })
    }
}
