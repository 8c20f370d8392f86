//! The main loop: feed inputs to the engine, carry out its actions, and sleep until something happens.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use futures::{FutureExt as _, StreamExt as _};
use shardwise::discovery::LogThrottle;
use shardwise::{Ownership, Serves, SlotSet};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::jobs::{JobOutcome, Jobs};
use super::{OutboxPublisher, watch};
use crate::decide::{Engine, EngineAction, EngineInput, Report, StoreCall, Trouble};
use crate::metrics::PublisherMeters;
use crate::sink::Acceptance;
use crate::store::{ERROR_CHARS_MAX, PublisherRegistration};
use crate::{Delivery, Error, ErrorKind, Poison, Result, one_line};

pub(super) struct PublisherRunner {
    publisher: OutboxPublisher,
    /// Whether the store has been confirmed to belong to the outbox that the sharding serves.
    is_served: Arc<AtomicBool>,
    me: Arc<PublisherRegistration>,
    engine: Engine,
    jobs: Jobs,
    /// The present failures, so that each one is reported once.
    failing: HashMap<StoreCall, String>,
    /// Whether the last attempt to listen for commits failed.
    notifications_lost: bool,
    /// Limits the log of refusals that may pass.
    refusals: LogThrottle<()>,
    meters: PublisherMeters,
}

impl PublisherRunner {
    pub(super) fn new(publisher: OutboxPublisher, me: PublisherRegistration) -> Self {
        let sink = Arc::clone(&publisher.sink);
        let meters = PublisherMeters::new(sink.name());
        let (options, timing, limits) = (publisher.options.clone(), publisher.sharding.timing(), sink.limits());
        let address = Box::new(move |event: &Delivery| sink.destination(event).map(Arc::from));
        let engine = Engine::new(options, limits, timing, me.slots, me.incarnation.get(), address);
        Self {
            publisher,
            is_served: Arc::default(),
            me: Arc::new(me),
            engine,
            jobs: Jobs::default(),
            failing: HashMap::new(),
            notifications_lost: false,
            refusals: LogThrottle::default(),
            meters,
        }
    }

    /// Reports the backlog until the handle is dropped.
    fn reports_backlog(&self) -> AbortOnDropHandle<()> {
        let store = Arc::clone(&self.publisher.store);
        let count_backlog = move |most| {
            let store = Arc::clone(&store);
            async move { store.backlog(most).await.map_err(|error| error.to_string()) }.boxed()
        };
        let (sink, poll, ttl) = (self.publisher.sink.name().to_owned(), self.publisher.options.poll, self.me.ttl);
        AbortOnDropHandle::new(tokio::spawn(async move { watch::report_backlog(count_backlog, &sink, poll, ttl).await }))
    }

    pub(super) async fn run(mut self, shutdown: CancellationToken) -> Result<()> {
        let ended = self.turns(shutdown).await;
        if let Some(report) = self.engine.last_report() {
            log(&report, self.publisher.sink.name());
        }
        ended
    }

    async fn turns(&mut self, shutdown: CancellationToken) -> Result<()> {
        let mut changes = self.publisher.sharding.ownership_changes();
        let (mut stopping, mut follows) = (false, true);
        let ownership = changes.borrow_and_update().clone();
        self.want(Some(&ownership))?;
        let mut wakes = self.publisher.store.wakes().fuse();
        let _reported = self.reports_backlog();
        loop {
            let now = self.publisher.clock.now();
            for action in self.engine.next(now) {
                if action == EngineAction::Finish {
                    self.publish(now);
                    return Ok(());
                }
                self.carry_out(action);
            }
            self.publish(now);
            let sleep = self.engine.wake_at(now).since(self.publisher.clock.now());
            tokio::select! {
                done = self.jobs.next() => self.done(done)?,
                changed = changes.changed(), if follows => {
                    follows = changed.is_ok();
                    let ownership = follows.then(|| changes.borrow_and_update().clone());
                    self.want(ownership.as_deref())?;
                }
                () = shutdown.cancelled(), if !stopping => {
                    stopping = true;
                    let now = self.publisher.clock.now();
                    self.engine.on(EngineInput::Stop { by: now.plus(self.publisher.options.drain_timeout) }, now);
                }
                Some(woken) = wakes.next() => self.woken(woken),
                () = self.publisher.nudge.0.notified() => self.engine.on(EngineInput::ReadSoon, self.publisher.clock.now()),
                () = tokio::time::sleep(sleep) => {}
            }
        }
    }

