//! The one public error.

use std::fmt;

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of a failure, by what can be done about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An option is missing or not allowed. Nothing was contacted.
    Settings,
    /// The store cannot be reached, is locked, or its disk is full; a retry may help.
    Unavailable,
    /// The store's file, its directory or its database does not exist.
    Missing,
    /// The file exists but is not a database, or is damaged.
    NotADatabase,
    /// The store cannot be written.
    ReadOnly,
    /// The store rejects this user, or its identity cannot be verified: a password, a grant, a certificate.
    Denied,
    /// The store has no outbox yet, or one of another schema.
    Schema,
    /// Commits that the store had confirmed to this publisher are gone: a standby that lagged has taken over, or an older copy was
    /// restored.
    LostCommits,
    /// Live publishers of this outbox use another number of slots.
    OtherSlots,
    /// The event itself is refused: an empty name, a payload above the limit, an id that already exists.
    Event,
    /// The store returned an answer that should be impossible; please report it.
    Internal,
}

/// A failure: its kind, and one line with what happened and what to do.
#[derive(Clone, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    /// An error of a store or sink.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// The kind of the failure.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the same call may succeed later without any change.
    pub const fn is_retryable(&self) -> bool {
        matches!(self.kind, ErrorKind::Unavailable)
    }
}

impl fmt::Debug for Error {
    /// Like [`Display`](fmt::Display): `main` prints a returned error with `Debug`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn main_shows_what_happened() {
        assert_eq!(format!("{:#?}", Error::new(ErrorKind::Settings, "no policy")), "no policy");
    }
}
