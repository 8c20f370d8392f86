//! `shardwise owner` and `shardwise explain`: a key's owner in the live group, and why.

use clap::Args;
use serde_json::json;
use shardwise::{InstanceId, MemberState, Observer, ShardingFactory, View};

use crate::args::Common;
use crate::commands::group::PolicyArg;
use crate::commands::ring;
use crate::exit::{Code, Result};
use crate::output::{self, Format};

#[derive(Debug, Args)]
#[command(after_help = "\
By the newest view of the group. Under exclusive ownership another member may hold the slot for a moment longer. A note on stderr says if \
the owner has vanished or is away, so that no member works on the key.
Exit code 1: the key has no owner.

  shardwise owner tenant-7")]
pub(crate) struct Owner {
    /// Look up this key
    key: String,
    #[command(flatten)]
    group: PolicyArg,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The same as `ring explain`, with the members and the placement of the live group.
Exit code 1: the key has no owner.

  shardwise explain tenant-7")]
pub(crate) struct Explain {
    /// Explain the owner of this key
    key: String,
    #[command(flatten)]
    group: PolicyArg,
}

impl Owner {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        let (factory, policy, observer) = self.group.observe(common).await?;
        let (owner, view) = (observer.owner(self.key.as_str())?, observer.members());
        let address = owner.as_ref().and_then(|id| view.member(id)).and_then(|member| member.address.as_ref()).map(ToString::to_string);
        match (common.format(), &owner) {
            (Format::Json, _) => {
                let revision = view.revision();
                output::json_line(&json!({"key": self.key, "owner": owner, "address": address, "revision": revision}))?;
            }
            (Format::Human, Some(owner)) => output::text(&format!("{owner}\n"))?,
            (Format::Human, None) => {}
        }
        match &owner {
            Some(owner) => note_idle_owner(owner, &view, &policy),
            None => output::note(no_owner(&factory, &policy, &observer).await),
        }
        Ok(if owner.is_some() { Code::Ok } else { Code::No })
    }
}

impl Explain {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        let (factory, policy, observer) = self.group.observe(common).await?;
        let Some(placed) = observer.placed()? else {
            output::note(no_owner(&factory, &policy, &observer).await);
            return Ok(Code::No);
        };
        ring::explain::print(&placed, &self.key, common)?;
        if let Some(owner) = observer.owner(self.key.as_str())? {
            note_idle_owner(&owner, &observer.members(), &policy);
        }
        Ok(Code::Ok)
    }
}

/// Why no key has an owner. In a view, drained members look like leaving ones, so the backend is asked who is drained.
async fn no_owner(factory: &ShardingFactory, policy: &str, observer: &Observer) -> String {
    let (view, needed) = (observer.members(), observer.policy().min_members);
    if view.all_draining() {
        let drained = factory.drained(policy).await.unwrap_or_default();
        if let Some(id) = drained.iter().find(|id| view.member(id).is_some()) {
            return format!("no owner: all members are drained; to undo it: shardwise undrain {id} --policy {policy}");
        }
    }
    match view.active() {
        0 => format!("no owner: active members: none; {needed} needed (min_members)"),
        active => format!("no owner: active members: {active}; {needed} needed (min_members)"),
    }
}

/// Notes on stderr that no member works on the keys of this owner, if that is so.
fn note_idle_owner(owner: &InstanceId, view: &View, policy: &str) {
    match view.member(owner).map(|member| member.state) {
        None => output::note(format_args!(
            "shardwise: {owner} has vanished, and because of max_loss no member takes over its keys: see shardwise members --policy {policy}"
        )),
        Some(MemberState::Away) => output::note(format_args!(
            "shardwise: {owner} is away, and no member works on its keys until it is back or rejoin_grace ends. If it does not come back: \
             shardwise end-absence {owner} --policy {policy}"
        )),
        Some(_) => {}
    }
}
