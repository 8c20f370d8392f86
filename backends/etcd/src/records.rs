//! Members as etcd's values, and back.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use shardwise_core::{GroupName, InstanceId, MEMBERS_MAX, Member, View};
use shardwise_discovery::Record;

use crate::client::KeyEntry;
use crate::error::Failure;
use crate::inner::EtcdInner;
use crate::keys::Folder;
use crate::mirror::Mirror;

/// The most bytes one record may have as JSON.
pub const RECORD_BYTES_MAX: usize = 65_536;

pub(crate) fn encode(member: &Member) -> Result<String, Failure> {
    Record::encode_within(RECORD_BYTES_MAX, member).map_err(Failure::Unwritable)
}

pub(crate) fn decode(instance_id: &InstanceId, entry: &KeyEntry) -> Result<Member, Failure> {
    let unreadable = |why: String| Failure::Unreadable { instance_id: instance_id.to_string(), why };
    let json = std::str::from_utf8(&entry.value).map_err(|error| unreadable(error.to_string()))?;
    Record::decode(instance_id.clone(), number(entry), json).map_err(|error| unreadable(error.to_string()))
}

/// What this backend adds to a record: a revision, or 0 for that of the write itself.
#[derive(Deserialize)]
struct JoinRevision {
    since: Option<i64>,
}

/// Records are numbered by the revision that made them: it rises, and stays when the record is written over. One that came in the place of
/// another life, which was away, is numbered by the revision of that instead: it joined later than all members that were there.
fn number(entry: &KeyEntry) -> u64 {
    let since = serde_json::from_slice(&entry.value).ok().and_then(|JoinRevision { since }| since);
    let revision = match since {
        None => entry.created,
        Some(0) => entry.modified,
        Some(since) => since,
    };
    // A member cannot claim to be older than its record.
    u64::try_from(revision.max(entry.created)).unwrap_or_default()
}

fn since(record: &str, revision: u64) -> String {
    // A record is an object, and never an empty one.
    format!("{{\"since\":{revision},{}", record.trim_start().trim_start_matches('{'))
}

/// The record of a life that begins with writing over another one's.
pub(crate) fn joining(record: &str) -> String {
    since(record, 0)
}

/// The record of a life that goes on: it keeps its number.
pub(crate) fn going_on(record: &str, old: &KeyEntry) -> String {
    let number = number(old);
    if u64::try_from(old.created) == Ok(number) { record.to_owned() } else { since(record, number) }
}

/// The living records of one group, by their keys.
#[derive(Debug, Default, Clone)]
pub(crate) struct MemberTable(BTreeMap<Vec<u8>, Member>);

impl Mirror for MemberTable {
    type Shown = View;
    const KEYS_MAX: usize = MEMBERS_MAX as usize;

    fn folder(inner: &EtcdInner, group: &GroupName) -> Folder {
        inner.prefix.members(group)
    }

    fn put(&mut self, folder: &Folder, entry: &KeyEntry) -> Result<(), Failure> {
        let foreign = |why| Failure::Unreadable { instance_id: String::from_utf8_lossy(&entry.key).into_owned(), why };
        let instance_id = folder.member(&entry.key).map_err(foreign)?;
        self.0.insert(entry.key.clone(), decode(&instance_id, entry)?);
        if self.0.len() > Self::KEYS_MAX { Err(Failure::TooManyMembers) } else { Ok(()) }
    }

    fn delete(&mut self, _folder: &Folder, key: &[u8]) {
        self.0.remove(key);
    }

    fn shown(&self, revision: u64) -> Arc<View> {
        Arc::new(View::new(revision, self.0.values().cloned().collect()))
    }
}
