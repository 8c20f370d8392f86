//! The main loop: feed inputs to the engine, carry out its actions, and sleep until something happens.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::{FutureExt as _, StreamExt as _};
use shardwise::discovery::Clock;
use shardwise::{Ownership, Serves, Sharding, SlotSet};
use tokio::sync::watch::Receiver;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::jobs::{JobOutcome, Jobs};
use super::watch;
use super::{Nudge, OutboxPublisher, PublisherStats};
use crate::decide::{Engine, EngineAction, EngineInput, StoreCall, Trouble};
use crate::metrics::PublisherMeters;
use crate::store::{HeadUpdate, Outcome, PublisherRegistration};
use crate::{Delivery, Error, ErrorKind, PublisherOptions, Result, Sink, Store};

pub(super) struct PublisherRunner {
    store: Arc<dyn Store>,
    sink: Arc<dyn Sink>,
    sharding: Arc<dyn Sharding>,
    /// Whether the store has been confirmed to belong to the outbox that the sharding serves.
    is_served: Arc<AtomicBool>,
    me: Arc<PublisherRegistration>,
    options: PublisherOptions,
    clock: Clock,
    stats: PublisherStats,
    nudge: Nudge,
    engine: Engine,
    jobs: Jobs,
    /// The present failures, so that each one is reported once.
    failing: HashMap<StoreCall, String>,
    /// Whether the last attempt to listen for commits failed.
    deaf: bool,
    meters: PublisherMeters,
}

impl PublisherRunner {
    pub(super) fn new(publisher: OutboxPublisher, me: PublisherRegistration) -> Self {
        let OutboxPublisher { store, sink, sharding, options, clock, stats, nudge } = publisher;
        let meters = PublisherMeters::new(sink.name());
        let destinations = Arc::clone(&sink);
        let address = Box::new(move |event: &Delivery| destinations.destination(event).map(Arc::from));
        let engine = Engine::new(options.clone(), sink.limits(), sharding.timing(), me.slots, me.incarnation.get(), address);
        Self {
            store,
            sink,
            sharding,
            is_served: Arc::default(),
            me: Arc::new(me),
            options,
            clock,
            stats,
            nudge,
            engine,
            jobs: Jobs::default(),
            failing: HashMap::new(),
            deaf: false,
            meters,
        }
    }

    /// Reports the backlog until the handle is dropped.
    fn reports_backlog(&self) -> AbortOnDropHandle<()> {
        let store = Arc::clone(&self.store);
        let look = move |most| {
            let store = Arc::clone(&store);
            async move { store.backlog(most).await.map_err(|error| error.to_string()) }.boxed()
        };
        let (sink, poll, ttl) = (self.sink.name().to_owned(), self.options.poll, self.me.ttl);
        AbortOnDropHandle::new(tokio::spawn(async move { watch::report_backlog(look, &sink, poll, ttl).await }))
    }

    pub(super) async fn run(mut self, shutdown: CancellationToken) -> Result<()> {
        let mut changes = self.sharding.ownership_changes();
        let (mut stopping, mut follows) = (false, true);
        let ownership = changes.borrow_and_update().clone();
        self.want(&ownership)?;
        let mut wakes = self.store.wakes().fuse();
        let _reported = self.reports_backlog();
        loop {
            let now = self.clock.now();
            for action in self.engine.next(now) {
                if action == EngineAction::Finish {
                    self.publish(now);
                    return Ok(());
                }
                self.carry_out(action);
            }
            self.publish(now);
            let sleep = self.engine.wake_at(now).since(self.clock.now());
            tokio::select! {
                done = self.jobs.next() => self.done(done)?,
                changed = changes.changed(), if follows => {
                    follows = changed.is_ok();
                    self.follow(&mut changes, follows)?;
                }
                () = shutdown.cancelled(), if !stopping => {
                    stopping = true;
                    let now = self.clock.now();
                    self.engine.on(EngineInput::Stop { by: now.plus(self.options.drain_timeout) }, now);
                }
                Some(woken) = wakes.next() => self.woken(woken),
                () = self.nudge.0.notified() => self.engine.on(EngineInput::Nudged, self.clock.now()),
                () = tokio::time::sleep(sleep) => {}
            }
        }
    }

    /// The store was notified of a commit, or notification failed; in that case the next poll finds the commit.
    fn woken(&mut self, woken: Result<()>) {
        match woken {
            Ok(()) => {
                self.deaf = false;
                self.engine.on(EngineInput::Nudged, self.clock.now());
            }
            Err(error) if !self.deaf => {
                self.deaf = true;
                tracing::warn!(error = %error, "the outbox's store gets no notifications of commits; trying again, and polling meanwhile");
            }
            Err(_) => {}
        }
    }

