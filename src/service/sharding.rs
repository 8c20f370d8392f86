//! The interface of a service for user code, as a trait, so that tests of generic code can use a frozen service.

use std::sync::Arc;

use shardwise_core::{InstanceId, Moment, Ownership, Serves, ShardKey, Timing};
use tokio::sync::watch;

/// Which keys are mine? Implemented by `ShardingService` and, through `Arc`, by shared trait objects. The service's other ways to ask
/// about a list are those of [`Sharding::ownership`].
pub trait Sharding: Send + Sync {
    /// The latest snapshot. Query it with [`Sharding::now`], so that its deadline applies.
    fn ownership(&self) -> Arc<Ownership>;

    /// The latest snapshot, now and whenever it changes: slots, state, view or deadline.
    fn ownership_changes(&self) -> watch::Receiver<Arc<Ownership>>;

    /// The present moment on the clock of the deadlines.
    fn now(&self) -> Moment;

    /// This worker's name in its group.
    fn instance_id(&self) -> &InstanceId;

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

    fn timing(&self) -> Timing {
        (**self).timing()
    }

    fn serves(&self) -> Option<Serves> {
        (**self).serves()
    }
}
