//! The third, optional part of the contract: small values of a group that outlive its members.

use async_trait::async_trait;
use shardwise_core::{ClaimName, GroupName};

use crate::{Discovery, Error, ErrorKind, Result};

/// The most bytes a note's text may have.
pub const NOTE_BYTES_MAX: usize = 4_096;

/// A small value that a group keeps under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The note's text.
    pub text: String,
    /// Which writing of it this is: another one after each write, and at least 1.
    pub version: u64,
}

/// The result of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteOutcome {
    /// It is written; this is its version.
    Written(u64),
    /// Something else was there than expected, and is there still; `None`: nothing.
    Other(Option<Note>),
}

/// Small values of a group, changed by compare-and-swap: how many daemons there are, when a timer fired last.
///
/// A call may be dropped at any point; whether it was carried out is then unknown until the note is read.
///
/// The clauses, each with cases in the `conformance` module:
///
/// 1. A read is the backend's authority's word (its quorum, not a cache): it shows every write that was answered before it began.
/// 2. A write is carried out only if the present version is the expected one. Of many with the same expectation one succeeds; the others
///    change nothing and return the present note.
/// 3. A version stands for one text: while the store is the same, none comes back for another text of the same name.
/// 4. Notes outlive every member and are there without any. They are not deleted.
/// 5. Texts are UTF-8 of up to [`NOTE_BYTES_MAX`] bytes; a longer one is refused with [`ErrorKind::TooLarge`] and nothing is written.
/// 6. Any name goes, groups do not see each other's notes, and a note and a claim of the same name have nothing to do with each other.
#[async_trait]
pub trait Notes: Discovery {
    /// The note of that name now; `None` if it was never written.
    async fn note(&self, group: &GroupName, name: &ClaimName) -> Result<Option<Note>>;

    /// Writes the note if the present one is of version `expected`; 0: if there is none.
    async fn write_note(&self, group: &GroupName, name: &ClaimName, expected: u64, text: &str) -> Result<WriteOutcome>;
}

/// Refuses a text that is longer than a note may be; for authors of backends.
///
/// # Errors
/// [`ErrorKind::TooLarge`].
pub fn check_note(name: &ClaimName, text: &str) -> Result<()> {
    if text.len() <= NOTE_BYTES_MAX {
        return Ok(());
    }
    let context = format!("the note {name:?} has {} bytes, at most {NOTE_BYTES_MAX} are allowed", text.len());
    Err(Error::new(ErrorKind::TooLarge, "write_note", context))
}
