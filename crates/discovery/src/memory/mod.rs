//! The reference backend: one process, one table, the contract's rules and nothing else.

mod groups;
mod watch;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use shardwise_core::mistakes::undoes_by_incarnation;
use shardwise_core::{ClaimName, ClaimStore, Epoch, GroupName, MEMBERS_MAX, Member, Moment, Resource, View};
use tokio::sync::Notify;

use crate::{
    AcquireOutcome, Capabilities, ClaimTable, Claims, ClaimsStream, Clock, Discovery, Error, ErrorKind, Grant, Note, Notes, RecordId,
    Registration, Result, ViewSnapshot, WatchStream, WriteOutcome, check_note,
};
use groups::{MemoryGroups, StoredRecord, holder};

/// The most notes one memory backend holds, over all groups.
const NOTES_MAX: usize = 65_536;

/// Members of one process. Clones share one store; [`MemoryBackend::link`] gives each worker of a test a separate connection that can
/// be cut.
#[derive(Clone)]
pub struct MemoryBackend {
    clock: Clock,
    store: Arc<MemoryStore>,
    reachable: Arc<AtomicBool>,
    /// For how long a renewal stalls, asked each time.
    stall: Option<Arc<dyn Fn() -> Duration + Send + Sync>>,
}

impl fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBackend").field("clock", &self.clock).finish_non_exhaustive()
    }
}

struct MemoryStore {
    groups: Mutex<MemoryGroups>,
    /// Notified of every change to any group, and when a connection is cut or restored. Waiters wake in the order of waiting, so that a
    /// simulation can be repeated.
    changes: Notify,
}

impl MemoryBackend {
    /// An empty store whose leases run on `clock`.
    pub fn new(clock: Clock) -> Self {
        let store = MemoryStore { groups: Mutex::new(MemoryGroups::new()), changes: Notify::new() };
        Self { clock, store: Arc::new(store), reachable: Arc::new(AtomicBool::new(true)), stall: None }
    }

    /// Another connection to the same store, to be cut by itself.
    #[must_use]
    pub fn link(&self) -> Self {
        Self { reachable: Arc::new(AtomicBool::new(true)), ..self.clone() }
    }

    /// The same connection, over which each renewal stalls for `stall()` before it is carried out, and again before it is found whether
    /// that was too late, as a stopped process or a busy disk has it. A renewal goes on, in a task of tokio, after its caller has given it
    /// up.
    #[must_use]
    pub fn stalling(self, stall: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self { stall: Some(Arc::new(stall)), ..self }
    }

    /// Cuts or restores this connection (and its clones): while cut, every call fails and watches are silent but for an error.
    pub fn set_reachable(&self, reachable: bool) {
        self.reachable.store(reachable, Ordering::SeqCst);
        self.store.changes.notify_waiters();
    }

    /// Forgets every record and every claim, the store of claims included, as a backend does that is wiped and started empty.
    pub fn wipe(&self) {
        self.store.groups.lock().unwrap_or_else(PoisonError::into_inner).wipe();
        self.store.changes.notify_waiters();
    }

    fn groups(&self, operation: &'static str) -> Result<MutexGuard<'_, MemoryGroups>> {
        if !self.reachable.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, operation, "the connection to the memory backend is cut"));
        }
        // A panic under this lock is impossible short of memory exhaustion, and the table stays whole even then.
        Ok(self.store.groups.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs `f` on the groups as of now, and wakes the watches if it has changed any.
    fn with_groups<T>(&self, operation: &'static str, f: impl FnOnce(&mut MemoryGroups, Moment) -> Result<T>) -> Result<T> {
        let (result, changed) = {
            let mut groups = self.groups(operation)?;
            let before = groups.revision;
            let result = f(&mut groups, self.clock.now());
            (result, groups.revision != before)
        };
        if changed {
            self.store.changes.notify_waiters();
        }
        result
    }
}

