//! Joining the group and leaving it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use shardwise_core::{Cause, Ownership, Rebalance, ServiceState};
use tracing::{Instrument, Span, field};

use super::ShardingService;
use super::engine::{ServiceEngine, stopped};
use crate::error::{Error, ErrorKind, Result, inside_runtime};
use crate::membership::DriverCommand;
use crate::telemetry::trace;

/// How long to wait for a backend that has not answered at all, whatever the TTL. Giving up takes half a second more, and a mistake in
/// the settings should show within ten.
const SILENCE_MAX: Duration = Duration::from_secs(7);

impl ShardingService {
    /// Joins the group and waits until this worker is an active member, up to one TTL longer if an earlier process with the same id died
    /// without leaving. Does nothing if it is one already.
    ///
    /// It stays a member until [`ShardingService::deregister_self`]: it registers again by itself after it has lost its lease, and keeps
    /// retrying, slowly, if it is then refused ([`ServiceState::Refused`]).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InstanceIdInUse`] if a living member has this id, [`ErrorKind::OtherPolicy`] if the group agrees on other constants
    /// or serves something else, [`ErrorKind::Backend`] for wrong credentials or settings, and, retryable, [`ErrorKind::Unavailable`] if
    /// the backend does not accept it within the TTL and 5 s, or does not answer at all for 7 s; [`ErrorKind::NoRuntime`] outside a tokio
    /// runtime. After an error this worker is not a member; call again to retry. Dropping the future does not cancel the join.
    pub async fn register_self(&self) -> Result<()> {
        inside_runtime()?;
        let span = tracing::info_span!(
            "join",
            "shardwise.policy" = %self.membership().policy.name,
            "shardwise.instance" = %self.membership().instance_id,
            otel.status_code = field::Empty,
            "error.type" = field::Empty
        );
        let joined = self.join(&span).instrument(span.clone()).await;
        if joined.is_err() {
            trace::failed(&span, "not_joined");
        }
        joined
    }

    async fn join(&self, span: &Span) -> Result<()> {
        let Some(engine) = &self.handle.engine else {
            self.begin_alone();
            return Ok(());
        };
        self.hear_operators(engine).await?;
        let commands = engine.ask(DriverCommand::Join(span.clone())).await?;
        let mut blinded = self.membership().blinded.subscribe();
        let decision = tokio::select! {
            decision = self.decision(engine.join_limit) => decision,
            // Without a view it can never own anything, and only a change of settings or rights would help.
            Ok(why) = async { blinded.wait_for(Option::is_some).await.map(|why| why.as_deref().unwrap_or_default().to_owned()) } => {
                Err(Error::new(ErrorKind::Backend, why))
            }
            () = commands.closed() => return Err(stopped()),
        };
        let error = match decision {
            Ok(ownership) => match (ownership.state(), ownership.refusal()) {
                (ServiceState::Active | ServiceState::Stale, _) => return Ok(()),
                (ServiceState::Refused, Some(refusal)) => Error::from(refusal),
                (state, _) => Error::new(ErrorKind::Closed, format!("the worker did not become active but {state}")),
            },
            Err(error) => error,
        };
        self.deregister_self().await?;
        Err(error)
    }

    /// Reads, at each join, whether an operator has drained this member, and follows that from the first join on.
    async fn hear_operators(&self, engine: &ServiceEngine) -> Result<()> {
        let Some(follower) = &engine.follower else { return Ok(()) };
        if let Some(wanted) = follower.wanted_at_start().await {
            engine.ask(DriverCommand::Drain(wanted)).await?;
        }
        if !engine.follows.swap(true, Ordering::Relaxed) {
            let (commands, membership) = (engine.commands().downgrade(), self.membership());
            tokio::spawn(follower.clone().follow(commands, membership.changes(), membership.noted.subscribe()));
        }
        Ok(())
    }