    /// Handles a new ownership, or the end of the sharding, after which nothing is owned.
    fn follow(&mut self, changes: &mut Receiver<Arc<Ownership>>, there: bool) -> Result<()> {
        if there {
            let ownership = changes.borrow_and_update().clone();
            return self.want(&ownership);
        }
        self.engine.on(EngineInput::Wanted { slots: SlotSet::empty(self.me.slots), until: None }, self.clock.now());
        Ok(())
    }

    /// Passes the ownership to the engine, with its deadline converted from the sharding's clock to this one.
    fn want(&mut self, ownership: &Ownership) -> Result<()> {
        let (now, theirs) = (self.clock.now(), self.sharding.now());
        if ownership.not_owning_at(theirs).is_some() {
            self.engine.on(EngineInput::Wanted { slots: SlotSet::empty(self.me.slots), until: None }, now);
            return Ok(());
        }
        let slots = ownership.slots();
        if slots.slots() != self.me.slots {
            let text = format!(
                "the sharding changed from {} to {} slots while publishing: start the publisher again",
                self.me.slots,
                slots.slots()
            );
            return Err(Error::new(ErrorKind::OtherSlots, text));
        }
        let until = ownership.deadline().map(|deadline| now.plus(deadline.since(theirs)));
        self.engine.on(EngineInput::Wanted { slots: slots.clone(), until }, now);
        Ok(())
    }

    fn carry_out(&mut self, action: EngineAction) {
        let (store, me) = (Arc::clone(&self.store), Arc::clone(&self.me));
        let (started, begun) = (self.clock.now(), Instant::now());
        match action {
            EngineAction::Register => {
                let (serves, is_served) = (self.sharding.serves(), Arc::clone(&self.is_served));
                self.jobs.call(StoreCall::Fence, async move {
                    if let Some(serves) = serves.filter(|_| !is_served.load(Ordering::Relaxed)) {
                        refuse_other_work(&serves, store.id().await?.as_deref())?;
                        is_served.store(true, Ordering::Relaxed);
                    }
                    store.register(&me).await?;
                    Ok(EngineInput::Registered { started })
                });
            }
            EngineAction::Touch => {
                self.jobs.call(StoreCall::Fence, async move { Ok(EngineInput::Touched { started, touch: store.touch(&me).await? }) });
            }
            EngineAction::Take(slots) => {
                self.jobs.call(StoreCall::Fence, async move { Ok(EngineInput::Taken(store.take(&me, &slots).await?)) });
            }
            EngineAction::Release(holds) => self.jobs.call(StoreCall::Fence, async move {
                store.release(&me, &holds).await?;
                Ok(EngineInput::Released)
            }),
            EngineAction::Leave => self.jobs.call(StoreCall::Fence, async move {
                store.leave(&me).await?;
                Ok(EngineInput::Gone)
            }),
            EngineAction::Look => self.jobs.call(StoreCall::Look, async move { Ok(EngineInput::Looked(store.change_mark().await?)) }),
            EngineAction::Place { limit } => {
                self.jobs.call(StoreCall::Place, async move { Ok(EngineInput::Placed(store.place_new(limit).await?)) });
            }
            EngineAction::Fetch(request) => {
                self.jobs.call(StoreCall::Fetch, async move { Ok(EngineInput::Fetched(store.fetch(&me, &request).await?)) });
            }
            EngineAction::Send { id, batch } => {
                self.jobs.send(id, batch, &self.sink, self.options.send_timeout, self.meters.publish.clone());
            }
            EngineAction::Cancel(id) => self.jobs.cancel(id),
            EngineAction::Record(outcomes) => {
                log_outcomes(&outcomes, self.sink.name());
                let delete = self.options.retention.is_zero();
                let took = self.meters.mark.clone();
                self.jobs.call(StoreCall::Record, async move {
                    let fenced = store.record(&me, &outcomes, delete).await?;
                    took.record(begun.elapsed());
                    Ok(EngineInput::Recorded { fenced })
                });
            }
            EngineAction::Sweep { retention, position, limit } => {
                self.jobs.call(StoreCall::Sweep, async move { Ok(EngineInput::Swept(store.sweep(retention, position, limit).await?)) });
            }
            EngineAction::Clean { parked_retention, limit } => {
                self.jobs.call(StoreCall::Clean, async move {
                    Ok(EngineInput::Cleaned { more: clean(&*store, parked_retention, limit).await? })
                });
            }
            EngineAction::Finish => {}
        }
    }

