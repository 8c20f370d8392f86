//! `shardwise confirm-loss`: the operator confirms that vanished members are gone for good.

use clap::Args;
use serde::Serialize;
use shardwise::ShardingFactory;

use super::group::PolicyArg;
use super::{block_on, load_settings, waiting, waits_for};
use crate::args::Common;
use crate::exit::{Code, Result};
use crate::output::{self, Format, count};

/// Confirm that members which have vanished are gone for good
#[derive(Debug, Args)]
#[command(after_help = "\
If more members vanish at once than the policy's max_loss allows, the others do not take over their slots. They wait until enough members \
are back, under any id, or until this command confirms the loss.
Exit code 1: no member was waiting for it.

  shardwise confirm-loss")]
pub(crate) struct ConfirmLoss {
    #[command(flatten)]
    policy: PolicyArg,
}

#[derive(Serialize)]
struct ConfirmLossReport<'a> {
    policy: &'a str,
    /// How many members waited for this confirmation and now continue.
    members: usize,
}

impl ConfirmLoss {
    pub(crate) fn run(&self, common: &Common) -> Result<Code> {
        block_on(self.confirm(common))
    }

    async fn confirm(&self, common: &Common) -> Result<Code> {
        let settings = load_settings(common)?;
        let policy = self.policy.of(&settings)?;
        let factory = ShardingFactory::from_settings(settings)?;
        let members = waiting(waits_for(&policy), factory.confirm_loss(&policy)).await?;
        match common.format() {
            Format::Json => output::json_line(&ConfirmLossReport { policy: &policy, members })?,
            Format::Human if members == 0 => output::text(&format!("{policy}: no member is waiting for confirmation\n"))?,
            Format::Human => output::text(&format!(
                "{policy}: confirmed; {} may take over what the missing ones had\n",
                count(members as u64, "member")
            ))?,
        }
        Ok(if members == 0 { Code::No } else { Code::Ok })
    }
}
