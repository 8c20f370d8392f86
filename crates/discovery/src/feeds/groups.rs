//! The groups that this process has observed: what it needs of each, and what was read last. One task reads a group, for all watches of it
//! and for the members of this process.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use shardwise_core::{GroupName, Incarnation, InstanceId, Moment};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::observed::{Observatory, ObservedState, StateOf, read_as_of};
use crate::RecordId;

/// How long this process waits for the end of a record that has an id which it wants, after it was last refused.
const RIVAL_LASTS: Duration = Duration::from_mins(1);

/// The groups of one [`Observatory`], by name.
pub struct ObservedGroups<O: Observatory>(Mutex<GroupsByName<O>>);

type GroupsByName<O> = HashMap<GroupName, Arc<ObservedGroup<O>>>;

/// One group.
pub struct ObservedGroup<O: Observatory> {
    /// Its name.
    pub name: GroupName,
    /// What was read last.
    pub shown: watch::Sender<StateOf<O>>,
    /// What else belongs to it.
    pub extra: O::Extra,
    wake: Notify,
    needs: Mutex<GroupNeeds<O::Life>>,
}

/// Why a group is read.
struct GroupNeeds<L> {
    readers: usize,
    claim_readers: usize,
    /// The members of this process.
    mine: BTreeMap<InstanceId, Incarnation>,
    /// By member of this process, the lives that hold what it wants.
    holders: BTreeMap<InstanceId, BTreeSet<L>>,
    /// By id that this process wants, the life that has it, and until when that is waited for.
    rivals: BTreeMap<InstanceId, (L, Instant)>,
    /// When the last reader left.
    unread_since: Option<Instant>,
    /// A proof of that moment or a later one is wanted.
    proof: Moment,
}

/// What an observer must know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObserverNeeds<L> {
    /// Whether claims are read.
    pub reads_claims: bool,
    /// The members of this process, registered or about to register.
    pub mine: BTreeSet<InstanceId>,
    /// The lives for whose end it waits.
    pub waits: BTreeSet<L>,
    /// A proof of that moment or a later one is wanted.
    pub proof: Moment,
}

impl<L> Default for ObserverNeeds<L> {
    fn default() -> Self {
        Self { reads_claims: false, mine: BTreeSet::new(), waits: BTreeSet::new(), proof: Moment::ZERO }
    }
}

impl<O: Observatory> Default for ObservedGroups<O> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<O: Observatory> ObservedGroups<O> {
    fn by_name(&self) -> MutexGuard<'_, GroupsByName<O>> {
        // Nothing under this lock can panic halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is needed of a group, and has it read if no task reads it yet.
    fn need(&self, observatory: &Arc<O>, name: &GroupName, change: impl FnOnce(&mut GroupNeeds<O::Life>)) -> Arc<ObservedGroup<O>> {
        let mut groups = self.by_name();
        let known = groups.get(name).map(Arc::clone);
        let is_new = known.is_none();
        let group = known.unwrap_or_else(|| Arc::new(ObservedGroup::new(name.clone())));
        change(&mut group.needs());
        if is_new {
            groups.insert(name.clone(), Arc::clone(&group));
            drop(groups);
            observatory.start(Arc::clone(&group));
        } else {
            drop(groups);
            group.wake();
        }
        group
    }

    /// A watch reads the group, until the answer is dropped.
    pub fn read(&self, observatory: &Arc<O>, name: &GroupName, claims: bool) -> GroupInterest<O> {
        let add = |needs: &mut GroupNeeds<_>| {
            needs.readers += 1;
            needs.claim_readers += usize::from(claims);
            needs.unread_since = None;
        };
        GroupInterest { group: self.need(observatory, name, add), claims }
    }

    /// A member of this process has registered.
    pub fn joined(&self, observatory: &Arc<O>, record_id: &RecordId) -> Arc<ObservedGroup<O>> {
        let RecordId { group, instance_id, incarnation } = record_id;
        let add = |needs: &mut GroupNeeds<_>| {
            needs.mine.insert(instance_id.clone(), *incarnation);
            needs.rivals.remove(instance_id);
        };
        self.need(observatory, group, add)
    }

    /// The group of a member of this process that renews. `None` if it has to be [`joined`](Self::joined) again, because a reading that
    /// began before it registered has missed it.
    pub fn of_member(&self, record_id: &RecordId) -> Option<Arc<ObservedGroup<O>>> {
        let known = self.find(&record_id.group);
        known.filter(|group| group.needs().mine.get(&record_id.instance_id) == Some(&record_id.incarnation))
    }

    /// Another life has the id that a member of this process wants.
    pub fn refused(&self, observatory: &Arc<O>, wanted: &RecordId, rival: O::Life) {
        let add = |needs: &mut GroupNeeds<_>| {
            needs.rivals.insert(wanted.instance_id.clone(), (rival, Instant::now() + RIVAL_LASTS));
        };
        self.need(observatory, &wanted.group, add);
    }

    /// A member of this process has left or lost its record.
    pub fn left(&self, record_id: &RecordId) {
        if let Some(group) = self.find(&record_id.group) {
            group.forget(record_id);
            group.wake();
        }
    }

