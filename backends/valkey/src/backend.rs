//! The contract over Valkey and Redis.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use redis::Value;
use shardwise_core::{GroupName, InstanceId, MEMBERS_MAX};
use shardwise_discovery::feeds::{Hub, follow};
use shardwise_discovery::settings::is_this_machine;
use shardwise_discovery::{
    CallNumber, Capabilities, Clock, Discovery, Grant, Notes, RecordId, Registration, Result, ViewSnapshot, WatchStream,
};

use crate::ValkeyConfig;
use crate::client::{Client, MakesGroup};
use crate::dial::load;
use crate::error::{Failure, ValkeyResult};
use crate::keys::KeyPrefix;
use crate::member_keys::MemberKeys;
use crate::mirror::MemberMirror;
use crate::reader::{LIMITS, ValkeyReader};
use crate::records::{TTL_MIN, decode, encode};
use crate::scripts::{GroupAnswer, bytes, text};
use crate::sentinel::ServerLocator;

/// How much later than its TTL a silent member may leave the view, on a busy machine: the next script evicts it, and watches call one when
/// it is due.
const MARGIN: Duration = Duration::from_millis(500);
/// For how long a life that has deregistered is remembered: far longer than a call can be on its way.
const FAREWELL_KEPT: Duration = Duration::from_mins(2);
/// Why no policy with exclusive ownership can use this backend.
const NO_CLAIMS: &str = "a failover forgets what it confirmed; use \"local\", \"consul\", \"etcd\", \"nats\" or \"postgres\"";

/// Members that name the same server, database and prefix. Clones share the connection.
#[derive(Clone)]
pub struct ValkeyBackend {
    pub(crate) client: Arc<Client>,
    hub: Hub,
}

impl ValkeyBackend {
    /// Checks the settings and reads the certificates. The server is contacted by the first call that needs it, and again by the next one
    /// if that failed.
    ///
    /// # Errors
    /// [`ErrorKind::Misconfigured`](shardwise_discovery::ErrorKind::Misconfigured), naming the setting and what is wrong with it.
    pub fn open(config: &ValkeyConfig, clock: Clock) -> Result<Self> {
        let client = client(config, clock).map_err(|failure| failure.during("open"))?;
        let client = Arc::new(client);
        let followed = Arc::clone(&client);
        let hub = Hub::new(client.clock.clone(), LIMITS, move |feed| follow(ValkeyReader::new(Arc::clone(&followed)), feed));
        Ok(Self { client, hub })
    }
}

fn client(config: &ValkeyConfig, clock: Clock) -> ValkeyResult<Client> {
    let (prefix, target, files, login) = (KeyPrefix::new(&config.prefix)?, config.target()?, config.tls_files()?, config.login()?);
    let locator = ServerLocator::new(target);
    if locator.uses_tls() {
        load(&files)?;
    }
    let is_secret = config.password.is_some() || config.sentinel_password.is_some();
    if is_secret && !locator.uses_tls() && locator.hosts().iter().any(|host| !is_this_machine(host)) {
        let server = locator.places();
        tracing::warn!(server, "Valkey's password is sent without TLS, so anyone on the network can read it: write rediss://");
    }
    let own = format!("{}:", prefix.as_str());
    let member_keys = config.member_keys.as_ref().map(|keys| MemberKeys::new(keys, &own)).transpose()?;
    Ok(Client::new(clock, prefix, member_keys, locator, login, files))
}

impl fmt::Debug for ValkeyBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let client = &self.client;
        let mut shown = f.debug_struct("ValkeyBackend");
        shown.field("server", &client.locator.places()).field("user", &client.username());
        shown.field("prefix", &client.keys.as_str()).finish_non_exhaustive()
    }
}

#[async_trait]
impl Discovery for ValkeyBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("valkey", MARGIN).with_places().without_claims(NO_CLAIMS)
    }

    async fn register(&self, registration: &Registration) -> Result<Grant> {
        self.client.register(registration).await.map_err(|failure| failure.during("register"))
    }

    async fn renew(&self, record_id: &RecordId, ttl: Duration) -> Result<Grant> {
        self.client.renew(record_id, ttl).await.map_err(|failure| failure.during("renew"))
    }

    async fn update(&self, registration: &Registration) -> Result<()> {
        self.client.update(registration).await.map_err(|failure| failure.during("update"))
    }

    async fn deregister(&self, record_id: &RecordId) -> Result<()> {
        self.client.deregister(record_id).await.map_err(|failure| failure.during("deregister"))
    }

    async fn step_away(&self, registration: &Registration, rejoin_grace: Duration) -> Result<()> {
        self.client.step_away(registration, rejoin_grace).await.map_err(|failure| failure.during("step_away"))
    }

    async fn members(&self, group: &GroupName) -> Result<ViewSnapshot> {
        self.client.members(group).await.map_err(|failure| failure.during("members"))
    }

    fn watch(&self, group: &GroupName, prove_every: Duration) -> WatchStream {
        self.hub.watch(group, prove_every)
    }

    fn as_notes(&self) -> Option<&dyn Notes> {
        Some(self)
    }
}

impl Client {
    async fn register(&self, registration: &Registration) -> ValkeyResult<Grant> {
        let (record, record_id, ttl) = (encode(&registration.member)?, registration.record_id(), registration.ttl.max(TTL_MIN));
        let (writer, number) = next_call();
        let arguments = [id(&record_id), life(&record_id), writer, number, micros(ttl), MEMBERS_MAX.to_string(), record];
        let mut call = self.call(&self.scripts.register, &record_id.group, MakesGroup::Yes, arguments);
        call.keys.push(self.keys.farewell(&record_id));
        let started = self.clock.now();
        let answer = self.run(&call).await?;
        match answer.status.as_str() {
            "TAKEN" => Err(in_use(&record_id.instance_id, answer)),
            "FULL" => Err(Failure::TooManyMembers),
            _ => done(&record_id, &answer).map(|()| Grant { started, ttl }),
        }
    }

