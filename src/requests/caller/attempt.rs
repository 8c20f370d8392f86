//! One attempt to get an answer of one member.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use shardwise_core::routing::{PeerLoad, Undelivered};
use shardwise_core::{Incarnation, InstanceId, ShardKey as _};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::table::{RouteSet, RouteState};
use super::{Routing, To};
use crate::membership::OwnershipContext;
use crate::requests::handlers::RequestHandlers;
use crate::requests::transport::{Attempt, MemberEndpoint};
use crate::requests::{ADDRESS_KEY, Answer, Request};

/// A transport ends an attempt in time by itself. Another one than this library's that does not is left so much later: until then, what it
/// says of the request counts.
const OVERTIME: Duration = Duration::from_millis(100);

/// A member that a request is brought to.
pub(super) struct ChosenMember {
    pub(super) instance_id: InstanceId,
    incarnation: Incarnation,
    /// `None` if it takes no requests.
    endpoint: Option<MemberEndpoint>,
    load: Arc<PeerLoad>,
    /// It is the first one of its set: for a key the owner.
    is_first: bool,
}

impl ChosenMember {
    pub(super) fn of(state: &RouteState, set: &RouteSet, index: u32) -> Option<Self> {
        let (member, load) = (state.table.member(index)?, state.table.peer_load(index)?);
        let (instance_id, incarnation) = (member.instance_id.clone(), member.incarnation);
        let address = member.metadata.get(ADDRESS_KEY).cloned();
        Some(Self {
            endpoint: address.map(|address| MemberEndpoint { instance_id: instance_id.clone(), incarnation, address }),
            instance_id,
            incarnation,
            load: Arc::clone(load),
            is_first: set.as_slice(&state.table).first() == Some(&index),
        })
    }

    /// Its index in another table, if it is there under the same incarnation.
    fn index_in(&self, state: &RouteState) -> Option<u32> {
        let set = state.table.instance(&self.instance_id).ok()?;
        let index = *set.as_slice().first()?;
        state.table.member(index).filter(|member| member.incarnation == self.incarnation).map(|_| index)
    }
}

impl Routing {
    /// Brings the request to that member, until that time or until another member is the right one, and remembers what the outcome says of
    /// the member. What is new in `changed` is newer than the choice.
    pub(super) async fn attempt(
        &self,
        to: &To<'_>,
        chosen: &ChosenMember,
        request: &Request,
        until: Instant,
        changed: &mut watch::Receiver<()>,
    ) -> Result<Answer, Undelivered> {
        let attempt = Attempt::until(until);
        let in_flight = chosen.load.begin();
        let answer = tokio::select! {
            biased;
            answer = self.bring(chosen, request, &attempt) => answer,
            never = self.watch(to, chosen, changed, &attempt.superseded) => never,
            () = self.is_overtime(until) => Err(Undelivered::Unknown("its transport has not ended in time".into())),
        };
        let now = self.clock.now();
        match &answer {
            Ok(answer) => {
                in_flight.peer().on_answer(now, answer.load);
                // Only the owner of a key decides how far it is spread.
                if let (To::Owner(key), true, true) = (to, chosen.is_first, self.is_spread()) {
                    self.hints.on_answer(now, key.key_hash(), answer.width, self.max_width);
                }
            }
            Err(undelivered) => in_flight.peer().on_undelivered(now, undelivered),
        }
        answer
    }

    /// Waits until a transport that is not this library's should have ended.
    async fn is_overtime(&self, until: Instant) {
        if self.transport.get().is_some_and(|known| known.is_own) {
            pending::<()>().await;
        } else {
            sleep_until(until + OVERTIME).await;
        }
    }

    async fn bring(&self, chosen: &ChosenMember, request: &Request, attempt: &Attempt) -> Result<Answer, Undelivered> {
        let local = self.local.upgrade().filter(|local| *local.life.instance_id() == chosen.instance_id);
        if let Some(local) = local {
            // It has joined again since.
            if local.life.incarnation() != chosen.incarnation {
                return Err(Undelivered::NotMine(None));
            }
            return answer_here(&local, request.clone(), attempt).await;
        }
        let Some(endpoint) = &chosen.endpoint else {
            let why = format!(
                "{} takes no requests: it does not listen (listen_for_requests), or has no sidecar of this version",
                chosen.instance_id
            );
            return Err(Undelivered::Unsent(why));
        };
        let transport = self.transport().ok_or_else(|| Undelivered::Unsent("this worker is stopping".into()))?;
        transport.bring(endpoint, request, attempt).await
    }

    /// Reports once another member is the right one. It never ends, so its result may have any type.
    async fn watch<T>(&self, to: &To<'_>, chosen: &ChosenMember, changed: &mut watch::Receiver<()>, superseded: &CancellationToken) -> T {
        while changed.changed().await.is_ok() {
            if self.is_superseded(to, chosen) {
                superseded.cancel();
                break;
            }
        }
        pending().await
    }

    /// Whether that member is gone, or another one holds the claim. A claim that is free says nothing: its holder may be about to answer.
    fn is_superseded(&self, to: &To<'_>, chosen: &ChosenMember) -> bool {
        let state = self.state.load();
        let Some(index) = chosen.index_in(&state) else { return true };
        let is_elsewhere = |set: &RouteSet| !set.as_slice(&state.table).contains(&index);
        let now = self.clock.now();
        let is_claimed = matches!(to, To::Holder(_)) || matches!(to, To::Owner(_)) && self.is_exclusive();
        is_claimed && self.set_of(&state, to, now, now).as_ref().is_ok_and(is_elsewhere)
    }
}

/// The answer of this member itself, as if it had come over the network.
pub(crate) async fn answer_here(local: &Arc<OwnershipContext>, request: Request, attempt: &Attempt) -> Result<Answer, Undelivered> {
    let turn = RequestHandlers::turn(local, request.to, &request.path, attempt.until).await?;
    attempt.after_sending(RequestHandlers::answer_apart(local, request, attempt.until, turn)).await?
}
