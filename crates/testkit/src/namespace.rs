//! Tests in separate namespaces: such a test runs once more, as a process in them.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::process::{Command, Output};

use crate::error::{Error, Result};

/// How long a test may take in its namespaces, in seconds.
const WITHIN: &str = "300";

/// The second run of a test, which needs no rights: the user is root in the namespaces alone.
pub(crate) struct NamespacedRun<'a> {
    /// The test's name, with its modules.
    pub(crate) test: &'a str,
    /// What the system has to allow, such as "mounting a small disk".
    pub(crate) what: &'a str,
    /// The options of `unshare` for the namespaces besides the user's.
    pub(crate) namespaces: &'a [&'a str],
    /// A shell script that takes `arguments`, prepares the namespaces and goes on as the program behind these: `… && exec "$@"`.
    pub(crate) script: &'a str,
    pub(crate) arguments: &'a [&'a OsStr],
    pub(crate) variables: &'a [(&'a str, &'a OsStr)],
}

impl NamespacedRun<'_> {
    /// An error if the test does not pass. Where the system does not allow the namespaces, a line on stderr says that the test did not run;
    /// in CI (the variable `CI`) it is an error.
    pub(crate) fn passes(&self) -> Result<()> {
        let probe = self.output(&["true"])?;
        if !probe.status.success() {
            let (test, what, why) = (self.test, self.what, String::from_utf8_lossy(&probe.stderr).into_owned());
            let note = format!(
                "{test}: this system does not allow {what} in a namespace ({}); allow user namespaces (in a container: unshare), or run the test as root",
                why.trim()
            );
            if std::env::var_os("CI").is_some() {
                return Err(Error::new(note));
            }
            // Not by a macro, whose output the tests' harness keeps to itself.
            return writeln!(io::stderr(), "NOT TESTED: {note}").map_err(Error::io("stderr"));
        }
        let program = std::env::current_exe().map_err(Error::io("the test's own program"))?;
        let program = program.to_str().ok_or_else(|| Error::new(format!("{}: no UTF-8", program.display())))?;
        let ran = self.output(&["timeout", "--kill-after=5", WITHIN, program, "--exact", self.test, "--nocapture"])?;
        let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
        // No test of that name is a success too.
        if ran.status.success() && said.contains("1 passed") {
            return Ok(());
        }
        Err(Error::new(format!("{} in a namespace: {}\n{said}", self.test, ran.status)))
    }

    fn output(&self, program: &[&str]) -> Result<Output> {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user"]).args(self.namespaces).args(["--", "sh", "-c", self.script, "sh"]);
        command.args(self.arguments).args(program).envs(self.variables.iter().copied());
        command.output().map_err(Error::io("unshare (Debian's package is util-linux)"))
    }
}
