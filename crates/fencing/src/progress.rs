//! Where the owner of a key goes on: the position that was saved last, in the same transaction as the work up to it.

use shardwise_core::{Epoch, GroupName, InstanceId, Resource};

use crate::error::FenceError;
use crate::stale_epoch::{refused, to_sql};

/// The progress of one key, for its present owner. [`postgres::resume`](crate::postgres::resume) and
/// [`postgres::save`](crate::postgres::save) take it, and so do those of [`sqlite`](crate::sqlite).
///
/// The row in the database belongs to the key and not to its slot: it stays valid when the number of slots changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// The group.
    pub group: GroupName,
    /// The key, at most 2,048 bytes; for work under a name, any text.
    pub key: String,
    /// What the owner holds: the slot of the key, or a name.
    pub resource: Resource,
    /// The epoch under which it holds that.
    pub epoch: Epoch,
    /// The owner. Each position is stored with it.
    pub instance: InstanceId,
}

/// A position as the database has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// How many times a position was saved; 0 before the first time.
    pub number: u64,
    /// The text that was passed to `save`, at most 4,096 bytes. `None` before the first time: the work begins at its start.
    pub value: Option<String>,
    /// The instance that saved it.
    pub saved_by: Option<String>,
    /// The epoch under which it was saved.
    pub saved_epoch: Option<u64>,
}

/// The columns `number`, `position`, `saved_by` and `saved_epoch`.
pub(crate) type PositionRow = (i64, Option<String>, Option<String>, Option<i64>);

impl Position {
    pub(crate) fn of((number, value, saved_by, saved_epoch): PositionRow) -> Self {
        Self { number: number.cast_unsigned(), value, saved_by, saved_epoch: saved_epoch.map(i64::cast_unsigned) }
    }

    /// The position after this one.
    pub(crate) fn followed_by(&self, progress: &Progress, value: &str) -> Self {
        Self {
            number: self.number + 1,
            value: Some(value.to_owned()),
            saved_by: Some(progress.instance.as_str().to_owned()),
            saved_epoch: Some(progress.epoch.get()),
        }
    }
}

/// Why a position was not saved. `row` has the epoch and the number that the database has by now.
pub(crate) fn not_saved(progress: &Progress, from: &Position, row: Option<(i64, i64)>) -> FenceError {
    match row {
        Some((epoch, _)) if epoch > to_sql(progress.epoch) => {
            refused(&progress.group, &progress.resource, progress.epoch, Some(epoch)).into()
        }
        row => FenceError::Moved { key: progress.key.clone(), from: from.number, found: row.map(|(_, number)| number.cast_unsigned()) },
    }
}
