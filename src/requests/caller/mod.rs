//! The caller's side of requests: a destination has a set of members, a pick chooses one of them, and what follows each attempt is decided
//! until there is an answer, or until its deadline (ADR 50).
//!
//! - `destination`: where a request goes.
//! - `follow`: the task that follows the group and swaps the table, `table`.
//! - `route`: a set and a choice from it, from memory.
//! - `ask`: one request until its answer; `attempt`: one attempt.
//! - `service`: the methods of a member. A caller that is not a member has the same ones by its `Router`.

mod ask;
mod attempt;
mod destination;
mod follow;
mod route;
mod service;
mod table;

use std::sync::{Arc, Mutex, OnceLock, Weak};

use arc_swap::ArcSwap;
use shardwise_core::routing::{Pick, PowerOfTwo, RouteTable, Routes, SessionId, Width, WidthHints};
use shardwise_core::{ClaimName, InstanceId, Key, Moment, OwnershipMode, Policy, View};
use shardwise_discovery::Clock;
use tokio::sync::{Semaphore, watch};

pub use ask::Answered;
#[cfg(feature = "testing")]
pub(crate) use attempt::answer_here;
pub use destination::{Among, To};
pub(crate) use follow::{GroupFeed, RouteNotes};
pub use route::{Route, RouteCause};

use super::channel::MemberConnections;
use super::handlers::RequestHandlers;
use super::transport::Transport;
use crate::error::{Error, ErrorKind, Result};
use crate::membership::OwnershipContext;
use crate::settings::RequestSettings;
use crate::telemetry::metrics::RequestMeters;
use table::RouteState;

/// When the view was last proven current, and the view as published after that; `None` before the first proof.
pub(crate) type ProvenView = Box<dyn Fn() -> Option<(Moment, Arc<View>)> + Send + Sync>;

/// What brings a caller's requests to other members.
struct CallerTransport {
    transport: Arc<dyn Transport>,
    /// It is this library's, which ends each attempt in time.
    is_own: bool,
}

/// What one caller knows of its group, and what its requests share. It keeps no service alive.
pub(crate) struct Routing {
    policy: Arc<Policy>,
    clock: Clock,
    /// The largest width of a key.
    max_width: Width,
    state: ArcSwap<RouteState>,
    routes: ArcSwap<Routes>,
    hints: WidthHints,
    /// Signals that `state` or `routes` was swapped.
    changed: watch::Sender<()>,
    proven: ProvenView,
    pick: OnceLock<Box<dyn Pick>>,
    transport: OnceLock<CallerTransport>,
    /// Those of a caller that is not a member.
    connections: Option<Arc<dyn Transport>>,
    waiting: Semaphore,
    waiting_max: usize,
    meters: RequestMeters,
    /// The member whose requests these are; dangling for a caller that is not a member.
    local: Weak<OwnershipContext>,
    /// Until it is followed.
    feed: Mutex<Option<GroupFeed>>,
    following: OnceLock<()>,
}

/// What a caller is made of.
pub(crate) struct CallerParts {
    pub(crate) policy: Arc<Policy>,
    pub(crate) settings: RequestSettings,
    pub(crate) clock: Clock,
    pub(crate) feed: GroupFeed,
    pub(crate) proven: ProvenView,
    pub(crate) local: Weak<OwnershipContext>,
    /// Its connections to members; `None` for a member, which shares its own.
    pub(crate) connections: Option<Arc<dyn Transport>>,
}

impl Routing {
    pub(crate) fn new(parts: CallerParts) -> Self {
        let CallerParts { policy, settings, clock, feed, proven, local, connections } = parts;
        let (max_width, waiting_max) = (settings.max_width_under(&policy), RequestSettings::limit(settings.waiting));
        Self {
            meters: RequestMeters::new(&policy),
            policy,
            clock,
            max_width,
            state: ArcSwap::from_pointee(RouteState::eventual(RouteTable::eventual(Arc::default(), None, None, None))),
            routes: ArcSwap::default(),
            hints: WidthHints::default(),
            changed: watch::Sender::new(()),
            proven,
            pick: OnceLock::new(),
            transport: OnceLock::new(),
            connections,
            waiting: Semaphore::new(waiting_max),
            waiting_max,
            local,
            feed: Mutex::new(Some(feed)),
            following: OnceLock::new(),
        }
    }

    /// Whether keys may be spread over several members.
    pub(super) fn is_spread(&self) -> bool {
        self.max_width > Width::ONE
    }

    fn is_exclusive(&self) -> bool {
        self.policy.ownership == OwnershipMode::Exclusive
    }

    fn pick(&self) -> &dyn Pick {
        &**self.pick.get_or_init(|| Box::new(PowerOfTwo))
    }

    pub(crate) fn set_pick(&self, pick: Box<dyn Pick>) -> Result<()> {
        self.pick.set(pick).map_err(|_| late("a member was chosen already"))
    }

    pub(crate) fn set_transport(&self, transport: Arc<dyn Transport>) -> Result<()> {
        self.transport.set(CallerTransport { transport, is_own: false }).map_err(|_| late("a request was sent already"))
    }

    /// The connections of the caller, unless another transport was set; `None` once the member's service has ended.
    fn transport(&self) -> Option<&dyn Transport> {
        if let Some(known) = self.transport.get() {
            return Some(&*known.transport);
        }
        let own = match &self.connections {
            Some(connections) => Arc::clone(connections),
            None => connections(&self.local.upgrade()?),
        };
        Some(&*self.transport.get_or_init(|| CallerTransport { transport: own, is_own: true }).transport)
    }

    /// Whether this member may serve the key besides its owner: it is among the first `max_width` members by its own view.
    pub(super) fn may_help(&self, key: Key<'_>, instance_id: &InstanceId) -> bool {
        self.is_spread() && self.state.load().table.accepts(&key, instance_id)
    }

    /// The member that serves the key by the claims or the view of this one, if it is another one: a hint for the sender of a request.
    pub(super) fn owner_of(&self, key: Key<'_>, me: &InstanceId) -> Option<InstanceId> {
        let state = self.state.load();
        let set = state.table.owners(&key, self.clock.now(), &self.hints, &self.routes.load()).ok()?;
        other(&state, set.as_slice(), me)
    }

    /// The same for the holder of a name.
    pub(super) fn holder_of(&self, name: &ClaimName, me: &InstanceId) -> Option<InstanceId> {
        let state = self.state.load();
        let set = state.table.holder(state.claim_of(name).map(|claim| &claim.holder)).ok()?;
        other(&state, set.as_slice(), me)
    }

    /// The same for the member of that incarnation, which opened a session.
    pub(super) fn minter_of(&self, session: &SessionId, me: &InstanceId) -> Option<InstanceId> {
        let state = self.state.load();
        let now = self.clock.now();
        let set = state.table.session(session, now, None).ok()?;
        other(&state, set.as_slice(), me)
    }
}

/// The first member of a set, unless it is this one.
fn other(state: &RouteState, set: &[u32], me: &InstanceId) -> Option<InstanceId> {
    let member = state.table.member(*set.first()?)?;
    (member.instance_id != *me).then(|| member.instance_id.clone())
}

/// The connections of a member to others, which all its callers share.
pub(super) fn connections(context: &Arc<OwnershipContext>) -> Arc<dyn Transport> {
    let handlers = RequestHandlers::of(context);
    context.extensions.get_or_make(|| MemberConnections::of(context, &handlers))
}

fn late(why: &str) -> Error {
    Error::new(ErrorKind::Conflict, format!("{why}: set it before the first request, and once"))
}
