//! Processes of a test's own program and of others, which the kernel kills when the thread ends that starts them.

use std::fs::File;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use nix::sys::signal::Signal;

use crate::error::{Error, Result};

/// The beginning of a command whose process gets this signal when the thread ends that starts it.
pub(crate) fn setpriv(farewell: Signal) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", farewell.as_str().trim_start_matches("SIG")]);
    command
}

/// The same command, with its arguments, variables and folder, whose process the kernel kills when the thread ends that starts it.
pub fn kill_with_parent(command: &Command) -> Command {
    let mut wrapped = setpriv(Signal::SIGKILL);
    wrapped.arg("--").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        wrapped.current_dir(folder);
    }
    wrapped
}

/// Starts one test of this test binary in another process, with these variables. What it prints is appended to `log`, and its input stays
/// open until the caller drops it. The kernel kills it when the thread ends that starts it.
pub fn start_test(test: &str, variables: &[(&str, &str)], log: &Path) -> Result<(Child, ChildStdin)> {
    let mut command = Command::new(std::env::current_exe().map_err(Error::io("the program of this test"))?);
    command.args(["--exact", test, "--nocapture"]).envs(variables.iter().copied());
    let log = File::options().create(true).append(true).open(log).map_err(Error::io(log.display()))?;
    let also = log.try_clone().map_err(Error::io("a log"))?;
    let mut child = kill_with_parent(&command)
        .stdin(Stdio::piped())
        .stdout(also)
        .stderr(log)
        .spawn()
        .map_err(Error::io("setpriv, of the package util-linux"))?;
    let input = child.stdin.take().ok_or_else(|| Error::new(format!("the process of {test} has no input")))?;
    Ok((child, input))
}
