//! `shardwise drain` and `shardwise undrain`: what an operator wants of a member.

use clap::Args;
use serde::Serialize;
use shardwise::InstanceId;

use super::GroupArgs;
use crate::args::Common;
use crate::commands::{waiting, waits_for};
use crate::exit::{CliFailure, Code, Result};
use crate::output::{self, Format};

/// Let a member stay and own nothing, over its restarts too
#[derive(Debug, Args)]
#[command(after_help = "\
The wish is kept in the backend until `shardwise undrain`; the member hears of it within a TTL and
finishes what it has begun. If all members are drained, nobody owns anything. Draining a member twice
is no error. Exit code 1: with --wait, it still owns something after two TTLs and drain_timeout.

  shardwise drain worker-1 --policy my_custom_workers --wait")]
pub(crate) struct Drain {
    /// The member's instance id
    id: String,
    /// Wait until it owns nothing
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    group: GroupArgs,
}

/// Let a drained member take its share again
#[derive(Debug, Args)]
#[command(after_help = "\
Also of a member that is not there. Exit code 1: it was not drained.

  shardwise undrain worker-1 --policy my_custom_workers")]
pub(crate) struct Undrain {
    /// The member's instance id
    id: String,
    #[command(flatten)]
    group: GroupArgs,
}

#[derive(Serialize)]
struct DrainReport<'a> {
    policy: &'a str,
    instance_id: &'a str,
    drained: bool,
    changed: bool,
    /// Whether it owns nothing by now; `None` where that was not waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    owns_nothing: Option<bool>,
}

impl Drain {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        wish(&self.id, &self.group, common, DrainAction::Drain { wait: self.wait }).await
    }
}

impl Undrain {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        wish(&self.id, &self.group, common, DrainAction::Undrain).await
    }
}

/// What is wanted of the member.
enum DrainAction {
    Drain { wait: bool },
    Undrain,
}

async fn wish(id: &str, group: &GroupArgs, common: &Common, wish: DrainAction) -> Result<Code> {
    let instance_id = InstanceId::new(id).map_err(|error| CliFailure::new(Code::Usage, error.to_string()))?;
    let (factory, policy) = group.open(common)?;
    let (changed, owns_nothing) = match wish {
        DrainAction::Drain { wait } => {
            let changed = waiting(waits_for(&policy), factory.drain(&policy, &instance_id)).await?;
            (changed, if wait { Some(factory.wait_until_drained(&policy, &instance_id).await?) } else { None })
        }
        DrainAction::Undrain => (waiting(waits_for(&policy), factory.undrain(&policy, &instance_id)).await?, None),
    };
    let drained = matches!(wish, DrainAction::Drain { .. });
    let words = match (drained, changed, owns_nothing) {
        (true, _, Some(true)) => "is drained and owns nothing",
        (true, _, Some(false)) => "was asked to drain and still owns something: check its log and that it is running",
        (true, true, None) => "is drained: it owns nothing within a TTL",
        (true, false, None) => "was asked to drain before; `shardwise members` shows whether it has",
        (false, true, _) => "takes its share again within a TTL",
        (false, false, _) => "is not drained",
    };
    match common.format() {
        Format::Json => output::json_line(&DrainReport { policy: &policy, instance_id: id, drained, changed, owns_nothing })?,
        Format::Human => output::text(&format!("{instance_id} {words}\n"))?,
    }
    let is_done = if drained { owns_nothing != Some(false) } else { changed };
    Ok(if is_done { Code::Ok } else { Code::No })
}
