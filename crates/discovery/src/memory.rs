//! The reference backend: one process, one table, the contract's rules and nothing else.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream;
use shardwise_core::{GroupName, InstanceId, MEMBERS_MAX, Member, Moment, View};
use tokio::sync::watch;

use crate::{Capabilities, Clock, Discovery, Error, ErrorKind, Grant, Registration, Result, Seat, Snapshot, WatchEvent, WatchStream};

/// The most groups with members one memory backend holds.
const GROUPS_MAX: usize = 1_024;

/// Members of one process. Clones share one store; [`MemoryBackend::link`] gives each worker of a test a connection of its own that can
/// be cut.
#[derive(Debug, Clone)]
pub struct MemoryBackend {
    clock: Clock,
    store: Arc<Store>,
    reachable: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Store {
    groups: Mutex<Groups>,
    /// Raised with every change to any group, and when a connection is cut or restored.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Groups {
    /// The number of the last change to any group. One counter for all, so that a group that was dropped and comes again goes on above
    /// its former self.
    revision: u64,
    /// The groups that have records; reading and watching makes none.
    by_name: HashMap<GroupName, Group>,
}

#[derive(Debug, Default)]
struct Group {
    /// The number of its last change.
    revision: u64,
    records: BTreeMap<InstanceId, Stored>,
}

#[derive(Debug)]
struct Stored {
    member: Member,
    ends: Moment,
    renewals: u64,
}

impl Groups {
    /// Numbers a change to the group, and drops the group if nobody is left in it.
    fn changed(&mut self, name: &GroupName) {
        self.revision += 1;
        let Some(group) = self.by_name.get_mut(name) else { return };
        group.revision = self.revision;
        if group.records.is_empty() {
            self.by_name.remove(name);
        }
    }

    /// Drops what has expired in one group.
    fn reap(&mut self, name: &GroupName, now: Moment) {
        let Some(group) = self.by_name.get_mut(name) else { return };
        let before = group.records.len();
        group.records.retain(|_, stored| now < stored.ends);
        if group.records.len() != before {
            self.changed(name);
        }
    }

    /// The records of a group that somebody registers in; refused if it is one group too many though no dead one is left.
    fn records(&mut self, name: &GroupName, now: Moment) -> Result<&mut BTreeMap<InstanceId, Stored>> {
        self.reap(name, now);
        if self.is_full_for(name) {
            let names: Vec<_> = self.by_name.keys().cloned().collect();
            for name in &names {
                self.reap(name, now);
            }
        }
        if self.is_full_for(name) {
            let context = format!("the memory backend already holds {GROUPS_MAX} groups with members; let the members of one leave");
            return Err(Error::new(ErrorKind::TooLarge, "register", context));
        }
        Ok(&mut self.by_name.entry(name.clone()).or_default().records)
    }

    fn is_full_for(&self, name: &GroupName) -> bool {
        self.by_name.len() >= GROUPS_MAX && !self.by_name.contains_key(name)
    }

    /// The living record of exactly this incarnation.
    fn own(&mut self, seat: &Seat, now: Moment, operation: &'static str) -> Result<&mut Stored> {
        self.reap(&seat.group, now);
        let lost = || Error::new(ErrorKind::Lost, operation, format!("{:?} has no record here; register again", seat.instance_id));
        let stored = self.by_name.get_mut(&seat.group).and_then(|group| group.records.get_mut(&seat.instance_id));
        stored.filter(|stored| stored.member.incarnation == seat.incarnation).ok_or_else(lost)
    }

    /// The group as it is; one without records is empty as of the store's last change.
    fn view(&self, name: &GroupName) -> Arc<View> {
        let (revision, members) = match self.by_name.get(name) {
            Some(group) => (group.revision, group.records.values().map(|stored| stored.member.clone()).collect()),
            None => (self.revision, Vec::new()),
        };
        Arc::new(View::new(revision, members))
    }
}

impl MemoryBackend {
    /// An empty store whose leases run on `clock`.
    pub fn new(clock: Clock) -> Self {
        let store = Store { groups: Mutex::default(), changes: watch::Sender::new(0) };
        Self { clock, store: Arc::new(store), reachable: Arc::new(AtomicBool::new(true)) }
    }

    /// Another connection to the same store, to be cut by itself.
    #[must_use]
    pub fn link(&self) -> Self {
        Self { reachable: Arc::new(AtomicBool::new(true)), ..self.clone() }
    }

    /// Cuts or restores this connection (and its clones): while cut, every call fails and watches are silent but for an error.
    pub fn set_reachable(&self, reachable: bool) {
        self.reachable.store(reachable, Ordering::SeqCst);
        self.store.changed();
    }

