//! The command line.

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

use crate::commands::{backend, block_on, demo, init, live, manual, outbox, probe, ring, serve, settings, watch};
use crate::common::Common;
use crate::exit::{CliFailure, Code, Result};
use crate::features;
use crate::output;

/// Which keys are mine? Consistent-hash sharding for background workers
#[derive(Debug, Parser)]
#[command(name = "shardwise", version, long_version = features::long_version(), propagate_version = true, after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Args {
    pub(crate) fn run(self) -> Result<Code> {
        let common = self.common;
        match self.command {
            Command::Demo(command) => block_on(command.run(&common)),
            Command::Init(command) => command.run(&common),
            Command::Settings(command) => command.run(&common),
            Command::Backend(command) => block_on(command.run(&common)),
            Command::Watch(command) => block_on(command.run(&common)),
            Command::ConfirmLoss(command) => block_on(command.run(&common)),
            Command::EndAbsence(command) => block_on(command.run(&common)),
            Command::Ring(command) => command.run(&common),
            Command::Serve(command) => command.run(&common),
            Command::Probe(command) => command.run(&common),
            Command::Members(command) => block_on(command.run(&common)),
            Command::Owner(command) => block_on(command.run(&common)),
            Command::Explain(command) => block_on(command.run(&common)),
            Command::Holders(command) => block_on(command.run(&common)),
            Command::Ask(command) => block_on(command.run(&common)),
            Command::Route(command) => block_on(command.run(&common)),
            Command::Routes(command) => block_on(command.run(&common)),
            Command::Daemons(command) => block_on(command.run(&common)),
            Command::Rebalances(command) => block_on(command.run(&common)),
            Command::Drain(command) => block_on(command.run(&common)),
            Command::Undrain(command) => block_on(command.run(&common)),
            Command::Completions(command) => command.run(&common, Self::command()),
            Command::Man(command) => command.run(&common, Self::command()),
            Command::Outbox(command) => block_on(command.run(&common)),
        }
    }
}

const AFTER_HELP: &str = "\
Exit codes:
  0    done
  1    it ran, and the answer is no: lines refused, nothing to unblock
  2    wrong arguments or settings; nothing was contacted
  3    a backend, a store or a file cannot be reached; retrying may help
  4    a backend, a store or a group refuses; change what the message names
  5    the outbox's database lost commits; run `outbox restored` first
  130  stopped at once by a second Ctrl-C or SIGTERM

Results go to stdout, everything else to stderr. RUST_LOG=info shows what the workers do.
Begin with `shardwise demo`, then `shardwise init`.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Watch publishers share an outbox while one is killed and one joins
    Demo(demo::Demo),
    /// Write a settings file to begin with
    Init(init::Init),
    /// Print the settings in force and where each came from
    Settings(settings::SettingsArgs),
    /// Observe a group, or join it as a worker, and print every change
    Watch(watch::WatchArgs),
    /// Confirm that members which have vanished are gone for good
    ConfirmLoss(live::ConfirmLoss),
    /// Answer over HTTP next to a worker in any language
    Serve(Box<serve::Serve>),
    /// Ask a sidecar or a publisher on this machine whether it is healthy
    Probe(probe::Probe),
    /// List a group's members, without joining it
    Members(live::Members),
    /// Print who owns a key, without joining
    Owner(live::Owner),
    /// Explain step by step why a key has its owner in the live group
    Explain(live::Explain),
    /// List who holds each slot and name, and who should hold it instead
    Holders(live::HoldersArgs),
    /// Print what moves between a group's members, as it happens
    Rebalances(live::RebalancesArgs),
    /// Drain a member: it stays registered and owns nothing
    Drain(live::Drain),
    /// Give a drained member its share again
    Undrain(live::Undrain),
    /// Confirm that a worker which has left for a while will not return
    EndAbsence(live::EndAbsence),
    /// Show how many daemons of a set run and who holds each, or set how many
    Daemons(live::DaemonsArgs),
    /// Send a request to the owner of a key or to a member, without joining
    Ask(Box<live::AskArgs>),
    /// Print where requests of a key go, and why
    Route(live::RouteArgs),
    /// Spread or move the requests of single keys
    #[command(subcommand)]
    Routes(live::RoutesCommand),
    /// Ask the placement offline, without any backend
    #[command(subcommand, after_help = "  shardwise ring explain tenant-7 --members a,b=2,c")]
    Ring(ring::Ring),
    /// Prepare the place where workers meet, or move them to another one
    #[command(subcommand, after_help = "  shardwise backend init")]
    Backend(backend::BackendCommand),
    /// Create, fill, publish and inspect an outbox
    #[command(subcommand, after_help = "  shardwise outbox status")]
    Outbox(outbox::OutboxCommand),
    /// Print a shell's completions
    Completions(manual::Completions),
    /// Print the manual page, or write one for each command
    Man(manual::Man),
}