    /// The snapshot that ends joining, or the reason why there is none in time.
    async fn decision(&self, join_limit: Duration) -> Result<Arc<Ownership>> {
        let mut changes = self.membership().changes();
        let mut decided = pin!(async {
            let decided = changes.wait_for(|ownership| !matches!(ownership.state(), ServiceState::Joining | ServiceState::Fenced));
            decided.await.map(|ownership| Arc::clone(&ownership))
        });
        let begun = tokio::time::Instant::now();
        let mut limit = join_limit.min(SILENCE_MAX);
        loop {
            match tokio::time::timeout_at(begun + limit, &mut decided).await {
                Ok(ownership) => return ownership.map_err(|_| stopped()),
                Err(_) if limit < join_limit && self.membership().answered.load(Ordering::Relaxed) => {
                    limit = join_limit;
                }
                Err(_) => break,
            }
        }
        let failure = self.membership().failure.load_full();
        let why = failure.as_deref().map_or("the backend has not accepted this member yet", String::as_str);
        Err(Error::new(ErrorKind::Unavailable, format!("not a member after {limit:?}: {why}; fix the cause or retry")))
    }

    /// Leaves the group: takes no new work and no new requests, waits for work and requests in flight up to the policy's `drain_timeout`,
    /// deregisters, and ends the connections of other members, for which it waits a second at most. So a process that exits after this has
    /// cut no answer. Does nothing if it has left already.
    ///
    /// A handler of requests that awaits this waits for itself, up to `drain_timeout`: start a task there instead.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Closed`] if the runtime that ran the service is gone, [`ErrorKind::NoRuntime`] outside a tokio runtime.
    pub async fn deregister_self(&self) -> Result<()> {
        self.leave(DriverCommand::Leave).await
    }

    /// Like [`ShardingService::deregister_self`], without keeping a place for this worker, whatever `rejoin_grace` says: the others take
    /// over at once. A worker that has left already and whose place is kept releases it. For a worker that will not return; for one that
    /// is gone see [`crate::ShardingFactory::end_absence`].
    pub async fn deregister_self_for_good(&self) -> Result<()> {
        self.leave(DriverCommand::LeaveForGood).await
    }

    async fn leave(&self, command: impl FnOnce(Span) -> DriverCommand) -> Result<()> {
        inside_runtime()?;
        let Some(engine) = self.handle.engine.as_ref().filter(|engine| engine.is_running()) else {
            self.end_alone().await;
            return Ok(());
        };
        let span = tracing::info_span!(
            "leave",
            "shardwise.policy" = %self.membership().policy.name,
            "shardwise.instance" = %self.membership().instance_id
        );
        // The incarnation changes if another task joins meanwhile.
        #[cfg(feature = "requests")]
        let incarnation = self.membership().life.incarnation();
        let commands = engine.ask(command(span.clone())).await?;
        let mut changes = self.membership().changes();
        let left = tokio::select! {
            biased;
            left = changes.wait_for(|ownership| ownership.state() == ServiceState::Left) => left.map(drop).map_err(|_| stopped()),
            () = commands.closed() => Err(stopped()),
        };
        left?;
        // Last, when the others have seen it leave: a request that crosses the end of its connection has an unknown outcome.
        #[cfg(feature = "requests")]
        self.membership().incoming.end(incarnation).await;
        Ok(())
    }
}

impl ShardingService {
    /// Takes everything from its work and waits until that has ended, up to `drain_timeout`. A frozen service stays unchanged.
    pub(super) async fn end_alone(&self) {
        let membership = self.membership();
        let before = membership.ownership();
        if before.state() == ServiceState::Unsharded {
            membership.in_flight.close();
            self.publish_alone(&before, before.left(membership.clock.now()), Cause::Draining);
        }
        if membership.ownership().state() == ServiceState::Left && self.handle.engine.is_none() {
            let ended = tokio::time::timeout(membership.policy.drain_timeout, membership.in_flight.wait()).await;
            if ended.is_err() {
                tracing::warn!(policy = %membership.policy.name, running = membership.in_flight.len(), "work did not end within drain_timeout");
            }
        }
    }

    /// Owns everything again, if it has left.
    pub(super) fn begin_alone(&self) {
        let membership = self.membership();
        let before = membership.ownership();
        if before.state() == ServiceState::Left {
            membership.in_flight.reopen();
            let again = Ownership::unsharded(&membership.policy.placement, Arc::clone(before.view()), membership.clock.now());
            self.publish_alone(&before, again, Cause::Joined);
        }
    }

    fn publish_alone(&self, before: &Ownership, after: Ownership, cause: Cause) {
        let rebalance = Rebalance::between(before, &after, cause, self.now());
        self.membership().publish(Arc::new(after));
        if let Some(rebalance) = rebalance {
            self.membership().rebalanced(&rebalance);
        }
    }
}
