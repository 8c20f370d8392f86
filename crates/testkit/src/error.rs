//! Failures of a server under test are for a person to read and are never handled by code: one text is enough.

use std::fmt;

/// A result of the kit.
pub type Result<T> = std::result::Result<T, Error>;

/// Why something could not be done, with the end of the server's log where there is one.
#[derive(Clone)]
pub struct Error(String);

impl Error {
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }

    /// Something the operating system refused; `what` names the file, address or program.
    pub(crate) fn io(what: impl fmt::Display) -> impl FnOnce(std::io::Error) -> Self {
        move |error| Self(format!("{what}: {error}"))
    }
}

impl From<rcgen::Error> for Error {
    fn from(error: rcgen::Error) -> Self {
        Self(format!("a certificate could not be made: {error}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The same text, so that the lines of a log stay readable in what `unwrap` prints.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}
