//! The contract over etcd.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use shardwise_core::{GroupName, MEMBERS_MAX, Member, MemberState};
use shardwise_discovery::feeds::{Hub, follow};
use shardwise_discovery::settings::is_this_machine;
use shardwise_discovery::{
    Capabilities, ClaimTable, Claims, Clock, Discovery, Grant, Notes, RecordId, Registration, Result, UsedStores, ViewSnapshot, WatchStream,
};

use crate::EtcdConfig;
use crate::claim_records::ClaimMirror;
use crate::client::{ConnectParams, EtcdConnection, KeyEntry};
use crate::dial::check;
use crate::error::{EtcdResult, Failure};
use crate::inner::{EtcdInner, WRITE_TRIES, contended, lost};
use crate::keys::{Folder, Prefix};
use crate::mirror::{LIMITS, Mirror, MirrorReader};
use crate::pool::ServerPool;
use crate::records::{MemberTable, decode, encode, going_on, joining};
use crate::revisions::Revisions;

/// The shortest TTL that etcd grants with its default settings; shorter requests get this one.
pub const TTL_MIN: Duration = Duration::from_secs(2);

/// How much later than its TTL a silent member may leave the view: etcd looks for ended leases every half second, then its members
/// agree on it.
const MARGIN: Duration = Duration::from_secs(1);

/// Members that name the same etcd cluster and prefix. Clones share the connection.
#[derive(Clone)]
pub struct EtcdBackend {
    pub(crate) inner: Arc<EtcdInner>,
    hub: Hub,
    pub(crate) claims: Hub<ClaimTable>,
}

impl EtcdBackend {
    /// Checks the settings and reads the certificates. etcd is contacted by the first call that needs it, and again by the next one if
    /// that failed.
    ///
    /// # Errors
    /// [`ErrorKind::Misconfigured`](shardwise_discovery::ErrorKind::Misconfigured), naming the setting and what is wrong with it.
    pub fn open(config: &EtcdConfig, clock: Clock) -> Result<Self> {
        let made = || -> EtcdResult<_> {
            let (prefix, endpoints, files) = (Prefix::new(&config.prefix)?, config.servers()?, config.tls_files()?);
            if endpoints.iter().any(|endpoint| endpoint.tls) {
                check(&files)?;
            }
            if config.password.is_some()
                && let Some(open) = endpoints.iter().find(|endpoint| !endpoint.tls && !is_this_machine(&endpoint.host))
            {
                tracing::warn!(endpoint = %open, "etcd's password is sent without TLS, so anyone on the network can read it: write https://");
            }
            let access = ConnectParams { credentials: config.credentials()?, tls: files, prefix: prefix.as_str().to_owned() };
            Ok(EtcdInner {
                pool: ServerPool::new(endpoints, access),
                clock,
                revisions: Revisions::default(),
                prefix,
                stores: UsedStores::default(),
            })
        };
        let inner = Arc::new(made().map_err(|failure| failure.during("open"))?);
        Ok(Self { hub: following::<MemberTable>(&inner), claims: following::<ClaimMirror>(&inner), inner })
    }
}

/// A hub whose groups are read from etcd.
fn following<M: Mirror>(inner: &Arc<EtcdInner>) -> Hub<M::Shown> {
    let (clock, inner) = (inner.clock.clone(), Arc::clone(inner));
    Hub::new(clock, LIMITS, move |feed| follow(MirrorReader::<M>::new(Arc::clone(&inner)), feed))
}

impl fmt::Debug for EtcdBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endpoints: Vec<_> = self.inner.pool.endpoints().map(ToString::to_string).collect();
        f.debug_struct("EtcdBackend").field("endpoints", &endpoints).field("prefix", &self.inner.prefix.as_str()).finish_non_exhaustive()
    }
}

