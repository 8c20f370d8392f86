//! The command line.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand};

use crate::commands::{demo, outbox, ring, settings, watch};
use crate::output::Format;

/// Which keys are mine? Consistent-hash sharding for fleets of background workers.
#[derive(Debug, Parser)]
#[command(name = "shardwise", version, propagate_version = true, after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER_HELP: &str = "\
Exit codes:
  0  done
  1  it ran, and the answer is no: a verdict that is not clean, refused lines
  2  the arguments or the settings are wrong; nothing was contacted
  3  a backend, a store or a file cannot be reached; trying again may help
  4  a backend, a store or a group refuses; somebody has to change something

Results go to stdout, everything else to stderr. RUST_LOG=info shows what the workers do.";

/// What every command understands.
#[derive(Debug, Clone, ClapArgs)]
pub(crate) struct Common {
    /// The settings file [default: `$SHARDWISE_SETTINGS`, else settings.toml]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) settings: Option<PathBuf>,
    /// How to print results
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: Format,
    /// Short for --output json
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

impl Common {
    pub(crate) fn format(&self) -> Format {
        if self.json { Format::Json } else { self.output }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Watch publishers share an outbox, one be killed, one join, and nothing be lost
    Demo(demo::Demo),
    /// Print the settings in force and where each came from
    Settings(settings::Settings),
    /// Join as a worker and print one JSON object a line for every change
    Watch(watch::Watch),
    /// Ask the placement offline, without any backend
    #[command(subcommand)]
    Ring(ring::Ring),
    /// Make, fill, publish and inspect an outbox
    #[command(subcommand)]
    Outbox(outbox::Outbox),
}
