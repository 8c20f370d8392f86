//! Notes in the table.

use async_trait::async_trait;
use shardwise_core::{ClaimName, GroupName};

use super::MemoryBackend;
use crate::{Error, ErrorKind, Note, Notes, Result, WriteOutcome, check_note};

/// The most notes one memory backend holds, over all groups.
const NOTES_MAX: usize = 65_536;

#[async_trait]
impl Notes for MemoryBackend {
    async fn note(&self, group: &GroupName, name: &ClaimName) -> Result<Option<Note>> {
        let groups = self.groups("note")?;
        Ok(groups.notes.get(&(group.clone(), name.clone())).cloned())
    }

    async fn write_note(&self, group: &GroupName, name: &ClaimName, expected: u64, text: &str) -> Result<WriteOutcome> {
        check_note(name, text)?;
        let mut groups = self.groups("write_note")?;
        let key = (group.clone(), name.clone());
        let there = groups.notes.get(&key);
        if there.map_or(0, |note| note.version) != expected {
            return Ok(WriteOutcome::Other(there.cloned()));
        }
        if there.is_none() && groups.notes.len() >= NOTES_MAX {
            return Err(Error::new(ErrorKind::TooLarge, "write_note", format!("the memory backend already holds {NOTES_MAX} notes")));
        }
        groups.notes_written += 1;
        let version = groups.notes_written;
        groups.notes.insert(key, Note { text: text.to_owned(), version });
        Ok(WriteOutcome::Written(version))
    }
}
