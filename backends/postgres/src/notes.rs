//! Notes over PostgreSQL: a row each, written on the condition of its version.

use async_trait::async_trait;
use shardwise_core::{ClaimName, GroupName};
use shardwise_discovery::{Note, Notes, Result, WriteOutcome, check_note};

use crate::PostgresBackend;
use crate::answers::Answers;
use crate::client::CallTurn;
use crate::error::{Failure, PgResult};
use crate::shared::Shared;
use crate::sql::notes;

#[async_trait]
impl Notes for PostgresBackend {
    async fn note(&self, group: &GroupName, name: &ClaimName) -> Result<Option<Note>> {
        self.shared.note(group, name).await.map_err(self.shared.during("note"))
    }

    async fn write_note(&self, group: &GroupName, name: &ClaimName, expected: u64, text: &str) -> Result<WriteOutcome> {
        check_note(name, text)?;
        self.shared.write_note(group, name, expected, text).await.map_err(self.shared.during("write_note"))
    }
}

impl Shared {
    async fn note(&self, group: &GroupName, name: &ClaimName) -> PgResult<Option<Note>> {
        present(&self.client.run(CallTurn::Quick, notes::read(&self.client.schema, group, name)).await?)
    }

    async fn write_note(&self, group: &GroupName, name: &ClaimName, expected: u64, text: &str) -> PgResult<WriteOutcome> {
        if text.contains('\0') {
            return Err(Failure::NulInNote);
        }
        let answers = self.client.run(CallTurn::Quick, notes::write(&self.client.schema, group, name, expected, text)).await?;
        match notes::read_written(&answers).map_err(Failure::of_row)? {
            Some(version) => Ok(WriteOutcome::Written(version)),
            None => present(&answers).map(WriteOutcome::Other),
        }
    }
}

/// The note as the primary has it.
fn present(answers: &Answers) -> PgResult<Option<Note>> {
    match notes::read_note(answers).map_err(Failure::of_row)? {
        (_, true) => Err(Failure::Replica),
        (note, false) => Ok(note),
    }
}
