//! From a policy's name to the one shared service.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shardwise_core::{InstanceId, Member, OwnershipMode, PlacementParams, Policy, PolicyName, Serves};
use shardwise_discovery::{Clock, Discovery, random_incarnation};

use crate::drain::{DrainIntent, DrainStore};
use crate::error::inside_runtime;
use crate::messages::unreachable_by;
use crate::observer::Observer;
use crate::runtime::{Daemons, Singleton, Timer};
use crate::service::ShardingService;
use crate::settings::{DiscoverySettings, InstanceSettings, LoadOptions, PolicySettings, Settings};
use crate::{Error, ErrorKind, Result, absence, backend, backend_cache, confirm, drain};

/// Builds one [`ShardingService`] per named policy. Clones share their services.
///
/// A factory is one worker. Many workers of one process have a factory each; inside one runtime they share connections and watches where
/// their settings name the same place, and the placing of views in any case.
///
/// ```
/// # fn main() -> shardwise::Result<()> {
/// use shardwise::{Settings, ShardingFactory};
///
/// let settings = Settings::from_toml_str(r#"
///     [default.resilience.sharding]
///     policies.workers.group_name = "order-workers"
///     discovery.backend = "memory"
/// "#)?;
/// let sharding = ShardingFactory::from_settings(settings)?.create("workers")?;
/// assert_eq!(sharding.group_name().as_str(), "order-workers");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ShardingFactory {
    inner: Arc<FactoryInner>,
}

struct FactoryInner {
    enabled: bool,
    instance: InstanceSettings,
    instance_id: InstanceId,
    policies: BTreeMap<PolicyName, PolicySettings>,
    /// The outbox of each policy that has one.
    outboxes: BTreeMap<PolicyName, PolicyName>,
    own_backends: HashMap<String, Arc<dyn Discovery>>,
    clock: Clock,
    has_own_clock: bool,
    made: Mutex<FactoryState>,
}

/// What has been made so far. Making is quick and contacts nothing, so it is done under the lock: nothing is made twice.
#[derive(Default)]
struct FactoryState {
    services: HashMap<PolicyName, ShardingService>,
    backends: Vec<(DiscoverySettings, Arc<dyn Discovery>)>,
}

impl ShardingFactory {
    /// A factory for the policies of `settings`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`] if a policy names a backend that this program does not have.
    pub fn from_settings(settings: Settings) -> Result<Self> {
        Self::builder().settings(settings).build()
    }

    /// A factory for the settings file in its usual place, see [`crate::settings`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`].
    pub fn load() -> Result<Self> {
        Self::from_settings(Settings::load(&LoadOptions::from_process())?)
    }

