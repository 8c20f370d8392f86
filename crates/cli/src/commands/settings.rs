//! `shardwise settings`: prints the effective settings and the origin of each value.

use clap::Args;
use shardwise::ShardingFactory;
use shardwise::settings::Setting;

use super::load_settings;
use crate::colour::Colour;
use crate::common::Common;
use crate::exit::{Code, Result};
use crate::output::{note, table};

#[derive(Debug, Args)]
#[command(after_help = "  shardwise settings --why")]
pub(crate) struct SettingsArgs {
    /// Also print what each key is for, on a line below it
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
        common.print(&in_force, || by_section(in_force, self.why))?;
        Ok(Code::Ok)
    }
}

/// The values by section, each with its name, its value and its origin, and with `why` a line below it that says what it is for.
fn by_section(settings: &[Setting], why: bool) -> String {
    let sections = settings.chunk_by(|one, next| path_of(one).0 == path_of(next).0);
    let section = |settings: &[Setting]| {
        let row = |setting: &Setting| vec![path_of(setting).1.to_owned(), setting.value.clone(), setting.origin.to_string()];
        // Without headings its first line is empty.
        let rows = table(&["", "", ""], &settings.iter().map(row).collect::<Vec<_>>());
        let reason = |setting: &Setting| if why { format!("      {}\n", setting.why) } else { String::new() };
        let rows: Vec<_> = rows.lines().skip(1).zip(settings).map(|(row, setting)| format!("  {row}\n{}", reason(setting))).collect();
        let heading = settings.first().map(|setting| format!("[{}]", path_of(setting).0)).unwrap_or_default();
        format!("{}\n{}", Colour::Heading.mark(&heading), rows.concat())
    };
    sections.map(section).collect::<Vec<_>>().join("\n")
}

/// The section of a setting, and its name there.
fn path_of(setting: &Setting) -> (&str, &str) {
    setting.key.rsplit_once('.').unwrap_or(("", setting.key.as_str()))
}
