//! The refusal of an epoch.

use std::fmt;

use shardwise_core::{Epoch, GroupName, Resource, write_with_causes};

/// The database has seen a higher epoch: another worker has acquired the resource since, and this write must not happen. Roll back,
/// abandon the write, and discard what you have cached of the resource.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{resource} of group {group:?} is held under a higher epoch than {epoch}{}: another worker has held it since; roll back and abandon \
     this work", .seen.map(|seen| format!(" ({seen} was seen)")).unwrap_or_default()
)]
pub struct StaleEpoch {
    /// The group.
    pub group: GroupName,
    /// The resource.
    pub resource: Resource,
    /// The epoch of the write.
    pub epoch: Epoch,
    /// The highest epoch that the database has seen; `None` if its row was gone by the time of this lookup.
    pub seen: Option<Epoch>,
}

impl fmt::Debug for StaleEpoch {
    /// Like [`Display`](fmt::Display): `main` prints a returned error by its `Debug`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_with_causes(f, self)
    }
}

/// A refusal of `epoch`, with the epoch that the database has seen.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn refused(group: &GroupName, resource: &Resource, epoch: Epoch, seen: Option<i64>) -> StaleEpoch {
    // BIGINT as an epoch, if it is in range.
    let seen = seen.and_then(|number| u64::try_from(number).ok()).and_then(|number| Epoch::new(number).ok());
    StaleEpoch { group: group.clone(), resource: resource.clone(), epoch, seen }
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn to_sql(epoch: Epoch) -> i64 {
    epoch.get().cast_signed()
}
