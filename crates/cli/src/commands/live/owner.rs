//! `shardwise owner`: prints the owner of a key.

use clap::Args;
use serde_json::json;

use super::{no_owner, note_idle_owner};
use crate::args::Common;
use crate::commands::group::PolicyArg;
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

impl Owner {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        let (_, policy, observer) = self.group.observe(common).await?;
        let (owner, view) = (observer.owner(self.key.as_str())?, observer.members());
        let address = owner.as_ref().and_then(|id| view.member(id)).and_then(|member| member.address.as_ref()).map(ToString::to_string);
        match (common.format(), &owner) {
            (Format::Json, _) => {
                let revision = view.revision();
                output::json_line(&json!({"key": self.key, "owner": owner, "address": address, "revision": revision}))?;
            }
            (Format::Human, Some(owner)) => output::text(&format!("{owner}\n"))?,
            (Format::Human, None) => output::note(no_owner(&observer)),
        }
        if let Some(owner) = &owner {
            note_idle_owner(owner, &view, &policy);
        }
        Ok(if owner.is_some() { Code::Ok } else { Code::No })
    }
}
