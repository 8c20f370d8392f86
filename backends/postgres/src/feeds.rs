//! Watches: what the observer of a group has read goes to the feeds of its members and of its claims.

use std::sync::Arc;
use std::time::Duration;

use shardwise_discovery::feeds::{FeedLimits, Observatory, ObservedGroups};
use shardwise_discovery::{Clock, Error};

use crate::error::Failure;
use crate::shared::{ExpectedChanges, FollowedGroup, Shared};
use crate::{listener, observer};

/// The most watches of members, and as many of claims, that one [`PostgresBackend`](crate::PostgresBackend) and its clones serve at a time.
pub const WATCHERS_MAX: usize = 16_384;
/// The most groups that they watch at a time.
pub const GROUPS_MAX: usize = 256;
pub(crate) const LIMITS: FeedLimits = FeedLimits { watches: WATCHERS_MAX, groups: GROUPS_MAX };

impl Observatory for Shared {
    type Failure = Failure;
    type Life = i64;
    type Notes = ();
    type Extra = ExpectedChanges;
    const LINGER: Duration = Duration::ZERO;

    fn groups(&self) -> &ObservedGroups<Self> {
        &self.groups
    }

    fn start(self: &Arc<Self>, group: Arc<FollowedGroup>) {
        observer::start(self, group);
        listener::start(self);
    }

    fn clock(&self) -> &Clock {
        &self.client.clock
    }

    fn error(&self, failure: &Failure, operation: &'static str) -> Error {
        self.client.context.during(failure, operation)
    }
}
