//! The groups that this process reads: what it needs of each, and what was read last. One task reads a group,
//! for all watches of it and for its observer: see [`crate::observer`].

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shardwise_core::{GroupName, Incarnation, InstanceId, Moment, View};
use shardwise_discovery::{ClaimTable, RecordId};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::error::Failure;
use crate::mirror::ReadNotes;
use crate::writes::GroupWrites;

/// How long this process waits for the end of a record that has an id which it wants, after it was last refused.
const RIVAL_LASTS: Duration = Duration::from_mins(1);
/// How long a group is read on after its last reader, so that single reads that follow each other cost one consumer.
const LINGER: Duration = Duration::from_secs(10);

/// The groups by name.
#[derive(Default)]
pub(crate) struct BucketGroups(Mutex<HashMap<GroupName, Arc<BucketGroup>>>);

/// One group.
pub(crate) struct BucketGroup {
    pub(crate) name: GroupName,
    pub(crate) shown: watch::Sender<ReadGroup>,
    wake: Notify,
    needs: Mutex<BucketNeeds>,
    pub(crate) writes: Arc<GroupWrites>,
}

/// What was read last.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReadGroup {
    pub(crate) view: Option<Arc<View>>,
    /// `None` while claims are not read.
    pub(crate) claims: Option<Arc<ClaimTable>>,
    pub(crate) notes: Option<Arc<ReadNotes>>,
    /// When the last write of this process began that came back: all that was written before it was read.
    pub(crate) proven: Moment,
    /// Why the group cannot be read at present, and since when.
    pub(crate) failure: Option<(Failure, Moment)>,
}

/// A life whose end is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AwaitedLife {
    pub(crate) record: RecordId,
    pub(crate) life: u64,
    pub(crate) ttl: Duration,
}

/// Why a group is read.
#[derive(Debug, Default)]
struct BucketNeeds {
    readers: usize,
    claim_readers: usize,
    /// The members of this process.
    mine: BTreeMap<InstanceId, Incarnation>,
    /// By member of this process, the lives that hold what it wants.
    holders: BTreeMap<InstanceId, Vec<AwaitedLife>>,
    /// By id that this process wants, the life that has it, and until when that is waited for.
    rivals: BTreeMap<InstanceId, (AwaitedLife, Instant)>,
    /// When the last reader left.
    unread_since: Option<Instant>,
    /// A proof of that moment or a later one is wanted.
    proof: Moment,
}

/// What an observer must know.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ReadingNeeds {
    pub(crate) reads_claims: bool,
    /// The members of this process, registered or about to register.
    pub(crate) mine: BTreeSet<InstanceId>,
    pub(crate) waits: Vec<AwaitedLife>,
    pub(crate) proof: Moment,
}

impl BucketNeeds {
    fn is_empty(&self) -> bool {
        let lingers = self.unread_since.is_some_and(|since| since.elapsed() < LINGER);
        self.readers == 0 && self.mine.is_empty() && self.rivals.is_empty() && !lingers
    }
}

