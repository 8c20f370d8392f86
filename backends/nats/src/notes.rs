//! Notes over NATS: a subject each, written on the condition of its sequence, which is the note's version.

use std::sync::Arc;

use async_trait::async_trait;
use shardwise_core::{ClaimName, GroupName};
use shardwise_discovery::{Note, Notes, Result, WriteOutcome, check_note, one_line};

use crate::NatsBackend;
use crate::client::bounded;
use crate::error::{Failure, NatsResult};
use crate::handle::BucketHandle;
use crate::jetstream::CasOutcome;
use crate::messages::note_text;

/// No stream has this many messages, and the server cannot read a higher number.
const SEQUENCE_MAX: u64 = i64::MAX.unsigned_abs();

#[async_trait]
impl Notes for NatsBackend {
    async fn note(&self, group: &GroupName, name: &ClaimName) -> Result<Option<Note>> {
        self.handle.note(group, name).await.map_err(self.handle.during("note"))
    }

    async fn write_note(&self, group: &GroupName, name: &ClaimName, expected: u64, text: &str) -> Result<WriteOutcome> {
        check_note(name, text)?;
        self.handle.write_note(group, name, expected, text).await.map_err(self.handle.during("write_note"))
    }
}

impl BucketHandle {
    /// A read of the stream's leader alone may be out of date. So a write of this process comes back first.
    async fn note(self: &Arc<Self>, group: &GroupName, name: &ClaimName) -> NatsResult<Option<Note>> {
        let interest = self.groups.read(self, group, false);
        let read = interest.read_as_of(self.client.clock.now()).await?;
        let notes = read.notes.ok_or(Failure::Missed)?;
        let unreadable = |why: String| Failure::Unreadable { subject: self.client.bucket.group(group).note(name), why: one_line(&why) };
        notes.get(name).cloned().transpose().map_err(unreadable)
    }

    async fn write_note(self: &Arc<Self>, group: &GroupName, name: &ClaimName, expected: u64, text: &str) -> NatsResult<WriteOutcome> {
        // Where a note was deleted by hand, its marker stands there, and a writer that expects none has to name that.
        let mut replaced = expected;
        for _ in 0..2 {
            if replaced <= SEQUENCE_MAX {
                let subject = self.client.bucket.group(group).note(name);
                let written = bounded(self.client.write(subject, replaced, note_text(text))).await?;
                if let CasOutcome::Written(version) = written {
                    return Ok(WriteOutcome::Written(version));
                }
            }
            let there = self.note(group, name).await?;
            if there.is_some() || expected != 0 {
                return Ok(WriteOutcome::Other(there));
            }
            let subject = self.client.bucket.group(group).note(name);
            match bounded(self.client.last(&subject)).await? {
                Some(marker) if marker.payload.is_empty() => replaced = marker.sequence,
                _ => return Ok(WriteOutcome::Other(there)),
            }
        }
        Err(Failure::Contended)
    }
}
