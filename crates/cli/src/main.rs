//! The `shardwise` command: thin verbs over the libraries. This file maps a result to an exit code and does nothing else.

mod args;
mod commands;
mod events;
mod exit;
mod output;
mod signals;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let args = args::Args::parse();
    output::start_log();
    match commands::run(args) {
        Ok(code) => code.into(),
        Err(failure) => {
            output::complain(&failure);
            failure.code().into()
        }
    }
}
