//! Operators' calls on a policy's group: finds the group by the policy's name and delegates to `operate`.

use shardwise_core::routing::{KeyHash, KeyRoute, Routes, Width};
use shardwise_core::{Epoch, InstanceId, OwnershipMode};

use super::ShardingFactory;
use crate::backend;
use crate::error::{Error, ErrorKind, Result, inside_runtime, locked};
use crate::membership::DrainStore;
use crate::operate::{Group, Observer, unknown_member};
use crate::requests::RouteStore;
use crate::settings::PolicySettings;
use crate::work::{DaemonCount, DaemonCounter};

/// Operators' calls. Each can fail with [`ErrorKind::NoRuntime`] outside a tokio runtime, [`ErrorKind::UnknownPolicy`],
/// [`ErrorKind::Backend`], and, retryable, [`ErrorKind::Unavailable`].
impl ShardingFactory {
    /// Makes what a policy's backend needs before workers can meet in it, such as the tables of `postgres` or the bucket of `nats`, and
    /// answers in words what was done. Does nothing to what is there. It may need rights that workers do not need.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`] if the backend needs nothing, or is one of your own; [`ErrorKind::Backend`] also if what is there is of a
    /// newer version or of another program.
    pub async fn init_backend(&self, policy_name: &str) -> Result<String> {
        inside_runtime()?;
        let discovery = &self.policy(policy_name)?.discovery;
        let is_own = self.inner.own_backends.contains_key(&discovery.backend);
        let init = if is_own { None } else { discovery.kind()?.init };
        let Some(init) = init else {
            let message =
                format!("policy {policy_name:?}: the backend {:?} has nothing that must be made before workers start", discovery.backend);
            return Err(Error::new(ErrorKind::Settings, message));
        };
        // Its settings are checked as for a worker.
        drop(backend::open(discovery.kind()?, &discovery.options, &self.inner.clock)?);
        Ok(init(&discovery.options).await?)
    }

    /// Observes the members and owners of a policy's group without joining it. Waits for the first view, one TTL at most.
    pub async fn observe(&self, policy_name: &str) -> Result<Observer> {
        Observer::start(self.group(policy_name)?, self.inner.clock.clone()).await
    }

    /// A caller that sends requests to the members of a policy's group without joining it. Waits for the first view, one TTL at most.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`] if the files of its certificates cannot be read.
    #[cfg(feature = "requests")]
    pub async fn router(&self, policy_name: &str) -> Result<crate::operate::Router> {
        let settings = self.policy(policy_name)?;
        crate::requests::PeerSecurity::read(&settings.peers)
            .map_err(|why| Error::new(ErrorKind::Settings, format!("policy {}: {why}", settings.policy.name)))?;
        crate::operate::Router::start(settings, self.group(policy_name)?, self.inner.clock.clone()).await
    }

    /// Confirms for a policy's group that vanished members are gone for good, so that the others, which wait because more have vanished
    /// than `max_loss` allows, take over their shares. Returns how many had waited, once they continue; 0 if none did. If one still waits
    /// after one TTL, that is [`ErrorKind::Unavailable`].
    pub async fn confirm_loss(&self, policy_name: &str) -> Result<usize> {
        self.group(policy_name)?.confirm_loss().await
    }

    /// Drains a member: it stays registered and owns no slots, even after restarts, until [`ShardingFactory::undrain`]. The member
    /// notices it within a TTL, a worker of this factory at once. Returns `false` if it was drained already.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnknownInstance`] if the group has no such member; [`ErrorKind::Settings`] for a key placement, which counts drained
    /// members, for a backend without notes, and if too many are drained.
    pub async fn drain(&self, policy_name: &str, instance_id: &InstanceId) -> Result<bool> {
        self.set_drained(policy_name, instance_id, true).await
    }

    /// Ends the effect of [`ShardingFactory::drain`], also for an absent member. Returns `false` if it was not drained.
    pub async fn undrain(&self, policy_name: &str, instance_id: &InstanceId) -> Result<bool> {
        self.set_drained(policy_name, instance_id, false).await
    }

