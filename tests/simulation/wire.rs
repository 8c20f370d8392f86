//! What is between a member and the backend: its own clock, and a connection that can be cut in one direction.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use shardwise::core::{ClaimStore, Resource};
use shardwise::discovery::{
    AcquireOutcome, Capabilities, Claims, ClaimsEvent, ClaimsStream, Discovery, Error, ErrorKind, FaultRates, Faults, Grant, MemoryBackend,
    Note, Notes, RecordId, Registration, Result, ViewSnapshot, WatchEvent, WatchStream, WriteOutcome,
};
use shardwise::{ClaimName, Epoch, GroupName};
use tokio::sync::{Notify, oneshot};

use crate::clocks::OwnClock;

/// Which direction lets nothing through. What is on its way waits, as a network's retransmissions do, until it is let through; a request
/// arrives even if its caller has given up by then, or is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    Nowhere,
    Requests,
    /// Answers and events of watches.
    Answers,
    /// Readings of the group and events of watches, while writes are answered: a cluster may elect the one without the other.
    Readings,
}

/// The faulty backend as one member sees it. Moments are those of the member's own clock: a request counts from when it was sent.
#[derive(Clone)]
pub(crate) struct Wire {
    inner: Faults,
    /// With separate dice: the order in which tasks that wake at one moment ask must not affect the other calls.
    notes: Faults,
    /// Where requests arrive whose caller has given up.
    late: Faults,
    clock: OwnClock,
    cut: Arc<Cutting>,
    arrived_late: Arc<AtomicU64>,
}

/// Those that wait are let go in the order in which they came, so that a seed repeats its life.
struct Cutting {
    now: Mutex<Cut>,
    changed: Notify,
}

impl Cutting {
    fn is(&self, direction: Cut) -> bool {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) == direction
    }

    async fn passes(&self, direction: Cut) {
        self.passes_all(&[direction]).await;
    }

    async fn passes_all(&self, directions: &[Cut]) {
        loop {
            let changed = self.changed.notified();
            if !directions.iter().any(|direction| self.is(*direction)) {
                return;
            }
            changed.await;
        }
    }
}

impl Wire {
    pub(crate) fn new(inner: Faults, notes: Faults, late: MemoryBackend, clock: OwnClock) -> Self {
        let cut = Arc::new(Cutting { now: Mutex::new(Cut::Nowhere), changed: Notify::new() });
        Self { inner, notes, late: Faults::new(Arc::new(late), 0, FaultRates::NONE), clock, cut, arrived_late: Arc::default() }
    }

    /// How many requests arrived after their caller had given up.
    pub(crate) fn arrived_late(&self) -> u64 {
        self.arrived_late.load(Ordering::Relaxed)
    }

    pub(crate) fn cut(&self, where_: Cut) {
        *self.cut.now.lock().unwrap_or_else(PoisonError::into_inner) = where_;
        self.cut.changed.notify_waiters();
    }

    async fn call<T: Send + 'static, C>(&self, by: &Faults, ask: impl FnOnce(Faults) -> C + Send + 'static) -> Result<T>
    where
        C: Future<Output = Result<T>> + Send,
    {
        let answer = if self.cut.is(Cut::Requests) { self.ask_when_let_through(by.clone(), ask).await } else { ask(by.clone()).await };
        self.cut.passes(Cut::Answers).await;
        answer
    }

    /// What is sent is not called back.
    async fn ask_when_let_through<T: Send + 'static, C>(&self, by: Faults, ask: impl FnOnce(Faults) -> C + Send + 'static) -> Result<T>
    where
        C: Future<Output = Result<T>> + Send,
    {
        let (answer, answered) = oneshot::channel();
        let (cut, late, arrived_late) = (Arc::clone(&self.cut), self.late.clone(), Arc::clone(&self.arrived_late));
        tokio::spawn(async move {
            cut.passes(Cut::Requests).await;
            let by = if answer.is_closed() {
                arrived_late.fetch_add(1, Ordering::Relaxed);
                late
            } else {
                by
            };
            // The caller may have given up.
            let _ = answer.send(ask(by).await);
        });
        answered.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Unavailable, "call", "the simulation is over")))
    }

    fn events<T: Send + 'static>(
        &self,
        events: BoxStream<'static, Result<T>>,
        own: fn(T, &OwnClock) -> T,
    ) -> BoxStream<'static, Result<T>> {
        let (cut, clock) = (Arc::clone(&self.cut), self.clock.clone());
        let delayed = events.then(move |event| {
            let (cut, clock) = (Arc::clone(&cut), clock.clone());
            async move {
                cut.passes_all(&[Cut::Answers, Cut::Readings]).await;
                event.map(|event| own(event, &clock))
            }
        });
        delayed.boxed()
    }
}

