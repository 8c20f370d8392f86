//! One request, until it is answered or until its deadline.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use shardwise_core::routing::{Ask, AskError, AskStep, Choice, NoRoute, WITHIN_MIN};
use shardwise_core::{InstanceId, Moment};
use tokio::time::{Instant, sleep};

use super::attempt::ChosenMember;
use super::{Among, Routing, To};
use crate::error::inside_runtime;
use crate::requests::{Answer, Request};

/// The most bytes of bodies that [`crate::ShardingService::ask_all`] has in flight, if a body is shorter than that.
const BODIES_IN_FLIGHT_MAX: usize = 64 << 20;

/// The answer to a request, and the member that gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answered {
    /// The answer, whatever its status.
    pub answer: Answer,
    /// The member.
    pub by: InstanceId,
}

/// What to do next with a request.
enum NextStep {
    Send(ChosenMember, Duration),
    Wait(Duration),
    GiveUp(AskError),
}

/// Counts a request while it waits, and what it has come to; one that is dropped before counts as dropped.
struct CountedAsk<'a> {
    routing: &'a Routing,
    kind: &'static str,
    outcome: &'static str,
}

impl<'a> CountedAsk<'a> {
    fn begin(routing: &'a Routing, to: &To<'_>) -> Self {
        Self { routing, kind: to.kind(), outcome: "dropped" }
    }
}

impl Drop for CountedAsk<'_> {
    fn drop(&mut self) {
        self.routing.show_waiting();
        self.routing.meters.ended(self.kind, self.outcome);
    }
}

impl Routing {
    fn show_waiting(&self) {
        self.meters.waiting(self.waiting_max.saturating_sub(self.waiting.available_permits()));
    }

    pub(crate) async fn ask(self: &Arc<Self>, to: &To<'_>, request: Request, within: Duration) -> Result<Answered, AskError> {
        let mut counted = CountedAsk::begin(self, to);
        let answered = self.asked(to, request, within).await;
        counted.outcome = answered.as_ref().map_or_else(AskError::outcome, |_| "answered");
        answered
    }

    async fn asked(self: &Arc<Self>, to: &To<'_>, request: Request, within: Duration) -> Result<Answered, AskError> {
        inside_runtime().map_err(|error| AskError::Invalid(error.to_string()))?;
        let came = self.clock.now();
        let request = to.address(request)?;
        let mut ask = Ask::new(came, within, request.is_repeatable())?;
        let Ok(_place) = self.waiting.try_acquire() else { return Err(AskError::Busy { within: Duration::ZERO }) };
        self.show_waiting();
        self.is_following();
        let mut changed = self.changed.subscribe();
        loop {
            // Any change from here on counts.
            changed.mark_unchanged();
            match self.next_step(&mut ask, to, came) {
                NextStep::Send(chosen, within) => match self.attempt(to, &chosen, &request, Instant::now() + within, &mut changed).await {
                    Ok(answer) => return Ok(Answered { answer, by: chosen.instance_id }),
                    Err(undelivered) => ask.on_undelivered(self.clock.now(), undelivered),
                },
                NextStep::Wait(pause) => {
                    tokio::select! {
                        _ = changed.changed() => {}
                        () = sleep(pause) => {}
                    }
                }
                NextStep::GiveUp(error) => return Err(error),
            }
        }
    }

    fn next_step(&self, ask: &mut Ask, to: &To<'_>, came: Moment) -> NextStep {
        let (now, state) = (self.clock.now(), self.state.load_full());
        let set = self.set_of(&state, to, came, now);
        let choice = set.as_ref().map_err(|no_route| *no_route).map(|set| Choice {
            table: &state.table,
            set: set.as_slice(&state.table),
            pick: self.pick(),
            key: to.key(),
            random: rand::random(),
        });
        match (ask.next(now, choice), &set) {
            (AskStep::Send { index, within }, Ok(set)) => match ChosenMember::of(&state, set, index) {
                Some(chosen) => NextStep::Send(chosen, within),
                None => NextStep::GiveUp(NoRoute::Unserved.into()),
            },
            // Nothing is sent without a set.
            (AskStep::Send { .. }, Err(no_route)) => NextStep::GiveUp((*no_route).into()),
            (AskStep::Wait { until }, _) => NextStep::Wait(until.since(now)),
            (AskStep::GiveUp(error), _) => NextStep::GiveUp(error),
        }
    }

    pub(crate) async fn tell(self: &Arc<Self>, to: &To<'_>, mut request: Request, within: Duration) -> Result<(), AskError> {
        request.tell = true;
        let Answered { answer, by } = self.ask(to, request, within).await?;
        match answer.status {
            200..=299 => Ok(()),
            // Of a worker beside a sidecar, which may have begun with it.
            status => Err(AskError::Unknown(format!("{by} answers with status {status}: {}", text(&answer)))),
        }
    }

    pub(crate) async fn ask_all(
        self: &Arc<Self>,
        among: Among<'_>,
        request: &Request,
        within: Duration,
    ) -> Result<BTreeMap<InstanceId, Result<Answered, AskError>>, AskError> {
        // Each one is checked again, but a request that no member gets is refused here.
        To::Any(among).address(request.clone())?;
        // Members that do not answer hold their places until the deadline, so there should be one for each; other requests need some too.
        let at_once = (self.waiting_max / 2).min(BODIES_IN_FLIGHT_MAX / request.body.len().max(1)).max(1);
        let begun = self.clock.now();
        Ask::new(begun, within, request.is_repeatable())?;
        let outcomes: Vec<_> = self.members_of(among)?.into_iter().map(|id| self.ask_one(id, request, begun, within)).collect();
        Ok(stream::iter(outcomes).buffer_unordered(at_once).collect().await)
    }

    /// The outcome of one member; `within` is that of all of them, since `begun`.
    async fn ask_one(
        self: &Arc<Self>,
        id: InstanceId,
        request: &Request,
        begun: Moment,
        within: Duration,
    ) -> (InstanceId, Result<Answered, AskError>) {
        let left = within.saturating_sub(self.clock.now().since(begun));
        let outcome = if left < WITHIN_MIN {
            Err(AskError::TooLate { within, why: "others were asked before".to_owned() })
        } else {
            self.ask(&To::Member(&id), request.clone(), left).await
        };
        (id, outcome)
    }

    fn members_of(self: &Arc<Self>, among: Among<'_>) -> Result<Vec<InstanceId>, NoRoute> {
        if !self.is_following() {
            return Err(NoRoute::NoView);
        }
        let (now, state) = (self.clock.now(), self.state.load_full());
        let set = self.set_of(&state, &To::Any(among), now, now)?;
        let members = set.as_slice(&state.table).iter().filter_map(|index| state.table.member(*index));
        Ok(members.map(|member| member.instance_id.clone()).collect())
    }
}

/// An answer as text for an error.
fn text(answer: &Answer) -> String {
    shardwise_core::one_line(&String::from_utf8_lossy(&answer.body), 200)
}