    /// The members that operators have drained, present or not; the latest last.
    pub async fn drained(&self, policy_name: &str) -> Result<Vec<InstanceId>> {
        self.drains(policy_name)?.0.drained().await
    }

    /// Waits until a member passed to [`ShardingFactory::drain`] shows in its record that it is drained, and under exclusive ownership
    /// holds no slot any more. Returns `false` if that takes longer than two TTLs and the policy's `drain_timeout`.
    pub async fn wait_until_drained(&self, policy_name: &str, instance_id: &InstanceId) -> Result<bool> {
        self.group(policy_name)?.is_drained_in_time(instance_id).await
    }

    async fn set_drained(&self, policy_name: &str, id: &InstanceId, drained: bool) -> Result<bool> {
        let (drains, group) = self.drains(policy_name)?;
        let view = group.view().await?;
        if drained && view.member(id).is_none() {
            return Err(unknown_member(id, &view));
        }
        let changed = drains.set(id, drained, &view).await?;
        self.show_change(&group);
        Ok(changed)
    }

    /// The wanted number of daemons of that set, as [`crate::Daemons::count`], for an operator, who offers none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`] if the policy's ownership is not exclusive, the set's name is too long or invalid, or the backend does not
    /// support notes; [`ErrorKind::Backend`] also if the note was edited by hand.
    pub async fn daemon_count(&self, policy_name: &str, set: &str) -> Result<DaemonCount> {
        self.daemon_counter(policy_name, set)?.0.read().await
    }

    /// Sets the number of daemons of that set, whatever it was, and returns the one before. Members that run the daemons notice it within a
    /// TTL, a worker of this factory at once. Fails like [`ShardingFactory::daemon_count`]; [`ErrorKind::Settings`] also above
    /// [`crate::DAEMONS_MAX`].
    pub async fn set_daemon_count(&self, policy_name: &str, set: &str, number: u32) -> Result<DaemonCount> {
        let (counter, group) = self.daemon_counter(policy_name, set)?;
        let before = counter.set(number).await?;
        self.show_change(&group);
        Ok(before)
    }

    fn daemon_counter(&self, policy_name: &str, set: &str) -> Result<(DaemonCounter, Group<'_>)> {
        let group = self.group(policy_name)?;
        let counter = DaemonCounter::of(group.policy, Some(&group.backend), group.limit(), set)?;
        Ok((counter, group))
    }

    /// The operator's routes of single keys.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`] under exclusive ownership and under a key placement, where only the owner serves a key, and for a backend
    /// without notes; [`ErrorKind::Backend`] also if the note was edited by hand.
    pub async fn routes(&self, policy_name: &str) -> Result<Routes> {
        self.route_store(policy_name)?.0.routes().await
    }

    /// Sets the route of a key: over how many members its requests are spread, whatever its owner reports, and which members they avoid. It
    /// replaces an earlier one. So a hot key is spread, and moved by hand. At most 64 keys have a route. Callers notice it within a TTL, a
    /// worker of this factory at once. Returns `false` if the very same route was set already.
    ///
    /// # Errors
    ///
    /// As [`ShardingFactory::routes`]; [`ErrorKind::Settings`] also if the policy's `max_width` is 1, where a route has no effect, for a
    /// width above `max_width`, which members would refuse, and with too many routes.
    pub async fn set_route(&self, policy_name: &str, route: &KeyRoute) -> Result<bool> {
        let (store, group) = self.route_store(policy_name)?;
        let most = self.policy(policy_name)?.requests.max_width_under(group.policy);
        if most == Width::ONE {
            let message = format!(
                "policy {} has max_width = 1, so a key is served by its owner alone and no route has an effect: set max_width to 2 or more on \
                 all members",
                group.policy.name
            );
            return Err(Error::new(ErrorKind::Settings, message));
        }
        if route.width() > most {
            let message = format!(
                "policy {}: the route of key {} has width {}, and max_width is {most}: members refuse more; raise it for all first",
                group.policy.name,
                route.key(),
                route.width()
            );
            return Err(Error::new(ErrorKind::Settings, message));
        }
        let changed = store.set(route).await?;
        self.show_change(&group);
        Ok(changed)
    }

