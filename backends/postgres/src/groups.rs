//! The groups that this process reads: what it needs of each, and what was read last. One task reads a group, for all watches of it and for
//! its observer: see [`crate::observer`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shardwise_core::{GroupName, Incarnation, InstanceId, Moment, View};
use shardwise_discovery::{ClaimTable, RecordId};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::error::Failure;

/// How long this process waits for the end of a record that has an id which it wants, after it was last refused.
const RIVAL_LASTS: Duration = Duration::from_mins(1);

/// The groups by name.
#[derive(Default)]
pub(crate) struct Groups(Mutex<HashMap<GroupName, Arc<FollowedGroup>>>);

/// One group.
pub(crate) struct FollowedGroup {
    pub(crate) name: GroupName,
    pub(crate) shown: watch::Sender<FollowedState>,
    /// Has the group read.
    wake: Notify,
    /// Something is known to have changed.
    expects_news: AtomicBool,
    needs: Mutex<GroupNeeds>,
}

/// What was read last.
#[derive(Debug, Clone, Default)]
pub(crate) struct FollowedState {
    pub(crate) view: Option<Arc<View>>,
    /// `None` while claims are not read.
    pub(crate) claims: Option<Arc<ClaimTable>>,
    /// When the last reading that succeeded began.
    pub(crate) proven: Moment,
    /// Why the last reading failed, if it did, and when it began.
    pub(crate) failure: Option<(Failure, Moment)>,
}

/// Why a group is read.
#[derive(Debug, Default)]
struct GroupNeeds {
    readers: usize,
    claim_readers: usize,
    /// The members of this process.
    mine: BTreeMap<InstanceId, Incarnation>,
    /// By member of this process, the lives that hold what it wants.
    holders: BTreeMap<InstanceId, BTreeSet<i64>>,
    /// By id that this process wants, the life that has it, and until when that is waited for.
    rivals: BTreeMap<InstanceId, (i64, Instant)>,
}

/// What an observer must know.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Needs {
    pub(crate) reads_claims: bool,
    /// The members of this process, registered or about to register.
    pub(crate) mine: BTreeSet<InstanceId>,
    /// The lives for whose end it waits.
    pub(crate) waits: BTreeSet<i64>,
}

impl GroupNeeds {
    fn is_empty(&self) -> bool {
        self.readers == 0 && self.mine.is_empty() && self.rivals.is_empty()
    }
}

impl Groups {
    fn by_name(&self) -> MutexGuard<'_, HashMap<GroupName, Arc<FollowedGroup>>> {
        // Nothing under this lock can panic halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is needed of a group; `start` is called if no task reads it yet.
    fn need(&self, name: &GroupName, change: impl FnOnce(&mut GroupNeeds), start: impl FnOnce(Arc<FollowedGroup>)) -> Arc<FollowedGroup> {
        let mut groups = self.by_name();
        let known = groups.get(name).map(Arc::clone);
        let is_new = known.is_none();
        let group = known.unwrap_or_else(|| Arc::new(FollowedGroup::new(name.clone())));
        change(&mut group.needs());
        if is_new {
            groups.insert(name.clone(), Arc::clone(&group));
            drop(groups);
            start(Arc::clone(&group));
        } else {
            drop(groups);
            group.wake();
        }
        group
    }

    /// A watch reads the group, until the answer is dropped.
    pub(crate) fn read(&self, name: &GroupName, claims: bool, start: impl FnOnce(Arc<FollowedGroup>)) -> GroupInterest {
        let add = |needs: &mut GroupNeeds| {
            needs.readers += 1;
            needs.claim_readers += usize::from(claims);
        };
        GroupInterest { group: self.need(name, add, start), claims }
    }

    /// A member of this process has registered.
    pub(crate) fn joined(&self, record_id: &RecordId, start: impl FnOnce(Arc<FollowedGroup>)) {
        let RecordId { group, instance_id, incarnation } = record_id;
        let add = |needs: &mut GroupNeeds| {
            needs.mine.insert(instance_id.clone(), *incarnation);
            needs.rivals.remove(instance_id);
        };
        self.need(group, add, start).expect_news();
    }

    /// A member of this process has renewed. It is known already, unless a reading that began before it registered has missed it.
    pub(crate) fn renewed(&self, record_id: &RecordId, start: impl FnOnce(Arc<FollowedGroup>)) {
        let known = self.find(&record_id.group);
        if known.is_none_or(|group| group.needs().mine.get(&record_id.instance_id) != Some(&record_id.incarnation)) {
            self.joined(record_id, start);
        }
    }

    /// Another life has the id that a member of this process wants.
    pub(crate) fn refused(&self, record_id: &RecordId, life: i64, start: impl FnOnce(Arc<FollowedGroup>)) {
        let add = |needs: &mut GroupNeeds| {
            needs.rivals.insert(record_id.instance_id.clone(), (life, Instant::now() + RIVAL_LASTS));
        };
        self.need(&record_id.group, add, start);
    }

    /// A member of this process has left or lost its record.
    pub(crate) fn left(&self, record_id: &RecordId) {
        if let Some(group) = self.find(&record_id.group) {
            group.forget(&record_id.instance_id, record_id.incarnation);
            group.expect_news();
        }
    }

    /// A member of this process wants what these lives hold.
    pub(crate) fn wait_for(&self, record_id: &RecordId, holders: BTreeSet<i64>) {
        let Some(group) = self.find(&record_id.group) else { return };
        let is_new = {
            let mut needs = group.needs();
            if !needs.mine.contains_key(&record_id.instance_id) {
                return;
            }
            let former = needs.holders.insert(record_id.instance_id.clone(), holders);
            former.as_ref() != needs.holders.get(&record_id.instance_id)
        };
        if is_new {
            group.wake();
        }
    }

