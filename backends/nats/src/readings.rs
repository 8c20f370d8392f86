//! Readings of groups: each by one observer, for all that read the group.

use std::sync::Arc;

use shardwise_core::{GroupName, Moment, View};
use shardwise_discovery::ClaimTable;
use shardwise_discovery::feeds::{NoReading, ObservedPart, ObservedState, READING_LIMIT};

use crate::error::{Failure, NatsResult};
use crate::groups::{BucketGroup, ReadGroup, ReadingInterest};
use crate::handle::BucketHandle;
use crate::observer;

impl BucketHandle {
    pub(crate) fn start(self: &Arc<Self>, group: Arc<BucketGroup>) {
        observer::start(self, group);
    }

    /// A watch reads the group for as long as it keeps the answer.
    pub(crate) fn interest(self: &Arc<Self>, group: &GroupName, claims: bool) -> ReadingInterest {
        self.groups.read(group, claims, |group| self.start(group))
    }
}

/// Waits until the group is proven as of that moment, and answers what was read.
pub(crate) async fn read_as_of(interest: &ReadingInterest, asked: Moment) -> NatsResult<ReadGroup> {
    let mut states = interest.group.shown.subscribe();
    interest.group.want_proof(asked);
    shardwise_discovery::feeds::read_as_of(&mut states, asked, |read| read.view.is_some()).await
}

impl ObservedState for ReadGroup {
    type Failure = Failure;

    fn proven(&self) -> Moment {
        self.proven
    }

    fn failure(&self) -> Option<&(Failure, Moment)> {
        self.failure.as_ref()
    }
}

impl ObservedPart<View> for ReadGroup {
    fn part(&self) -> Option<&Arc<View>> {
        self.view.as_ref()
    }
}

impl ObservedPart<ClaimTable> for ReadGroup {
    fn part(&self) -> Option<&Arc<ClaimTable>> {
        self.claims.as_ref()
    }
}

impl From<NoReading> for Failure {
    fn from(none: NoReading) -> Self {
        match none {
            NoReading::Ended => Self::ShuttingDown,
            NoReading::TimedOut => Self::TimedOut { after: READING_LIMIT },
        }
    }
}
