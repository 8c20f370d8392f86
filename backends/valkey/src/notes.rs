//! Notes over Valkey: a field of the group's hash each, written by a script on the condition of its version.

use async_trait::async_trait;
use redis::Value;
use shardwise_core::{ClaimName, GroupName};
use shardwise_discovery::{Note, Notes, Result, WriteOutcome, check_note};

use crate::ValkeyBackend;
use crate::client::Client;
use crate::error::{Failure, ValkeyResult};
use crate::scripts::{bytes, text};

#[async_trait]
impl Notes for ValkeyBackend {
    async fn note(&self, group: &GroupName, name: &ClaimName) -> Result<Option<Note>> {
        self.client.note(group, name).await.map_err(|failure| failure.during("note"))
    }

    async fn write_note(&self, group: &GroupName, name: &ClaimName, expected: u64, text: &str) -> Result<WriteOutcome> {
        check_note(name, text)?;
        self.client.write_note(group, name, expected, text).await.map_err(|failure| failure.during("write_note"))
    }
}

impl Client {
    async fn note(&self, group: &GroupName, name: &ClaimName) -> ValkeyResult<Option<Note>> {
        let answer = self.run_alone(&self.scripts.note, self.keys.notes(group), vec![name.as_str().to_owned()]).await?;
        self.present(group, name, parts(answer).next())
    }

    async fn write_note(&self, group: &GroupName, name: &ClaimName, expected: u64, note: &str) -> ValkeyResult<WriteOutcome> {
        let arguments = vec![name.as_str().to_owned(), expected.to_string(), note.to_owned()];
        let answer = self.run_alone(&self.scripts.write_note, self.keys.notes(group), arguments).await?;
        let mut parts = parts(answer);
        match parts.next().and_then(text).and_then(|version| version.parse().ok()) {
            Some(version) => Ok(WriteOutcome::Written(version)),
            None => self.present(group, name, parts.next()).map(WriteOutcome::Other),
        }
    }

    /// The note from what is stored: its version, a space, and its text.
    fn present(&self, group: &GroupName, name: &ClaimName, stored: Option<Value>) -> ValkeyResult<Option<Note>> {
        let Some(stored) = stored.and_then(bytes) else { return Ok(None) };
        let read = || {
            let stored = std::str::from_utf8(&stored).ok()?;
            let (version, text) = stored.split_once(' ')?;
            Some(Note { text: text.to_owned(), version: version.parse().ok().filter(|version| *version > 0)? })
        };
        let damaged = || Failure::DamagedNote { name: name.to_string(), key: self.keys.notes(group) };
        read().map(Some).ok_or_else(damaged)
    }
}

fn parts(answer: Value) -> impl Iterator<Item = Value> {
    let parts = if let Value::Array(parts) = answer { parts } else { Vec::new() };
    parts.into_iter()
}