#[async_trait]
impl Discovery for Wire {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn register(&self, registration: &Registration) -> Result<Grant> {
        let started = self.clock.now();
        let registration = registration.clone();
        self.call(&self.inner, |by| async move { by.register(&registration).await }).await.map(|grant| Grant { started, ..grant })
    }

    async fn renew(&self, record_id: &RecordId, ttl: Duration) -> Result<Grant> {
        let started = self.clock.now();
        let record_id = record_id.clone();
        self.call(&self.inner, move |by| async move { by.renew(&record_id, ttl).await }).await.map(|grant| Grant { started, ..grant })
    }

    async fn update(&self, registration: &Registration) -> Result<()> {
        let registration = registration.clone();
        self.call(&self.inner, |by| async move { by.update(&registration).await }).await
    }

    async fn deregister(&self, record_id: &RecordId) -> Result<()> {
        let record_id = record_id.clone();
        self.call(&self.inner, |by| async move { by.deregister(&record_id).await }).await
    }

    async fn step_away(&self, registration: &Registration, rejoin_grace: Duration) -> Result<()> {
        let registration = registration.clone();
        self.call(&self.inner, move |by| async move { by.step_away(&registration, rejoin_grace).await }).await
    }

    async fn members(&self, group: &GroupName) -> Result<ViewSnapshot> {
        let proven = self.clock.now();
        let group = group.clone();
        let read = self.call(&self.inner, |by| async move { by.members(&group).await }).await;
        self.cut.passes(Cut::Readings).await;
        read.map(|snapshot| ViewSnapshot { proven, ..snapshot })
    }

    fn watch(&self, group: &GroupName, prove_every: Duration) -> WatchStream {
        self.events(self.inner.watch(group, prove_every), |event, clock| match event {
            WatchEvent::View(ViewSnapshot { view, proven }) => WatchEvent::View(ViewSnapshot { view, proven: clock.shows(proven) }),
            WatchEvent::Proven(at) => WatchEvent::Proven(clock.shows(at)),
            other => other,
        })
    }

    fn as_claims(&self) -> Option<&dyn Claims> {
        Some(self)
    }

    fn as_notes(&self) -> Option<&dyn Notes> {
        Some(self)
    }
}

#[async_trait]
impl Notes for Wire {
    async fn note(&self, group: &GroupName, name: &ClaimName) -> Result<Option<Note>> {
        let (group, name) = (group.clone(), name.clone());
        self.call(&self.notes, |by| async move { by.note(&group, &name).await }).await
    }

    async fn write_note(&self, group: &GroupName, name: &ClaimName, expected: u64, text: &str) -> Result<WriteOutcome> {
        let (group, name, text) = (group.clone(), name.clone(), text.to_owned());
        self.call(&self.notes, move |by| async move { by.write_note(&group, &name, expected, &text).await }).await
    }
}

#[async_trait]
impl Claims for Wire {
    async fn claim_store(&self, group: &GroupName, floor: u64) -> Result<ClaimStore> {
        let group = group.clone();
        self.call(&self.inner, move |by| async move { by.claim_store(&group, floor).await }).await
    }

    async fn acquire(&self, record_id: &RecordId, store: &ClaimStore, wanted: &[Resource]) -> Result<Vec<(Resource, AcquireOutcome)>> {
        let (record_id, store, wanted) = (record_id.clone(), *store, wanted.to_vec());
        self.call(&self.inner, move |by| async move { by.acquire(&record_id, &store, &wanted).await }).await
    }

    async fn release(&self, record_id: &RecordId, held: &[(Resource, Epoch)]) -> Result<()> {
        let (record_id, held) = (record_id.clone(), held.to_vec());
        self.call(&self.inner, |by| async move { by.release(&record_id, &held).await }).await
    }

    fn watch_claims(&self, group: &GroupName, prove_every: Duration) -> ClaimsStream {
        self.events(self.inner.watch_claims(group, prove_every), |event, clock| match event {
            ClaimsEvent::All { claims, proven } => ClaimsEvent::All { claims, proven: clock.shows(proven) },
            ClaimsEvent::Changed { changes, proven } => ClaimsEvent::Changed { changes, proven: clock.shows(proven) },
            ClaimsEvent::Proven(at) => ClaimsEvent::Proven(clock.shows(at)),
            other => other,
        })
    }
}
