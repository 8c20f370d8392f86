//! Commands that show the live group without joining it.

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

use super::group::PolicyArg;
use super::{load_settings, waiting, waits_for};
use crate::args::Common;
use crate::exit::Result;

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
    #[command(flatten)]
    policy: PolicyArg,
}

impl GroupArgs {
    /// Creates the factory and returns the policy's name.
    fn open(&self, common: &Common) -> Result<(ShardingFactory, String)> {
        let settings = load_settings(common)?;
        let name = self.policy.of(&settings)?;
        Ok((ShardingFactory::from_settings(settings)?, name))
    }

    async fn observe(&self, common: &Common) -> Result<(ShardingFactory, String, Observer)> {
        let (factory, name) = self.open(common)?;
        let observer = waiting(waits_for(&name), factory.observe(&name)).await?;
        Ok((factory, name, observer))
    }
}
