//! The holder of each slot according to the fence, for operators and monitoring.

use sqlx::Row;

use super::SqliteStore;
use super::error::SqliteErrorContext;
use crate::Result;

const HOLDERS: &str = "
    SELECT s.slot, s.epoch, s.incarnation, p.publisher
    FROM outbox_slot AS s LEFT JOIN outbox_publisher AS p ON p.incarnation = s.incarnation
    ORDER BY s.slot";

/// One row of the fence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotHolder {
    /// The slot.
    pub slot: u32,
    /// The epoch under which it is, or was last, held.
    pub epoch: u64,
    /// The holder's incarnation in hexadecimal; `None` if the slot was released.
    pub incarnation: Option<String>,
    /// The holder's name, as long as the store knows the publisher, which may be dead.
    pub publisher: Option<String>,
}

impl SqliteStore {
    /// Every slot that was ever taken and its present holder, in the order of the slots.
    pub async fn holders(&self) -> Result<Vec<SlotHolder>> {
        let rows = sqlx::query(HOLDERS).fetch_all(&self.readers).await.at(self)?;
        rows.iter().map(holder).collect::<Result<_, sqlx::Error>>().at(self)
    }
}

fn holder(row: &sqlx::sqlite::SqliteRow) -> Result<SlotHolder, sqlx::Error> {
    let (slot, epoch): (u32, i64) = (row.try_get(0)?, row.try_get(1)?);
    Ok(SlotHolder { slot, epoch: super::unsigned(epoch), incarnation: row.try_get(2)?, publisher: row.try_get(3)? })
}
