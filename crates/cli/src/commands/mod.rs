//! One module a verb.

pub(crate) mod confirm_loss;
pub(crate) mod demo;
pub(crate) mod end_absence;
pub(crate) mod live;
pub(crate) mod manual;
pub(crate) mod outbox;
pub(crate) mod probe;
pub(crate) mod ring;
pub(crate) mod serve;
pub(crate) mod settings;
pub(crate) mod watch;

use std::future::Future;

use shardwise::Settings;
use shardwise::settings::LoadOptions;

use crate::args::{Args, Command, Common};
use crate::exit::{Code, Failure, Result};

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<Code> {
    let common = args.common;
    match args.command {
        Command::Demo(command) => block_on(command.run(&common)),
        Command::Settings(command) => command.run(&common),
        Command::Watch(command) => block_on(command.run(&common)),
        Command::ConfirmLoss(command) => command.run(&common),
        Command::EndAbsence(command) => command.run(&common),
        Command::Ring(command) => command.run(&common),
        Command::Serve(command) => command.run(&common),
        Command::Probe(command) => command.run(&common),
        Command::Members(command) => block_on(command.run(&common)),
        Command::Owner(command) => block_on(command.run(&common)),
        Command::Explain(command) => block_on(command.run(&common)),
        Command::Rebalances(command) => block_on(command.run(&common)),
        Command::Drain(command) => block_on(command.run(&common)),
        Command::Undrain(command) => block_on(command.run(&common)),
        Command::Completions(command) => command.run(&common),
        Command::Man(command) => command.run(&common),
        Command::Outbox(command) => block_on(command.run(&common)),
    }
}

/// The settings that the command line and the environment name.
fn load_settings(common: &Common) -> Result<Settings> {
    let mut options = LoadOptions::from_process();
    if let Some(file) = &common.settings {
        options = options.with_file(file);
    }
    Ok(Settings::load(&options)?)
}

fn block_on(work: impl Future<Output = Result<Code>>) -> Result<Code> {
    let runtime = tokio::runtime::Runtime::new().map_err(|error| Failure::io("start the runtime", &error))?;
    let result = runtime.block_on(work);
    // A write to a pipe that nobody reads cannot be cancelled; the process must end all the same.
    runtime.shutdown_background();
    result
}
