//! Builds a factory.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use shardwise_core::{InstanceId, PolicyName};
use shardwise_discovery::{Clock, Discovery};

use super::{FactoryInner, ShardingFactory};
use crate::error::{Error, ErrorKind, Result};
use crate::settings::{InstanceSettings, PolicySettings, Settings};

/// Builds a [`ShardingFactory`]; later values replace earlier ones of the same name.
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
    /// Adds everything in the settings.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.disabled = !settings.enabled;
        self.instance = settings.instance;
        self.policies.extend(settings.policies);
        self.outboxes.extend(settings.outboxes.into_iter().map(|(name, policy)| (policy, name)));
        self
    }

    /// Adds a policy.
    pub fn policy(mut self, settings: PolicySettings) -> Self {
        self.policies.insert(settings.policy.name.clone(), settings);
        self
    }

    /// Sets how this worker describes itself.
    pub fn instance(mut self, instance: InstanceSettings) -> Self {
        self.instance = instance;
        self
    }

    /// Sets this worker's name in every group.
    pub fn instance_id(mut self, id: InstanceId) -> Self {
        self.instance.id = Some(id);
        self
    }

    /// Adds your own backend under a name for `discovery.backend`; it takes precedence over a built-in one.
    pub fn backend(mut self, name: impl Into<String>, backend: Arc<dyn Discovery>) -> Self {
        self.own_backends.insert(name.into(), backend);
        self
    }

    /// Sets another clock for deadlines, for tests on paused time. Your own backends must use the same one.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Builds the factory; [`ErrorKind::Settings`] if there is no policy, or a value is out of range.
    pub fn build(self) -> Result<ShardingFactory> {
        if self.policies.is_empty() {
            let message = "there is no policy: write [default.resilience.sharding.policies.<name>] with its group_name into the settings";
            return Err(Error::new(ErrorKind::Settings, message));
        }
        for settings in self.policies.values() {
            if !self.own_backends.contains_key(&settings.discovery.backend) {
                settings.discovery.kind()?;
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
