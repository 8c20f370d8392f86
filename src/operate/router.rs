//! Sends requests to the members of a group without joining it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use shardwise_core::InstanceId;
use shardwise_core::routing::{AskError, NoRoute, Pick, Width};
use shardwise_discovery::Clock;
use tokio::sync::watch;

use super::{Group, Observer};
use crate::error::Result;
use crate::requests::caller::{CallerParts, RouteNotes, Routing};
use crate::requests::channel::MemberConnections;
use crate::requests::{Among, Answered, PeerSecurity, Request, Route, RouteStore, To, Transport};
use crate::settings::PolicySettings;

/// Sends requests to the members of a group without being one of them. Created by [`crate::ShardingFactory::router`]; follows the group
/// until dropped. Its methods are those of [`crate::ShardingService`].
///
/// It proves itself by the policy's `peer_token_file` and certificates, and calls only addresses in `peer_networks`.
pub struct Router {
    observer: Observer,
    routing: Arc<Routing>,
    /// Its end ends the task that reads the operator's routes.
    _noted: watch::Sender<()>,
}

impl Router {
    pub(crate) async fn start(settings: &PolicySettings, group: Group<'_>, clock: Clock) -> Result<Self> {
        let (policy, peers) = (Arc::new(group.policy.clone()), &settings.peers);
        let is_spread = settings.requests.max_width_under(&policy) > Width::ONE;
        let store = if is_spread { RouteStore::of(&policy, group.timing, &group.backend) } else { None };
        let (every, noted) = (group.timing.ttl / 2, watch::Sender::new(()));
        let observer = Observer::start(group, clock.clone()).await?;
        let (mut feed, proven) = observer.feed();
        feed.routes = store.map(|store| RouteNotes { store, every, noted: noted.subscribe() });
        let connections =
            MemberConnections::new(policy.group.clone(), peers.networks.clone(), PeerSecurity::of(peers), settings.requests.streams());
        let connections: Option<Arc<dyn Transport>> = Some(Arc::new(connections));
        let parts = CallerParts { policy, settings: settings.requests, clock, feed, proven, local: Weak::new(), connections };
        let routing = Arc::new(Routing::new(parts));
        routing.is_following();
        Ok(Self { observer, routing, _noted: noted })
    }

    /// The group as this router sees it.
    pub const fn observer(&self) -> &Observer {
        &self.observer
    }

    /// As [`crate::ShardingService::route`].
    ///
    /// # Errors
    ///
    /// Why no member can serve it now.
    pub fn route(&self, to: &To<'_>) -> Result<Route, NoRoute> {
        self.routing.route(to)
    }

    /// As [`crate::ShardingService::ask`].
    ///
    /// # Errors
    ///
    /// [`AskError`]; [`AskError::may_have_been_handled`] says whether a retry may handle it twice.
    pub async fn ask(&self, to: &To<'_>, request: Request, within: Duration) -> Result<Answered, AskError> {
        self.routing.ask(to, request, within).await
    }

    /// As [`crate::ShardingService::tell`].
    ///
    /// # Errors
    ///
    /// As [`Router::ask`]; [`AskError::Barred`] also if there is no handler.
    pub async fn tell(&self, to: &To<'_>, request: Request, within: Duration) -> Result<(), AskError> {
        self.routing.tell(to, request, within).await
    }

    /// As [`crate::ShardingService::ask_all`].
    ///
    /// # Errors
    ///
    /// The request or the time limit is not valid, or no member is known.
    pub async fn ask_all(
        &self,
        among: Among<'_>,
        request: &Request,
        within: Duration,
    ) -> Result<BTreeMap<InstanceId, Result<Answered, AskError>>, AskError> {
        self.routing.ask_all(among, request, within).await
    }

    /// As [`crate::ShardingService::set_pick`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) after the first request or route, and after an earlier call.
    pub fn set_pick(&self, pick: impl Pick + 'static) -> Result<()> {
        self.routing.set_pick(Box::new(pick))
    }

    /// As [`crate::ShardingService::set_transport`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) after the first request, and after an earlier call.
    pub fn set_transport(&self, transport: Arc<dyn Transport>) -> Result<()> {
        self.routing.set_transport(transport)
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Router({})", self.observer.policy().name)
    }
}