    pub(crate) fn find(&self, name: &GroupName) -> Option<Arc<FollowedGroup>> {
        self.by_name().get(name).map(Arc::clone)
    }

    /// The group has changed.
    pub(crate) fn expect_news(&self, name: &GroupName) {
        if let Some(group) = self.find(name) {
            group.expect_news();
        }
    }

    /// Any group may have changed.
    pub(crate) fn expect_all_news(&self) {
        self.by_name().values().for_each(|group| group.expect_news());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_name().is_empty()
    }

    /// Takes the group out if nothing needs it. Later needs make another one.
    pub(crate) fn end_unneeded(&self, group: &Arc<FollowedGroup>) -> bool {
        let mut groups = self.by_name();
        let is_unneeded = {
            let mut needs = group.needs();
            let now = Instant::now();
            needs.rivals.retain(|_, (_, until)| *until > now);
            needs.is_empty()
        };
        if is_unneeded {
            remove(&mut groups, group);
        }
        is_unneeded
    }

    /// The group's task has ended, whatever is needed.
    pub(crate) fn end(&self, group: &Arc<FollowedGroup>) {
        remove(&mut self.by_name(), group);
    }
}

fn remove(groups: &mut HashMap<GroupName, Arc<FollowedGroup>>, group: &Arc<FollowedGroup>) {
    if groups.get(&group.name).is_some_and(|known| Arc::ptr_eq(known, group)) {
        groups.remove(&group.name);
    }
}

impl FollowedGroup {
    fn new(name: GroupName) -> Self {
        let (wake, expects_news, needs) = (Notify::new(), AtomicBool::new(true), Mutex::default());
        Self { name, shown: watch::Sender::new(FollowedState::default()), wake, expects_news, needs }
    }

    fn needs(&self) -> MutexGuard<'_, GroupNeeds> {
        // Nothing under this lock can panic halfway through a change.
        self.needs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the group looked at now.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Has the group read now: something has changed.
    pub(crate) fn expect_news(&self) {
        self.expects_news.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Whether news were expected; from here on none are.
    pub(crate) fn take_expected(&self) -> bool {
        self.expects_news.swap(false, Ordering::SeqCst)
    }

    /// Waits until the group is to be looked at. Returns at once if that was asked for since the last call.
    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }

    pub(crate) fn needed(&self) -> Needs {
        let needs = self.needs();
        let mine = needs.mine.keys().chain(needs.rivals.keys()).cloned().collect();
        let holders = needs.holders.iter().filter(|(id, _)| needs.mine.contains_key(*id)).flat_map(|(_, lives)| lives.iter().copied());
        let waits = holders.chain(needs.rivals.values().map(|(life, _)| *life)).collect();
        Needs { reads_claims: needs.claim_readers > 0, mine, waits }
    }

    /// The members of this process, as it registered them.
    pub(crate) fn mine(&self) -> Vec<(InstanceId, Incarnation)> {
        self.needs().mine.iter().map(|(id, incarnation)| (id.clone(), *incarnation)).collect()
    }

    /// That life of a member of this process has ended.
    pub(crate) fn forget(&self, id: &InstanceId, incarnation: Incarnation) {
        let mut needs = self.needs();
        if needs.mine.get(id) == Some(&incarnation) {
            needs.mine.remove(id);
            needs.holders.remove(id);
        }
    }
}

/// A watch's interest in a group.
pub(crate) struct GroupInterest {
    pub(crate) group: Arc<FollowedGroup>,
    claims: bool,
}

impl Drop for GroupInterest {
    fn drop(&mut self) {
        let mut needs = self.group.needs();
        needs.readers -= 1;
        needs.claim_readers -= usize::from(self.claims);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: &str, incarnation: u64) -> RecordId {
        let group = GroupName::new("g").unwrap();
        RecordId { group, instance_id: InstanceId::new(id).unwrap(), incarnation: Incarnation::new(incarnation) }
    }

    fn is_needed(groups: &Groups) -> bool {
        groups.find(&record("a", 1).group).is_some_and(|group| !groups.end_unneeded(&group))
    }

    #[test]
    fn a_group_is_read_for_watches_members_and_rivals_and_then_no_more() {
        let (groups, started) = (Groups::default(), AtomicBool::new(false));
        let start = |_| started.store(true, Ordering::SeqCst);
        let interest = groups.read(&record("a", 1).group, true, start);
        assert!(started.load(Ordering::SeqCst) && interest.group.needed().reads_claims);
        groups.joined(&record("a", 1), |_| unreachable!("it is read already"));
        groups.wait_for(&record("a", 1), BTreeSet::from([7]));
        groups.wait_for(&record("b", 1), BTreeSet::from([8]));
        groups.refused(&record("c", 1), 9, |_| unreachable!("it is read already"));
        let group = Arc::clone(&interest.group);
        let ids = |names: &[&str]| names.iter().map(|name| InstanceId::new(name).unwrap()).collect::<BTreeSet<_>>();
        assert_eq!(group.needed(), Needs { reads_claims: true, mine: ids(&["a", "c"]), waits: BTreeSet::from([7, 9]) });
        drop(interest);
        groups.left(&record("a", 2));
        assert!(is_needed(&groups), "another life has left");
        groups.left(&record("a", 1));
        assert!(is_needed(&groups), "c is waited for");
        groups.joined(&record("c", 1), |_| unreachable!("it is read already"));
        groups.left(&record("c", 1));
        assert!(!is_needed(&groups) && groups.is_empty());
    }

    #[test]
    fn news_are_expected_once() {
        let group = FollowedGroup::new(record("a", 1).group);
        assert!(group.take_expected(), "at the beginning");
        assert!(!group.take_expected());
        group.expect_news();
        assert!(group.take_expected() && !group.take_expected());
    }
}
