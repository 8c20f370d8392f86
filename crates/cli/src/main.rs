//! The `shardwise` command: thin verbs over the libraries. This file maps a result to an exit code and does nothing else.

mod args;
mod colour;
mod commands;
mod common;
mod descriptors;
mod event_lines;
mod events;
mod exit;
mod features;
mod files;
mod last_error;
mod listen_address;
mod output;
mod recorder;
mod signals;
mod status_line;
mod supervisor;
mod traces;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let args = match args::Args::try_parse() {
        Ok(args) => args,
        Err(answer) => return args::answer(&answer),
    };
    let traces = traces::begin(args.command.serves());
    let result = args.run();
    status_line::end();
    let code = match result {
        Ok(code) => {
            output::release_log();
            code
        }
        Err(failure) => {
            output::complain(&failure);
            failure.code()
        }
    };
    if let Some(traces) = traces {
        traces.end();
    }
    code.into()
}
