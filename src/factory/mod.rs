//! Creates and shares one service per policy name: backends, services and operators' calls by policy.

mod builder;
mod operator;
mod own_address;

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use shardwise_core::{InstanceId, Member, OwnershipMode, Policy, PolicyName, Serves};
use shardwise_discovery::{Clock, Discovery, random_incarnation};
use shardwise_settings::listed;

use crate::backend;
use crate::error::{Error, ErrorKind, Result, locked};
use crate::service::ShardingService;
use crate::settings::{DiscoverySettings, InstanceSettings, LoadOptions, PolicySettings, Settings, token_mistake};
pub use builder::ShardingFactoryBuilder;

/// Creates one [`ShardingService`] per named policy. Clones share their services.
///
/// A factory is one worker. If a process runs many workers, each has a factory; within one runtime they share connections and watches if
/// their settings name the same backend, and they always share the placing of views.
#[derive(Clone)]
pub struct ShardingFactory {
    inner: Arc<FactoryInner>,
}

struct FactoryInner {
    enabled: bool,
    instance: InstanceSettings,
    instance_id: InstanceId,
    policies: BTreeMap<PolicyName, PolicySettings>,
    outboxes: BTreeMap<PolicyName, PolicyName>,
    own_backends: HashMap<String, Arc<dyn Discovery>>,
    clock: Clock,
    has_own_clock: bool,
    made: Mutex<FactoryState>,
}

/// The services and backends created so far. Creating one is quick and contacts nothing, so it happens under the lock, and only once.
#[derive(Default)]
struct FactoryState {
    services: HashMap<PolicyName, ShardingService>,
    backends: Vec<(DiscoverySettings, Arc<dyn Discovery>)>,
}

impl ShardingFactory {
    /// A factory for the policies of `settings`.
    pub fn from_settings(settings: Settings) -> Result<Self> {
        Self::builder().settings(settings).build()
    }

    /// A factory for the settings file in its usual place, see [`crate::settings`]; any error is [`ErrorKind::Settings`].
    pub fn load() -> Result<Self> {
        Self::from_settings(Settings::load(&LoadOptions::from_process())?)
    }

