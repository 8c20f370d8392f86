//! `shardwise settings`: prints the effective settings and the origin of each value.

use clap::Args;
use shardwise::ShardingFactory;

use super::load_settings;
use crate::args::Common;
use crate::exit::{Code, Result};
use crate::output::{self, Format};

/// Print the settings in force and where each came from
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
            // Finds errors that every other command would report, such as a backend that this build lacks. Nothing is contacted.
            ShardingFactory::from_settings(settings.clone())?;
        }
        if common.format() == Format::Json {
            output::json_line(&settings.in_force())?;
            return Ok(Code::Ok);
        }
        let row = |setting: &shardwise::settings::Setting| {
            let mut row = vec![setting.key.clone(), setting.value.clone(), setting.origin.to_string()];
            row.extend(self.why.then(|| setting.why.to_owned()));
            row
        };
        let heading = ["key", "value", "from", "why"];
        let rows: Vec<_> = settings.in_force().iter().map(row).collect();
        output::text(&output::table(&heading[..if self.why { 4 } else { 3 }], &rows))?;
        Ok(Code::Ok)
    }
}
