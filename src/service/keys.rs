//! Every way to ask which keys are mine. Each reads the clock once, takes no lock, and returns nothing past the deadline.

use shardwise_core::{NotOwning, ShardKey};

use super::ShardingService;

impl ShardingService {
    /// Whether `key` is mine right now.
    #[inline]
    pub fn owns<K: ShardKey + ?Sized>(&self, key: &K) -> bool {
        self.membership().read(|ownership, now| ownership.owns_at(key, now))
    }

    /// The items that are mine right now, in their order; empty unless this worker is active.
    pub fn filter_owned_items<'a, K: ShardKey>(&self, items: &'a [K]) -> Vec<&'a K> {
        self.membership().read(|ownership, now| ownership.filter_at(items, now))
    }

    /// The positions in `items` of those that are mine right now, ascending.
    pub fn filter_owned_indices<K: ShardKey>(&self, items: &[K]) -> Vec<usize> {
        self.membership().read(|ownership, now| ownership.filter_indices_at(items, now))
    }

    /// How many of the items are mine right now.
    pub fn count_owned_items<K: ShardKey>(&self, items: &[K]) -> usize {
        self.membership().read(|ownership, now| ownership.count_at(items, now))
    }

    /// Like [`ShardingService::filter_owned_items`], on all threads of the current rayon pool; the calling thread alone filters a short
    /// list. It blocks the caller.
    #[cfg(feature = "parallel")]
    pub fn par_filter_owned_items<'a, K: ShardKey + Sync>(&self, items: &'a [K]) -> Vec<&'a K> {
        self.membership().read(|ownership, now| ownership.par_filter_at(items, now))
    }

    /// Like [`ShardingService::filter_owned_items`], with an error if this worker owns nothing at all.
    pub fn try_filter_owned_items<'a, K: ShardKey>(&self, items: &'a [K]) -> Result<Vec<&'a K>, NotOwning> {
        self.membership().read(|ownership, now| match ownership.not_owning_at(now) {
            Some(not_owning) => Err(not_owning),
            None => Ok(ownership.filter_at(items, now)),
        })
    }
}
