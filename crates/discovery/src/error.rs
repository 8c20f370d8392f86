//! The contract's error: its cause, and what the caller can do.

use std::fmt;

use shardwise_core::{Address, write_with_causes};

/// The result of a backend call.
pub type Result<T> = std::result::Result<T, Error>;

/// The kind of failure, by the caller's possible reaction.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The backend cannot be reached or is not ready; trying again may help.
    Unavailable,
    /// No answer within the time allowed; it may or may not have been carried out.
    TimedOut,
    /// The record has expired or was deleted; register again.
    Lost,
    /// Another incarnation of the same id has a living record.
    InUse {
        /// Where it says it is.
        address: Option<Address>,
        /// Changes whenever the other one renews.
        stamp: u64,
    },
    /// The store of claims is not the one the caller knows, or its floor was raised; ask for it again.
    OtherStore,
    /// Wrong or too few credentials; an operator has to change something.
    Denied,
    /// Wrong settings, an incompatible or damaged store; an operator has to change something.
    Misconfigured,
    /// Something is larger than the backend can hold.
    TooLarge,
}

/// A failed backend call: kind, operation, context. Never contains a secret.
#[derive(Clone, thiserror::Error)]
#[error("{operation}: {context}")]
pub struct Error {
    kind: ErrorKind,
    operation: &'static str,
    context: String,
}

impl Error {
    /// An error of `operation` (the trait's method, or "open"); `context` says in one line what happened and what to do.
    pub fn new(kind: ErrorKind, operation: &'static str, context: impl Into<String>) -> Self {
        Self { kind, operation, context: context.into() }
    }

    /// The kind of failure.
    pub const fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// The operation that failed.
    pub const fn operation(&self) -> &'static str {
        self.operation
    }

    /// What happened and what to do, without the operation, for users who did not call it.
    pub fn context(&self) -> &str {
        &self.context
    }

    /// Whether the same call may succeed later without a change of the settings or the servers.
    pub const fn is_retryable(&self) -> bool {
        matches!(self.kind, ErrorKind::Unavailable | ErrorKind::TimedOut)
    }
}

impl fmt::Debug for Error {
    /// Like [`Display`](fmt::Display): `main` prints a returned error by its `Debug`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_with_causes(f, self)
    }
}

/// Where a member is, as the words behind its id in a message; nothing if its record has no address.
pub fn at_address(address: Option<&Address>) -> String {
    address.map(|address| format!(" at {address}")).unwrap_or_default()
}

/// What a server, a library or a file said, for the context of an [`Error`]: short enough for one line of a log, whatever it repeats, and
/// nothing in it that a terminal would obey.
pub fn one_line(text: &str) -> String {
    shardwise_core::one_line(text, 200)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_stays_on_one_line_and_short() {
        assert_eq!(one_line("rpc error:\n\tNo cluster\u{1b}leader\r\n"), "rpc error: No cluster\\u{1b}leader");
        assert_eq!(one_line(&"é".repeat(999)).chars().count(), 200);
    }
}
