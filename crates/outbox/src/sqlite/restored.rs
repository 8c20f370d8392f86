//! Raising epochs and sequences after the file was replaced by an older copy, in one transaction.

use super::SqliteStore;
use crate::Result;
use crate::store::sql::{ErrorContext, checked, unsigned};
use crate::store::{RestoreResult, Store as _};

/// A row that carries the epoch until the first publisher creates the real rows.
const CARRIER: &str =
    "INSERT INTO outbox_slot (slot, epoch, hash_from, hash_to) SELECT 0, 0, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM outbox_slot)";
/// ?1 epoch.
const LIFT_SLOTS: &str = "UPDATE outbox_slot SET incarnation = NULL, epoch = 1 + max(epoch, ?1)";
/// ?1 sequence.
const LIFT_FLOOR: &str = "UPDATE outbox_meta SET seq_floor = max(seq_floor, ?1)";
/// ?1 sequence. Counted before anything is raised.
const WAITING: &str =
    "SELECT coalesce(sum(min(last_seq, ?1) - done_seq), 0) FROM outbox_aggregate WHERE done_seq < last_seq AND done_seq < ?1";
/// ?1 sequence. An aggregate with nothing to send is done up to it; for the others, publishers pass over the skipped numbers.
const LIFT: &str = "UPDATE outbox_aggregate SET done_seq = iif(done_seq = last_seq, ?1, done_seq), last_seq = ?1 WHERE last_seq < ?1";

pub(super) async fn restored(store: &SqliteStore, epoch_above: u64, sequence_above: u64) -> Result<RestoreResult> {
    let (epoch, sequence) = checked(epoch_above, sequence_above)?;
    let publishers = store.status().await?.publishers.iter().filter(|publisher| publisher.alive).count() as u64;
    let mut tx = store.begin().await?;
    let waiting: i64 = sqlx::query_scalar(WAITING).bind(sequence).fetch_one(&mut *tx).await.at(store)?;
    sqlx::query(CARRIER).execute(&mut *tx).await.at(store)?;
    sqlx::query(LIFT_SLOTS).bind(epoch).execute(&mut *tx).await.at(store)?;
    sqlx::query("DELETE FROM outbox_publisher").execute(&mut *tx).await.at(store)?;
    sqlx::query(LIFT_FLOOR).bind(sequence).execute(&mut *tx).await.at(store)?;
    let aggregates = sqlx::query(LIFT).bind(sequence).execute(&mut *tx).await.at(store)?.rows_affected();
    let highest: i64 = sqlx::query_scalar("SELECT max(epoch) FROM outbox_slot").fetch_one(&mut *tx).await.at(store)?;
    tx.commit().await.at(store)?;
    Ok(RestoreResult { epoch: unsigned(highest), aggregates, waiting: unsigned(waiting), publishers })
}
