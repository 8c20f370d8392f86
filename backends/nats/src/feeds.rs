//! Watches: what the observer of a group has read goes to the feeds of its members and of its claims.

use std::sync::Arc;

use shardwise_core::{GroupName, Moment, View};
use shardwise_discovery::feeds::{FeedLimits, Hub, Observatory, ObservedPart, ObservedReader, Watched, follow};
use shardwise_discovery::{ClaimTable, Error};
use tokio::sync::watch::Receiver;

use crate::error::Failure;
use crate::groups::{ReadGroup, ReadingInterest};
use crate::handle::BucketHandle;

/// The most watches of members, and as many of claims, that one [`NatsBackend`](crate::NatsBackend) and its clones serve at a time.
pub const WATCHERS_MAX: usize = 16_384;
/// The most groups that they watch at a time.
pub const GROUPS_MAX: usize = 256;
const LIMITS: FeedLimits = FeedLimits { watches: WATCHERS_MAX, groups: GROUPS_MAX };

/// The hub of the members, whose groups are read from the bucket.
pub(crate) fn of_members(handle: &Arc<BucketHandle>) -> Hub<View> {
    following(handle, false)
}

/// The hub of the claims.
pub(crate) fn of_claims(handle: &Arc<BucketHandle>) -> Hub<ClaimTable> {
    following(handle, true)
}

fn following<T: Watched>(handle: &Arc<BucketHandle>, claims: bool) -> Hub<T>
where
    ReadGroup: ObservedPart<T>,
{
    let (clock, handle) = (handle.client.clock.clone(), Arc::clone(handle));
    Hub::new(clock, LIMITS, move |feed| follow(ObservedReader::new(BucketReading { handle: Arc::clone(&handle), claims }), feed))
}

/// Readings of members, or also of claims.
struct BucketReading {
    handle: Arc<BucketHandle>,
    claims: bool,
}

impl Observatory for BucketReading {
    type State = ReadGroup;
    type Interest = ReadingInterest;

    fn observe(&self, group: &GroupName) -> (ReadingInterest, Receiver<ReadGroup>) {
        let interest = self.handle.interest(group, self.claims);
        let states = interest.group.shown.subscribe();
        (interest, states)
    }

    fn want_proof(&self, interest: &ReadingInterest, of: Moment) {
        interest.group.want_proof(of);
    }

    fn now(&self) -> Moment {
        self.handle.client.clock.now()
    }

    fn error(&self, failure: &Failure, operation: &'static str) -> Error {
        failure.during(self.handle.client.place(), operation)
    }
}