impl BucketGroups {
    fn by_name(&self) -> MutexGuard<'_, HashMap<GroupName, Arc<BucketGroup>>> {
        // Nothing under this lock can panic halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is needed of a group; `start` is called if no task reads it yet.
    fn need(&self, name: &GroupName, change: impl FnOnce(&mut BucketNeeds), start: impl FnOnce(Arc<BucketGroup>)) -> Arc<BucketGroup> {
        let mut groups = self.by_name();
        let known = groups.get(name).map(Arc::clone);
        let is_new = known.is_none();
        let group = known.unwrap_or_else(|| Arc::new(BucketGroup::new(name.clone())));
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
    pub(crate) fn read(&self, name: &GroupName, claims: bool, start: impl FnOnce(Arc<BucketGroup>)) -> ReadingInterest {
        let add = |needs: &mut BucketNeeds| {
            needs.readers += 1;
            needs.claim_readers += usize::from(claims);
            needs.unread_since = None;
        };
        ReadingInterest { group: self.need(name, add, start), claims }
    }

    /// A member of this process has registered.
    pub(crate) fn joined(&self, record_id: &RecordId, start: impl FnOnce(Arc<BucketGroup>)) -> Arc<BucketGroup> {
        let RecordId { group, instance_id, incarnation } = record_id;
        let add = |needs: &mut BucketNeeds| {
            needs.mine.insert(instance_id.clone(), *incarnation);
            needs.rivals.remove(instance_id);
        };
        self.need(group, add, start)
    }

    /// A member of this process has renewed. It is known already, unless a reading that began before it registered has missed it.
    pub(crate) fn renewed(&self, record_id: &RecordId, start: impl FnOnce(Arc<BucketGroup>)) -> Arc<BucketGroup> {
        let known = self.find(&record_id.group);
        match known.filter(|group| group.needs().mine.get(&record_id.instance_id) == Some(&record_id.incarnation)) {
            Some(group) => group,
            None => self.joined(record_id, start),
        }
    }

    /// Another life has the id that a member of this process wants.
    pub(crate) fn refused(&self, wanted: &RecordId, rival: AwaitedLife, start: impl FnOnce(Arc<BucketGroup>)) {
        let add = |needs: &mut BucketNeeds| {
            needs.rivals.insert(wanted.instance_id.clone(), (rival, Instant::now() + RIVAL_LASTS));
        };
        self.need(&wanted.group, add, start);
    }

    /// A member of this process has left or lost its record.
    pub(crate) fn left(&self, record_id: &RecordId) {
        if let Some(group) = self.find(&record_id.group) {
            group.forget(&record_id.instance_id, record_id.incarnation);
            group.wake();
        }
    }

    /// A member of this process wants what these lives hold.
    pub(crate) fn wait_for(&self, record_id: &RecordId, holders: Vec<AwaitedLife>) {
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

    fn find(&self, name: &GroupName) -> Option<Arc<BucketGroup>> {
        self.by_name().get(name).map(Arc::clone)
    }

    /// How this process's writes to the group go; `None`: it does not read the group.
    pub(crate) fn writes(&self, name: &GroupName) -> Option<Arc<GroupWrites>> {
        self.find(name).map(|group| Arc::clone(&group.writes))
    }

    /// Takes the group out if nothing needs it. Later needs make another one.
    pub(crate) fn end_unneeded(&self, group: &Arc<BucketGroup>) -> bool {
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
    pub(crate) fn end(&self, group: &Arc<BucketGroup>) {
        remove(&mut self.by_name(), group);
    }
}

fn remove(groups: &mut HashMap<GroupName, Arc<BucketGroup>>, group: &Arc<BucketGroup>) {
    if groups.get(&group.name).is_some_and(|known| Arc::ptr_eq(known, group)) {
        groups.remove(&group.name);
    }
}

impl BucketGroup {
    pub(crate) fn new(name: GroupName) -> Self {
        let (wake, needs, writes) = (Notify::new(), Mutex::default(), Arc::default());
        Self { name, shown: watch::Sender::new(ReadGroup::default()), wake, needs, writes }
    }

    fn needs(&self) -> MutexGuard<'_, BucketNeeds> {
        // Nothing under this lock can panic halfway through a change.
        self.needs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the reader look at its needs.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// A write that began then was answered with that sequence. The group is proven as of its beginning once it comes back.
    pub(crate) fn wrote(&self, started: Moment, sequence: u64) {
        self.writes.answer(started, sequence);
        self.wake();
    }

    /// Has the group proven as of that moment.
    pub(crate) fn want_proof(&self, of: Moment) {
        {
            let mut needs = self.needs();
            needs.proof = needs.proof.max(of);
        }
        self.wake();
    }

    /// Waits until the reader is to look at its needs. Returns at once if that was asked for since the last call.
    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }

    pub(crate) fn needed(&self) -> ReadingNeeds {
        let needs = self.needs();
        let mine = needs.mine.keys().chain(needs.rivals.keys()).cloned().collect();
        let holders = needs.holders.iter().filter(|(id, _)| needs.mine.contains_key(*id)).flat_map(|(_, lives)| lives.iter());
        let waits = holders.chain(needs.rivals.values().map(|(rival, _)| rival)).cloned().collect();
        ReadingNeeds { reads_claims: needs.claim_readers > 0, mine, waits, proof: needs.proof }
    }

    /// The members of this process, as it registered them.
    pub(crate) fn mine(&self) -> Vec<RecordId> {
        let record = |(id, incarnation): (&InstanceId, &Incarnation)| RecordId {
            group: self.name.clone(),
            instance_id: id.clone(),
            incarnation: *incarnation,
        };
        self.needs().mine.iter().map(record).collect()
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
pub(crate) struct ReadingInterest {
    pub(crate) group: Arc<BucketGroup>,
    claims: bool,
}

impl Drop for ReadingInterest {
    fn drop(&mut self) {
        let mut needs = self.group.needs();
        needs.readers -= 1;
        needs.claim_readers -= usize::from(self.claims);
        if needs.readers == 0 {
            needs.unread_since = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn record(id: &str, incarnation: u64) -> RecordId {
        let group = GroupName::new("g").unwrap();
        RecordId { group, instance_id: InstanceId::new(id).unwrap(), incarnation: Incarnation::new(incarnation) }
    }

    fn awaited(id: &str, life: u64) -> AwaitedLife {
        AwaitedLife { record: record(id, 1), life, ttl: Duration::from_secs(3) }
    }

    fn is_needed(groups: &BucketGroups) -> bool {
        groups.find(&record("a", 1).group).is_some_and(|group| !groups.end_unneeded(&group))
    }

    #[tokio::test(start_paused = true)]
    async fn a_group_is_read_for_watches_members_and_rivals_and_then_no_more() {
        let (groups, started) = (BucketGroups::default(), AtomicBool::new(false));
        let start = |_| started.store(true, Ordering::SeqCst);
        let interest = groups.read(&record("a", 1).group, true, start);
        assert!(started.load(Ordering::SeqCst) && interest.group.needed().reads_claims);
        groups.joined(&record("a", 1), |_| unreachable!("it is read already"));
        groups.wait_for(&record("a", 1), vec![awaited("h", 7)]);
        groups.wait_for(&record("b", 1), vec![awaited("h", 8)]);
        groups.refused(&record("c", 1), awaited("c", 9), |_| unreachable!("it is read already"));
        let needed = interest.group.needed();
        let ids = |names: &[&str]| names.iter().map(|name| InstanceId::new(name).unwrap()).collect::<BTreeSet<_>>();
        assert_eq!((needed.mine, needed.waits), (ids(&["a", "c"]), vec![awaited("h", 7), awaited("c", 9)]));
        drop(interest);
        groups.left(&record("a", 2));
        assert!(is_needed(&groups), "another life has left");
        groups.left(&record("a", 1));
        tokio::time::advance(LINGER).await;
        assert!(is_needed(&groups), "c is waited for");
        tokio::time::advance(RIVAL_LASTS).await;
        assert!(!is_needed(&groups));
    }
}