    /// The store was notified of a commit, or notification failed; in that case the next poll finds the commit.
    fn woken(&mut self, woken: Result<()>) {
        let now = self.publisher.clock.now();
        match woken {
            Ok(()) => {
                self.notifications_lost = false;
                self.engine.on(EngineInput::Woken, now);
            }
            Err(error) => {
                if !self.notifications_lost {
                    self.notifications_lost = true;
                    tracing::warn!(error = %error, "the outbox's store gets no notifications of commits; trying again, and polling meanwhile");
                }
                self.engine.on(EngineInput::NotificationsLost, now);
            }
        }
    }

    /// Passes the ownership to the engine, with its deadline converted from the sharding's clock to this one. After the end of the
    /// sharding (`None`) nothing is owned.
    fn want(&mut self, ownership: Option<&Ownership>) -> Result<()> {
        let (now, theirs) = (self.publisher.clock.now(), self.publisher.sharding.now());
        let Some(ownership) = ownership.filter(|ownership| ownership.not_owning_at(theirs).is_none()) else {
            self.engine.on(EngineInput::Wanted { slots: SlotSet::empty(self.me.slots), until: None }, now);
            return Ok(());
        };
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
        let (store, me) = (Arc::clone(&self.publisher.store), Arc::clone(&self.me));
        let (started, begun) = (self.publisher.clock.now(), Instant::now());
        match action {
            EngineAction::Register => {
                let (serves, is_served) = (self.publisher.sharding.serves(), Arc::clone(&self.is_served));
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
            EngineAction::ReadMark => {
                self.jobs.call(StoreCall::ReadMark, async move { Ok(EngineInput::MarkRead(store.change_mark().await?)) });
            }
            EngineAction::Place { limit } => {
                self.jobs.call(StoreCall::Place, async move { Ok(EngineInput::Placed(store.place_new(limit).await?)) });
            }
            EngineAction::Fetch(request) => {
                self.jobs.call(StoreCall::Fetch, async move { Ok(EngineInput::Fetched(store.fetch(&me, &request).await?)) });
            }
            EngineAction::Send { id, batch } => {
                self.jobs.send(id, batch, &self.publisher.sink, self.publisher.options.send_timeout, self.meters.publish.clone());
            }
            EngineAction::Cancel(id) => self.jobs.cancel(id),
            EngineAction::Record(outcomes) => {
                let delete = self.publisher.options.retention.is_zero();
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
                    let cleaned = store.clean(parked_retention, limit).await?;
                    if cleaned.expired > 0 {
                        tracing::warn!(
                            events = cleaned.expired,
                            "events that were set aside for longer than parked_retention are deleted; see `shardwise outbox audit`"
                        );
                    }
                    Ok(EngineInput::Cleaned { more: cleaned.more })
                });
            }
            EngineAction::FallAsleep => {
                self.jobs.call(StoreCall::Sleep, async move { Ok(EngineInput::FellAsleep(store.fall_asleep().await?)) });
            }
            EngineAction::AskEnded(ticket) => {
                self.jobs.call(StoreCall::Sleep, async move { Ok(EngineInput::Ended(store.all_ended(ticket).await?)) });
            }
            EngineAction::Withdraw(ticket) => self.jobs.call(StoreCall::Sleep, async move {
                store.withdraw(ticket).await?;
                Ok(EngineInput::Withdrawn)
            }),
            EngineAction::Finish => {}
        }
    }

    fn done(&mut self, done: JobOutcome) -> Result<()> {
        let input = match done {
            JobOutcome::Sent { id, accepted, unknown_end } => {
                self.note_answer(&accepted);
                EngineInput::Sent { id, accepted, unknown_end }
            }
            JobOutcome::Called(call, Ok(input)) => {
                if self.failing.remove(&call).is_some() {
                    tracing::info!(call = ?call, "the outbox's store works again");
                    let other = self.failing.values().next().map(|text| (Trouble::Store, text.clone()));
                    self.publisher.stats.note_error(other);
                }
                input
            }
            // Events do not depend on the cleaning and the sleep: a missing right that only these need ends no publisher.
            JobOutcome::Called(call, Err(error))
                if is_for_the_operator(error.kind()) && !matches!(call, StoreCall::Clean | StoreCall::Sleep) =>
            {
                return Err(error);
            }
            JobOutcome::Called(call, Err(error)) => {
                let text = error.to_string();
                if self.failing.get(&call) != Some(&text) {
                    if call == StoreCall::Sleep {
                        tracing::warn!(error = %text, "the publisher cannot announce that it sleeps; it polls, and tries again every 10 s");
                    } else {
                        tracing::warn!(call = ?call, error = %text, "the outbox's store fails; trying again");
                    }
                    self.publisher.stats.note_error(Some((Trouble::Store, text.clone())));
                    self.failing.insert(call, text);
                }
                EngineInput::Failed(call)
            }
        };
        self.engine.on(input, self.publisher.clock.now());
        Ok(())
    }

    fn note_answer(&self, accepted: &Acceptance) {
        for refusal in accepted.refusals() {
            let sink = self.publisher.sink.name();
            tracing::debug!(sink, error = %refusal, permanent = refusal.permanent, "an event was refused");
            // One that is refused for good has a separate line.
            let count = if refusal.permanent { None } else { self.refusals.another(()) };
            if let Some(count) = count {
                let error = one_line(&refusal.message, ERROR_CHARS_MAX);
                tracing::warn!(sink, error, count, "an event was refused and is tried again; one line a minute at most");
            }
        }
        if let Some(refusal) = accepted.refusals().last() {
            let trouble = if refusal.permanent { Trouble::Event } else { Trouble::Destination };
            self.publisher.stats.note_error(Some((trouble, refusal.message.clone())));
        } else if self.failing.is_empty() {
            self.publisher.stats.note_error(None);
        }
    }

    fn publish(&mut self, now: shardwise::Moment) {
        let counters = self.engine.counters(now);
        for report in self.engine.reports(now) {
            log(&report, self.publisher.sink.name());
        }
        self.meters.count(&counters);
        self.publisher.stats.publish(&counters);
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

/// Logs a report. The end of an outage is a warning too, because by default the command shows nothing below that level.
fn log(report: &Report, sink: &str) {
    match report {
        Report::Refusing { to, error } => {
            let (destination, error) = (to.as_deref(), one_line(error, ERROR_CHARS_MAX));
            tracing::warn!(
                sink,
                destination,
                error,
                "the destination refuses every event; they wait in the outbox and are tried again until it accepts one"
            );
        }
        Report::Answering { to } => {
            tracing::warn!(sink, destination = to.as_deref(), "the destination answers again, and waiting events are sent");
        }
        Report::Slow { to } => tracing::warn!(
            sink,
            destination = to.as_deref(),
            "the destination is slow; most of its events wait in the outbox, so that those for other destinations are sent"
        ),
        Report::InTime { to } => {
            tracing::warn!(sink, destination = to.as_deref(), "the destination has not been slow for a minute");
        }
        Report::MoreRefusing(destinations) => tracing::warn!(sink, "{destinations} more destinations refuse every event"),
        Report::MoreGivenUp(events) => tracing::warn!(sink, "{events} more events were refused for good"),
        Report::GivenUp(event) => {
            let fate = match event.fate {
                Poison::Block => "its aggregate is blocked; see `shardwise outbox list`",
                Poison::Park => "it is set aside; see `shardwise outbox list`",
                Poison::Discard => "it is discarded; see `shardwise outbox audit`",
            };
            tracing::warn!(
                sink,
                key = event.key,
                event = event.id,
                sequence = event.sequence,
                attempts = event.attempts,
                error = one_line(&event.error, ERROR_CHARS_MAX),
                "an event is refused for good: {fate}"
            );
        }
    }
}
