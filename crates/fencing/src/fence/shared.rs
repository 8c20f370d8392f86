//! What both databases need.

use shardwise_core::{Epoch, GroupName, Resource};

use crate::StaleEpoch;

/// A refusal of `epoch`, with the epoch that the database has seen.
pub(crate) fn refused(group: &GroupName, resource: &Resource, epoch: Epoch, seen: Option<i64>) -> StaleEpoch {
    // BIGINT as an epoch, if it is in range.
    let seen = seen.and_then(|number| u64::try_from(number).ok()).and_then(|number| Epoch::new(number).ok());
    StaleEpoch { group: group.clone(), resource: resource.clone(), epoch, seen }
}

pub(crate) fn to_sql(epoch: Epoch) -> i64 {
    epoch.get().cast_signed()
}
