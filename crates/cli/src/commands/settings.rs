//! `shardwise settings`: prints the effective settings and the origin of each value.

use clap::Args;
use shardwise::ShardingFactory;
use shardwise::settings::Setting;

use super::load_settings;
use crate::common::Common;
use crate::exit::{Code, Result};
use crate::output::{note, table};

#[derive(Debug, Args)]
pub(crate) struct SettingsArgs {
    /// Also print what each key is for
    #[arg(long)]
    why: bool,
}

impl SettingsArgs {
    pub(crate) fn run(&self, common: &Common) -> Result<Code> {
        let settings = load_settings(common)?;
        if !settings.policies.is_empty() {
            // Finds what every other command and every worker would refuse, such as a backend that this build lacks. Nothing is contacted.
            for unopened in ShardingFactory::from_settings(settings.clone())?.check()? {
                note(format_args!("not checked against its backend, which cannot be opened on this machine: {unopened}"));
            }
        }
        let in_force = settings.in_force();
        common.print(&in_force, || {
            let columns = if self.why { 4 } else { 3 };
            let row = |setting: &Setting| {
                let cells = [setting.key.clone(), setting.value.clone(), setting.origin.to_string(), setting.why.to_owned()];
                cells[..columns].to_vec()
            };
            table(&["key", "value", "from", "why"][..columns], &in_force.iter().map(row).collect::<Vec<_>>())
        })?;
        Ok(Code::Ok)
    }
}