    fn done(&mut self, done: JobOutcome) -> Result<()> {
        let now = self.clock.now();
        match done {
            JobOutcome::Input(input) => {
                self.note_answer(&input);
                self.engine.on(input, now);
            }
            JobOutcome::Failed(call, error) => {
                // Events do not depend on the cleaning: a missing right that only the cleaning needs ends no publisher.
                if is_for_the_operator(error.kind()) && call != StoreCall::Clean {
                    return Err(error);
                }
                let text = error.to_string();
                if self.failing.get(&call) != Some(&text) {
                    tracing::warn!(call = ?call, error = %text, "the outbox's store fails; trying again");
                    self.stats.note_error(Some((Trouble::Store, text.clone())));
                    self.failing.insert(call, text);
                }
                self.engine.on(EngineInput::Failed(call), now);
            }
        }
        Ok(())
    }

    /// Clears a failure once the same call succeeds again.
    fn note_answer(&mut self, input: &EngineInput) {
        let call = match input {
            EngineInput::Looked(_) => StoreCall::Look,
            EngineInput::Placed(_) => StoreCall::Place,
            EngineInput::Fetched(_) => StoreCall::Fetch,
            EngineInput::Recorded { .. } => StoreCall::Record,
            EngineInput::Swept(_) => StoreCall::Sweep,
            EngineInput::Cleaned { .. } => StoreCall::Clean,
            EngineInput::Sent { accepted, .. } => {
                for refusal in accepted.refusals() {
                    tracing::debug!(sink = self.sink.name(), error = %refusal, permanent = refusal.permanent, "an event was refused");
                }
                if let Some(refusal) = accepted.refusals().last() {
                    let trouble = if refusal.permanent { Trouble::Event } else { Trouble::Destination };
                    self.stats.note_error(Some((trouble, refusal.message.clone())));
                } else if self.failing.is_empty() {
                    self.stats.note_error(None);
                }
                return;
            }
            _ => StoreCall::Fence,
        };
        if self.failing.remove(&call).is_some() {
            tracing::info!(call = ?call, "the outbox's store works again");
            self.stats.note_error(self.failing.values().next().map(|text| (Trouble::Store, text.clone())));
        }
    }

    fn publish(&mut self, now: shardwise::Moment) {
        let counters = self.engine.counters(now);
        for (to, down) in self.engine.destination_news() {
            let (sink, destination) = (self.sink.name(), to.as_deref().unwrap_or("all of it"));
            if down {
                tracing::warn!(sink, destination, "the destination refuses everything; trying single events until it accepts one");
            } else {
                tracing::info!(sink, destination, "the destination answers again");
            }
        }
        self.meters.count(&counters);
        self.stats.publish(counters);
    }
}

/// Refuses a group that works for another outbox: the publisher would own slots that it never publishes, and would leave part of its
/// outbox unpublished.
fn refuse_other_work(serves: &Serves, id: Option<&str>) -> Result<()> {
    match (serves, id) {
        (Serves::Outbox { id, .. }, Some(stored)) if id == stored => Ok(()),
        _ => {
            let id = id.map_or_else(|| "no id".to_owned(), |id| format!("the id {id:?}"));
            let text = format!(
                "the sharding given to this publisher serves {serves}, and the outbox's store has {id}: make it with \
                 factory.create_serving(policy, shardwise_outbox::serves(&store, name).await?)"
            );
            Err(Error::new(ErrorKind::Settings, text))
        }
    }
}

/// Whether the failure needs an operator, because a retry cannot help.
fn is_for_the_operator(kind: ErrorKind) -> bool {
    !matches!(kind, ErrorKind::Unavailable | ErrorKind::Internal | ErrorKind::Event)
}

/// Returns whether there is more.
async fn clean(store: &dyn Store, parked_retention: Duration, limit: usize) -> Result<bool> {
    let cleaned = store.clean(parked_retention, limit).await?;
    if cleaned.expired > 0 {
        tracing::warn!(
            events = cleaned.expired,
            "events that were set aside for longer than parked_retention are deleted; see `shardwise outbox audit`"
        );
    }
    Ok(cleaned.more)
}

/// Logs the outcomes that an operator should know of.
fn log_outcomes(outcomes: &[Outcome], sink: &str) {
    for outcome in outcomes {
        match &outcome.then {
            HeadUpdate::Block { sequence, attempts, error } => {
                tracing::warn!(
                    sink,
                    aggregate = outcome.aggregate,
                    sequence,
                    attempts,
                    error,
                    "an event is refused for good: its aggregate is blocked"
                );
            }
            HeadUpdate::Park { sequence, error } => {
                tracing::warn!(sink, aggregate = outcome.aggregate, sequence, error, "an event is refused for good: set aside");
            }
            HeadUpdate::Discard { sequence, error } => {
                tracing::warn!(sink, aggregate = outcome.aggregate, sequence, error, "an event is refused for good: discarded");
            }
            HeadUpdate::Next | HeadUpdate::Retry { .. } => {}
        }
    }
}