    /// A factory for one settings file, with the environment laid over it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`].
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let mut options = LoadOptions::from_process();
        options.file = Some(path.as_ref().into());
        Self::from_settings(Settings::load(&options)?)
    }

    /// A factory with policies in code, or with a backend of your own.
    pub fn builder() -> ShardingFactoryBuilder {
        ShardingFactoryBuilder::default()
    }

    /// The service of that policy: made at the first call, shared by all later ones, from however many tasks. It contacts nothing before
    /// [`ShardingService::register_self`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnknownPolicy`], which lists the known ones; [`ErrorKind::Backend`] if the backend refuses its settings;
    /// [`ErrorKind::Settings`] if the policy is that of an outbox, whose publishers alone may join its group
    /// ([`ShardingFactory::create_serving`]).
    pub fn create(&self, policy_name: &str) -> Result<ShardingService> {
        self.create_serving(policy_name, Serves::Keys)
    }

    /// [`ShardingFactory::create`] for a worker that says what it works for: an outbox's publisher, with what `shardwise_outbox::serves` answers.
    /// Members of one group work for the same thing: each owns a share of the slots, and would never do the work of other ones in it.
    ///
    /// # Errors
    ///
    /// Those of [`ShardingFactory::create`]; [`ErrorKind::Settings`] if this factory has made the policy's service for something else.
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
        let mut made = self.made();
        if let Some(service) = made.services.get(policy) {
            return match service.shared().serves.as_ref() {
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

    /// Work of this name, to run on exactly one member of the group whose policy has exclusive ownership. Its service is registered as ever:
    /// [`ShardingFactory::create`], then [`ShardingService::register_self`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`] if not exactly one policy has exclusive ownership; [`ShardingService::singleton`] of the one that is meant then tells
    /// which. Those of [`ShardingFactory::create`].
    pub fn singleton(&self, name: &str) -> Result<Singleton> {
        self.exclusive("singleton", name)?.singleton(name)
    }

    /// Numbered workers of that set, each alive on exactly one member of the group whose policy has exclusive ownership; see
    /// [`ShardingService::daemons`].
    ///
    /// # Errors
    ///
    /// As with [`ShardingFactory::singleton`]; those of [`ShardingService::daemons`].
    pub fn daemons(&self, set: &str) -> Result<Daemons> {
        self.exclusive("daemons", set)?.daemons(set)
    }

    /// A job that is fired once in each period, on one member of the group whose policy has exclusive ownership; see [`ShardingService::timer`].
    ///
    /// # Errors
    ///
    /// As with [`ShardingFactory::singleton`]; those of [`ShardingService::timer`].
    pub fn timer(&self, name: &str, period: Duration) -> Result<Timer> {
        self.exclusive("timer", name)?.timer(name, period)
    }

    /// The service of the only policy with exclusive ownership; `kind` and `name` are for the message.
    fn exclusive(&self, kind: &str, name: &str) -> Result<ShardingService> {
        let exclusive = || self.inner.policies.values().filter(|settings| settings.policy.ownership == OwnershipMode::Exclusive);
        let names: Vec<_> = exclusive().map(|settings| settings.policy.name.as_str()).collect();
        let [only] = names[..] else {
            let those = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let message = format!(
                "{kind} {name:?} needs a group: exactly one policy with ownership = \"exclusive\", and there are: {those}; or ask the service of \
                 the policy that is meant for it"
            );
            return Err(Error::new(ErrorKind::Settings, message));
        };
        self.create(only)
    }

    /// Sees the members and owners of a policy's group without joining it. Waits for the first view.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoRuntime`] outside a tokio runtime; [`ErrorKind::UnknownPolicy`]; [`ErrorKind::Backend`], or, retryable,
    /// [`ErrorKind::Unavailable`] if the backend shows no view within the policy's TTL.
    pub async fn observe(&self, policy_name: &str) -> Result<Observer> {
        inside_runtime()?;
        let settings = self.policy(policy_name)?;
        let backend = self.backend(&settings.discovery, &mut self.made())?;
        Observer::start(settings.policy.clone(), settings.timing, backend, self.inner.clock.clone()).await
    }

    /// Says for a policy's group that members which have vanished are gone for good: whoever keeps what it has because more have vanished
    /// than `max_loss` allows takes over what they had. Answers how many members that were, once they go on; 0 if nobody stood still.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoRuntime`] outside a tokio runtime; [`ErrorKind::UnknownPolicy`]; [`ErrorKind::Backend`]; retryable,
    /// [`ErrorKind::Unavailable`] if the backend does not answer or a member still stands still after one TTL.
    pub async fn confirm_loss(&self, policy_name: &str) -> Result<usize> {
        inside_runtime()?;
        let settings = self.policy(policy_name)?;
        let backend = self.backend(&settings.discovery, &mut self.made())?;
        confirm::confirm_loss(&settings.policy, settings.timing, backend).await
    }

    /// Keeps the wish that a member stays in its group and owns nothing, over its restarts too, until [`ShardingFactory::undrain`]. It hears of that
    /// within a TTL; of this factory's own workers at once. `false`: the wish was there already.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoRuntime`] outside a tokio runtime; [`ErrorKind::UnknownPolicy`]; [`ErrorKind::UnknownInstance`] if the group has no such member; [`ErrorKind::Settings`] for a key placement,
    /// which counts drained members, for a backend that keeps no notes, and if too many are drained; [`ErrorKind::Backend`]; retryable,
    /// [`ErrorKind::Unavailable`].
    pub async fn drain(&self, policy_name: &str, instance_id: &InstanceId) -> Result<bool> {
        self.wish(policy_name, instance_id, DrainIntent::Drain).await
    }

    /// Takes the wish of [`ShardingFactory::drain`] back; also of a member that is not there. `false`: there was none.
    ///
    /// # Errors
    ///
    /// As [`ShardingFactory::drain`], but for the unknown member.
    pub async fn undrain(&self, policy_name: &str, instance_id: &InstanceId) -> Result<bool> {
        self.wish(policy_name, instance_id, DrainIntent::Undrain).await
    }

    /// Who is drained by an operator's wish, whether it is there or not; the latest last.
    ///
    /// # Errors
    ///
    /// As [`ShardingFactory::undrain`].
    pub async fn drained(&self, policy_name: &str) -> Result<Vec<InstanceId>> {
        inside_runtime()?;
        self.drains(policy_name)?.0.drained().await
    }

    /// Waits until a member that [`ShardingFactory::drain`] was asked for shows in its record that it is drained, and under exclusive ownership holds no
    /// slot any more. `false` if that has not come within two TTLs and the policy's `drain_timeout`.
    ///
    /// # Errors
    ///
    /// As [`ShardingFactory::undrain`].
    pub async fn wait_until_drained(&self, policy_name: &str, instance_id: &InstanceId) -> Result<bool> {
        inside_runtime()?;
        let settings = self.policy(policy_name)?;
        let backend = self.backend(&settings.discovery, &mut self.made())?;
        let within = settings.timing.ttl * 2 + settings.policy.drain_timeout;
        drain::drained_within(&settings.policy, settings.timing, &backend, instance_id, within).await
    }

    async fn wish(&self, policy_name: &str, id: &InstanceId, wish: DrainIntent) -> Result<bool> {
        inside_runtime()?;
        let (drains, settings, backend) = self.drains(policy_name)?;
        let view = drain::view_of(&settings.policy, settings.timing, &*backend).await?;
        if wish == DrainIntent::Drain && view.member(id).is_none() {
            return Err(drain::unknown(id, &view));
        }
        let changed = drains.set(id, wish, &view).await?;
        if let Some(service) = self.made().services.get(&settings.policy.name) {
            service.shared().noted.send_replace(());
        }
        Ok(changed)
    }

    fn drains(&self, policy_name: &str) -> Result<(DrainStore, &PolicySettings, Arc<dyn Discovery>)> {
        let settings = self.policy(policy_name)?;
        let policy = &settings.policy;
        let by_key = |params: &&PlacementParams| params.kind.by_key().is_some();
        if let Some(params) = [Some(&policy.placement), policy.next.as_ref()].into_iter().flatten().find(by_key) {
            let message = format!(
                "policy {}: placement {} counts every member until it has left, so nobody can be drained; stop the worker instead",
                policy.name,
                params.kind.as_str()
            );
            return Err(Error::new(ErrorKind::Settings, message));
        }
        let backend = self.backend(&settings.discovery, &mut self.made())?;
        let drains = DrainStore::of(policy, settings.timing, &backend).ok_or_else(|| {
            let message = format!(
                "policy {}: its backend keeps no notes, so nobody can be drained; use \"local\", \"consul\" or \"etcd\"",
                policy.name
            );
            Error::new(ErrorKind::Settings, message)
        })?;
        Ok((drains, settings, backend))
    }

    /// Takes a worker that has left for a while (`rejoin_grace`) out of a policy's group for good: the others take over what was its own at once. Whether
    /// somebody of that name was there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoRuntime`] outside a tokio runtime; [`ErrorKind::UnknownPolicy`]; [`ErrorKind::Conflict`] if that worker is not away; [`ErrorKind::Backend`]; retryable, [`ErrorKind::Unavailable`] if
    /// the backend does not answer, or goes on showing it: on Consul that takes the agent at which the worker was.
    pub async fn end_absence(&self, policy_name: &str, instance_id: &InstanceId) -> Result<bool> {
        inside_runtime()?;
        let settings = self.policy(policy_name)?;
        let backend = self.backend(&settings.discovery, &mut self.made())?;
        absence::end_absence(&settings.policy, settings.timing, backend, instance_id).await
    }

    /// Forgets the services made so far: the next [`ShardingFactory::create`] makes new ones, and a service to which nobody else holds a
    /// handle leaves its group.
    pub fn clear(&self) {
        let services = std::mem::take(&mut self.made().services);
        // Dropped outside the lock.
        drop(services);
    }

    /// The outbox whose publishers meet in the group of this policy, by whatever name of a policy.
    fn outbox_of(&self, settings: &PolicySettings) -> Option<&PolicyName> {
        let meets = |other: &PolicyName| self.inner.policies.get(other).is_some_and(|other| other.meets(settings));
        self.inner.outboxes.iter().find(|(policy, _)| meets(policy)).map(|(_, outbox)| outbox)
    }

    /// The names of the policies it knows.
    pub fn policy_names(&self) -> impl Iterator<Item = &str> {
        self.inner.policies.keys().map(PolicyName::as_str)
    }

    /// This worker's name in every group.
    pub fn instance_id(&self) -> &InstanceId {
        &self.inner.instance_id
    }

    fn made(&self) -> MutexGuard<'_, FactoryState> {
        // A constructor of the user's own backend table cannot run under this lock, and ours leave the maps whole.
        self.inner.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn policy(&self, name: &str) -> Result<&PolicySettings> {
        let known = || self.policy_names().collect::<Vec<_>>().join(", ");
        let unknown = || Error::new(ErrorKind::UnknownPolicy, format!("there is no policy {name:?}; known: {}", known()));
        self.inner.policies.iter().find(|(known, _)| known.as_str() == name).map(|(_, settings)| settings).ok_or_else(unknown)
    }

    fn make(&self, settings: &PolicySettings, serves: Serves, made: &mut FactoryState) -> Result<ShardingService> {
        let (policy, member, clock) = (settings.policy.clone(), self.member(serves), self.inner.clock.clone());
        let exclusive = policy.ownership == OwnershipMode::Exclusive;
        if !self.inner.enabled && exclusive {
            let message = format!(
                "policy {}: ownership = \"exclusive\" and enabled = false do not go together: without claims this worker and any other one would \
                 own everything; remove one of them",
                policy.name
            );
            return Err(Error::new(ErrorKind::Settings, message));
        }
        if !self.inner.enabled {
            tracing::warn!(policy = %policy.name, "sharding is switched off (enabled = false): this worker owns everything; run only one");
            return Ok(ShardingService::unsharded(policy, &member, clock));
        }
        let backend = self.backend(&settings.discovery, made)?;
        if exclusive && backend.as_claims().is_none() {
            let message = format!(
                "policy {}: ownership = \"exclusive\" needs a backend that can hold claims, and {} cannot; use \"local\", \"consul\" or \"etcd\", or \
                 ownership = \"eventual\"",
                policy.name,
                backend.capabilities().name
            );
            return Err(Error::new(ErrorKind::Settings, message));
        }
        self.check_lease(settings)?;
        self.check_rejoin_grace(&policy, &*backend)?;
        check_listeners(settings, &member)?;
        Ok(ShardingService::new(settings, member, backend, clock))
    }

    /// Of settings made in code nobody has looked at it yet. What a backend of the user's own grants is seen when it grants it.
    fn check_lease(&self, PolicySettings { policy, timing, discovery, .. }: &PolicySettings) -> Result<()> {
        if self.inner.own_backends.contains_key(&discovery.backend) {
            return Ok(());
        }
        let refused = |error| Error::new(ErrorKind::Settings, format!("policy {}: discovery.{error}", policy.name));
        backend::check_lease(&discovery.backend, timing, policy.ownership).map_err(refused)
    }

    fn check_rejoin_grace(&self, policy: &Policy, backend: &dyn Discovery) -> Result<()> {
        let needed = if policy.rejoin_grace.is_zero() {
            return Ok(());
        } else if self.inner.instance.id.is_none() {
            "it needs instance.id, a name that this worker keeps over restarts and no other one has: set instance.id".to_owned()
        } else if !backend.capabilities().keeps_places {
            let name = backend.capabilities().name;
            format!("it needs a backend that can keep a place, and {name} cannot: use \"local\", \"consul\" or \"etcd\"")
        } else {
            return Ok(());
        };
        let grace = shardwise_core::format_duration(policy.rejoin_grace);
        let message = format!("policy {}: rejoin_grace is {grace}: {needed}, or remove rejoin_grace", policy.name);
        Err(Error::new(ErrorKind::Settings, message))
    }

    /// One backend for all policies that name the same place.
    fn backend(&self, settings: &DiscoverySettings, made: &mut FactoryState) -> Result<Arc<dyn Discovery>> {
        if let Some(own) = self.inner.own_backends.get(&settings.backend) {
            return Ok(Arc::clone(own));
        }
        if let Some((_, backend)) = made.backends.iter().find(|(known, _)| known == settings) {
            return Ok(Arc::clone(backend));
        }
        let open = || backend::open(settings, &self.inner.clock);
        // The store of `memory` is the factory's own, and so is a backend on a clock of the caller's.
        let is_own = backend::is_memory(settings) || self.inner.has_own_clock;
        let backend = if is_own { open()? } else { backend_cache::backend(settings, open)? };
        made.backends.push((settings.clone(), Arc::clone(&backend)));
        Ok(backend)
    }

    fn member(&self, serves: Serves) -> Member {
        let InstanceSettings { id: _, address, zone, weight, version, metadata } = self.inner.instance.clone();
        let (incarnation, serves) = (random_incarnation(), Some(serves));
        Member { incarnation, address, weight, zone, version, serves, metadata, ..Member::named(self.inner.instance_id.clone()) }
    }
}

/// Of settings made in code nobody has looked at the listeners yet.
fn check_listeners(settings: &PolicySettings, member: &Member) -> Result<()> {
    let listen = settings.messages.listen;
    if let Some(mistake) = settings.messages.mistake(&settings.peers.networks) {
        return Err(Error::new(ErrorKind::Settings, format!("policy {}: messages_listen is {listen}: {mistake}", settings.policy.name)));
    }
    if let Some(mistake) = settings.peers.mistake() {
        let message = format!("policy {}: peer_listen is {}: {mistake}", settings.policy.name, settings.peers.listen);
        return Err(Error::new(ErrorKind::Settings, message));
    }
    let tokens = [("messages_token_file", settings.messages.token_mistake()), ("peer_token_file", settings.peers.token_mistake())];
    if let Some((key, mistake)) = tokens.iter().find_map(|(key, mistake)| Some((key, (*mistake)?))) {
        return Err(Error::new(ErrorKind::Settings, format!("policy {}: {key}: {mistake}", settings.policy.name)));
    }
    let unknown = listen.ip().is_unspecified() && member.address.is_none();
    if unknown { Err(unreachable_by(listen)) } else { Ok(()) }
}

impl std::fmt::Debug for ShardingFactory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardingFactory").field("policies", &self.inner.policies.keys()).finish_non_exhaustive()
    }
}

