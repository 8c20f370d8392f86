//! Making, changing and deleting records, each under the lock of its id.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use shardwise_core::Moment;
use shardwise_discovery::{Grant, RecordId, Registration};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::api::of_check;
use crate::caller::Caller;
use crate::claims::{self, LockSession, check_ttl};
use crate::client::Client;
use crate::error::{Failure, Result};
use crate::group_indexes::GroupIndexes;
use crate::names;
use crate::registration_lock::{HELD_FOR, RegistrationLock, RegistrationLocks};
use crate::registrations::{LiveRegistration, RegistrationTable};
use crate::wire::{self, Service, ServiceEntry};

/// How much later than its TTL a silent member may leave the view: the agent's timer, and its way to the servers.
pub(crate) const MARGIN: Duration = Duration::from_millis(250);
/// How long the servers may take to show a change that the agent has accepted.
const SHOWN_WITHIN: Duration = Duration::from_secs(1);
const ASK_AGAIN: Duration = Duration::from_millis(20);
/// What to look for where an agent takes everything and its servers take nothing from it.
const NEW_AGENT: &str = "; if this lasts, the agent has lost its data and with it its node id, and its servers refuse the new one: \
                         run `consul leave` there and start it again";
/// How many changes run at once; the others wait before they take a lock, so that locks are held briefly.
const CHANGES_AT_ONCE: u32 = 8;
/// After a change that took longer, half as many run at once; after another one, twice as many. An agent carries out one registration after
/// the other, each slower the more services it has: where sixteen processes of nineteen members joined by one agent, eight at a time each,
/// it was behind by 25 s, and every change was given up and tried again.
const SLOW: Duration = Duration::from_secs(1);
/// How many holders of ids in our way are remembered.
const RIVALS_MAX: usize = 1_024;

pub(crate) struct Registrar {
    pub(crate) client: Client,
    pub(crate) registrations: RegistrationTable,
    pub(crate) indexes: GroupIndexes,
    locks: RegistrationLocks,
    /// [`CHANGES_AT_ONCE`] places.
    changes: Semaphore,
    /// The change that is next: how many places it takes is decided when it has its turn.
    next: Mutex<()>,
    /// How many of them a change takes.
    places: AtomicU32,
    changes_made: AtomicU64,
    /// Holders on other agents: since when each has been in the way.
    rivals: StdMutex<HashMap<String, Moment>>,
}