#[async_trait]
impl Discovery for MemoryBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("memory", Duration::from_millis(50)).with_places()
    }

    async fn register(&self, registration: &Registration) -> Result<Grant> {
        let Registration { group, member, ttl, claims: _ } = registration;
        self.with_groups("register", |groups, started| {
            let next = groups.revision + 1;
            let records = groups.records(group, started)?;
            let (joined, renewals) = match records.get(&member.instance_id) {
                // A member that is away makes room for any newcomer with its id.
                Some(stored) if stored.is_away() => (next, 0),
                Some(other) if other.member.incarnation != member.incarnation => {
                    let kind = ErrorKind::InUse { address: other.member.address.clone(), stamp: other.renewals };
                    return Err(Error::new(kind, "register", format!("instance id {:?} is in use", member.instance_id)));
                }
                Some(own) => (own.member.joined, own.renewals + 1),
                None if records.len() >= MEMBERS_MAX as usize => {
                    return Err(Error::new(ErrorKind::TooLarge, "register", format!("a group has at most {MEMBERS_MAX} members")));
                }
                None => (next, 0),
            };
            let member = Member { joined, ..member.clone() };
            let stored = StoredRecord { member, ends: started.plus(*ttl), renewals };
            // A member that registers again as it was changes nothing that others see.
            let is_change = records.get(&stored.member.instance_id).is_none_or(|before| before.member != stored.member);
            records.insert(stored.member.instance_id.clone(), stored);
            if is_change {
                groups.changed(group);
            }
            Ok(Grant { started, ttl: *ttl })
        })
    }

    async fn renew(&self, record_id: &RecordId, ttl: Duration) -> Result<Grant> {
        renew(self, record_id, ttl).await
    }

    async fn update(&self, registration: &Registration) -> Result<()> {
        self.with_groups("update", |groups, now| {
            let stored = groups.own(&registration.record_id(), now, "update")?;
            let member = Member { joined: stored.member.joined, ..registration.member.clone() };
            if stored.member != member {
                stored.member = member;
                groups.changed(&registration.group);
            }
            Ok(())
        })
    }

    async fn deregister(&self, record_id: &RecordId) -> Result<()> {
        self.with_groups("deregister", |groups, now| {
            if groups.there(record_id, now).is_some() {
                groups.remove(record_id);
            }
            Ok(())
        })
    }

    async fn step_away(&self, registration: &Registration, rejoin_grace: Duration) -> Result<()> {
        let record_id = registration.record_id();
        self.with_groups("step_away", |groups, now| {
            if groups.there(&record_id, now).is_some_and(|stored| stored.is_away()) {
                return Ok(());
            }
            let stored = groups.own(&record_id, now, "step_away")?;
            stored.member = Member { joined: stored.member.joined, ..registration.away_member() };
            stored.ends = now.plus(rejoin_grace);
            groups.changed(&record_id.group);
            Ok(())
        })
    }

    async fn members(&self, group: &GroupName) -> Result<ViewSnapshot> {
        self.with_groups("members", |groups, proven| {
            groups.reap(group, proven);
            Ok(ViewSnapshot { view: groups.view(group), proven })
        })
    }

    fn watch(&self, group: &GroupName, prove_every: Duration) -> WatchStream {
        watch::follow::<View>(self, group, prove_every)
    }

    fn as_claims(&self) -> Option<&dyn Claims> {
        Some(self)
    }

    fn as_notes(&self) -> Option<&dyn Notes> {
        Some(self)
    }
}

#[async_trait]
impl Claims for MemoryBackend {
    async fn claim_store(&self, _group: &GroupName, floor: u64) -> Result<ClaimStore> {
        self.with_groups("claim_store", |groups, _| {
            groups.claim_store.floor = groups.claim_store.floor.max(floor.min(ClaimStore::FLOOR_MAX));
            Ok(groups.claim_store)
        })
    }

    async fn acquire(&self, record_id: &RecordId, store: &ClaimStore, wanted: &[Resource]) -> Result<Vec<(Resource, AcquireOutcome)>> {
        self.with_groups("acquire", |groups, now| {
            groups.own(record_id, now, "acquire")?;
            if groups.claim_store != *store {
                let context = format!("the store of claims is {} now, it was {}; ask for it again", groups.claim_store.id, store.id);
                return Err(Error::new(ErrorKind::OtherStore, "acquire", context));
            }
            let number = groups.acquisitions + 1;
            let epoch = store.epoch(number).map_err(|e| Error::new(ErrorKind::Misconfigured, "acquire", e.to_string()))?;
            let Some(group) = groups.by_name.get_mut(&record_id.group) else { return Ok(Vec::new()) };
            let answers: Vec<_> = wanted.iter().map(|resource| (resource.clone(), group.grant(record_id, resource, epoch))).collect();
            if answers.iter().any(|(_, acquired)| *acquired == AcquireOutcome::Granted(epoch)) {
                groups.revision += 1;
                (group.claims_revision, groups.acquisitions) = (groups.revision, number);
            }
            Ok(answers)
        })
    }