    /// A member of this process wants what these lives hold.
    pub fn wait_for(&self, record_id: &RecordId, holders: BTreeSet<O::Life>) {
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

    /// The group, if it is read.
    pub fn find(&self, name: &GroupName) -> Option<Arc<ObservedGroup<O>>> {
        self.by_name().get(name).map(Arc::clone)
    }

    /// All groups that are read.
    pub fn all(&self) -> Vec<Arc<ObservedGroup<O>>> {
        self.by_name().values().map(Arc::clone).collect()
    }

    /// Whether no group is read.
    pub fn is_empty(&self) -> bool {
        self.by_name().is_empty()
    }

    /// Takes the group out if nothing needs it. Later needs make another one.
    pub fn end_unneeded(&self, group: &Arc<ObservedGroup<O>>) -> bool {
        let mut groups = self.by_name();
        let is_unneeded = {
            let (mut needs, now) = (group.needs(), Instant::now());
            needs.rivals.retain(|_, (_, until)| *until > now);
            let lingers = needs.unread_since.is_some_and(|since| since.elapsed() < O::LINGER);
            needs.readers == 0 && needs.mine.is_empty() && needs.rivals.is_empty() && !lingers
        };
        if is_unneeded {
            remove(&mut groups, group);
        }
        is_unneeded
    }
}

fn remove<O: Observatory>(groups: &mut GroupsByName<O>, group: &Arc<ObservedGroup<O>>) {
    if groups.get(&group.name).is_some_and(|known| Arc::ptr_eq(known, group)) {
        groups.remove(&group.name);
    }
}

impl<O: Observatory> ObservedGroup<O> {
    fn new(name: GroupName) -> Self {
        let state = ObservedState { view: None, claims: None, notes: O::Notes::default(), proven: Moment::ZERO, failure: None };
        let needs = GroupNeeds {
            readers: 0,
            claim_readers: 0,
            mine: BTreeMap::new(),
            holders: BTreeMap::new(),
            rivals: BTreeMap::new(),
            unread_since: None,
            proof: Moment::ZERO,
        };
        let (wake, extra) = (Notify::new(), O::Extra::default());
        Self { name, shown: watch::Sender::new(state), extra, wake, needs: Mutex::new(needs) }
    }

    fn needs(&self) -> MutexGuard<'_, GroupNeeds<O::Life>> {
        // Nothing under this lock can panic halfway through a change.
        self.needs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the observer look at its needs.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Waits for [`ObservedGroup::wake`]. Returns at once if that was called since the last time.
    pub async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Has the group proven as of that moment.
    pub(super) fn want_proof(&self, of: Moment) {
        {
            let mut needs = self.needs();
            needs.proof = needs.proof.max(of);
        }
        self.wake();
    }

    /// What the observer must know at present.
    pub fn needed(&self) -> ObserverNeeds<O::Life> {
        let needs = self.needs();
        let mine = needs.mine.keys().chain(needs.rivals.keys()).cloned().collect();
        let holders = needs.holders.iter().filter(|(id, _)| needs.mine.contains_key(*id)).flat_map(|(_, lives)| lives.iter());
        let waits = holders.chain(needs.rivals.values().map(|(rival, _)| rival)).cloned().collect();
        ObserverNeeds { reads_claims: needs.claim_readers > 0, mine, waits, proof: needs.proof }
    }

    /// The members of this process, as it registered them.
    pub fn mine(&self) -> Vec<RecordId> {
        let record = |(id, incarnation): (&InstanceId, &Incarnation)| RecordId {
            group: self.name.clone(),
            instance_id: id.clone(),
            incarnation: *incarnation,
        };
        self.needs().mine.iter().map(record).collect()
    }

    /// That life of a member of this process has ended.
    pub fn forget(&self, record_id: &RecordId) {
        let mut needs = self.needs();
        if needs.mine.get(&record_id.instance_id) == Some(&record_id.incarnation) {
            needs.mine.remove(&record_id.instance_id);
            needs.holders.remove(&record_id.instance_id);
        }
    }
}

/// A watch's interest in a group.
pub struct GroupInterest<O: Observatory> {
    pub(super) group: Arc<ObservedGroup<O>>,
    claims: bool,
}

impl<O: Observatory> GroupInterest<O> {
    /// Waits for a reading that is proven as of that moment.
    ///
    /// # Errors
    /// The failure of a reading since then, or [`NoReading`](super::NoReading).
    pub async fn read_as_of(&self, asked: Moment) -> Result<StateOf<O>, O::Failure> {
        let mut states = self.group.shown.subscribe();
        self.group.want_proof(asked);
        read_as_of::<O>(&mut states, asked, |read| read.view.is_some()).await
    }
}

impl<O: Observatory> Drop for GroupInterest<O> {
    fn drop(&mut self) {
        let mut needs = self.group.needs();
        needs.readers -= 1;
        needs.claim_readers -= usize::from(self.claims);
        if needs.readers == 0 {
            needs.unread_since = Some(Instant::now());
        }
    }
}

/// Takes a group out when its task ends, whatever is needed: the task may end with its runtime.
pub struct ReadingEnd<O: Observatory> {
    observatory: Weak<O>,
    group: Arc<ObservedGroup<O>>,
}

impl<O: Observatory> ReadingEnd<O> {
    /// The end of the task that reads the group.
    pub fn of(observatory: &Weak<O>, group: &Arc<ObservedGroup<O>>) -> Self {
        Self { observatory: Weak::clone(observatory), group: Arc::clone(group) }
    }
}

impl<O: Observatory> Drop for ReadingEnd<O> {
    fn drop(&mut self) {
        if let Some(observatory) = self.observatory.upgrade() {
            remove(&mut observatory.groups().by_name(), &self.group);
        }
    }
}
