//! What all handles of a backend and its tasks share.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use shardwise_core::{ClaimStore, GroupName};
use shardwise_discovery::{Error, RecordId, UsedStores};

use crate::answers::Answers;
use crate::client::{CallTurn, Client};
use crate::error::{Failure, PgResult};
use crate::groups::Groups;

pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) groups: Groups,
    pub(crate) listening: Listening,
    pub(crate) stores: UsedStores,
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
        Self { client, groups: Groups::default(), listening: Listening::default(), stores: UsedStores::default() }
    }

    pub(crate) fn during(&self, operation: &'static str) -> impl Fn(Failure) -> Error {
        move |failure| self.client.context.during(&failure, operation)
    }

    /// A change that waits for the group's lock. The watches of this process learn of it at once.
    pub(crate) async fn write(&self, group: &GroupName, sql: String) -> PgResult<Answers> {
        let answers = self.client.run(CallTurn::MayWait, sql).await?;
        self.groups.expect_news(group);
        Ok(answers)
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
