//! The live group, seen without joining it.

mod explain;
mod members;
mod owner;
mod rebalances;
mod wishes;

pub(crate) use explain::Explain;
pub(crate) use members::Members;
pub(crate) use owner::Owner;
pub(crate) use rebalances::Rebalances;
pub(crate) use wishes::{Drain, Undrain};

use clap::Args;
use shardwise::{Observer, ShardingFactory};

use super::load_settings;
use crate::args::Common;
use crate::exit::{Code, Failure, Result};

/// Which group.
#[derive(Debug, Args)]
struct Group {
    /// The policy of the group; not needed if the settings have only one
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
}

impl Group {
    /// The factory, and the policy's name.
    fn open(&self, common: &Common) -> Result<(ShardingFactory, String)> {
        let factory = ShardingFactory::from_settings(load_settings(common)?)?;
        let names: Vec<_> = factory.policy_names().collect();
        let name = match (&self.policy, &names[..]) {
            (Some(name), _) => name.clone(),
            (None, [only]) => (*only).to_owned(),
            (None, _) => return Err(Failure::new(Code::Usage, format!("--policy is needed: the settings have {}", names.join(", ")))),
        };
        Ok((factory, name))
    }

    async fn observe(&self, common: &Common) -> Result<(ShardingFactory, String, Observer)> {
        let (factory, name) = self.open(common)?;
        let observer = factory.observe(&name).await?;
        Ok((factory, name, observer))
    }
}