    /// Like [`ShardingFactory::load`], for this settings file.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        Self::from_settings(Settings::load(&LoadOptions::from_process().with_file(path.as_ref()))?)
    }

    /// Builds a factory with policies in code, or with your own backend.
    pub fn builder() -> ShardingFactoryBuilder {
        ShardingFactoryBuilder::default()
    }

    /// The service of that policy: created by the first call, and shared by all later ones from any task. It contacts nothing before
    /// [`ShardingService::register_self`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnknownPolicy`], which lists the known ones; [`ErrorKind::Backend`] if the backend refuses its settings;
    /// [`ErrorKind::Settings`] if the policy belongs to an outbox, since only its publishers may join its group
    /// ([`ShardingFactory::create_serving`]); [`ErrorKind::Unavailable`] if `instance.address` is `auto` and the backend's host is not
    /// found.
    pub fn create(&self, policy_name: &str) -> Result<ShardingService> {
        self.create_serving(policy_name, Serves::Keys)
    }

    /// Like [`ShardingFactory::create`], for a worker that states what it serves: an outbox's publisher passes the result of
    /// `shardwise_outbox::serves`. All members of a group must serve the same: each owns some slots, and would never do other work in them.
    /// [`ErrorKind::Settings`] also if this factory has created the policy's service for something else.
    pub fn create_serving(&self, policy_name: &str, serves: Serves) -> Result<ShardingService> {
        let settings = self.policy(policy_name)?;
        let policy = &settings.policy.name;
        if let (Serves::Keys, Some(outbox)) = (&serves, self.outbox_of(settings)) {
            let message = format!(
                "the group of policy {policy} is that of outbox {outbox}: a worker for keys in its group would own slots whose events it never publishes; give the \
                 worker its own policy, with its own group_name, or use ShardingFactory::observe to look on"
            );
            return Err(Error::new(ErrorKind::Settings, message));
        }
        let mut made = locked(&self.inner.made);
        if let Some(service) = made.services.get(policy) {
            return match service.membership().serves.as_ref() {
                Some(other) if !other.is_same_as(&serves) => {
                    let message = format!("policy {policy} serves {other} in this process; {serves} needs its own policy");
                    Err(Error::new(ErrorKind::Settings, message))
                }
                _ => Ok(service.clone()),
            };
        }
        let service = self.make(settings, serves, &mut made)?;
        made.services.insert(settings.policy.name.clone(), service.clone());
        Ok(service)
    }

    /// Forgets the services created so far: the next [`ShardingFactory::create`] creates new ones, and a service without another handle
    /// leaves its group.
    pub fn clear(&self) {
        let services = std::mem::take(&mut locked(&self.inner.made).services);
        // Dropped outside the lock.
        drop(services);
    }

    /// The outbox whose publishers share this policy's group, whichever of its policies they use.
    fn outbox_of(&self, settings: &PolicySettings) -> Option<&PolicyName> {
        let meets = |other: &PolicyName| self.inner.policies.get(other).is_some_and(|other| other.meets(settings));
        self.inner.outboxes.iter().find(|(policy, _)| meets(policy)).map(|(_, outbox)| outbox)
    }

    /// The names of the policies it knows.
    pub fn policy_names(&self) -> impl Iterator<Item = &str> {
        self.inner.policies.keys().map(PolicyName::as_str)
    }

    /// Where the members of a policy meet.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnknownPolicy`]; the message lists the known ones.
    pub fn discovery(&self, policy_name: &str) -> Result<&DiscoverySettings> {
        Ok(&self.policy(policy_name)?.discovery)
    }

    /// This worker's name in every group.
    pub fn instance_id(&self) -> &InstanceId {
        &self.inner.instance_id
    }

    fn policy(&self, name: &str) -> Result<&PolicySettings> {
        let known = || listed(name, &self.policy_names().collect::<Vec<_>>());
        let unknown = || Error::new(ErrorKind::UnknownPolicy, format!("there is no policy {name:?}; known: {}", known()));
        self.inner.policies.iter().find(|(known, _)| known.as_str() == name).map(|(_, settings)| settings).ok_or_else(unknown)
    }

    /// Finds what every worker with these settings would refuse at its start, whatever is on its machine and whatever its own name and
    /// address are, which may come from elsewhere. Contacts nothing. Answers why backends could not be opened here, as without a file of
    /// certificates: their policies are not checked.
    ///
    /// # Errors
    ///
    /// The first that [`ShardingFactory::create`] would give for one of the policies, whatever is served under it.
    pub fn check(&self) -> Result<Vec<Error>> {
        let mut made = locked(&self.inner.made);
        let mut unopened = Vec::new();
        for settings in self.inner.policies.values() {
            self.check_enabled(settings)?;
            if !self.inner.enabled {
                continue;
            }
            match self.backend(&settings.discovery, &mut made) {
                Ok(backend) => self.check_backend(settings, &*backend)?,
                Err(error) => unopened.push(error),
            }
        }
        Ok(unopened)
    }

    fn make(&self, settings: &PolicySettings, serves: Serves, made: &mut FactoryState) -> Result<ShardingService> {
        let (policy, mut member, clock) = (settings.policy.clone(), self.member(serves), self.inner.clock.clone());
        self.check_enabled(settings)?;
        if !self.inner.enabled {
            tracing::warn!(policy = %policy.name, "sharding is switched off (enabled = false): this worker owns everything; run only one");
            own_address::fill(&mut member, || own_address::towards(None))?;
            return Ok(ShardingService::unsharded(policy, &member, clock));
        }
        let backend = self.backend(&settings.discovery, made)?;
        self.check_backend(settings, &*backend)?;
        check_instance(settings, self.inner.instance.id.is_some(), &member).map_err(|why| refused(settings, &why))?;
        own_address::fill(&mut member, || {
            if self.has_own_backend(settings) {
                return Err(own_address::unknown());
            }
            own_address::towards(settings.discovery.kind()?.server_host(&settings.discovery.options))
        })?;
        Ok(ShardingService::new(settings, member, backend, clock))
    }

    fn check_enabled(&self, settings: &PolicySettings) -> Result<()> {
        if self.inner.enabled || settings.policy.ownership != OwnershipMode::Exclusive {
            return Ok(());
        }
        let message = "ownership = \"exclusive\" and enabled = false do not go together: without claims this worker and any other one would own \
                       everything; remove one of them";
        Err(refused(settings, message))
    }

    fn has_own_backend(&self, settings: &PolicySettings) -> bool {
        self.inner.own_backends.contains_key(&settings.discovery.backend)
    }

    fn check_backend(&self, settings: &PolicySettings, backend: &dyn Discovery) -> Result<()> {
        check(settings, backend, self.has_own_backend(settings)).map_err(|why| refused(settings, &why))
    }

    /// One backend for all policies that name the same one.
    fn backend(&self, settings: &DiscoverySettings, made: &mut FactoryState) -> Result<Arc<dyn Discovery>> {
        if let Some(own) = self.inner.own_backends.get(&settings.backend) {
            return Ok(Arc::clone(own));
        }
        if let Some((_, backend)) = made.backends.iter().find(|(known, _)| known == settings) {
            return Ok(Arc::clone(backend));
        }
        let kind = settings.kind()?;
        let DiscoverySettings { backend: name, options, .. } = settings;
        let open = || backend::open(kind, options, &self.inner.clock);
        // The store of `memory` belongs to the factory, and so does a backend on the caller's clock.
        let is_own = backend::is_memory(name) || self.inner.has_own_clock;
        let backend = if is_own { open()? } else { backend::cached(name, options, open)? };
        made.backends.push((settings.clone(), Arc::clone(&backend)));
        Ok(backend)
    }

    fn member(&self, serves: Serves) -> Member {
        let InstanceSettings { id: _, address, zone, weight, version, metadata } = self.inner.instance.clone();
        let (incarnation, serves) = (random_incarnation(), Some(serves));
        Member { incarnation, address, weight, zone, version, serves, metadata, ..Member::named(self.inner.instance_id.clone()) }
    }
}