    async fn renew(&self, record_id: &RecordId, ttl: Duration) -> ValkeyResult<Grant> {
        let ttl = ttl.max(TTL_MIN);
        let arguments = [id(record_id), life(record_id), micros(ttl)];
        let call = self.call(&self.scripts.renew, &record_id.group, MakesGroup::No, arguments);
        let started = self.clock.now();
        done(record_id, &self.run(&call).await?).map(|()| Grant { started, ttl })
    }

    async fn update(&self, registration: &Registration) -> ValkeyResult<()> {
        let (record, record_id) = (encode(&registration.member)?, registration.record_id());
        let (writer, number) = next_call();
        let arguments = [id(&record_id), life(&record_id), writer, number, record];
        let call = self.call(&self.scripts.update, &record_id.group, MakesGroup::No, arguments);
        done(&record_id, &self.run(&call).await?)
    }

    async fn step_away(&self, registration: &Registration, rejoin_grace: Duration) -> ValkeyResult<()> {
        let (record, record_id) = (encode(&registration.away_member())?, registration.record_id());
        let (writer, number) = next_call();
        let arguments = [id(&record_id), life(&record_id), writer, number, micros(rejoin_grace), record];
        let call = self.call(&self.scripts.step_away, &record_id.group, MakesGroup::No, arguments);
        done(&record_id, &self.run(&call).await?)
    }

    async fn deregister(&self, record_id: &RecordId) -> ValkeyResult<()> {
        let (writer, number) = next_call();
        let arguments = [id(record_id), life(record_id), writer, number, FAREWELL_KEPT.as_millis().to_string()];
        let mut call = self.call(&self.scripts.deregister, &record_id.group, MakesGroup::No, arguments);
        call.keys.push(self.keys.farewell(record_id));
        done(record_id, &self.run(&call).await?)
    }

    async fn members(&self, group: &GroupName) -> ValkeyResult<ViewSnapshot> {
        let call = self.call(&self.scripts.list, group, MakesGroup::No, []);
        let proven = self.clock.now();
        let foreign = self.foreign_members().await?;
        let answer = self.run(&call).await?;
        let (era, revision) = (answer.era.clone(), answer.revision);
        let mirror = MemberMirror::of_list(era, revision, &answer.records())?;
        self.show(group, revision);
        Ok(ViewSnapshot { view: mirror.view(&foreign), proven })
    }
}

fn id(record_id: &RecordId) -> String {
    record_id.instance_id.as_str().to_owned()
}

fn life(record_id: &RecordId) -> String {
    record_id.incarnation.to_string()
}

fn micros(duration: Duration) -> String {
    // Up, so that nothing ends early.
    let up = u128::from(!duration.subsec_nanos().is_multiple_of(1_000));
    (duration.as_micros() + up).to_string()
}

/// Which process writes, and the number of its call, as the scripts take them.
fn next_call() -> (String, String) {
    let CallNumber { writer, number } = CallNumber::next();
    (format!("{writer:016x}"), number.to_string())
}

/// What became of a write.
fn done(record_id: &RecordId, answer: &GroupAnswer) -> ValkeyResult<()> {
    let instance_id = || record_id.instance_id.clone();
    match answer.status.as_str() {
        "OK" => Ok(()),
        "SUPERSEDED" => Err(Failure::Superseded { instance_id: instance_id() }),
        _ => Err(Failure::Lost { instance_id: instance_id() }),
    }
}

/// The holder's deadline changes with each renewal, and distinguishes two holders.
fn in_use(instance_id: &InstanceId, answer: GroupAnswer) -> Failure {
    let mut rest = answer.rest.into_iter();
    let mut next = || rest.next().unwrap_or(Value::Nil);
    let stamp = text(next()).and_then(|deadline| deadline.parse().ok()).unwrap_or_default();
    // Even a record that this version cannot read keeps others from the id.
    let holder = bytes(next()).and_then(|record| decode(instance_id.as_str().as_bytes(), &record).ok());
    Failure::InUse { instance_id: instance_id.clone(), address: holder.and_then(|member| member.address), stamp }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_is_never_shortened() {
        for (nanos, micros_said) in [(0, "0"), (1, "1"), (1_000, "1"), (1_001, "2"), (2_500_000_000, "2500000")] {
            assert_eq!(micros(Duration::from_nanos(nanos)), micros_said);
        }
    }

    #[test]
    fn who_is_in_use_is_shown_by_deadline_and_address() {
        let json = r#"{"schema":1,"incarnation":"00000000000000ff","state":"active","address":{"host":"h","port":9}}"#;
        let rest = ["1764231265123456", &format!("1 00000000000000ff live 0a 7 3000000 0b {json}")];
        let answer = GroupAnswer {
            era: "0b".into(),
            revision: 1,
            origin: "ff".into(),
            due_us: None,
            status: "TAKEN".into(),
            rest: rest.map(|part| Value::BulkString(part.into())).to_vec(),
        };
        let Failure::InUse { address, stamp, .. } = in_use(&InstanceId::new("a").unwrap(), answer) else { unreachable!("it is in use") };
        assert_eq!((address.map(|address| address.to_string()), stamp), (Some("h:9".to_owned()), 1_764_231_265_123_456));
    }
}
