//! A note of the group, read and written with a time limit.

use std::sync::Arc;
use std::time::Duration;

use shardwise_core::{ClaimName, GroupName};
use shardwise_discovery::{Discovery, Error, ErrorKind, Note, Notes, WriteOutcome};

use super::calls::limited;

/// One note in the service's backend.
#[derive(Clone)]
pub(crate) struct NoteBook {
    backend: Arc<dyn Discovery>,
    group: GroupName,
    name: ClaimName,
    limit: Duration,
}

impl NoteBook {
    pub(crate) const fn new(backend: Arc<dyn Discovery>, group: GroupName, name: ClaimName, limit: Duration) -> Self {
        Self { backend, group, name, limit }
    }

    pub(crate) async fn read(&self) -> Result<Option<Note>, Error> {
        limited(self.limit, &*self.backend, "note", async { self.notes("note")?.note(&self.group, &self.name).await }).await
    }

    /// Writes over that version, 0 for none. A conflict with the very text of this call counts as success: its answer was lost.
    pub(crate) async fn write(&self, expected: u64, text: &str) -> Result<WriteOutcome, Error> {
        let writing = async { self.notes("write_note")?.write_note(&self.group, &self.name, expected, text).await };
        Ok(match limited(self.limit, &*self.backend, "write_note", writing).await? {
            WriteOutcome::Other(Some(note)) if note.text == text => WriteOutcome::Written(note.version),
            noted => noted,
        })
    }

    pub(crate) const fn name(&self) -> &ClaimName {
        &self.name
    }

    fn notes(&self, operation: &'static str) -> Result<&dyn Notes, Error> {
        self.backend.as_notes().ok_or_else(|| Error::new(ErrorKind::Misconfigured, operation, "the backend keeps no notes any more"))
    }
}