impl Command {
    /// Whether the command runs until it is stopped, and therefore exports traces.
    pub(crate) const fn serves(&self) -> bool {
        matches!(self, Self::Serve(_) | Self::Outbox(outbox::OutboxCommand::Run(_)))
    }
}

/// Handles a command line that runs no command: prints help, the version, or one line with the error.
pub(crate) fn answer(answer: &clap::Error) -> ExitCode {
    let is_help = !answer.use_stderr() || answer.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    let failure = match is_help.then(|| answer.print()) {
        Some(Ok(())) if answer.use_stderr() => return Code::Usage.into(),
        Some(Ok(())) => return Code::Ok.into(),
        Some(Err(error)) => output::stdout_failed(&error),
        None => CliFailure::usage(one_line(&answer.to_string())),
    };
    output::complain(&failure);
    failure.code().into()
}

/// The parser's paragraphs as one line, without its copy of the usage.
fn one_line(paragraphs: &str) -> String {
    let message = paragraphs.trim_start_matches("error: ").lines().map(str::trim).take_while(|line| !line.starts_with("Usage: "));
    let parts = message.filter(|line| !line.is_empty() && !line.starts_with("For more information"));
    let line = parts.fold(String::new(), |line, part| match line.chars().last() {
        None => part.into(),
        Some(':') => line + " " + part,
        Some(_) if part.starts_with('[') => line + " " + part,
        Some(_) => line + "; " + part,
    });
    line + "; see --help"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The most columns of the first line of a command or an option.
    const FIRST_LINE: usize = 71;
    /// The columns that fit into a terminal of 80 columns.
    const LINE: usize = 79;

    /// The faults in the help of the command and its subcommands.
    fn faults(command: &clap::Command) -> Vec<String> {
        let help = |arg: &clap::Arg| arg.get_help().filter(|_| !arg.is_hide_set()).map(ToString::to_string);
        let firsts = command.get_about().map(ToString::to_string).into_iter().chain(command.get_arguments().filter_map(help));
        let is_bad_first = |line: &String| line.chars().count() > FIRST_LINE || line.contains('\n') || line.ends_with('.');
        let mut faults: Vec<_> = firsts.filter(is_bad_first).collect();
        let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        // A paragraph is one line, which the terminal wraps; an indented line is not wrapped.
        let is_bad = |line: &&str| match line.chars().next() {
            // A quoted shell word cannot be broken.
            None | Some('\'') => false,
            Some(' ') => line.chars().count() > LINE,
            Some(_) => !line.ends_with(['.', ':']),
        };
        faults.extend(after.lines().filter(is_bad).map(str::to_owned));
        faults.extend(command.get_subcommands().flat_map(self::faults));
        faults
    }

    #[test]
    fn help_begins_with_one_short_line_and_breaks_only_where_the_terminal_ends() {
        assert_eq!(faults(&Args::command()), [""; 0]);
    }

    fn message(arguments: &[&str]) -> String {
        one_line(&Args::try_parse_from([&["shardwise"], arguments].concat()).unwrap_err().to_string())
    }

    #[test]
    fn what_is_wrong_with_the_arguments_is_one_line() {
        let cases: [(&[&str], &str); 4] = [
            (&["drain"], "the following required arguments were not provided: <ID>; see --help"),
            (&["settings", "--output", "xml"], "invalid value 'xml' for '--output <FORMAT>' [possible values: human, json]; see --help"),
            (&["demo", "--event", "3"], "unexpected argument '--event' found; tip: a similar argument exists: '--events'; see --help"),
            (&["wacth"], "unrecognized subcommand 'wacth'; tip: a similar subcommand exists: 'watch'; see --help"),
        ];
        for (arguments, line) in cases {
            assert_eq!(message(arguments), line);
        }
    }
}
