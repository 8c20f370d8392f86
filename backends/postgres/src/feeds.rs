//! Watches: what the observer of a group has read goes to the feeds of its members and of its claims.

use std::sync::Arc;

use shardwise_core::{GroupName, Moment, View};
use shardwise_discovery::feeds::{
    FeedLimits, Hub, NoReading, Observatory, ObservedPart, ObservedReader, ObservedState, READING_LIMIT, Watched, follow,
};
use shardwise_discovery::{ClaimTable, Error};
use tokio::sync::watch::Receiver;

use crate::error::Failure;
use crate::groups::{FollowedState, GroupInterest};
use crate::shared::Shared;

/// The most watches of members, and as many of claims, that one [`PostgresBackend`](crate::PostgresBackend) and its clones serve at a time.
pub const WATCHERS_MAX: usize = 16_384;
/// The most groups that they watch at a time.
pub const GROUPS_MAX: usize = 256;
const LIMITS: FeedLimits = FeedLimits { watches: WATCHERS_MAX, groups: GROUPS_MAX };

/// The hub of the members, whose groups are read from the database.
pub(crate) fn of_members(shared: &Arc<Shared>) -> Hub<View> {
    following(shared, false)
}

/// The hub of the claims.
pub(crate) fn of_claims(shared: &Arc<Shared>) -> Hub<ClaimTable> {
    following(shared, true)
}

fn following<T: Watched>(shared: &Arc<Shared>, claims: bool) -> Hub<T>
where
    FollowedState: ObservedPart<T>,
{
    let (clock, shared) = (shared.client.clock.clone(), Arc::clone(shared));
    Hub::new(clock, LIMITS, move |feed| follow(ObservedReader::new(TableReading { shared: Arc::clone(&shared), claims }), feed))
}

impl ObservedState for FollowedState {
    type Failure = Failure;

    fn proven(&self) -> Moment {
        self.proven
    }

    fn failure(&self) -> Option<&(Failure, Moment)> {
        self.failure.as_ref()
    }
}

impl ObservedPart<View> for FollowedState {
    fn part(&self) -> Option<&Arc<View>> {
        self.view.as_ref()
    }
}

impl ObservedPart<ClaimTable> for FollowedState {
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

/// Readings of members, or also of claims.
struct TableReading {
    shared: Arc<Shared>,
    claims: bool,
}

impl Observatory for TableReading {
    type State = FollowedState;
    type Interest = GroupInterest;

    fn observe(&self, group: &GroupName) -> (GroupInterest, Receiver<FollowedState>) {
        let interest = self.shared.interest(group, self.claims);
        let states = interest.group.shown.subscribe();
        (interest, states)
    }

    /// A reading that begins now proves it.
    fn want_proof(&self, interest: &GroupInterest, _of: Moment) {
        interest.group.wake();
    }

    fn now(&self) -> Moment {
        self.shared.client.clock.now()
    }

    fn error(&self, failure: &Failure, operation: &'static str) -> Error {
        self.shared.client.context.during(failure, operation)
    }
}
