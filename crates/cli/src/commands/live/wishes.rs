//! `shardwise drain` and `shardwise undrain`: what an operator wants of a member.

use clap::Args;
use serde::Serialize;
use shardwise::InstanceId;

use super::Group;
use crate::args::Common;
use crate::exit::{Code, Failure, Result};
use crate::output::{self, Format};

/// Let a member stay and own nothing, over its restarts too
#[derive(Debug, Args)]
#[command(after_help = "\
The wish is kept in the backend until `shardwise undrain`; the member hears of it within a TTL and
finishes what it has begun. If all members are drained, nobody owns anything. Exit code 1: it was
drained already.

  shardwise drain worker-1 --policy my_custom_workers")]
pub(crate) struct Drain {
    /// The member's instance id
    id: String,
    #[command(flatten)]
    group: Group,
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
    group: Group,
}

#[derive(Serialize)]
struct Told<'a> {
    policy: &'a str,
    instance_id: &'a str,
    drained: bool,
    changed: bool,
}

impl Drain {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        wish(&self.id, &self.group, common, true).await
    }
}

impl Undrain {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        wish(&self.id, &self.group, common, false).await
    }
}

async fn wish(id: &str, group: &Group, common: &Common, drained: bool) -> Result<Code> {
    let instance_id = InstanceId::new(id).map_err(|error| Failure::new(Code::Usage, error.to_string()))?;
    let (factory, policy) = group.open(common)?;
    let changed = if drained { factory.drain(&policy, &instance_id).await? } else { factory.undrain(&policy, &instance_id).await? };
    let words = match (drained, changed) {
        (true, true) => "is drained: it owns nothing within a TTL",
        (true, false) => "is drained already",
        (false, true) => "takes its share again within a TTL",
        (false, false) => "is not drained",
    };
    match common.format() {
        Format::Json => output::json_line(&Told { policy: &policy, instance_id: id, drained, changed })?,
        Format::Human => output::text(&format!("{id} {words}\n"))?,
    }
    Ok(if changed { Code::Ok } else { Code::No })
}
