//! Members as etcd's values, and back.

use std::collections::BTreeMap;
use std::sync::Arc;

use shardwise_core::{GroupName, InstanceId, MEMBERS_MAX, Member, View};
use shardwise_discovery::Record;

use crate::backend::Inner;
use crate::client::Entry;
use crate::error::Failure;
use crate::followed::Sheet;
use crate::keys::Folder;

/// The most bytes one record may have as JSON.
pub const RECORD_BYTES_MAX: usize = 65_536;

pub(crate) fn encode(member: &Member) -> Result<String, Failure> {
    Record::encode_within(RECORD_BYTES_MAX, member).map_err(Failure::Unwritable)
}

pub(crate) fn decode(instance_id: &InstanceId, entry: &Entry) -> Result<Member, Failure> {
    let unreadable = |why: String| Failure::Unreadable { instance_id: instance_id.to_string(), why };
    let json = std::str::from_utf8(&entry.value).map_err(|error| unreadable(error.to_string()))?;
    // Records are numbered by the revision that made them: it rises, and stays when the record is written over.
    Record::decode(instance_id.clone(), u64::try_from(entry.created).unwrap_or_default(), json)
        .map_err(|error| unreadable(error.to_string()))
}

/// The living records of one group, by their keys.
#[derive(Debug, Default, Clone)]
pub(crate) struct Roll(BTreeMap<Vec<u8>, Member>);

impl Roll {
    pub(crate) fn of(folder: &Folder, entries: &[Entry]) -> Result<Self, Failure> {
        let mut roll = Self::default();
        for entry in entries {
            roll.put(folder, entry)?;
        }
        Ok(roll)
    }

    pub(crate) fn view(&self, revision: u64) -> View {
        View::new(revision, self.0.values().cloned().collect())
    }
}

impl Sheet for Roll {
    type Topic = View;
    const OPERATION: &'static str = "watch";
    const KEYS_MAX: usize = MEMBERS_MAX as usize;

    fn folder(inner: &Inner, group: &GroupName) -> Folder {
        inner.prefix.members(group)
    }

    fn put(&mut self, folder: &Folder, entry: &Entry) -> Result<(), Failure> {
        let foreign = |why| Failure::Unreadable { instance_id: String::from_utf8_lossy(&entry.key).into_owned(), why };
        let instance_id = folder.member(&entry.key).map_err(foreign)?;
        self.0.insert(entry.key.clone(), decode(&instance_id, entry)?);
        if self.0.len() > Self::KEYS_MAX { Err(Failure::TooManyMembers) } else { Ok(()) }
    }

    fn delete(&mut self, _folder: &Folder, key: &[u8]) {
        self.0.remove(key);
    }

    fn shown(&self, revision: u64) -> Arc<View> {
        Arc::new(self.view(revision))
    }
}
