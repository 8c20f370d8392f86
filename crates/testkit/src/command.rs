//! Other programs, run to their end.

use std::process::{Command, Stdio};

use crate::error::{Error, Result};

/// [`run`] on a thread for blocking work, for commands that take long.
pub(crate) async fn run_beside(mut command: Command, advice: &'static str) -> Result<String> {
    let running = tokio::task::spawn_blocking(move || run(&mut command, advice));
    running.await.map_err(|error| Error::new(format!("{advice}: {error}")))?
}

/// Runs a command to its end and gives back what it printed; `advice` says what a machine needs where it fails.
pub(crate) fn run(command: &mut Command, advice: &str) -> Result<String> {
    command.stdin(Stdio::null()).env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| Error::new(format!("{program} cannot be run ({error}): {advice}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect();
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::new(format!("{program} {}: {}; {advice}\n{}", arguments.join(" "), output.status, said.trim())))
}