impl std::fmt::Debug for ShardingFactory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardingFactory").field("policies", &self.inner.policies.keys()).finish_non_exhaustive()
    }
}

fn refused(settings: &PolicySettings, why: &str) -> Error {
    Error::new(ErrorKind::Settings, format!("policy {}: {why}", settings.policy.name))
}

/// What is wrong with the settings, which may have been made in code, over that backend; `is_own`: it is the user's.
fn check(settings: &PolicySettings, backend: &dyn Discovery, is_own: bool) -> Result<(), String> {
    let PolicySettings { policy, timing, discovery, peers, .. } = settings;
    let capabilities = backend.capabilities();
    if policy.ownership == OwnershipMode::Exclusive && backend.as_claims().is_none() {
        return Err(format!(
            "ownership = \"exclusive\" needs a backend that can hold claims, and {}, or ownership = \"eventual\"",
            backend::cannot_claim(&capabilities)
        ));
    }
    // The TTL of a user's own backend is known only when it is granted.
    if !is_own {
        backend::check_lease(&discovery.backend, timing, policy.ownership).map_err(|error| format!("discovery.{error}"))?;
    }
    if !policy.rejoin_grace.is_zero() && !capabilities.keeps_places {
        let places = "\"local\", \"consul\", \"etcd\", \"nats\", \"postgres\" or \"valkey\"";
        return Err(rejoin_grace_refused(
            policy,
            &format!("a backend that can keep a place, and {} cannot: use {places}", capabilities.name),
        ));
    }
    if let Some(mistake) = peers.listen_mistake() {
        return Err(format!("peer_listen is {}: {mistake}", peers.listen));
    }
    let mistake = peers.certificates_mistake().or_else(|| token_mistake(peers.token.as_ref()));
    mistake.map_or(Ok(()), |mistake| Err(mistake.to_owned()))
}

/// What this worker lacks for these settings: a name, an address, or files on its machine.
fn check_instance(settings: &PolicySettings, has_id: bool, member: &Member) -> Result<(), String> {
    let PolicySettings { policy, peers, .. } = settings;
    if !policy.rejoin_grace.is_zero() && !has_id {
        return Err(rejoin_grace_refused(
            policy,
            "instance.id, a name that this worker keeps over restarts and no other one has: set instance.id",
        ));
    }
    #[cfg(feature = "requests")]
    crate::requests::PeerSecurity::read(peers)?;
    let is_unknown = peers.listen.ip().is_unspecified() && member.address.is_none();
    if is_unknown { Err(unreachable_by(peers.listen)) } else { Ok(()) }
}

fn rejoin_grace_refused(policy: &Policy, needs: &str) -> String {
    format!("rejoin_grace is {}: it needs {needs}, or remove rejoin_grace", shardwise_core::format_duration(policy.rejoin_grace))
}

/// The error if it listens on all addresses and none is known.
fn unreachable_by(listen: SocketAddr) -> String {
    format!(
        "peer_listen is {listen}, and others cannot know where that is: set instance.address and instance.port, or listen on one address"
    )
}
