//! The loop: tell the engine what happened, do what it asks for, sleep until something happens.

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

use super::jobs::{Done, Jobs};
use super::watch;
use super::{Nudge, OutboxPublisher, PublisherStats, Trouble};
use crate::decide::{Action, Address, Call, Engine, Input};
use crate::metrics::Meters;
use crate::store::{Outcome, Registration, Then};
use crate::{Error, ErrorKind, PublisherOptions, Result, Sink, Store};

pub(super) struct Runner {
    store: Arc<dyn Store>,
    sink: Arc<dyn Sink>,
    sharding: Arc<dyn Sharding>,
    /// Whether the store has been seen to be that of the outbox which the sharding serves.
    is_served: Arc<AtomicBool>,
    me: Arc<Registration>,
    options: PublisherOptions,
    clock: Clock,
    stats: PublisherStats,
    nudge: Nudge,
    engine: Engine,
    jobs: Jobs,
    /// What fails at present, so that each failure is told once.
    failing: HashMap<Call, String>,
    /// Whether the store could not be told of commits last time.
    deaf: bool,
    meters: Meters,
}

impl Runner {
    pub(super) fn new(publisher: OutboxPublisher, me: Registration) -> Self {
        let OutboxPublisher { store, sink, sharding, options, clock, stats, nudge } = publisher;
        let meters = Meters::new(sink.name());
        let address = {
            let sink = Arc::clone(&sink);
            Address::new(move |event| sink.destination(event).map(Arc::from))
        };
        let engine = Engine::new(options.clone(), sink.limits(), sharding.timing(), me.slots, me.incarnation.get()).addressed(address);
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

    /// Until the handle is dropped.
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
                if action == Action::Finish {
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
                    self.engine.on(Input::Stop { by: now.plus(self.options.drain_timeout) }, now);
                }
                Some(woken) = wakes.next() => self.woken(woken),
                () = self.nudge.0.notified() => self.engine.on(Input::Nudged, self.clock.now()),
                () = tokio::time::sleep(sleep) => {}
            }
        }
    }

    /// The store was told of a commit; or cannot be told, and then there is the next poll.
    fn woken(&mut self, woken: Result<()>) {
        match woken {
            Ok(()) => {
                self.deaf = false;
                self.engine.on(Input::Nudged, self.clock.now());
            }
            Err(error) if !self.deaf => {
                self.deaf = true;
                tracing::warn!(error = %error, "the outbox's store is not told of commits; trying again, and polling meanwhile");
            }
            Err(_) => {}
        }
    }

    /// The sharding has something new, or is gone: then nothing is owned.
    fn follow(&mut self, changes: &mut Receiver<Arc<Ownership>>, there: bool) -> Result<()> {
        if there {
            let ownership = changes.borrow_and_update().clone();
            return self.want(&ownership);
        }
        self.engine.on(Input::Wanted { slots: SlotSet::empty(self.me.slots), until: None }, self.clock.now());
        Ok(())
    }

    /// Hands the ownership on, its deadline moved from the sharding's clock to this one.
    fn want(&mut self, ownership: &Ownership) -> Result<()> {
        let (now, theirs) = (self.clock.now(), self.sharding.now());
        if ownership.not_owning_at(theirs).is_some() {
            self.engine.on(Input::Wanted { slots: SlotSet::empty(self.me.slots), until: None }, now);
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
        self.engine.on(Input::Wanted { slots: slots.clone(), until }, now);
        Ok(())
    }

    fn carry_out(&mut self, action: Action) {
        let (store, me) = (Arc::clone(&self.store), Arc::clone(&self.me));
        let (started, begun) = (self.clock.now(), Instant::now());
        match action {
            Action::Register => {
                let (serves, is_served) = (self.sharding.serves(), Arc::clone(&self.is_served));
                self.jobs.call(Call::Fence, async move {
                    if let Some(serves) = serves.filter(|_| !is_served.load(Ordering::Relaxed)) {
                        refuse_other_work(&serves, store.id().await?.as_deref())?;
                        is_served.store(true, Ordering::Relaxed);
                    }
                    store.register(&me).await?;
                    Ok(Input::Registered { started })
                });
            }
            Action::Touch => {
                self.jobs.call(Call::Fence, async move { Ok(Input::Touched { started, touch: store.touch(&me).await? }) });
            }
            Action::Take(slots) => self.jobs.call(Call::Fence, async move { Ok(Input::Taken(store.take(&me, &slots).await?)) }),
            Action::Release(holds) => self.jobs.call(Call::Fence, async move {
                store.release(&me, &holds).await?;
                Ok(Input::Released)
            }),
            Action::Leave => self.jobs.call(Call::Fence, async move {
                store.leave(&me).await?;
                Ok(Input::Gone)
            }),
            Action::Look => self.jobs.call(Call::Look, async move { Ok(Input::Looked(store.change_mark().await?)) }),
            Action::Place { limit } => self.jobs.call(Call::Place, async move { Ok(Input::Placed(store.place_new(limit).await?)) }),
            Action::Fetch(request) => {
                self.jobs.call(Call::Fetch, async move { Ok(Input::Fetched(store.fetch(&me, &request).await?)) });
            }
            Action::Send { id, batch } => self.jobs.send(id, batch, &self.sink, self.options.send_timeout, self.meters.publish_histogram()),
            Action::Cancel(id) => self.jobs.cancel(id),
            Action::Record(outcomes) => {
                tell(&outcomes, self.sink.name());
                let delete = self.options.retention.is_zero();
                let took = self.meters.mark_histogram();
                self.jobs.call(Call::Record, async move {
                    let fenced = store.record(&me, &outcomes, delete).await?;
                    took.record(begun.elapsed());
                    Ok(Input::Recorded { fenced })
                });
            }
            Action::Sweep { retention, position, limit } => {
                self.jobs.call(Call::Sweep, async move { Ok(Input::Swept(store.sweep(retention, position, limit).await?)) });
            }
            Action::Clean { parked_retention, limit } => {
                self.jobs.call(Call::Clean, async move { Ok(Input::Cleaned { more: clean(&*store, parked_retention, limit).await? }) });
            }
            Action::Finish => {}
        }
    }

    fn done(&mut self, done: Done) -> Result<()> {
        let now = self.clock.now();
        match done {
            Done::Input(input) => {
                self.note_answer(&input);
                self.engine.on(input, now);
            }
            Done::Failed(call, error) => {
                // Events go their way without the cleaning: no publisher ends for a right that only it needs.
                if is_for_the_operator(error.kind()) && call != Call::Clean {
                    return Err(error);
                }
                let text = error.to_string();
                if self.failing.get(&call) != Some(&text) {
                    tracing::warn!(call = ?call, error = %text, "the outbox's store fails; trying again");
                    self.stats.note_error(Some((Trouble::Store, text.clone())));
                    self.failing.insert(call, text);
                }
                self.engine.on(Input::Failed(call), now);
            }
        }
        Ok(())
    }

    /// Takes a failure back once the same thing works again.
    fn note_answer(&mut self, input: &Input) {
        let call = match input {
            Input::Looked(_) => Call::Look,
            Input::Placed(_) => Call::Place,
            Input::Fetched(_) => Call::Fetch,
            Input::Recorded { .. } => Call::Record,
            Input::Swept(_) => Call::Sweep,
            Input::Cleaned { .. } => Call::Clean,
            Input::Sent { accepted, .. } => {
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
            _ => Call::Fence,
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

/// A publisher whose group works for something else would own slots of an outbox that it never publishes, and leave out some of its outbox.
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

/// Trying again does not help against these.
fn is_for_the_operator(kind: ErrorKind) -> bool {
    !matches!(kind, ErrorKind::Unavailable | ErrorKind::Internal | ErrorKind::Event)
}

/// Answers whether there is more.
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

/// What an operator should hear of.
fn tell(outcomes: &[Outcome], sink: &str) {
    for outcome in outcomes {
        match &outcome.then {
            Then::Block { sequence, attempts, error } => {
                tracing::warn!(
                    sink,
                    aggregate = outcome.aggregate,
                    sequence,
                    attempts,
                    error,
                    "an event is refused for good: its aggregate is blocked"
                );
            }
            Then::Park { sequence, error } => {
                tracing::warn!(sink, aggregate = outcome.aggregate, sequence, error, "an event is refused for good: set aside");
            }
            Then::Discard { sequence, error } => {
                tracing::warn!(sink, aggregate = outcome.aggregate, sequence, error, "an event is refused for good: discarded");
            }
            Then::Next | Then::Retry { .. } => {}
        }
    }
}
