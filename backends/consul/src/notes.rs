//! Notes in Consul: a key each (`docs.md`), whose version is its `ModifyIndex`. Never deleted, so that no version comes back.

use async_trait::async_trait;
use shardwise_core::{ClaimName, GroupName};
use shardwise_discovery::{Note, Notes, WriteOutcome, check_note};

use crate::ConsulBackend;
use crate::api::READ_KEYS;
use crate::client::Client;
use crate::error::{Failure, Result};
use crate::keys::{KvPair, encoded};
use crate::names::key_part;

/// How often a write is tried that was refused though what is there is as expected.
const ATTEMPTS: usize = 3;

#[async_trait]
impl Notes for ConsulBackend {
    async fn note(&self, group: &GroupName, name: &ClaimName) -> shardwise_discovery::Result<Option<Note>> {
        read(&self.registrar.client, &key(group, name)).await.map_err(|failure| failure.during("note"))
    }

    async fn write_note(
        &self,
        group: &GroupName,
        name: &ClaimName,
        expected: u64,
        text: &str,
    ) -> shardwise_discovery::Result<WriteOutcome> {
        check_note(name, text)?;
        write(&self.registrar.client, &key(group, name), expected, text).await.map_err(|failure| failure.during("write_note"))
    }
}

fn key(group: &GroupName, name: &ClaimName) -> String {
    format!("shardwise/notes/{}/{}", key_part(group.as_str()), key_part(name.as_str()))
}

async fn read(client: &Client, key: &str) -> Result<Option<Note>> {
    client.key("reading a note", key, READ_KEYS).await?.as_ref().map(decoded).transpose()
}

async fn write(client: &Client, key: &str, expected: u64, text: &str) -> Result<WriteOutcome> {
    for _ in 0..ATTEMPTS {
        // Consul leaves a key and its index as they are where the same is written again.
        let flags = rand::random();
        if let Some(index) = client.compare_and_set("writing a note", key, &encoded(text.as_bytes()), flags, expected).await? {
            return Ok(WriteOutcome::Written(index));
        }
        let there = read(client, key).await?;
        if there.as_ref().map_or(0, |note| note.version) != expected {
            return Ok(WriteOutcome::Other(there));
        }
    }
    Err(Failure::Overtaken)
}

pub(crate) fn decoded(stored: &KvPair) -> Result<Note> {
    let unreadable = |_| Failure::BadClaim {
        key: stored.key.clone(),
        why: "it is not text".to_owned(),
        remedy: "put back what stood there, or delete it",
    };
    let text = String::from_utf8(stored.value()).map_err(unreadable)?;
    Ok(Note { text, version: stored.modify_index })
}
