//! What every command understands.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use serde::Serialize;

use crate::exit::{CliFailure, Result};
use crate::output::{self, Format};

const SETTINGS_HELP: &str = "The settings file [default: $SHARDWISE_SETTINGS, else settings.toml]";

/// What every command understands.
#[derive(Debug, Clone, ClapArgs)]
pub(crate) struct Common {
    // Without the backticks that a doc comment would need.
    #[arg(long, global = true, value_name = "FILE", display_order = 100, help = SETTINGS_HELP)]
    pub(crate) settings: Option<PathBuf>,
    /// Print results for people or as JSON
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT", display_order = 101)]
    pub(crate) output: Format,
    /// Print JSON: short for --output json
    #[arg(long, global = true, display_order = 102)]
    pub(crate) json: bool,
}

impl Common {
    /// Fails if a settings file was named for a command that reads none, because it would be ignored silently.
    pub(crate) fn without_settings(&self, instead: &str) -> Result<()> {
        match &self.settings {
            Some(_) => Err(CliFailure::usage(format!("--settings has no use here: {instead}"))),
            None => Ok(()),
        }
    }

    pub(crate) fn format(&self) -> Format {
        if self.json { Format::Json } else { self.output }
    }

    /// Prints a result on stdout: as JSON, or as the text for people.
    pub(crate) fn print(&self, json: &impl Serialize, text: impl FnOnce() -> String) -> Result<()> {
        match self.format() {
            Format::Json => output::json_line(json),
            Format::Human => output::text(&text()),
        }
    }
}
