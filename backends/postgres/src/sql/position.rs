//! Where an answer came from.

use sqlx::Row;
use sqlx::postgres::PgRow;

use super::unsigned;

/// Where an answer came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogPosition {
    /// A standby, which may lag behind.
    pub(crate) is_replica: bool,
    /// The tables and the timeline.
    pub(crate) origin: String,
    /// How much of the server's log was on its disk.
    pub(crate) lsn: u64,
}

impl LogPosition {
    pub(crate) fn read(row: &PgRow) -> sqlx::Result<Self> {
        let (store_id, timeline): (String, String) = (row.try_get("store_id")?, row.try_get("timeline")?);
        let (is_replica, lsn) = (row.try_get("is_replica")?, unsigned(row, "lsn")?);
        Ok(Self { is_replica, origin: format!("{store_id}/{timeline}"), lsn })
    }
}