#[async_trait]
impl Discovery for EtcdBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("etcd", MARGIN).with_places()
    }

    async fn register(&self, registration: &Registration) -> Result<Grant> {
        let record = encode(&registration.member).map_err(|failure| failure.during("register"))?;
        let record_id = &registration.record_id();
        let (inner, record) = (&*self.inner, record.as_str());
        let answer =
            inner.pool.call(|connection| async move { inner.register(&connection, record_id, record, registration.ttl).await }).await;
        answer.map_err(|failure| failure.during("register"))
    }

    async fn renew(&self, record_id: &RecordId, _ttl: Duration) -> Result<Grant> {
        let inner = &*self.inner;
        let answer = inner.pool.call(|connection| async move { inner.renew(&connection, record_id).await }).await;
        answer.map_err(|failure| failure.during("renew"))
    }

    async fn update(&self, registration: &Registration) -> Result<()> {
        let record = encode(&registration.member).map_err(|failure| failure.during("update"))?;
        let record_id = &registration.record_id();
        let (inner, record) = (&*self.inner, record.as_str());
        let answer = inner.pool.call(|connection| async move { inner.update(&connection, record_id, record).await }).await;
        answer.map_err(|failure| failure.during("update"))
    }

    async fn deregister(&self, record_id: &RecordId) -> Result<()> {
        let inner = &*self.inner;
        let answer = inner.pool.call(|connection| async move { inner.deregister(&connection, record_id).await }).await;
        answer.map_err(|failure| failure.during("deregister"))
    }

    async fn step_away(&self, registration: &Registration, rejoin_grace: Duration) -> Result<()> {
        let record = encode(&registration.away_member()).map_err(|failure| failure.during("step_away"))?;
        let record_id = &registration.record_id();
        let (inner, record) = (&*self.inner, record.as_str());
        let answer = inner.pool.call(|connection| async move { inner.step_away(&connection, record_id, record, rejoin_grace).await }).await;
        answer.map_err(|failure| failure.during("step_away"))
    }

    async fn members(&self, group: &GroupName) -> Result<ViewSnapshot> {
        if let Some(read) = self.hub.read(group).await {
            return Ok(read);
        }
        let (inner, folder) = (&*self.inner, &self.inner.prefix.members(group));
        let answer = inner.pool.call(|connection| async move { inner.members(&connection, folder).await }).await;
        answer.map_err(|failure| failure.during("members"))
    }

    fn watch(&self, group: &GroupName, prove_every: Duration) -> WatchStream {
        self.hub.watch(group, prove_every)
    }

    fn as_claims(&self) -> Option<&dyn Claims> {
        Some(self)
    }

    fn as_notes(&self) -> Option<&dyn Notes> {
        Some(self)
    }
}

impl EtcdInner {
    async fn register(&self, connection: &EtcdConnection, record_id: &RecordId, record: &str, ttl: Duration) -> EtcdResult<Grant> {
        let keys = self.prefix.keys(record_id);
        for _ in 0..WRITE_TRIES {
            let (there, knock) = connection.place(&keys).await?;
            let started = self.clock.now();
            let (lease_id, written) = if let Some(own) = there {
                let holder = decode(&record_id.instance_id, &own)?;
                let is_new = holder.incarnation != record_id.incarnation;
                // A member that is away makes room.
                if is_new && !is_away(&holder) {
                    // A renewal leaves no trace in etcd. So a process that wants a taken id writes a key, a knock, which the holder deletes
                    // with its next renewal. The knock's revision therefore changes with each renewal by the holder, and only then.
                    let stamp = match knock {
                        Some(knock) => Some(knock),
                        None => connection.knock(&keys, &own).await?,
                    };
                    // Without one the holder has just gone.
                    let Some(stamp) = stamp else { continue };
                    let Member { instance_id, address, .. } = holder;
                    return Err(Failure::InUse { instance_id, address, stamp: stamp.unsigned_abs() });
                }
                let (lease_id, ttl_s) = connection.grant(seconds(ttl)).await?;
                let record = if is_new { joining(record) } else { going_on(record, &own) };
                let written = connection.replace(&own, &record, lease_id).await?.then_some(ttl_s);
                if written.is_some() {
                    // Empty now; it would end by itself as well.
                    connection.revoke(own.lease).await?;
                }
                (lease_id, written)
            } else {
                if connection.count(&self.prefix.members(&record_id.group)).await? >= i64::from(MEMBERS_MAX) {
                    return Err(Failure::TooManyMembers);
                }
                let (lease_id, ttl_s) = connection.grant(seconds(ttl)).await?;
                (lease_id, connection.create(&keys.member, record, lease_id).await?.then_some(ttl_s))
            };
            match written {
                Some(ttl_s) => return Ok(Grant { started, ttl: whole(ttl_s) }),
                None => connection.revoke(lease_id).await?,
            }
        }
        Err(contended_record(record_id))
    }

    /// The living record of exactly this incarnation.
    pub(crate) fn own(record_id: &RecordId, record: Option<KeyEntry>) -> EtcdResult<KeyEntry> {
        match Self::there(record_id, record)? {
            Some((entry, member)) if !is_away(&member) => Ok(entry),
            _ => Err(lost(record_id)),
        }
    }

