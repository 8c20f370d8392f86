//! `shardwise completions` and `shardwise man`, generated from the definition of the command line.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Command};
use clap_complete::Shell;

use crate::common::Common;
use crate::exit::{CliFailure, Code, Result};
use crate::output;

#[derive(Debug, ClapArgs)]
#[command(after_help = "  source <(shardwise completions bash)")]
pub(crate) struct Completions {
    /// Complete for this shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

#[derive(Debug, ClapArgs)]
#[command(after_help = "  shardwise man | man -l -\n  shardwise man --out ~/.local/share/man/man1")]
pub(crate) struct Man {
    /// Write the pages of all commands into this folder, created if missing
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

impl Completions {
    pub(crate) fn run(&self, common: &Common, mut root: Command) -> Result<Code> {
        common.without_settings("completions are the same everywhere")?;
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut root, "shardwise", &mut text);
        output::text(&String::from_utf8_lossy(&text))?;
        Ok(Code::Ok)
    }
}

impl Man {
    pub(crate) fn run(&self, common: &Common, root: Command) -> Result<Code> {
        common.without_settings("the manual is the same everywhere")?;
        if let Some(folder) = &self.out {
            let failed = |error: std::io::Error| CliFailure::io(format_args!("write into {}", folder.display()), &error);
            std::fs::create_dir_all(folder).map_err(failed)?;
            clap_mangen::generate_to(root, folder).map_err(failed)?;
            return Ok(Code::Ok);
        }
        let mut text = Vec::new();
        let rendered = clap_mangen::Man::new(root).render(&mut text);
        rendered.map_err(|error| CliFailure::io("write the manual", &error))?;
        output::text(&String::from_utf8_lossy(&text))?;
        Ok(Code::Ok)
    }
}
