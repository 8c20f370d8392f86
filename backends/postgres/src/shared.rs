//! What all handles of a backend and its tasks share.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use shardwise_core::{ClaimStore, GroupName};
use shardwise_discovery::feeds::{ObservedGroup, ObservedGroups};
use shardwise_discovery::{Error, RecordId, UsedStores};

use crate::answers::Answers;
use crate::client::{CallTurn, Client};
use crate::error::{Failure, PgResult};

pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) groups: ObservedGroups<Self>,
    pub(crate) listening: Listening,
    pub(crate) stores: UsedStores,
}

/// A group that this process reads.
pub(crate) type FollowedGroup = ObservedGroup<Shared>;

/// Whether something in a group is known to have changed.
pub(crate) struct ExpectedChanges(AtomicBool);

impl Default for ExpectedChanges {
    /// At the beginning nothing was read.
    fn default() -> Self {
        Self(AtomicBool::new(true))
    }
}

impl ExpectedChanges {
    /// Whether changes were expected; from here on none are.
    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, Ordering::SeqCst)
    }
}

/// Has the group read now: something has changed.
pub(crate) fn expect_changes(group: &FollowedGroup) {
    group.extra.0.store(true, Ordering::SeqCst);
    group.wake();
}

/// The state of the process's listener.
#[derive(Debug, Default)]
pub(crate) struct Listening {
    /// A task is there.
    pub(crate) is_running: Mutex<bool>,
    /// The log says that no notifications arrive.
    pub(crate) is_logged: AtomicBool,
}

impl Shared {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, groups: ObservedGroups::default(), listening: Listening::default(), stores: UsedStores::default() }
    }

    pub(crate) fn during(&self, operation: &'static str) -> impl Fn(Failure) -> Error {
        move |failure| self.client.context.during(&failure, operation)
    }

    /// A change that waits for the group's lock. The watches of this process learn of it at once.
    pub(crate) async fn write(&self, group: &GroupName, sql: String) -> PgResult<Answers> {
        let answers = self.client.run(CallTurn::MayWait, sql).await?;
        self.expect_changes(group);
        Ok(answers)
    }

    /// The group has changed.
    pub(crate) fn expect_changes(&self, group: &GroupName) {
        if let Some(group) = self.groups.find(group) {
            expect_changes(&group);
        }
    }

    /// Refuses a store whose epochs would repeat because the database was replaced by older data.
    pub(crate) fn admit(&self, group: &GroupName, store: &ClaimStore, era: u64) -> PgResult<()> {
        if self.stores.admit(group, store, era) {
            return Ok(());
        }
        Err(Failure::OtherStore(format!(
            "the database was replaced by older data, so the store of claims {} would give epochs that were given before; set epoch_floor above the \
             highest epoch used",
            store.id
        )))
    }
}

pub(crate) fn lost(record_id: &RecordId) -> Failure {
    Failure::Lost { instance_id: record_id.instance_id.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_expected_once() {
        let changes = ExpectedChanges::default();
        assert!(changes.take(), "at the beginning");
        assert!(!changes.take());
        changes.0.store(true, Ordering::SeqCst);
        assert!(changes.take() && !changes.take());
    }
}