    /// The record of exactly this incarnation, living or away.
    fn there(record_id: &RecordId, record: Option<KeyEntry>) -> EtcdResult<Option<(KeyEntry, Member)>> {
        let Some(entry) = record else { return Ok(None) };
        let member = decode(&record_id.instance_id, &entry)?;
        Ok((member.incarnation == record_id.incarnation).then_some((entry, member)))
    }

    async fn renew(&self, connection: &EtcdConnection, record_id: &RecordId) -> EtcdResult<Grant> {
        let (keys, started) = (self.prefix.keys(record_id), self.clock.now());
        // The lease alone does not prove the record: it may have been deleted by hand.
        let (there, knock) = connection.place(&keys).await?;
        let own = Self::own(record_id, there)?;
        let Some(ttl_s) = connection.keep_alive(own.lease).await? else {
            return Err(lost(record_id));
        };
        if let Some(knock) = knock {
            connection.answer_knock(&keys, knock).await?;
        }
        Ok(Grant { started, ttl: whole(ttl_s) })
    }

    async fn update(&self, connection: &EtcdConnection, record_id: &RecordId, record: &str) -> EtcdResult<()> {
        let keys = self.prefix.keys(record_id);
        for _ in 0..WRITE_TRIES {
            let own = Self::own(record_id, connection.place(&keys).await?.0)?;
            // Written even if it says so already: what an earlier call has sent and not heard of must find another record.
            if connection.replace(&own, &going_on(record, &own), own.lease).await? {
                return Ok(());
            }
        }
        Err(contended_record(record_id))
    }

    async fn deregister(&self, connection: &EtcdConnection, record_id: &RecordId) -> EtcdResult<()> {
        match Self::there(record_id, connection.place(&self.prefix.keys(record_id)).await?.0)? {
            // The lease belongs to this record alone, so a late call cannot hit another member's record.
            Some((own, _)) => connection.revoke(own.lease).await,
            None => Ok(()),
        }
    }

    /// Moves the record to a separate lease that is not renewed; what is left under the former lease, such as claims, ends with it.
    async fn step_away(&self, connection: &EtcdConnection, record_id: &RecordId, record: &str, rejoin_grace: Duration) -> EtcdResult<()> {
        let keys = self.prefix.keys(record_id);
        for _ in 0..WRITE_TRIES {
            let own = match Self::there(record_id, connection.place(&keys).await?.0)? {
                Some((_, member)) if is_away(&member) => return Ok(()),
                Some((own, _)) => own,
                None => return Err(lost(record_id)),
            };
            let (lease_id, _) = connection.grant(seconds(rejoin_grace)).await?;
            if connection.replace(&own, &going_on(record, &own), lease_id).await? {
                return connection.revoke(own.lease).await;
            }
            connection.revoke(lease_id).await?;
        }
        Err(contended_record(record_id))
    }

    async fn members(&self, connection: &EtcdConnection, folder: &Folder) -> EtcdResult<ViewSnapshot> {
        let (proven, before) = (self.clock.now(), self.revisions.now());
        let (entries, revision) = connection.list(folder, MEMBERS_MAX as usize).await?;
        let mut table = MemberTable::default();
        entries.iter().try_for_each(|entry| table.put(folder, entry))?;
        Ok(ViewSnapshot { view: table.shown(self.revisions.report(before, revision)?), proven })
    }
}

fn contended_record(record_id: &RecordId) -> Failure {
    contended(format!("the record of {:?}", record_id.instance_id))
}

fn is_away(member: &Member) -> bool {
    member.state == MemberState::Away
}

/// A TTL in whole seconds, as etcd counts; it takes what is too short for its own least.
fn seconds(ttl: Duration) -> i64 {
    let up = u64::from(ttl.subsec_nanos() > 0);
    i64::try_from(ttl.as_secs().saturating_add(up)).unwrap_or(i64::MAX).max(1)
}

fn whole(ttl_s: i64) -> Duration {
    Duration::from_secs(ttl_s.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_is_never_shortened() {
        for (ms, s) in [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (2_500, 3), (3_000, 3)] {
            assert_eq!(seconds(Duration::from_millis(ms)), s, "{ms} ms");
        }
        assert_eq!(seconds(Duration::MAX), i64::MAX);
    }
}
