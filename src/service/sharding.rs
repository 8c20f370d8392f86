//! The interface of a service for user code, as a trait, so that tests of generic code can use a frozen service.

use std::sync::Arc;

use async_trait::async_trait;
use shardwise_core::{GroupName, InstanceId, Moment, Ownership, Serves, ShardKey, Timing};
use tokio::sync::watch;

use crate::error::Result;

/// Which keys are mine? Implemented by `ShardingService` and, through `Arc`, by shared trait objects. The service's other ways to ask
/// about a list are those of [`Sharding::ownership`].
#[async_trait]
pub trait Sharding: Send + Sync {
    /// The latest snapshot. Query it with [`Sharding::now`], so that its deadline applies.
    fn ownership(&self) -> Arc<Ownership>;

    /// The latest snapshot, now and whenever it changes: slots, state, view or deadline.
    fn ownership_changes(&self) -> watch::Receiver<Arc<Ownership>>;

    /// The present moment on the clock of the deadlines.
    fn now(&self) -> Moment;

    /// This worker's name in its group.
    fn instance_id(&self) -> &InstanceId;

    /// The group that it shares the work with.
    fn group_name(&self) -> &GroupName;

    /// Joins the group ([`ShardingService::register_self`](crate::ShardingService::register_self)). Does nothing by default, for test
    /// doubles, which have no group to join.
    async fn register_self(&self) -> Result<()> {
        Ok(())
    }

    /// Leaves the group ([`ShardingService::deregister_self`](crate::ShardingService::deregister_self)). Does nothing by default.
    async fn deregister_self(&self) -> Result<()> {
        Ok(())
    }

    /// TTL, renewal interval and margin in force.
    fn timing(&self) -> Timing;

    /// What the group serves: the application's keys, or one outbox, whose publisher compares it with its store. `None`, the default, for
    /// test doubles and for a service without a group: nothing is compared then.
    fn serves(&self) -> Option<Serves> {
        None
    }

    /// Whether `key` is mine right now.
    fn owns<K: ShardKey + ?Sized>(&self, key: &K) -> bool
    where
        Self: Sized,
    {
        self.ownership().owns_at(key, self.now())
    }

    /// The items that are mine right now, in their order; empty unless this worker is active.
    fn filter_owned_items<'a, K: ShardKey>(&self, items: &'a [K]) -> Vec<&'a K>
    where
        Self: Sized,
    {
        self.ownership().filter_at(items, self.now())
    }
}

#[async_trait]
impl<S: Sharding + ?Sized> Sharding for Arc<S> {
    fn ownership(&self) -> Arc<Ownership> {
        (**self).ownership()
    }

    fn ownership_changes(&self) -> watch::Receiver<Arc<Ownership>> {
        (**self).ownership_changes()
    }

    fn now(&self) -> Moment {
        (**self).now()
    }

    fn instance_id(&self) -> &InstanceId {
        (**self).instance_id()
    }

    fn group_name(&self) -> &GroupName {
        (**self).group_name()
    }

    async fn register_self(&self) -> Result<()> {
        (**self).register_self().await
    }

    async fn deregister_self(&self) -> Result<()> {
        (**self).deregister_self().await
    }

    fn timing(&self) -> Timing {
        (**self).timing()
    }

    fn serves(&self) -> Option<Serves> {
        (**self).serves()
    }
}
