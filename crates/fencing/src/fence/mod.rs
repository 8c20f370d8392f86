//! Fences: one conditional statement for each database, and helpers.

pub mod postgres;
pub mod sqlite;

#[cfg(any(feature = "postgres", feature = "sqlite"))]
use shardwise_core::{Epoch, GroupName, Resource};

#[cfg(any(feature = "postgres", feature = "sqlite"))]
use crate::error::StaleEpoch;

/// A refusal of `epoch`, with the epoch that the database has seen.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
fn refused(group: &GroupName, resource: &Resource, epoch: Epoch, seen: Option<i64>) -> StaleEpoch {
    StaleEpoch { group: group.clone(), resource: resource.clone(), epoch, seen: seen.and_then(from_sql) }
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn to_sql(epoch: Epoch) -> i64 {
    epoch.get().cast_signed()
}

/// BIGINT as an epoch, if it is in range.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn from_sql(number: i64) -> Option<Epoch> {
    u64::try_from(number).ok().and_then(|number| Epoch::new(number).ok())
}
