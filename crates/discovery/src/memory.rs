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

/// The most groups one memory backend holds.
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
    groups: Mutex<HashMap<GroupName, Group>>,
    /// Raised with every change to any group, and when a connection is cut or restored.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Group {
    revision: u64,
    records: BTreeMap<InstanceId, Stored>,
}

#[derive(Debug)]
struct Stored {
    member: Member,
    ends: Moment,
    renewals: u64,
}

impl Group {
    /// Drops what has expired. Answers whether anything has.
    fn reap(&mut self, now: Moment) -> bool {
        let before = self.records.len();
        self.records.retain(|_, stored| now < stored.ends);
        let reaped = self.records.len() != before;
        self.revision += u64::from(reaped);
        reaped
    }

    fn view(&self) -> Arc<View> {
        Arc::new(View::new(self.revision, self.records.values().map(|stored| stored.member.clone()).collect()))
    }

    fn next_end(&self) -> Option<Moment> {
        self.records.values().map(|stored| stored.ends).min()
    }

    /// The living record of exactly this incarnation.
    fn own(&mut self, seat: &Seat, operation: &'static str) -> Result<&mut Stored> {
        let lost = || Error::new(ErrorKind::Lost, operation, format!("{:?} has no record here; register again", seat.instance_id));
        self.records.get_mut(&seat.instance_id).filter(|s| s.member.incarnation == seat.incarnation).ok_or_else(lost)
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

    fn groups(&self, operation: &'static str) -> Result<MutexGuard<'_, HashMap<GroupName, Group>>> {
        if !self.reachable.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, operation, "the connection to the memory backend is cut"));
        }
        // A panic under this lock is impossible short of memory exhaustion, and the table stays whole even then.
        Ok(self.store.groups.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs `f` on the group as of now, with expired records gone.
    fn with_group<T>(
        &self,
        operation: &'static str,
        name: &GroupName,
        f: impl FnOnce(&mut Group, Moment) -> Result<(T, bool)>,
    ) -> Result<T> {
        let (result, changed) = {
            let mut groups = self.groups(operation)?;
            if groups.len() >= GROUPS_MAX && !groups.contains_key(name) {
                return Err(Error::new(ErrorKind::TooLarge, operation, format!("the memory backend holds at most {GROUPS_MAX} groups")));
            }
            let group = groups.entry(name.clone()).or_default();
            let now = self.clock.now();
            let reaped = group.reap(now);
            match f(group, now) {
                Ok((value, changed)) => {
                    group.revision += u64::from(changed);
                    (Ok(value), changed || reaped)
                }
                Err(error) => (Err(error), reaped),
            }
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
        self.with_group("register", group, |group, started| {
            let joined = match group.records.get(&member.instance_id) {
                Some(other) if other.member.incarnation != member.incarnation => {
                    let kind = ErrorKind::InUse { address: other.member.address.clone(), stamp: other.renewals };
                    return Err(Error::new(kind, "register", format!("instance id {:?} is in use", member.instance_id)));
                }
                Some(own) => own.member.joined,
                None if group.records.len() >= MEMBERS_MAX as usize => {
                    return Err(Error::new(ErrorKind::TooLarge, "register", format!("a group has at most {MEMBERS_MAX} members")));
                }
                None => group.revision + 1,
            };
            let member = Member { joined, ..member.clone() };
            let stored = Stored { member, ends: started.plus(*ttl), renewals: 0 };
            group.records.insert(stored.member.instance_id.clone(), stored);
            Ok((Grant { started, ttl: *ttl }, true))
        })
    }

    async fn renew(&self, seat: &Seat, ttl: Duration) -> Result<Grant> {
        self.with_group("renew", &seat.group, |group, started| {
            let stored = group.own(seat, "renew")?;
            stored.ends = stored.ends.max(started.plus(ttl));
            stored.renewals += 1;
            Ok((Grant { started, ttl }, false))
        })
    }

    async fn update(&self, registration: &Registration) -> Result<()> {
        self.with_group("update", &registration.group, |group, _| {
            let stored = group.own(&registration.seat(), "update")?;
            let member = Member { joined: stored.member.joined, ..registration.member.clone() };
            let changed = stored.member != member;
            stored.member = member;
            Ok(((), changed))
        })
    }

    async fn deregister(&self, seat: &Seat) -> Result<()> {
        self.with_group("deregister", &seat.group, |group, _| {
            let own = group.own(seat, "deregister").is_ok();
            if own {
                group.records.remove(&seat.instance_id);
            }
            Ok(((), own))
        })
    }

    async fn members(&self, group: &GroupName) -> Result<Snapshot> {
        self.with_group("members", group, |group, proven| Ok((Snapshot { view: group.view(), proven }, false)))
    }

    fn watch(&self, group: &GroupName, prove_every: Duration) -> WatchStream {
        let changes = self.store.changes.subscribe();
        let watcher = Watcher { backend: self.clone(), group: group.clone(), prove_every, changes, seen: None, proven: Moment::ZERO };
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
    seen: Option<u64>,
    proven: Moment,
}

impl Watcher {
    async fn next(&mut self) -> Result<WatchEvent> {
        loop {
            self.changes.mark_unchanged();
            let look = self.backend.with_group("watch", &self.group, |group, now| {
                let news = (self.seen != Some(group.revision)).then(|| group.view());
                Ok(((news, group.next_end(), now), false))
            });
            let (news, next_end, now) = match look {
                Ok(look) => look,
                Err(error) => {
                    // One error per cut; then silence until something changes.
                    if self.seen.take().is_some() {
                        return Err(error);
                    }
                    self.wait(self.prove_every).await;
                    continue;
                }
            };
            if let Some(view) = news {
                (self.seen, self.proven) = (Some(view.revision()), now);
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

    async fn wait(&mut self, at_most: Duration) {
        // A closed channel is impossible while the backend, which holds the sender, lives in `self`.
        let _ = tokio::time::timeout(at_most, self.changes.changed()).await;
    }
}