    async fn release(&self, record_id: &RecordId, held: &[(Resource, Epoch)]) -> Result<()> {
        self.with_groups("release", |groups, now| {
            groups.reap(&record_id.group, now);
            let MemoryGroups { by_name, revision, .. } = groups;
            let Some(group) = by_name.get_mut(&record_id.group) else { return Ok(()) };
            let before = group.claims.len();
            for (resource, epoch) in held {
                if group.claims.get(resource).is_some_and(|claim| claim.epoch == *epoch && claim.holder == holder(record_id)) {
                    group.claims.remove(resource);
                }
            }
            if group.claims.len() != before {
                *revision += 1;
                group.claims_revision = *revision;
            }
            Ok(())
        })
    }

    fn watch_claims(&self, group: &GroupName, prove_every: Duration) -> ClaimsStream {
        watch::follow::<ClaimTable>(self, group, prove_every)
    }
}

#[async_trait]
impl Notes for MemoryBackend {
    async fn note(&self, group: &GroupName, name: &ClaimName) -> Result<Option<Note>> {
        let groups = self.groups("note")?;
        Ok(groups.notes.get(&(group.clone(), name.clone())).cloned())
    }

    async fn write_note(&self, group: &GroupName, name: &ClaimName, expected: u64, text: &str) -> Result<WriteOutcome> {
        check_note(name, text)?;
        let mut groups = self.groups("write_note")?;
        let key = (group.clone(), name.clone());
        let there = groups.notes.get(&key);
        if there.map_or(0, |note| note.version) != expected {
            return Ok(WriteOutcome::Other(there.cloned()));
        }
        if there.is_none() && groups.notes.len() >= NOTES_MAX {
            return Err(Error::new(ErrorKind::TooLarge, "write_note", format!("the memory backend already holds {NOTES_MAX} notes")));
        }
        groups.notes_written += 1;
        let version = groups.notes_written;
        groups.notes.insert(key, Note { text: text.to_owned(), version });
        Ok(WriteOutcome::Written(version))
    }
}

/// As a store in a file has it: the record is compared with a moment read before, and afterwards the clock is read again. A renewal that
/// was carried out too late is undone, and nothing that was written after it.
async fn renew(backend: &MemoryBackend, record_id: &RecordId, ttl: Duration) -> Result<Grant> {
    if backend.stall.is_none() {
        return in_steps(backend, record_id, ttl).await;
    }
    let (backend, record_id) = (backend.clone(), record_id.clone());
    let task = tokio::spawn(async move { in_steps(&backend, &record_id, ttl).await });
    task.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Unavailable, "renew", "the runtime is shutting down")))
}

async fn in_steps(backend: &MemoryBackend, record_id: &RecordId, ttl: Duration) -> Result<Grant> {
    let started = backend.clock.now();
    stall(backend).await;
    let (previous, renewed) = backend.with_groups("renew", |groups, _| {
        let stored = groups.own(record_id, started, "renew")?;
        let previous = stored.ends;
        stored.ends = previous.max(started.plus(ttl));
        stored.renewals += 1;
        Ok((previous, (stored.member.joined, stored.renewals)))
    })?;
    stall(backend).await;
    if backend.clock.now() < previous {
        return Ok(Grant { started, ttl });
    }
    // Deletes what the renewal left, unless that was registered or renewed since. Behind a cut connection it stays until it ends by itself.
    let _ = backend.with_groups("renew", |groups, now| {
        let is_same = |stored: &mut StoredRecord| (stored.member.joined, stored.renewals) == renewed || undoes_by_incarnation();
        if groups.there(record_id, now).is_some_and(is_same) {
            groups.remove(record_id);
        }
        Ok(())
    });
    Err(Error::new(ErrorKind::Lost, "renew", format!("the record of {:?} was renewed too late; register again", record_id.instance_id)))
}

async fn stall(backend: &MemoryBackend) {
    if let Some(stall) = &backend.stall {
        tokio::time::sleep(stall()).await;
    }
}
