//! The number of a set's daemons: a note of the group, which members read and operators change.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shardwise_core::{ClaimName, Policy};
use shardwise_discovery::{Discovery, Note, WriteOutcome};

use super::named::{claim_name, note_book};
use crate::error::{Error, ErrorKind, Result};
use crate::membership::NoteBook;

/// The most daemons of one set.
pub const DAEMONS_MAX: u32 = 1_024;
/// How often [`DaemonCounter::set`] tries again because another writer was faster.
const ATTEMPTS: u32 = 16;

/// The wanted number of daemons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DaemonCount {
    number: u32,
    version: u64,
}

impl DaemonCount {
    /// The number; 0 if it is not set.
    pub const fn get(&self) -> u32 {
        self.number
    }

    /// Whether it is set.
    pub const fn is_set(&self) -> bool {
        self.version > 0
    }
}

#[derive(Serialize, Deserialize)]
struct CountNote {
    n: u32,
}

/// What the names of a set's daemons begin with, before a slash and their number; the note has this name.
pub(super) fn set_name(set: &str) -> String {
    if set.is_empty() { "daemon".to_owned() } else { format!("daemon/{set}") }
}

/// The note with the number of one set.
#[derive(Clone)]
pub(crate) struct DaemonCounter(NoteBook);

impl DaemonCounter {
    /// `limit` is the time limit of each call.
    pub(crate) fn of(policy: &Policy, backend: Option<&Arc<dyn Discovery>>, limit: Duration, set: &str) -> Result<Self> {
        let name = claim_name(policy, backend, "daemons", set, set_name(set))?;
        Ok(Self(note_book(policy, backend, limit, name)?))
    }

    pub(super) const fn name(&self) -> &ClaimName {
        self.0.name()
    }

    pub(crate) async fn read(&self) -> Result<DaemonCount> {
        self.decoded(self.0.read().await?.as_ref())
    }

    /// Writes the number if it still is the one in `seen`.
    pub(crate) async fn write(&self, seen: DaemonCount, number: u32) -> Result<DaemonCount> {
        if number > DAEMONS_MAX {
            let message = format!("{}: {number} daemons are too many; 0 to {DAEMONS_MAX} are allowed", self.name());
            return Err(Error::new(ErrorKind::Settings, message));
        }
        let text = serde_json::to_string(&CountNote { n: number }).map_err(|error| Error::new(ErrorKind::Backend, error.to_string()))?;
        match self.0.write(seen.version, &text).await? {
            WriteOutcome::Written(version) => Ok(DaemonCount { number, version }),
            WriteOutcome::Other(there) => {
                let there = self.decoded(there.as_ref())?;
                let now = if there.is_set() { format!("it is {} now", there.number) } else { "it is not set now".to_owned() };
                let message = format!("{}: another process changed the number of daemons: {now}; read it and decide again", self.name());
                Err(Error::new(ErrorKind::Conflict, message))
            }
        }
    }

    /// Writes the number, whatever it was. Returns the one before.
    pub(crate) async fn set(&self, number: u32) -> Result<DaemonCount> {
        for _ in 0..ATTEMPTS {
            let before = self.read().await?;
            if before.is_set() && before.number == number {
                return Ok(before);
            }
            match self.write(before, number).await {
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                written => return written.map(|_| before),
            }
        }
        Err(Error::new(ErrorKind::Unavailable, format!("{}: the number of daemons keeps changing; try again", self.name())))
    }

    fn decoded(&self, note: Option<&Note>) -> Result<DaemonCount> {
        let Some(note) = note else { return Ok(DaemonCount { number: 0, version: 0 }) };
        match serde_json::from_str::<CountNote>(&note.text) {
            Ok(CountNote { n }) if n <= DAEMONS_MAX => Ok(DaemonCount { number: n, version: note.version }),
            _ => {
                let message = format!(
                    "{}: the number of daemons cannot be read: {:?}; the note was edited by hand; write it like {{\"n\":3}}, with 0 to {DAEMONS_MAX}",
                    self.name(),
                    shardwise_discovery::one_line(&note.text)
                );
                Err(Error::new(ErrorKind::Backend, message))
            }
        }
    }
}
