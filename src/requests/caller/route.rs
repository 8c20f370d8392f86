//! A route: the set of a destination and the member that was chosen from it, from memory.

use std::fmt;
use std::sync::Arc;

use shardwise_core::routing::{Choice, NoRoute, Routes};
use shardwise_core::{Epoch, Incarnation, InstanceId, Member, Moment, ShardKey as _};

use super::table::{RouteSet, RouteState};
use super::{Routing, To};

/// Why a route has its set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum RouteCause {
    /// The member holds the claim of the key's slot, or of the name.
    Claim,
    /// The placement of the newest view gives the key to the member.
    Placement,
    /// The owner has the key spread over several members, because it is hot or by [`crate::ShardingService::widen`].
    Spread,
    /// An operator has set the key's route ([`crate::ShardingFactory::set_route`]).
    Operator,
    /// The destination names the member.
    Named,
    /// The member opened the session.
    Session,
    /// Any of them may serve it.
    Any,
}

impl RouteCause {
    /// The name in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Placement => "placement",
            Self::Spread => "spread",
            Self::Operator => "operator",
            Self::Named => "named",
            Self::Session => "session",
            Self::Any => "any",
        }
    }
}

/// Where a request would go now: the set of its destination, and the member that was chosen from it. It is what this process knows; the
/// member decides by its own clock and claims.
#[derive(Clone)]
pub struct Route {
    state: Arc<RouteState>,
    set: RouteSet,
    /// The chosen member.
    index: u32,
    cause: RouteCause,
    epoch: Option<Epoch>,
}

impl Route {
    /// The chosen member.
    pub fn member(&self) -> &InstanceId {
        &self.record().instance_id
    }

    /// Its incarnation.
    pub fn incarnation(&self) -> Incarnation {
        self.record().incarnation
    }

    /// Of the view from which it was chosen.
    fn record(&self) -> &Member {
        &self.state.table.view().members()[self.index as usize]
    }

    /// The members that may serve it, for a key its owner first.
    pub fn set(&self) -> impl Iterator<Item = &InstanceId> {
        let table = &self.state.table;
        self.set.as_slice(table).iter().filter_map(move |index| table.member(*index)).map(|member| &member.instance_id)
    }

    /// How many members may serve it.
    pub fn width(&self) -> usize {
        self.set.as_slice(&self.state.table).len()
    }

    /// Why it has this set.
    pub const fn cause(&self) -> RouteCause {
        self.cause
    }

    /// Under exclusive ownership, the epoch of the claim on the key's slot or on the name.
    pub const fn epoch(&self) -> Option<Epoch> {
        self.epoch
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Route(to {} of {:?}, {})", self.member(), self.set().collect::<Vec<_>>(), self.cause.as_str())
    }
}

impl Routing {
    /// Where a request would go now; from memory.
    pub(crate) fn route(self: &Arc<Self>, to: &To<'_>) -> Result<Route, NoRoute> {
        if !self.is_following() {
            return Err(NoRoute::NoView);
        }
        let state = self.state.load_full();
        // Of one member neither its load nor hints count, and reading the clock takes as long as all else.
        let is_of_one = match to {
            To::Owner(_) => !state.table.spreads(),
            To::Holder(_) | To::Member(_) => true,
            To::Session(_) | To::Any(_) => false,
        };
        let now = if is_of_one { Moment::ZERO } else { self.clock.now() };
        let set = self.set_of(&state, to, now, now)?;
        let members = set.as_slice(&state.table);
        // A set of one needs no number.
        let random = if members.len() > 1 { rand::random() } else { 0 };
        let choice = Choice { table: &state.table, set: members, pick: self.pick(), key: to.key(), random };
        let index = choice.index(now).filter(|index| state.table.member(*index).is_some()).ok_or(NoRoute::Unserved)?;
        let (cause, epoch) = self.cause(&state, to, members.len());
        Ok(Route { state, set, index, cause, epoch })
    }

    /// The members that may serve a destination. `came` is when the request came.
    pub(super) fn set_of(&self, state: &RouteState, to: &To<'_>, came: Moment, now: Moment) -> Result<RouteSet, NoRoute> {
        let table = &state.table;
        let few = match to {
            To::Owner(key) if table.spreads() => table.owners(key, now, &self.hints, &self.routes.load())?,
            To::Owner(key) => table.owners(key, now, &self.hints, &Routes::default())?,
            To::Holder(name) => table.holder(state.claim_of(name).map(|claim| &claim.holder))?,
            To::Member(id) => table.instance(id)?,
            To::Session(id) => match table.session(id, came, None) {
                Err(NoRoute::Unproven) => table.session(id, came, self.proven_of(state))?,
                set => set?,
            },
            To::Any(among) => {
                return match among.label {
                    Some((name, value)) => state.labelled(name, value),
                    None => table.active().map(|_| RouteSet::Active),
                };
            }
        };
        Ok(RouteSet::Few(few))
    }

    /// When the view of this table was last proven current; `None` if a newer view is published already.
    fn proven_of(&self, state: &RouteState) -> Option<Moment> {
        let (proven, view) = (self.proven)()?;
        let is_of_table = Arc::ptr_eq(&view, state.table.view()) || view == *state.table.view();
        is_of_table.then_some(proven)
    }

    fn cause(&self, state: &RouteState, to: &To<'_>, width: usize) -> (RouteCause, Option<Epoch>) {
        match to {
            To::Owner(key) if self.is_exclusive() => (RouteCause::Claim, state.epoch_of(key)),
            To::Owner(key) if self.is_spread() && self.routes.load().get(key.key_hash()).is_some() => (RouteCause::Operator, None),
            To::Owner(_) if width > 1 => (RouteCause::Spread, None),
            To::Owner(_) => (RouteCause::Placement, None),
            To::Holder(name) => (RouteCause::Claim, state.claim_of(name).map(|claim| claim.epoch)),
            To::Member(_) => (RouteCause::Named, None),
            To::Session(_) => (RouteCause::Session, None),
            To::Any(_) => (RouteCause::Any, None),
        }
    }
}
