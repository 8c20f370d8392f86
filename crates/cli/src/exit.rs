//! Exit codes, the same for every command, and the failure that carries one.

use std::fmt;
use std::process::ExitCode;

use shardwise::ErrorKind;

/// What the process says at its end. Documented in the help text of the command itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Code {
    /// Done.
    Ok = 0,
    /// It ran, and the answer is no: a verdict that is not clean, refused lines.
    No = 1,
    /// The arguments or the settings are wrong; nothing was contacted.
    Usage = 2,
    /// A backend, a store or a file cannot be reached or read; trying again may help.
    Unavailable = 3,
    /// A backend, a store or a group refuses; somebody has to change something.
    Refused = 4,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code as u8)
    }
}

/// A failure as the user sees it: one line and an exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    code: Code,
    line: String,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(code: Code, line: impl Into<String>) -> Self {
        Self { code, line: line.into() }
    }

    pub(crate) const fn code(&self) -> Code {
        self.code
    }

    /// A failure to read or write `what`.
    pub(crate) fn io(what: impl fmt::Display, error: &std::io::Error) -> Self {
        Self::new(Code::Unavailable, format!("{what}: {error}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl From<shardwise::Error> for Failure {
    fn from(error: shardwise::Error) -> Self {
        let code = match error.kind() {
            ErrorKind::Settings | ErrorKind::UnknownPolicy => Code::Usage,
            _ if error.is_retryable() => Code::Unavailable,
            _ => Code::Refused,
        };
        Self::new(code, error.to_string())
    }
}