impl Registrar {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            registrations: RegistrationTable::default(),
            indexes: GroupIndexes::default(),
            locks: RegistrationLocks::default(),
            changes: Semaphore::new(CHANGES_AT_ONCE as usize),
            next: Mutex::default(),
            // The first one shows how fast the agent is.
            places: AtomicU32::new(CHANGES_AT_ONCE),
            changes_made: AtomicU64::new(0),
            rivals: StdMutex::default(),
        }
    }

    /// Registers, and keeps the record only while its caller waits for the answer: without a caller, the record would not be renewed.
    pub(crate) async fn register(&self, registration: &Registration, caller: &Caller) -> Result<Grant> {
        let (record_id, ttl) = (registration.record_id(), check_ttl(registration)?);
        // Values that cannot be written are found before any request.
        wire::encode(&registration.member)?;
        let change = async |lock: &RegistrationLock| self.register_locked(registration, &record_id, lock, caller).await;
        let (life, started) = self.under_lock(&record_id, caller, change).await?;
        if caller.is_gone() {
            self.take_back(&life, None).await;
            return Err(Failure::GivenUp);
        }
        self.registrations.put(record_id, life);
        Ok(Grant { started, ttl })
    }

    async fn register_locked(
        &self,
        registration: &Registration,
        record_id: &RecordId,
        lock: &RegistrationLock,
        caller: &Caller,
    ) -> Result<(LiveRegistration, Moment)> {
        let service = names::service_name(&record_id.group);
        let read = async {
            self.client.sees_all_nodes().await?;
            let joined = self.joined(record_id, &service).await?.unwrap_or(lock.index);
            Ok((joined, self.free_service_id(record_id, &service).await?))
        };
        let (joined, service_id) = caller.or_gone(self.while_held(lock, read)).await?;
        let change = self.next_change();
        let check = format!("{}{change}", names::check_prefix(record_id));
        let started = self.client.clock.now();
        let mut life = LiveRegistration::new(service, service_id, check, joined, check_ttl(registration)?, started);
        let definition = life.registration(&registration.member, change)?;
        let answer = async {
            // Waited for in any case, or the call that takes it back might overtake it.
            self.client.register_service(&life.service, definition, true).await?;
            caller.or_gone(self.while_held(lock, self.await_shown(record_id, &life, change))).await?;
            if !registration.claims {
                return Ok((started, None));
            }
            // What counts is the session, with the other half of the TTL as its lock delay: whatever ends it, the deadline comes before
            // that is over.
            let started = self.client.clock.now();
            let session = self.while_held(lock, self.client.session_create(&life.check, life.ttl)).await?;
            Ok((started, Some(Arc::new(LockSession::new(session)))))
        };
        match answer.await {
            Ok((started, session)) => {
                life.session = session;
                Ok((life, started))
            }
            Err(failure) => {
                // The registration may have succeeded. It would expire, but taking it back spares others the wait for that.
                self.take_back(&life, Some(lock)).await;
                Err(failure)
            }
        }
    }

    /// Ends a registration that will not be renewed. Without a valid lock it only fails the check, which belongs to this registration
    /// alone: by now another member may own an instance of this id.
    async fn take_back(&self, life: &LiveRegistration, lock: Option<&RegistrationLock>) {
        let answer = if lock.is_some_and(RegistrationLock::is_good) {
            self.client.deregister_service(&life.service, &life.service_id).await
        } else {
            self.client.check_fail(&life.service, &life.check).await.map(drop)
        };
        if let Err(failure) = answer {
            tracing::debug!(%failure, "a failed registration could not be removed; it expires with its TTL");
        }
    }

    /// When this incarnation joined, if it is registered already. Another incarnation's living record of this id is an error.
    async fn joined(&self, record_id: &RecordId, service: &str) -> Result<Option<u64>> {
        let list = self.client.passing(service, Some(&of_instance(record_id)), None).await?;
        let mut joined = None;
        for found in list.found.iter().map(|entry| &entry.service).filter(|found| found.name == service) {
            let Some(check) = found.check() else {
                return Err(self.in_use(record_id, found).await);
            };
            if !check.starts_with(&names::check_prefix(record_id)) {
                // A member that is away makes room.
                if found.is_away() {
                    continue;
                }
                return Err(self.in_use(record_id, found).await);
            }
            joined = Some(found.member()?.joined);
        }
        Ok(joined)
    }

    async fn in_use(&self, record_id: &RecordId, holder: &Service) -> Failure {
        match self.stamp(record_id, holder).await {
            Ok(stamp) => Failure::InUse { instance_id: record_id.instance_id.clone(), address: holder.address(), stamp },
            Err(failure) => failure,
        }
    }

    /// Changes when the holder has renewed. On this agent its last renewal can be read. On another agent one can only wait: who
    /// still passes after its TTL has renewed in the meantime.
    async fn stamp(&self, record_id: &RecordId, holder: &Service) -> Result<u64> {
        let check = holder.check().unwrap_or(&holder.id);
        if let Some(local) = self.client.agent_check(check).await? {
            // The agent knows first that it has expired, and writes that as its output: this would look like a renewal.
            if local.status != "passing" {
                return Err(Failure::Expired { instance_id: record_id.instance_id.clone() });
            }
            let mut hasher = DefaultHasher::new();
            (check, local.output).hash(&mut hasher);
            return Ok(hasher.finish());
        }
        let now = self.client.clock.now();
        let round = holder.ttl().unwrap_or(Duration::from_secs(30)) + MARGIN;
        let mut rivals = self.rivals.lock().unwrap_or_else(PoisonError::into_inner);
        if rivals.len() >= RIVALS_MAX {
            rivals.clear();
        }
        let since = *rivals.entry(check.to_owned()).or_insert(now);
        Ok(u64::try_from(now.since(since).as_nanos() / round.as_nanos().max(1)).unwrap_or(u64::MAX))
    }

    /// The id to register under: the member's own, unless Consul cannot hold it or the agent has it for another service.
    async fn free_service_id(&self, record_id: &RecordId, service: &str) -> Result<String> {
        let id = &record_id.instance_id;
        let there = self.client.agent_services(id.as_str()).await?;
        let prefix = names::check_prefix(record_id);
        let own = there.iter().find(|found| found.check().is_some_and(|check| check.starts_with(&prefix)));
        if let Some(own) = own {
            return Ok(own.id.clone());
        }
        let others = |wanted: &str| there.iter().any(|found| found.name != service || found.id != wanted);
        Ok(names::service_id(id).filter(|wanted| !others(wanted)).unwrap_or_else(|| names::other_service_id(&record_id.group, id)))
    }

    /// Waits until the servers show this change of a registration, and that it passes, or says why they do not.
    async fn await_shown(&self, record_id: &RecordId, life: &LiveRegistration, change: u64) -> Result<()> {
        let gives_up = self.client.clock.now().plus(SHOWN_WITHIN);
        let service = &life.service;
        let whom = format!("{} and Service.Meta.shardwise_change == \"{change}\"", of_check(&life.check));
        let mut list = self.client.passing(service, Some(&whom), None).await?;
        if list.found.is_empty() {
            self.client.may_see(service).await?;
        }
        while list.found.is_empty() {
            if self.client.clock.now() >= gives_up {
                return Err(self.not_shown(record_id, life).await?);
            }
            tokio::time::sleep(ASK_AGAIN).await;
            list = self.client.passing(service, Some(&whom), None).await?;
        }
        Ok(())
    }

    async fn not_shown(&self, record_id: &RecordId, life: &LiveRegistration) -> Result<Failure> {
        let shown = self.client.registered(&life.service, &life.check).await?;
        let Some(ServiceEntry { node, checks, .. }) = shown.first() else {
            let why = format!(": it has not reached them yet{NEW_AGENT}");
            return Ok(Failure::NotShown { instance_id: record_id.instance_id.clone(), why });
        };
        if let Some(given) = self.client.datacenter.as_ref().filter(|given| **given != node.datacenter) {
            let at = self.client.endpoint.to_string();
            return Ok(Failure::OtherDatacenter { at, given: given.clone(), actual: node.datacenter.clone() });
        }
        let failing: Vec<_> = checks.iter().filter(|check| check.status != "passing").map(|check| check.name.as_str()).collect();
        let why = match failing[..] {
            [] => format!(": what has changed has not reached them yet{NEW_AGENT}"),
            _ => format!(": not passing are {failing:?}"),
        };
        Ok(Failure::NotShown { instance_id: record_id.instance_id.clone(), why })
    }

    /// Changes what a living record says. Its TTL goes on as it was.
    pub(crate) async fn update(&self, registration: &Registration, caller: &Caller) -> Result<()> {
        let record_id = registration.record_id();
        let lost = |why| Failure::Lost { instance_id: record_id.instance_id.clone(), why };
        let Some(life) = self.registrations.get(&record_id) else { return Err(lost("this process has not made one")) };
        let number = self.next_change();
        let definition = life.change(&registration.member, number)?;
        let change = async {
            if !self.is_shown(&life).await? {
                return Err(lost("the servers do not show it"));
            }
            self.client.register_service(&life.service, definition, false).await?;
            match self.await_shown(&record_id, &life, number).await {
                Err(Failure::NotShown { .. }) if !self.is_shown(&life).await? => Err(lost("the servers do not show it any more")),
                answer => answer,
            }
        };
        self.under_lock(&record_id, caller, async |lock| self.while_held(lock, change).await).await
    }

    /// Puts a record that says its member is away in the place of the living one. Its check lasts for the rejoin grace, and no one renews
    /// it. It takes the place of the old one, with which the member's session ends; what it has locked is released before, or its lock
    /// delay would hold it back.
    pub(crate) async fn step_away(&self, registration: &Registration, rejoin_grace: Duration, caller: &Caller) -> Result<()> {
        let record_id = registration.record_id();
        let lost = |why| Failure::Lost { instance_id: record_id.instance_id.clone(), why };
        let Some(life) = self.registrations.get(&record_id) else {
            let is_away = self.shown(&record_id).await?.iter().any(|found| found.service.is_away());
            return if is_away { Ok(()) } else { Err(lost("this process has not made one")) };
        };
        let number = self.next_change();
        let check = format!("{}{number}", names::check_prefix(&record_id));
        let away =
            LiveRegistration::new(life.service.clone(), life.service_id.clone(), check, life.joined, rejoin_grace, self.client.clock.now());
        let definition = away.registration(&registration.away_member(), number)?;
        let change = async {
            if !self.is_shown(&life).await? {
                return Err(lost("the servers do not show it"));
            }
            if let Some(session) = &life.session {
                claims::release_all(&self.client, &record_id, session).await;
            }
            self.client.register_service(&away.service, definition, true).await?;
            self.await_shown(&record_id, &away, number).await
        };
        self.under_lock(&record_id, caller, async |lock| self.while_held(lock, change).await).await?;
        self.registrations.forget(&record_id, &life);
        Ok(())
    }

    /// Numbers this process's writes and renewals, so that no two are alike.
    pub(crate) fn next_change(&self) -> u64 {
        self.changes_made.fetch_add(1, Ordering::Relaxed)
    }

    /// Deletes the record of exactly this incarnation, from this agent.
    pub(crate) async fn deregister(&self, record_id: &RecordId, caller: &Caller) -> Result<()> {
        let life = self.registrations.take(record_id);
        if let Some(session) = life.as_ref().and_then(|life| life.session.as_ref()) {
            claims::release_all(&self.client, record_id, session).await;
        }
        let change = async {
            let (service, prefix) = (names::service_name(&record_id.group), names::check_prefix(record_id));
            let there = self.client.agent_services(record_id.instance_id.as_str()).await?;
            let own = there.iter().filter(|found| found.name == service && found.check().is_some_and(|check| check.starts_with(&prefix)));
            for found in own {
                self.client.deregister_service(&service, &found.id).await?;
            }
            Ok(())
        };
        let answer = self.under_lock(record_id, caller, async |lock| self.while_held(lock, change).await).await;
        if let (Err(_), Some(life)) = (&answer, life) {
            // This touches only our own, and needs no server. The error that counts is the one there is.
            let _ = self.client.check_fail(&life.service, &life.check).await;
        }
        answer
    }

    /// What the servers show as passing of exactly this incarnation, whatever process made it.
    pub(crate) async fn shown(&self, record_id: &RecordId) -> Result<Vec<ServiceEntry>> {
        let (service, prefix) = (names::service_name(&record_id.group), names::check_prefix(record_id));
        let list = self.client.passing(&service, Some(&of_instance(record_id)), None).await?;
        let own = |entry: &ServiceEntry| entry.service.check().is_some_and(|check| check.starts_with(&prefix));
        Ok(list.found.into_iter().filter(own).collect())
    }

    pub(crate) async fn is_shown(&self, life: &LiveRegistration) -> Result<bool> {
        let list = self.client.passing(&life.service, Some(&of_check(&life.check)), None).await?;
        Ok(!list.found.is_empty())
    }

    /// Runs `change` under the lock of the record's id. A change that has not begun when its caller gives up vanishes: in an outage
    /// callers try again and again, and only the newest try may wait.
    async fn under_lock<T>(
        &self,
        record_id: &RecordId,
        caller: &Caller,
        change: impl AsyncFnOnce(&RegistrationLock) -> Result<T>,
    ) -> Result<T> {
        // Never closed.
        let turn = async {
            let _next = self.next.lock().await;
            self.changes.acquire_many(self.places.load(Ordering::Relaxed)).await.map_err(|_| Failure::ShuttingDown)
        };
        let _turn = caller.or_gone(turn).await?;
        let lock = self.locks.take(&self.client, record_id, caller).await?;
        let begun = Instant::now();
        let answer = if caller.is_gone() { Err(Failure::GivenUp) } else { change(&lock).await };
        let took = begun.elapsed();
        RegistrationLocks::free(&self.client, lock).await;
        // A refusal says nothing about the agent.
        if answer.is_ok() || took > SLOW {
            self.places.store(places_after(self.places.load(Ordering::Relaxed), took), Ordering::Relaxed);
        }
        answer
    }

    /// The answer of `work`, if there is one while the lock is good.
    async fn while_held<T>(&self, lock: &RegistrationLock, work: impl Future<Output = Result<T>>) -> Result<T> {
        let answer = timeout_at(lock.good_until, work).await;
        answer.unwrap_or_else(|_| Err(self.client.late("changing a record", HELD_FOR)))
    }
}

/// How many places the next change takes.
fn places_after(places: u32, took: Duration) -> u32 {
    if took > SLOW { (places * 2).min(CHANGES_AT_ONCE) } else { (places / 2).max(1) }
}

/// The filter for instances with that service id, or that say they are that instance.
fn of_instance(record_id: &RecordId) -> String {
    format!("Service.ID == {0} or Service.Meta.shardwise_id == {0}", names::literal(record_id.instance_id.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_a_slow_agent_come_one_after_the_other() {
        let after = |took: &[u64]| took.iter().fold(CHANGES_AT_ONCE, |places, ms| places_after(places, Duration::from_millis(*ms)));
        assert_eq!(after(&[]), CHANGES_AT_ONCE, "the first shows how quick the agent is");
        assert_eq!([after(&[50]), after(&[50, 50, 50]), after(&[50, 50, 50, 50])], [4, 1, 1]);
        assert_eq!([after(&[50, 50, 50, 3_000]), after(&[50, 800, 3_000]), after(&[3_000])], [2, 4, CHANGES_AT_ONCE]);
    }
}
