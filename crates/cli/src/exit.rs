//! Exit codes, the same for every command, and the failure that carries one.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;

use nix::errno::Errno;
use shardwise::ErrorKind;
use shardwise_outbox::one_line;

/// The exit code of the process; the help text of the command says what each means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Code {
    Ok = 0,
    No = 1,
    Usage = 2,
    Unavailable = 3,
    Refused = 4,
    /// It has a separate code because a restarted publisher has nothing to compare and would continue: the systemd units do not restart
    /// after it.
    LostCommits = 5,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code as u8)
    }
}

/// A failure for the user: one line with what happened and what to do, and an exit code.
#[derive(Debug, thiserror::Error)]
#[error("{line}")]
pub(crate) struct CliFailure {
    code: Code,
    line: String,
    /// The reader of stdout has closed it, as `head` does: the command ends without a message.
    is_quiet: bool,
}

pub(crate) type Result<T> = std::result::Result<T, CliFailure>;

impl CliFailure {
    pub(crate) fn new(code: Code, line: impl Into<String>) -> Self {
        Self { code, line: one_line(&line.into(), usize::MAX), is_quiet: false }
    }

    /// Wrong arguments or settings.
    pub(crate) fn usage(line: impl Into<String>) -> Self {
        Self::new(Code::Usage, line)
    }

    pub(crate) const fn code(&self) -> Code {
        self.code
    }

    pub(crate) const fn is_quiet(&self) -> bool {
        self.is_quiet
    }

    /// A result that could not be written to stdout.
    pub(crate) fn stdout(error: &io::Error) -> Self {
        Self { is_quiet: error.kind() == io::ErrorKind::BrokenPipe, ..Self::io("write to stdout", error) }
    }

    /// The same failure with additional information for the user, which is always printed.
    pub(crate) fn and(self, more: impl fmt::Display) -> Self {
        Self::new(self.code, format!("{}; {more}", self.line))
    }

    /// A failed operation of the system, such as `read events.jsonl`.
    pub(crate) fn io(doing: impl fmt::Display, error: &io::Error) -> Self {
        Self::new(Code::Unavailable, format!("cannot {doing}: {}", in_plain_words(error)))
    }

    /// The address of `--listen` cannot be used.
    pub(crate) fn listen(address: SocketAddr, error: &io::Error) -> Self {
        match about_listening(error) {
            Some(what) => Self::new(Code::Unavailable, format!("cannot listen on {address}: {what}")),
            None => Self::io(format_args!("listen on {address}"), error),
        }
    }
}

/// What to do about an address on which the process cannot listen; `None` if that is not about the address.
fn about_listening(error: &io::Error) -> Option<&'static str> {
    match error.kind() {
        io::ErrorKind::PermissionDenied => Some("this user may not use the port: choose one above 1023 with --listen"),
        io::ErrorKind::AddrInUse => Some("another process listens there: stop it, or choose another port with --listen"),
        io::ErrorKind::AddrNotAvailable => Some("this machine has no such address: choose one that it has with --listen"),
        _ => None,
    }
}

/// The system's error and what to do about it. Unknown errors keep the system's text.
fn in_plain_words(error: &io::Error) -> String {
    use io::ErrorKind as Kind;
    let errno = error.raw_os_error().map(Errno::from_raw);
    let words = match error.kind() {
        Kind::NotFound => "there is no such file or directory: check the path",
        Kind::PermissionDenied => "permission denied: give this user the permission, or name another path",
        Kind::IsADirectory => "this is a directory: name a file",
        Kind::NotADirectory | Kind::AlreadyExists => "there is a file where a directory should be: check the path",
        Kind::StorageFull | Kind::QuotaExceeded => "the disk is full: free some space, then try again",
        Kind::ReadOnlyFilesystem => "the file system is read-only: name a path elsewhere",
        Kind::InvalidData => "this is not UTF-8 text: check that it is the right file",
        Kind::BrokenPipe => "the reader has closed the pipe: let it read to the end",
        _ if matches!(errno, Some(Errno::EMFILE | Errno::ENFILE)) => "too many files are open: raise the limit (ulimit -n)",
        _ if errno == Some(Errno::EAGAIN) => "there are too many processes: raise the limit (ulimit -u), or end some",
        _ => return format!("{error}: if this stays after another try, look at the system's log"),
    };
    words.into()
}

impl From<shardwise::Error> for CliFailure {
    fn from(error: shardwise::Error) -> Self {
        let code = match error.kind() {
            ErrorKind::Settings | ErrorKind::UnknownPolicy => Code::Usage,
            _ if error.is_retryable() => Code::Unavailable,
            _ => Code::Refused,
        };
        Self::new(code, error.to_string())
    }
}

impl From<shardwise_sidecar::Error> for CliFailure {
    fn from(error: shardwise_sidecar::Error) -> Self {
        use shardwise_sidecar::Error;
        match error {
            Error::Sharding(error) => error.into(),
            Error::File(path, error) => Self::io(format_args!("read {}", path.display()), &error),
            Error::Listen(address, error) => Self::listen(address, &error),
            Error::Options(line) => Self::usage(line),
            _ => Self::new(Code::Unavailable, error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_comes_with_what_to_do() {
        let cases = [
            (Errno::ENOENT, "check the path"),
            (Errno::EACCES, "give this user the permission"),
            (Errno::EISDIR, "name a file"),
            (Errno::ENOTDIR, "check the path"),
            (Errno::EEXIST, "check the path"),
            (Errno::ENOSPC, "free some space"),
            (Errno::EDQUOT, "free some space"),
            (Errno::EROFS, "name a path elsewhere"),
            (Errno::EPIPE, "read to the end"),
            (Errno::EMFILE, "ulimit -n"),
            (Errno::EAGAIN, "ulimit -u"),
            (Errno::EIO, "look at the system's log"),
        ];
        for (errno, advice) in cases {
            let failure = CliFailure::io("read events.jsonl", &errno.into());
            assert!(failure.line.starts_with("cannot read events.jsonl: ") && failure.line.contains(advice), "{errno}: {failure}");
            assert_eq!(failure.code(), Code::Unavailable);
        }
    }

    #[test]
    fn a_port_that_cannot_be_used_comes_with_the_flag_and_without_a_path() {
        let cases = [
            (Errno::EACCES, "choose one above 1023 with --listen"),
            (Errno::EADDRINUSE, "choose another port with --listen"),
            (Errno::EADDRNOTAVAIL, "choose one that it has with --listen"),
            (Errno::EMFILE, "ulimit -n"),
        ];
        for (errno, advice) in cases {
            let failure = CliFailure::listen(SocketAddr::from(([127, 0, 0, 1], 80)), &errno.into());
            assert!(failure.line.starts_with("cannot listen on 127.0.0.1:80: ") && failure.line.contains(advice), "{errno}: {failure}");
            assert!(!failure.line.contains("path"), "{failure}");
        }
    }

    #[test]
    fn a_name_with_control_characters_stays_on_one_line() {
        let failure = CliFailure::new(Code::Usage, "no outbox a\nb\u{1b}[2J; known: größe");
        assert_eq!(failure.to_string(), r"no outbox a b\u{1b}[2J; known: größe");
    }
}
