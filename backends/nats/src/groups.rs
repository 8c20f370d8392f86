//! The groups that this process reads: what it needs of each, what was read last, and how its writes to it went. One task reads a group,
//! for all watches of it and for its observer: see [`crate::observer`].

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shardwise_core::{ClaimName, GroupName, Incarnation, InstanceId, Moment, View};
use shardwise_discovery::{ClaimTable, Note, RecordId};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::error::Failure;

/// How long this process waits for the end of a record that has an id which it wants, after it was last refused.
const RIVAL_LASTS: Duration = Duration::from_mins(1);
/// How long a group is read on after its last reader, so that single reads that follow each other cost one consumer.
const LINGER: Duration = Duration::from_secs(10);
/// How many answered writes wait for their return. Older ones say less than newer ones.
const WRITES_MAX: usize = 64;

/// The groups by name.
#[derive(Default)]
pub(crate) struct BucketGroups(Mutex<HashMap<GroupName, Arc<BucketGroup>>>);

/// One group.
pub(crate) struct BucketGroup {
    pub(crate) name: GroupName,
    pub(crate) shown: watch::Sender<ReadGroup>,
    wake: Notify,
    needs: Mutex<BucketNeeds>,
    writes: Mutex<AnsweredWrites>,
}

/// What was read last.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReadGroup {
    pub(crate) view: Option<Arc<View>>,
    /// `None` while claims are not read.
    pub(crate) claims: Option<Arc<ClaimTable>>,
    pub(crate) notes: Option<Arc<BTreeMap<ClaimName, Note>>>,
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

/// What is known of the writes of this process to the group: see [`shardwise_discovery::silence`].
#[derive(Debug, Default)]
struct AnsweredWrites {
    /// Answered writes that have not come back yet: when each began, and its sequence.
    pending: VecDeque<(Moment, u64)>,
    /// When the last answered write began.
    answered: Moment,
    /// How many writes failed or were given up.
    interrupted: u64,
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

    pub(crate) fn find(&self, name: &GroupName) -> Option<Arc<BucketGroup>> {
        self.by_name().get(name).map(Arc::clone)
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
    fn new(name: GroupName) -> Self {
        let (wake, needs, writes) = (Notify::new(), Mutex::default(), Mutex::default());
        Self { name, shown: watch::Sender::new(ReadGroup::default()), wake, needs, writes }
    }

    fn needs(&self) -> MutexGuard<'_, BucketNeeds> {
        // Nothing under this lock can panic halfway through a change.
        self.needs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writes(&self) -> MutexGuard<'_, AnsweredWrites> {
        // Nothing under this lock can panic halfway through a change.
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the reader look at its needs.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
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

    /// A write that began then was answered with that sequence. The group is proven as of its beginning once it comes back.
    pub(crate) fn wrote(&self, started: Moment, sequence: u64) {
        {
            let mut writes = self.writes();
            writes.answered = writes.answered.max(started);
            if writes.pending.len() >= WRITES_MAX {
                writes.pending.pop_front();
            }
            writes.pending.push_back((started, sequence));
        }
        self.wake();
    }

    /// A write failed, or was given up.
    pub(crate) fn interrupt(&self) {
        let mut writes = self.writes();
        writes.interrupted = writes.interrupted.saturating_add(1);
    }

    pub(crate) fn interrupted(&self) -> u64 {
        self.writes().interrupted
    }

    /// When the last answered write began.
    pub(crate) fn answered(&self) -> Moment {
        self.writes().answered
    }

    /// When the latest of the writes began that have come back, now that everything up to that sequence was delivered.
    pub(crate) fn returned(&self, delivered: u64) -> Option<Moment> {
        let mut writes = self.writes();
        let back = writes.pending.iter().filter(|(_, sequence)| *sequence <= delivered).map(|(started, _)| *started).max();
        writes.pending.retain(|(_, sequence)| *sequence > delivered);
        back
    }

    /// The stream was replaced, and what was written to the former one does not come back.
    pub(crate) fn forget_writes(&self) {
        let mut writes = self.writes();
        writes.pending.clear();
        writes.answered = Moment::ZERO;
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

/// A write whose failure or success says whether the stream takes writes. Unless it is answered, it counts as interrupted.
pub(crate) struct WriteUnderWay(Option<Arc<BucketGroup>>);

impl WriteUnderWay {
    /// A write to that group; `None`: this process does not read it.
    pub(crate) fn of(group: Option<Arc<BucketGroup>>) -> Self {
        Self(group)
    }

    /// The server answered, whatever it said.
    pub(crate) fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for WriteUnderWay {
    fn drop(&mut self) {
        if let Some(group) = &self.0 {
            group.interrupt();
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

    #[test]
    fn a_write_that_came_back_proves_and_one_that_was_given_up_interrupts() {
        let group = Arc::new(BucketGroup::new(record("a", 1).group));
        let at = Moment::from_nanos;
        group.wrote(at(10), 5);
        group.wrote(at(9), 6);
        assert_eq!((group.returned(4), group.returned(5), group.answered()), (None, Some(at(10)), at(10)));
        assert_eq!((group.returned(9), group.returned(9)), (Some(at(9)), None));
        WriteUnderWay::of(Some(Arc::clone(&group))).answered();
        assert_eq!(group.interrupted(), 0);
        drop(WriteUnderWay::of(Some(Arc::clone(&group))));
        assert_eq!(group.interrupted(), 1);
        for n in 0..200 {
            group.wrote(at(n), 100 + n);
        }
        assert_eq!(group.writes().pending.len(), WRITES_MAX);
    }
}
