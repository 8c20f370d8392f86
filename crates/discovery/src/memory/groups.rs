//! The table: groups, their records, and the effects of a change.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use shardwise_core::{
    Claim, ClaimName, ClaimStore, Epoch, GroupName, Holder, InstanceId, Member, MemberState, Moment, Resource, StoreId, View,
};

use crate::{AcquireOutcome, Error, ErrorKind, Note, RecordId, Result};

/// The most groups with members one memory backend holds.
const GROUPS_MAX: usize = 1_024;

pub(super) struct MemoryGroups {
    /// The number of the last change to any group. One counter for all, so that a group that was dropped and comes again goes on above
    /// its former self.
    pub(super) revision: u64,
    /// The groups that have records; reading and watching makes none.
    pub(super) by_name: HashMap<GroupName, MemoryGroup>,
    /// One store of claims for all groups: they outlive their members, and so do epochs.
    pub(super) claim_store: ClaimStore,
    /// How many acquisitions there were; their numbers, with the store's floor, are the epochs.
    pub(super) acquisitions: u64,
    /// They outlive their group's members.
    pub(super) notes: HashMap<(GroupName, ClaimName), Note>,
    /// How many writes of notes there were; their numbers are the versions.
    pub(super) notes_written: u64,
}

#[derive(Default)]
pub(super) struct MemoryGroup {
    /// The number of the last change to its records.
    pub(super) revision: u64,
    pub(super) records: BTreeMap<InstanceId, StoredRecord>,
    /// The number of the last change to its claims.
    pub(super) claims_revision: u64,
    /// Every holder has a living record among `records`.
    pub(super) claims: BTreeMap<Resource, Claim>,
}

pub(super) struct StoredRecord {
    pub(super) member: Member,
    pub(super) ends: Moment,
    /// Rises with each renewal and each registration of the same life.
    pub(super) renewals: u64,
}

impl StoredRecord {
    pub(super) fn is_away(&self) -> bool {
        self.member.state == MemberState::Away
    }
}

pub(super) fn holder(record_id: &RecordId) -> Holder {
    Holder { instance_id: record_id.instance_id.clone(), incarnation: record_id.incarnation }
}

impl MemoryGroup {
    pub(super) fn grant(&mut self, record_id: &RecordId, resource: &Resource, epoch: Epoch) -> AcquireOutcome {
        match self.claims.entry(resource.clone()) {
            Entry::Vacant(free) => {
                free.insert(Claim { holder: holder(record_id), epoch });
                AcquireOutcome::Granted(epoch)
            }
            Entry::Occupied(held) if held.get().holder == holder(record_id) => AcquireOutcome::Granted(held.get().epoch),
            Entry::Occupied(_) => AcquireOutcome::Held,
        }
    }

    /// Frees the claims of records that are gone or away. Returns whether there were any.
    fn free_orphans(&mut self) -> bool {
        let (records, before) = (&self.records, self.claims.len());
        let lives = |claim: &Claim| {
            let holds = |stored: &StoredRecord| stored.member.incarnation == claim.holder.incarnation && !stored.is_away();
            records.get(&claim.holder.instance_id).is_some_and(holds)
        };
        self.claims.retain(|_, claim| lives(claim));
        self.claims.len() != before
    }
}

impl MemoryGroups {
    /// No groups, and a new store of claims.
    pub(super) fn new() -> Self {
        let claim_store = ClaimStore { id: StoreId::new(rand::random()), floor: 0 };
        Self { revision: 0, by_name: HashMap::new(), claim_store, acquisitions: 0, notes: HashMap::new(), notes_written: 0 }
    }

    /// Forgets everything but its own numbering of changes, as a backend does that is wiped and started empty.
    pub(super) fn wipe(&mut self) {
        *self = Self { revision: self.revision + 1, ..Self::new() };
    }

    /// Numbers a change to the group's records, and drops the group if it is empty.
    pub(super) fn changed(&mut self, name: &GroupName) {
        self.revision += 1;
        let Some(group) = self.by_name.get_mut(name) else { return };
        group.revision = self.revision;
        if group.free_orphans() {
            group.claims_revision = self.revision;
        }
        if group.records.is_empty() {
            self.by_name.remove(name);
        }
    }

    /// Drops the expired records of one group.
    pub(super) fn reap(&mut self, name: &GroupName, now: Moment) {
        let Some(group) = self.by_name.get_mut(name) else { return };
        let before = group.records.len();
        group.records.retain(|_, stored| now < stored.ends);
        if group.records.len() != before {
            self.changed(name);
        }
    }

    /// The records of a group in which a member registers. An error if that exceeds the limit of groups and no dead group can be dropped.
    pub(super) fn records(&mut self, name: &GroupName, now: Moment) -> Result<&mut BTreeMap<InstanceId, StoredRecord>> {
        self.reap(name, now);
        let is_full = |groups: &Self| groups.by_name.len() >= GROUPS_MAX && !groups.by_name.contains_key(name);
        if is_full(self) {
            for name in &self.by_name.keys().cloned().collect::<Vec<_>>() {
                self.reap(name, now);
            }
        }
        if is_full(self) {
            let context = format!("the memory backend already holds {GROUPS_MAX} groups with members; let the members of one leave");
            return Err(Error::new(ErrorKind::TooLarge, "register", context));
        }
        Ok(&mut self.by_name.entry(name.clone()).or_default().records)
    }

    /// The living record of exactly this incarnation.
    pub(super) fn own(&mut self, record_id: &RecordId, now: Moment, operation: &'static str) -> Result<&mut StoredRecord> {
        let lost = || Error::new(ErrorKind::Lost, operation, format!("{:?} has no record here; register again", record_id.instance_id));
        self.there(record_id, now).filter(|stored| !stored.is_away()).ok_or_else(lost)
    }

    /// The record of exactly this incarnation, living or away.
    pub(super) fn there(&mut self, record_id: &RecordId, now: Moment) -> Option<&mut StoredRecord> {
        self.reap(&record_id.group, now);
        let stored = self.by_name.get_mut(&record_id.group).and_then(|group| group.records.get_mut(&record_id.instance_id));
        stored.filter(|stored| stored.member.incarnation == record_id.incarnation)
    }

    /// Deletes the record of that id.
    pub(super) fn remove(&mut self, record_id: &RecordId) {
        self.by_name.get_mut(&record_id.group).map(|group| group.records.remove(&record_id.instance_id));
        self.changed(&record_id.group);
    }

    /// The group as it is; one without records is empty as of the store's last change.
    pub(super) fn view(&self, name: &GroupName) -> Arc<View> {
        let (revision, members) = match self.by_name.get(name) {
            Some(group) => (group.revision, group.records.values().map(|stored| stored.member.clone()).collect()),
            None => (self.revision, Vec::new()),
        };
        Arc::new(View::new(revision, members))
    }
}