    fn groups(&self, operation: &'static str) -> Result<MutexGuard<'_, Groups>> {
        if !self.reachable.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, operation, "the connection to the memory backend is cut"));
        }
        // A panic under this lock is impossible short of memory exhaustion, and the table stays whole even then.
        Ok(self.store.groups.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs `f` on the groups as of now, and wakes the watches if it has changed any.
    fn with_groups<T>(&self, operation: &'static str, f: impl FnOnce(&mut Groups, Moment) -> Result<T>) -> Result<T> {
        let (result, changed) = {
            let mut groups = self.groups(operation)?;
            let before = groups.revision;
            let result = f(&mut groups, self.clock.now());
            (result, groups.revision != before)
        };
        if changed {
            self.store.changed();
        }
        result
    }
}

impl Store {
    fn changed(&self) {
        self.changes.send_modify(|n| *n += 1);
    }
}

#[async_trait]
impl Discovery for MemoryBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("memory", Duration::from_millis(50))
    }

    async fn register(&self, registration: &Registration) -> Result<Grant> {
        let Registration { group, member, ttl } = registration;
        self.with_groups("register", |groups, started| {
            let next = groups.revision + 1;
            let records = groups.records(group, started)?;
            let joined = match records.get(&member.instance_id) {
                Some(other) if other.member.incarnation != member.incarnation => {
                    let kind = ErrorKind::InUse { address: other.member.address.clone(), stamp: other.renewals };
                    return Err(Error::new(kind, "register", format!("instance id {:?} is in use", member.instance_id)));
                }
                Some(own) => own.member.joined,
                None if records.len() >= MEMBERS_MAX as usize => {
                    return Err(Error::new(ErrorKind::TooLarge, "register", format!("a group has at most {MEMBERS_MAX} members")));
                }
                None => next,
            };
            let member = Member { joined, ..member.clone() };
            let stored = Stored { member, ends: started.plus(*ttl), renewals: 0 };
            records.insert(stored.member.instance_id.clone(), stored);
            groups.changed(group);
            Ok(Grant { started, ttl: *ttl })
        })
    }

    async fn renew(&self, seat: &Seat, ttl: Duration) -> Result<Grant> {
        self.with_groups("renew", |groups, started| {
            let stored = groups.own(seat, started, "renew")?;
            stored.ends = stored.ends.max(started.plus(ttl));
            stored.renewals += 1;
            Ok(Grant { started, ttl })
        })
    }

    async fn update(&self, registration: &Registration) -> Result<()> {
        self.with_groups("update", |groups, now| {
            let stored = groups.own(&registration.seat(), now, "update")?;
            let member = Member { joined: stored.member.joined, ..registration.member.clone() };
            if stored.member != member {
                stored.member = member;
                groups.changed(&registration.group);
            }
            Ok(())
        })
    }

    async fn deregister(&self, seat: &Seat) -> Result<()> {
        self.with_groups("deregister", |groups, now| {
            if groups.own(seat, now, "deregister").is_ok() {
                groups.by_name.get_mut(&seat.group).map(|group| group.records.remove(&seat.instance_id));
                groups.changed(&seat.group);
            }
            Ok(())
        })
    }

    async fn members(&self, group: &GroupName) -> Result<Snapshot> {
        self.with_groups("members", |groups, proven| {
            groups.reap(group, proven);
            Ok(Snapshot { view: groups.view(group), proven })
        })
    }

    fn watch(&self, group: &GroupName, prove_every: Duration) -> WatchStream {
        let changes = self.store.changes.subscribe();
        let (backend, group) = (self.clone(), group.clone());
        let watcher = Watcher { backend, group, prove_every, changes, seen: None, cut: false, proven: Moment::ZERO };
        Box::pin(stream::unfold(watcher, |mut watcher| async move {
            let event = watcher.next().await;
            Some((event, watcher))
        }))
    }
}

struct Watcher {
    backend: MemoryBackend,
    group: GroupName,
    prove_every: Duration,
    changes: watch::Receiver<u64>,
    /// The mark of what was shown last.
    seen: Option<u64>,
    /// The connection is cut, and that was told.
    cut: bool,
    proven: Moment,
}

/// What a watcher finds when it looks.
struct Look {
    now: Moment,
    /// The group's own revision, 0 while it has no records: what other groups do is no news.
    mark: u64,
    /// The view, if the mark is new.
    news: Option<Arc<View>>,
    /// When the next record expires.
    next_end: Option<Moment>,
}

impl Watcher {
    async fn next(&mut self) -> Result<WatchEvent> {
        loop {
            self.changes.mark_unchanged();
            let Look { now, mark, news, next_end } = match self.look() {
                Ok(look) => look,
                Err(error) => {
                    // One error per cut; then silence until something changes.
                    self.seen = None;
                    if !std::mem::replace(&mut self.cut, true) {
                        return Err(error);
                    }
                    self.wait(self.prove_every).await;
                    continue;
                }
            };
            self.cut = false;
            if let Some(view) = news {
                (self.seen, self.proven) = (Some(mark), now);
                return Ok(WatchEvent::View(Snapshot { view, proven: now }));
            }
            let prove_at = self.proven.plus(self.prove_every);
            if now >= prove_at {
                self.proven = now;
                return Ok(WatchEvent::Proven(now));
            }
            let until = next_end.map_or(prove_at, |end| end.min(prove_at));
            self.wait(until.since(now)).await;
        }
    }

    fn look(&self) -> Result<Look> {
        self.backend.with_groups("watch", |groups, now| {
            groups.reap(&self.group, now);
            let group = groups.by_name.get(&self.group);
            let mark = group.map_or(0, |group| group.revision);
            let next_end = group.and_then(|group| group.records.values().map(|stored| stored.ends).min());
            let news = (self.seen != Some(mark)).then(|| groups.view(&self.group));
            Ok(Look { now, mark, news, next_end })
        })
    }

    async fn wait(&mut self, at_most: Duration) {
        // A closed channel is impossible while the backend, which holds the sender, lives in `self`.
        let _ = tokio::time::timeout(at_most, self.changes.changed()).await;
    }
}
