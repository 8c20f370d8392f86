//! The live group, seen without joining it.

mod drain;
mod explain;
mod members;
mod owner;
mod rebalances;

pub(crate) use drain::{Drain, Undrain};
pub(crate) use explain::Explain;
pub(crate) use members::Members;
pub(crate) use owner::Owner;
pub(crate) use rebalances::RebalancesArgs;

use clap::Args;
use shardwise::{Observer, ShardingFactory};

use super::{load_settings, waiting, waits_for};
use crate::args::Common;
use crate::exit::{CliFailure, Code, Result};

/// Why a key has no owner.
fn nobody_owns(observer: &Observer) -> String {
    let needed = observer.policy().min_members;
    match observer.members().active() {
        0 => format!("nobody owns it: active members: none; {needed} needed (min_members)"),
        active => format!("nobody owns it: active members: {active}; {needed} needed (min_members)"),
    }
}

/// Which group.
#[derive(Debug, Args)]
struct GroupArgs {
    /// The policy of the group; not needed if the settings have only one
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
}

impl GroupArgs {
    /// The factory, and the policy's name.
    fn open(&self, common: &Common) -> Result<(ShardingFactory, String)> {
        let factory = ShardingFactory::from_settings(load_settings(common)?)?;
        let names: Vec<_> = factory.policy_names().collect();
        let name = match (&self.policy, &names[..]) {
            (Some(name), _) => name.clone(),
            (None, [only]) => (*only).to_owned(),
            (None, _) => return Err(CliFailure::new(Code::Usage, format!("--policy is needed: the settings have {}", names.join(", ")))),
        };
        Ok((factory, name))
    }

    async fn observe(&self, common: &Common) -> Result<(ShardingFactory, String, Observer)> {
        let (factory, name) = self.open(common)?;
        let observer = waiting(waits_for(&name), factory.observe(&name)).await?;
        Ok((factory, name, observer))
    }
}
