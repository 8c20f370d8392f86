//! Notes over etcd: a key each, under no lease, whose version is the revision that wrote it last.

use async_trait::async_trait;
use etcd_client::{Compare, CompareOp, Txn, TxnOp, TxnOpResponse};
use shardwise_core::{ClaimName, GroupName};
use shardwise_discovery::{Note, Notes, Result, WriteOutcome, check_note};

use crate::backend::EtcdBackend;
use crate::client::{EtcdConnection, KeyEntry};
use crate::error::Failure;

#[async_trait]
impl Notes for EtcdBackend {
    async fn note(&self, group: &GroupName, name: &ClaimName) -> Result<Option<Note>> {
        let (pool, key) = (&self.inner.pool, self.inner.prefix.note(group, name));
        let key = key.as_slice();
        let answer = pool.call(|connection| async move { connection.read(&[key]).await?.0.pop().flatten().map(decoded).transpose() }).await;
        answer.map_err(|failure| failure.during("note"))
    }

    async fn write_note(&self, group: &GroupName, name: &ClaimName, expected: u64, text: &str) -> Result<WriteOutcome> {
        check_note(name, text)?;
        let (pool, key) = (&self.inner.pool, self.inner.prefix.note(group, name));
        let key = key.as_slice();
        let answer = pool.call(|connection| async move { connection.write_note(key, expected, text).await }).await;
        answer.map_err(|failure| failure.during("write_note"))
    }
}

impl EtcdConnection {
    async fn write_note(&self, key: &[u8], expected: u64, text: &str) -> std::result::Result<WriteOutcome, Failure> {
        // Of a key that is not there the revision is 0. No revision is above the range.
        let expected = i64::try_from(expected).unwrap_or(i64::MAX);
        let same = Compare::mod_revision(key, CompareOp::Equal, expected);
        let txn = Txn::new().when([same]).and_then([TxnOp::put(key, text, None)]).or_else([TxnOp::get(key, None)]);
        let answer = self.txn(&txn).await?;
        if answer.succeeded() {
            return Ok(WriteOutcome::Written(self.revision_of(answer.header())?.unsigned_abs()));
        }
        match answer.op_responses().pop() {
            Some(TxnOpResponse::Get(found)) => found.kvs().first().map(KeyEntry::from).map(decoded).transpose().map(WriteOutcome::Other),
            _ => Err(self.odd("an answer does not fit its transaction")),
        }
    }
}

fn decoded(entry: KeyEntry) -> std::result::Result<Note, Failure> {
    let version = entry.modified.unsigned_abs();
    let text =
        String::from_utf8(entry.value).map_err(|_| Failure::DamagedNote { key: String::from_utf8_lossy(&entry.key).into_owned() })?;
    Ok(Note { text, version })
}
