//! `shardwise explain`: explains a key's owner in the live group.

use clap::Args;

use super::{no_owner, note_idle_owner};
use crate::args::Common;
use crate::commands::group::PolicyArg;
use crate::commands::ring;
use crate::exit::{Code, Result};
use crate::output;

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

impl Explain {
    pub(crate) async fn run(&self, common: &Common) -> Result<Code> {
        let (_, policy, observer) = self.group.observe(common).await?;
        let Some(placed) = observer.placed()? else {
            output::note(no_owner(&observer));
            return Ok(Code::No);
        };
        ring::explain::print(&placed, &self.key, common)?;
        if let Some(owner) = observer.owner(self.key.as_str())? {
            note_idle_owner(&owner, &observer.members(), &policy);
        }
        Ok(Code::Ok)
    }
}
