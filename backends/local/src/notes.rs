//! Notes over the file: a row each, written by one statement, and all SQL of them.

use std::sync::Arc;

use async_trait::async_trait;
use shardwise_core::{ClaimName, GroupName};
use shardwise_discovery::{Note, Notes, Result, WriteOutcome, check_note};
use sqlx::Row;

use crate::LocalBackend;
use crate::open_store::OpenStore;

const READ: &str = "SELECT version, text FROM note WHERE group_name = ?1 AND name = ?2";

// ?3 text, ?4 the version that is expected, 0 for none. No row comes back if there is another one.
const WRITE: &str = "
    INSERT OR REPLACE INTO note (group_name, name, text)
    SELECT ?1, ?2, ?3 WHERE coalesce((SELECT version FROM note WHERE group_name = ?1 AND name = ?2), 0) = ?4
    RETURNING version";

#[async_trait]
impl Notes for LocalBackend {
    async fn note(&self, group: &GroupName, name: &ClaimName) -> Result<Option<Note>> {
        if self.client.is_unmade() {
            return Ok(None);
        }
        self.client.call("note", |store| async move { Ok(store.note(group, name).await?) }).await
    }

    async fn write_note(&self, group: &GroupName, name: &ClaimName, expected: u64, text: &str) -> Result<WriteOutcome> {
        check_note(name, text)?;
        let expected = i64::try_from(expected).unwrap_or(i64::MAX);
        let query = sqlx::query(WRITE).bind(group.as_str()).bind(name.as_str()).bind(text).bind(expected);
        let write = |store: Arc<OpenStore>| async move {
            // A note that is forgotten lets a timer fire once more for the same period.
            match store.write_through(query).await?.first() {
                Some(row) => Ok(WriteOutcome::Written(row.try_get::<i64, _>(0)?.unsigned_abs())),
                None => Ok(WriteOutcome::Other(store.note(group, name).await?)),
            }
        };
        self.client.call("write_note", write).await
    }
}

impl OpenStore {
    async fn note(&self, group: &GroupName, name: &ClaimName) -> sqlx::Result<Option<Note>> {
        let query = sqlx::query_as(READ).bind(group.as_str()).bind(name.as_str());
        let found: Option<(i64, String)> = query.fetch_optional(&self.readers).await?;
        Ok(found.map(|(version, text)| Note { text, version: version.unsigned_abs() }))
    }
}

/// For the test of their plans.
#[cfg(test)]
pub(crate) const STATEMENTS: &[&str] = &[READ, WRITE];
