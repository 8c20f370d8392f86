//! `shardwise drain` and `shardwise undrain`.

use clap::Args;
use serde::Serialize;
use shardwise::{InstanceId, ShardingFactory};

use super::GroupArgs;
use crate::args::Common;
use crate::commands::group::meant_by;
use crate::commands::{waiting, waits_for};
use crate::exit::{CliFailure, Code, Result};
use crate::output::{self, Format};

/// Drain a member: it stays registered and owns nothing
#[derive(Debug, Args)]
#[command(after_help = "\
The backend remembers it until `shardwise undrain`, even if the member restarts. The member sees it within a TTL and finishes what it has \
begun. If all members are drained, no key has an owner. Draining a member twice is no error.
Exit code 1: with --wait, it still owns something after two TTLs and drain_timeout.

  shardwise drain worker-1 --wait")]
pub(crate) struct Drain {
    /// Drain the member of this id; `web` finds web-5f3c2a10
    id: String,
    /// Wait until the member owns nothing
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    group: GroupArgs,
}

/// Give a drained member its share again
#[derive(Debug, Args)]
#[command(after_help = "\
It works for a member that is not running, too.
Exit code 1: the member was not drained.

  shardwise undrain worker-1")]
pub(crate) struct Undrain {
    /// Undrain the member of this id; it may be shortened as for drain
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
    /// Whether the member owns nothing by now; `None` if the command did not wait for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    owns_nothing: Option<bool>,
}

impl Drain {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        change(&self.id, &self.group, common, DrainAction::Drain { wait: self.wait }).await
    }
}

impl Undrain {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        change(&self.id, &self.group, common, DrainAction::Undrain).await
    }
}

enum DrainAction {
    Drain { wait: bool },
    Undrain,
}

async fn change(id: &str, group: &GroupArgs, common: &Common, action: DrainAction) -> Result<Code> {
    let given = InstanceId::new(id).map_err(|error| CliFailure::new(Code::Usage, error.to_string()))?;
    let (factory, policy) = group.open(common)?;
    let instance_id = full_id(given, &factory, &policy, &action).await?;
    let (changed, owns_nothing) = match action {
        DrainAction::Drain { wait } => {
            let changed = waiting(waits_for(&policy), factory.drain(&policy, &instance_id)).await?;
            (changed, if wait { Some(factory.wait_until_drained(&policy, &instance_id).await?) } else { None })
        }
        DrainAction::Undrain => (waiting(waits_for(&policy), factory.undrain(&policy, &instance_id)).await?, None),
    };
    let drained = matches!(action, DrainAction::Drain { .. });
    let words = match (drained, changed, owns_nothing) {
        (true, _, Some(true)) => "is drained and owns nothing".to_owned(),
        (true, _, Some(false)) => "was asked to drain and still owns something: check its log and that it is running".to_owned(),
        (true, true, None) => {
            format!("is asked to drain: it reads that within a TTL and finishes its work; see shardwise members --policy {policy}")
        }
        (true, false, None) => format!("was asked to drain before; see shardwise members --policy {policy}"),
        (false, true, _) => "takes its share again within a TTL".to_owned(),
        (false, false, _) => format!("is not drained in policy {policy}"),
    };
    match common.format() {
        Format::Json => {
            output::json_line(&DrainReport { policy: &policy, instance_id: instance_id.as_str(), drained, changed, owns_nothing })?;
        }
        Format::Human => output::text(&format!("{instance_id} {words}\n"))?,
    }
    let is_done = if drained { owns_nothing != Some(false) } else { changed };
    Ok(if is_done { Code::Ok } else { Code::No })
}

/// The id of the one member that is meant. The library reports an id that no member has.
async fn full_id(given: InstanceId, factory: &ShardingFactory, policy: &str, action: &DrainAction) -> Result<InstanceId> {
    let known: Vec<InstanceId> = match action {
        DrainAction::Drain { .. } => {
            let observer = waiting(waits_for(policy), factory.observe(policy)).await?;
            observer.members().members().iter().map(|member| member.instance_id.clone()).collect()
        }
        DrainAction::Undrain => waiting(waits_for(policy), factory.drained(policy)).await?,
    };
    if known.contains(&given) {
        return Ok(given);
    }
    if known.is_empty() && matches!(action, DrainAction::Drain { .. }) {
        let line =
            format!("policy {policy} has no members, so none is called {given}: check that the workers run, or name another --policy");
        return Err(CliFailure::new(Code::Refused, line));
    }
    match &meant_by(given.as_str(), &known)[..] {
        [] => Ok(given),
        [only] => Ok((*only).clone()),
        several => {
            let ids: Vec<_> = several.iter().map(|id| id.as_str()).collect();
            Err(CliFailure::new(Code::Refused, format!("which member? {given} may be any of {}; write one in full", ids.join(", "))))
        }
    }
}
