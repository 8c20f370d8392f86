//! The interface of a service for user code, as a trait, so that tests of generic code can use a frozen service.

use std::sync::Arc;

use shardwise_core::{InstanceId, Moment, NotOwning, Ownership, Serves, ShardKey, Timing};
use tokio::sync::watch;

/// Which keys are mine? Implemented by `ShardingService` and, through `Arc`, by shared trait objects.
///
/// ```
/// use shardwise::Sharding;
///
/// fn mine<'a>(sharding: &impl Sharding, tenants: &'a [String]) -> Vec<&'a String> {
///     sharding.filter_owned_items(tenants)
/// }
/// ```
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

    /// The positions in `items` of those that are mine right now, ascending.
    fn filter_owned_indices<K: ShardKey>(&self, items: &[K]) -> Vec<usize>
    where
        Self: Sized,
    {
        self.ownership().filter_indices_at(items, self.now())
    }

    /// How many of the items are mine right now.
    fn count_owned_items<K: ShardKey>(&self, items: &[K]) -> usize
    where
        Self: Sized,
    {
        self.ownership().count_at(items, self.now())
    }

    /// Like [`Sharding::filter_owned_items`], on all threads of the current rayon pool; the calling thread alone filters a short list. It
    /// blocks the caller.
    #[cfg(feature = "parallel")]
    fn par_filter_owned_items<'a, K: ShardKey + Sync>(&self, items: &'a [K]) -> Vec<&'a K>
    where
        Self: Sized,
    {
        self.ownership().par_filter_at(items, self.now())
    }

    /// Like [`Sharding::filter_owned_items`], with an error if this worker owns nothing at all.
    fn try_filter_owned_items<'a, K: ShardKey>(&self, items: &'a [K]) -> Result<Vec<&'a K>, NotOwning>
    where
        Self: Sized,
    {
        let (ownership, now) = (self.ownership(), self.now());
        match ownership.not_owning_at(now) {
            Some(not_owning) => Err(not_owning),
            None => Ok(ownership.filter_at(items, now)),
        }
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