/// Puts a [`ShardingFactory`] together; what is given later replaces what was given earlier under the same name.
#[derive(Default)]
#[must_use]
pub struct ShardingFactoryBuilder {
    disabled: bool,
    instance: InstanceSettings,
    policies: BTreeMap<PolicyName, PolicySettings>,
    outboxes: BTreeMap<PolicyName, PolicyName>,
    own_backends: HashMap<String, Arc<dyn Discovery>>,
    clock: Option<Clock>,
}

impl ShardingFactoryBuilder {
    /// Everything that the settings say.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.disabled = !settings.enabled;
        self.instance = settings.instance;
        self.policies.extend(settings.policies);
        self.outboxes.extend(settings.outboxes.into_iter().map(|(name, outbox)| (outbox.policy, name)));
        self
    }

    /// A policy in code.
    pub fn policy(mut self, settings: PolicySettings) -> Self {
        self.policies.insert(settings.policy.name.clone(), settings);
        self
    }

    /// What this worker says of itself.
    pub fn instance(mut self, instance: InstanceSettings) -> Self {
        self.instance = instance;
        self
    }

    /// This worker's name in every group.
    pub fn instance_id(mut self, id: InstanceId) -> Self {
        self.instance.id = Some(id);
        self
    }

    /// A backend of your own under a name that policies can name in `discovery.backend`; it goes before ours of the same name.
    pub fn backend(mut self, name: impl Into<String>, backend: Arc<dyn Discovery>) -> Self {
        self.own_backends.insert(name.into(), backend);
        self
    }

    /// Another clock for deadlines, for tests on paused time. Backends of your own must run on the same one.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The factory.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`] if no policy is given, or a value is out of its range.
    pub fn build(self) -> Result<ShardingFactory> {
        if self.policies.is_empty() {
            let message = "there is no policy: write [default.resilience.sharding.policies.<name>] with its group_name into the settings";
            return Err(Error::new(ErrorKind::Settings, message));
        }
        for settings in self.policies.values() {
            if !self.own_backends.contains_key(&settings.discovery.backend) {
                backend::check(&settings.discovery.backend)?;
            }
            settings
                .policy
                .clone()
                .validated()
                .map_err(|e| Error::new(ErrorKind::Settings, format!("policy {}: {e}", settings.policy.name)))?;
        }
        let inner = FactoryInner {
            enabled: !self.disabled,
            instance_id: self.instance.id_or_made()?,
            instance: self.instance,
            policies: self.policies,
            outboxes: self.outboxes,
            own_backends: self.own_backends,
            has_own_clock: self.clock.is_some(),
            clock: self.clock.unwrap_or_else(Clock::system),
            made: Mutex::default(),
        };
        Ok(ShardingFactory { inner: Arc::new(inner) })
    }
}