    /// Ends the effect of [`ShardingFactory::set_route`]. Returns `false` if the key had no route.
    ///
    /// # Errors
    ///
    /// As [`ShardingFactory::routes`].
    pub async fn clear_route(&self, policy_name: &str, key: KeyHash) -> Result<bool> {
        let (store, group) = self.route_store(policy_name)?;
        let changed = store.clear(key).await?;
        self.show_change(&group);
        Ok(changed)
    }

    fn route_store(&self, policy_name: &str) -> Result<(RouteStore, Group<'_>)> {
        let group = self.group(policy_name)?;
        let refused = |why: &str| Error::new(ErrorKind::Settings, format!("policy {}: {why}", group.policy.name));
        if group.policy.ownership == OwnershipMode::Exclusive || group.policy.by_key().is_some() {
            return Err(refused(
                "only the owner of a key serves it, so no key has a route; use ownership = \"eventual\" and placement = \"ring\"",
            ));
        }
        let without = "its backend keeps no notes, so no key can have a route; use \"local\", \"consul\", \"etcd\", \"nats\", \"postgres\" or \"valkey\"";
        let store = RouteStore::of(group.policy, group.timing, &group.backend).ok_or_else(|| refused(without))?;
        Ok((store, group))
    }

    /// Lets a worker of this factory read the notes of its group at once.
    fn show_change(&self, group: &Group<'_>) {
        if let Some(service) = locked(&self.inner.made).services.get(&group.policy.name) {
            service.membership().noted.send_replace(());
        }
    }

    fn group(&self, policy_name: &str) -> Result<Group<'_>> {
        inside_runtime()?;
        let PolicySettings { policy, timing, discovery, .. } = self.policy(policy_name)?;
        Ok(Group { policy, timing: *timing, backend: self.backend(discovery, &mut locked(&self.inner.made))? })
    }

    fn drains(&self, policy_name: &str) -> Result<(DrainStore, Group<'_>)> {
        let group = self.group(policy_name)?;
        let refused = |why: String| Error::new(ErrorKind::Settings, format!("policy {}: {why}", group.policy.name));
        if let Some(placement) = group.policy.by_key() {
            let why = format!(
                "placement {placement} counts every member until it has left, so no member can be drained; stop the worker instead"
            );
            return Err(refused(why));
        }
        let why = "its backend keeps no notes, so no member can be drained; use \"local\", \"consul\", \"etcd\", \"nats\", \"postgres\" or \"valkey\"";
        let drains = DrainStore::of(group.policy, group.limit(), &group.backend).ok_or_else(|| refused(why.to_owned()))?;
        Ok((drains, group))
    }

    /// Removes a worker that has left for a while (`rejoin_grace`) from a policy's group for good: the others take over its share at
    /// once. Returns whether such a member existed.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] if that worker is not away; [`ErrorKind::Unavailable`] also if the backend still shows it: on Consul that
    /// takes the agent at which the worker was.
    pub async fn end_absence(&self, policy_name: &str, instance_id: &InstanceId) -> Result<bool> {
        self.group(policy_name)?.end_absence(instance_id).await
    }

    /// An epoch above every one that was ever granted in a policy's group, whose workers have all stopped: in another backend
    /// `epoch_floor` at or above it lets a fence go on. It needs the rights of a worker, and uses up that epoch.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`] if the group has members, because they may be granted higher ones; [`ErrorKind::Settings`] if the policy's
    /// ownership is not exclusive, or its backend holds no claims.
    pub async fn take_epoch(&self, policy_name: &str) -> Result<Epoch> {
        self.group(policy_name)?.take_epoch().await
    }
}
