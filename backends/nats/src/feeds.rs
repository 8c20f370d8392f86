//! Watches: what the observer of a group has read goes to the feeds of its members and of its claims.

use std::sync::Arc;
use std::time::Duration;

use shardwise_discovery::feeds::{FeedLimits, Observatory, ObservedGroups};
use shardwise_discovery::{Clock, Error};

use crate::error::Failure;
use crate::handle::{AwaitedLife, BucketGroup, BucketHandle};
use crate::mirror::ReadNotes;
use crate::observer;
use crate::writes::GroupWrites;

/// The most watches of members, and as many of claims, that one [`NatsBackend`](crate::NatsBackend) and its clones serve at a time.
pub const WATCHERS_MAX: usize = 16_384;
/// The most groups that they watch at a time.
pub const GROUPS_MAX: usize = 256;
pub(crate) const LIMITS: FeedLimits = FeedLimits { watches: WATCHERS_MAX, groups: GROUPS_MAX };

impl Observatory for BucketHandle {
    type Failure = Failure;
    type Life = AwaitedLife;
    type Notes = Option<Arc<ReadNotes>>;
    /// How this process's own writes went.
    type Extra = Arc<GroupWrites>;
    /// So long that single reads that follow each other cost one consumer.
    const LINGER: Duration = Duration::from_secs(10);

    fn groups(&self) -> &ObservedGroups<Self> {
        &self.groups
    }

    fn start(self: &Arc<Self>, group: Arc<BucketGroup>) {
        observer::start(self, group);
    }

    fn clock(&self) -> &Clock {
        &self.client.clock
    }

    fn error(&self, failure: &Failure, operation: &'static str) -> Error {
        failure.during(self.client.place(), operation)
    }
}
