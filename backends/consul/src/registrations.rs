//! The records that this process has made and keeps alive.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use shardwise_core::{Address, GroupName, InstanceId, Member, Moment};
use shardwise_discovery::RecordId;

use crate::claims::LockSession;
use crate::client::Client;
use crate::error::Result;
use crate::wire::{cut, encode};

/// When Consul deletes an instance that has not passed: the least it takes.
const REAPED_AFTER: &str = "1m";
/// The TTL of the check that needs no renewal: longer than anything lives. Ten years.
const FOR_EVER: &str = "87600h";

#[derive(Debug)]
pub(crate) struct LiveRegistration {
    pub(crate) service: String,
    pub(crate) service_id: String,
    pub(crate) check: String,
    pub(crate) joined: u64,
    /// The TTL of the check.
    pub(crate) ttl: Duration,
    /// The session that its claims belong to, if it claims.
    pub(crate) session: Option<Arc<LockSession>>,
    /// Whether the agent has been informed that the second check passes.
    stands: AtomicBool,
    last_renewal: Mutex<Moment>,
}

impl LiveRegistration {
    pub(crate) fn new(service: String, service_id: String, check: String, joined: u64, ttl: Duration, started: Moment) -> Self {
        Self { service, service_id, check, joined, ttl, session: None, stands: AtomicBool::new(false), last_renewal: Mutex::new(started) }
    }

    /// The id of the second check, which passes as long as the registration exists, and is part of every change: a change keeps its result
    /// and leaves the first check, and so the TTL, alone. If the registration is gone, a late change recreates it as critical, so it makes
    /// no instance a member.
    pub(crate) fn standing(&self) -> String {
        format!("{}:standing", self.check)
    }

    /// The earliest moment at which the agent may have let it expire.
    pub(crate) fn ends(&self) -> Moment {
        self.last_renewal().plus(self.ttl)
    }

    /// A renewal that began then has reached the agent in time.
    pub(crate) fn renewed(&self, started: Moment) {
        let mut last = self.last_renewal();
        *last = last.max(started);
    }

    /// Informs the agent once that the second check passes. A restarted agent keeps reported results, and there too the first
    /// check begins as critical until it is renewed.
    pub(crate) async fn stand(&self, client: &Client) -> Result<()> {
        if !self.stands.load(Ordering::Relaxed) {
            client.check_pass(&self.service, &self.standing(), "").await?;
            self.stands.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn last_renewal(&self) -> MutexGuard<'_, Moment> {
        self.last_renewal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is written of a registration. `change` numbers this process's writes, so that one can see whether a write has arrived.
impl LiveRegistration {
    /// The definition for the agent of a registration, which begins as passing.
    pub(crate) fn registration(&self, member: &Member, change: u64) -> Result<String> {
        let renewed = check_of(&self.check, "shardwise: renewed within the TTL", &format!("{}ms", self.ttl.as_millis()));
        let checks = [renewed, self.standing_check()].map(|mut check| {
            check["Status"] = json!("passing");
            check
        });
        self.definition(member, change, &checks)
    }

    /// The definition of a change of what is there.
    pub(crate) fn change(&self, member: &Member, change: u64) -> Result<String> {
        self.definition(member, change, &[self.standing_check()])
    }

    fn standing_check(&self) -> Value {
        check_of(&self.standing(), "shardwise: registered and not deregistered", FOR_EVER)
    }

    fn definition(&self, member: &Member, change: u64, checks: &[Value]) -> Result<String> {
        let meta = self.meta(member, change)?;
        let mut definition = json!({"ID": self.service_id, "Name": self.service, "Meta": meta, "Checks": checks});
        if let Some(Address { host, port }) = &member.address {
            definition["Address"] = json!(host);
            definition["Port"] = json!(port);
        }
        Ok(definition.to_string())
    }

    pub(crate) fn meta(&self, member: &Member, change: u64) -> Result<BTreeMap<String, String>> {
        let record = encode(member)?;
        let own = [
            ("shardwise_id", member.instance_id.as_str().to_owned()),
            ("shardwise_check", self.check.clone()),
            ("shardwise_joined", self.joined.to_string()),
            ("shardwise_ttl_ms", self.ttl.as_millis().to_string()),
            ("shardwise_change", change.to_string()),
        ];
        let own = own.into_iter().map(|(key, value)| (key.to_owned(), value));
        let parts = cut(&record).into_iter().enumerate().map(|(at, part)| (format!("shardwise_record_{at}"), part.to_owned()));
        Ok(own.chain(parts).collect())
    }
}

fn check_of(id: &str, name: &str, ttl: &str) -> Value {
    json!({"CheckID": id, "Name": name, "TTL": ttl, "DeregisterCriticalServiceAfter": REAPED_AFTER})
}

#[derive(Debug, Default)]
pub(crate) struct RegistrationTable(Mutex<HashMap<RecordId, Arc<LiveRegistration>>>);

impl RegistrationTable {
    pub(crate) fn get(&self, record_id: &RecordId) -> Option<Arc<LiveRegistration>> {
        self.all().get(record_id).cloned()
    }

    pub(crate) fn put(&self, record_id: RecordId, life: LiveRegistration) {
        self.all().insert(record_id, Arc::new(life));
    }

    /// Forgets this life, unless the record has another by now.
    pub(crate) fn forget(&self, record_id: &RecordId, life: &LiveRegistration) {
        let mut all = self.all();
        if all.get(record_id).is_some_and(|known| known.check == life.check) {
            all.remove(record_id);
        }
    }

    pub(crate) fn take(&self, record_id: &RecordId) -> Option<Arc<LiveRegistration>> {
        self.all().remove(record_id)
    }

    /// Members of the group that this process believes alive.
    pub(crate) fn alive(&self, group: &GroupName, now: Moment) -> Vec<InstanceId> {
        let all = self.all();
        let alive = all.iter().filter(|(record_id, life)| record_id.group == *group && now < life.ends());
        alive.map(|(record_id, _)| record_id.instance_id.clone()).collect()
    }

    fn all(&self) -> MutexGuard<'_, HashMap<RecordId, Arc<LiveRegistration>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
