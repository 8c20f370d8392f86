//! Requests of a member.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use shardwise_core::routing::{AskError, NoRoute, Pick, Width};
use shardwise_core::{InstanceId, OwnershipMode};

use super::{Among, Answered, CallerParts, GroupFeed, Route, RouteNotes, Routing, To};
use crate::error::Result;
use crate::requests::{Request, RouteStore, Transport};
use crate::service::ShardingService;

impl ShardingService {
    /// Where a request to `to` would go now: from memory, without a lock and without allocation. Only a label takes a short lock, and its
    /// members are looked up once after each change of the group. It follows the group from the first call on, which needs a tokio
    /// runtime.
    ///
    /// # Errors
    ///
    /// Why no member can serve it now; [`NoRoute::NoView`] also outside a tokio runtime as long as the group is not followed.
    pub fn route(&self, to: &To<'_>) -> Result<Route, NoRoute> {
        Routing::of(self).route(to)
    }

    /// Sends a request and waits for its answer, 1 ms to 5 min ([`crate::requests::WITHIN_MAX`]) in all. [`Request::get`] and
    /// [`Request::post`] make requests; the destination replaces [`Request::to`].
    ///
    /// It goes on to another member, or waits for one, as long as it was certainly not handled: while no member serves the destination, and
    /// when a member cannot be reached, is not the right one or is busy. After an attempt that may have been handled it is sent again only
    /// if it is *repeatable*: a `GET`, or one with an idempotency key. A request to this member itself does not use the network.
    ///
    /// Dropping the future cancels the request: its handler is ended. A handler that asks for its own key waits for itself if it takes one
    /// request at a time.
    ///
    /// # Errors
    ///
    /// [`AskError`]; [`AskError::may_have_been_handled`] says whether a retry may handle it twice. An answer of a handler is no error,
    /// whatever its status.
    pub async fn ask(&self, to: &To<'_>, request: Request, within: Duration) -> Result<Answered, AskError> {
        Routing::of(self).ask(to, request, within).await
    }

    /// Sends a request and waits until a handler has begun with it, and not for its end. A handler of [`ShardingService::on_owned`] begins
    /// once its member has entered the key and, with [`crate::requests::OwnedOptions::one_at_a_time`], once it is its turn.
    ///
    /// The handler has 5 min then. A member that leaves waits for it up to `drain_timeout`. What it comes to is not reported, not even a
    /// member that dies.
    ///
    /// # Errors
    ///
    /// As [`ShardingService::ask`]; [`AskError::Barred`] also if there is no handler.
    pub async fn tell(&self, to: &To<'_>, request: Request, within: Duration) -> Result<(), AskError> {
        Routing::of(self).tell(to, request, within).await
    }

    /// Sends the same request to each of these members, to the handlers of [`ShardingService::on_request`], 16 at a time, and returns each
    /// one's outcome. The members are those that this one sees now; `within` is for all of them together.
    ///
    /// # Errors
    ///
    /// The request or the time limit is not valid, or no member is known. What happens to one member's request is in its outcome.
    pub async fn ask_all(
        &self,
        among: Among<'_>,
        request: &Request,
        within: Duration,
    ) -> Result<BTreeMap<InstanceId, Result<Answered, AskError>>, AskError> {
        Routing::of(self).ask_all(among, request, within).await
    }

    /// Chooses among the members of a set by this rule instead of [`PowerOfTwo`](crate::requests::PowerOfTwo).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) after the first request or route, and after an earlier call.
    pub fn set_pick(&self, pick: impl Pick + 'static) -> Result<()> {
        Routing::of(self).set_pick(Box::new(pick))
    }

    /// Brings requests to other members by this instead of by connections over the network, as tests do.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) after the first request to another member, and after an earlier call.
    pub fn set_transport(&self, transport: Arc<dyn Transport>) -> Result<()> {
        Routing::of(self).set_transport(transport)
    }
}

impl Routing {
    /// That of a member.
    pub(crate) fn of(service: &ShardingService) -> &Arc<Self> {
        service.membership().routing.get_or_make(|| Arc::new(Self::new(parts(service))))
    }
}

fn parts(service: &ShardingService) -> CallerParts {
    let membership = service.membership();
    let context = &membership.ownership_context;
    let (policy, is_exclusive) = (Arc::clone(&membership.policy), membership.policy.ownership == OwnershipMode::Exclusive);
    let notes = || {
        let store = RouteStore::of(&policy, membership.timing, service.backend()?)?;
        Some(RouteNotes { store, every: membership.timing.ttl / 2, noted: membership.noted.subscribe() })
    };
    let is_spread = membership.requests.max_width_under(&policy) > Width::ONE;
    let feed = GroupFeed {
        views: service.watch_members(),
        holders: is_exclusive.then(|| membership.holders.follow()),
        routes: if is_spread { notes() } else { None },
    };
    let local = Arc::downgrade(context);
    let of = local.clone();
    let proven = move || {
        let membership = of.upgrade()?.membership()?;
        let proven = membership.proven()?;
        Some((proven, Arc::clone(membership.ownership().view())))
    };
    let (settings, clock) = (membership.requests, membership.clock.clone());
    CallerParts { policy, settings, clock, feed, proven: Box::new(proven), local, connections: None }
}
