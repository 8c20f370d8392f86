//! What is between a member and the backend: its own clock, and a connection that can be cut in one direction.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use shardwise::core::{ClaimStore, Resource};
use shardwise::discovery::{
    Acquired, Capabilities, Claims, ClaimsEvent, ClaimsStream, Discovery, Faults, Grant, MemoryBackend, Note, Noted, Notes, Registration,
    Result, Seat, Snapshot, WatchEvent, WatchStream,
};
use shardwise::{ClaimName, Epoch, GroupName};
use tokio::sync::Notify;

use crate::clocks::OwnClock;

/// Which direction lets nothing through. What is on its way waits, as a network's retransmissions do, until it is let through or whoever
/// waits for it gives up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    Nowhere,
    Requests,
    /// Answers and news of watches.
    Answers,
}

/// The faulty backend as one member sees it. Moments are those of the member's own clock: a request counts from when it was sent.
#[derive(Clone)]
pub(crate) struct Wire {
    inner: Faults<MemoryBackend>,
    /// With dice of their own: which of several tasks that wake at one moment asks first must not matter to the others.
    notes: Faults<MemoryBackend>,
    clock: OwnClock,
    cut: Arc<Cutting>,
}

/// Those that wait are let go in the order in which they came, so that a seed repeats its life.
struct Cutting {
    now: Mutex<Cut>,
    changed: Notify,
}

impl Cutting {
    async fn passes(&self, direction: Cut) {
        loop {
            let changed = self.changed.notified();
            if *self.now.lock().unwrap_or_else(PoisonError::into_inner) != direction {
                return;
            }
            changed.await;
        }
    }
}

impl Wire {
    pub(crate) fn new(inner: Faults<MemoryBackend>, notes: Faults<MemoryBackend>, clock: OwnClock) -> Self {
        Self { inner, notes, clock, cut: Arc::new(Cutting { now: Mutex::new(Cut::Nowhere), changed: Notify::new() }) }
    }

    pub(crate) fn cut(&self, where_: Cut) {
        *self.cut.now.lock().unwrap_or_else(PoisonError::into_inner) = where_;
        self.cut.changed.notify_waiters();
    }

    async fn call<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.cut.passes(Cut::Requests).await;
        let answer = call.await;
        self.cut.passes(Cut::Answers).await;
        answer
    }

    fn news<T: Send + 'static>(&self, news: BoxStream<'static, Result<T>>, own: fn(T, &OwnClock) -> T) -> BoxStream<'static, Result<T>> {
        let (cut, clock) = (Arc::clone(&self.cut), self.clock.clone());
        let told = news.then(move |event| {
            let (cut, clock) = (Arc::clone(&cut), clock.clone());
            async move {
                cut.passes(Cut::Answers).await;
                event.map(|event| own(event, &clock))
            }
        });
        told.boxed()
    }

    fn claims(&self) -> &dyn Claims {
        &self.inner
    }
}

#[async_trait]
impl Discovery for Wire {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn register(&self, registration: &Registration) -> Result<Grant> {
        let started = self.clock.now();
        self.call(self.inner.register(registration)).await.map(|grant| Grant { started, ..grant })
    }

    async fn renew(&self, seat: &Seat, ttl: Duration) -> Result<Grant> {
        let started = self.clock.now();
        self.call(self.inner.renew(seat, ttl)).await.map(|grant| Grant { started, ..grant })
    }

    async fn update(&self, registration: &Registration) -> Result<()> {
        self.call(self.inner.update(registration)).await
    }

    async fn deregister(&self, seat: &Seat) -> Result<()> {
        self.call(self.inner.deregister(seat)).await
    }

    async fn step_away(&self, registration: &Registration, grace: Duration) -> Result<()> {
        self.call(self.inner.step_away(registration, grace)).await
    }

    async fn members(&self, group: &GroupName) -> Result<Snapshot> {
        let proven = self.clock.now();
        self.call(self.inner.members(group)).await.map(|snapshot| Snapshot { proven, ..snapshot })
    }

    fn watch(&self, group: &GroupName, prove_every: Duration) -> WatchStream {
        self.news(self.inner.watch(group, prove_every), |event, clock| match event {
            WatchEvent::View(Snapshot { view, proven }) => WatchEvent::View(Snapshot { view, proven: clock.shows(proven) }),
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
        self.call(self.notes.note(group, name)).await
    }

    async fn write_note(&self, group: &GroupName, name: &ClaimName, expected: u64, text: &str) -> Result<Noted> {
        self.call(self.notes.write_note(group, name, expected, text)).await
    }
}

#[async_trait]
impl Claims for Wire {
    async fn claim_store(&self, group: &GroupName, floor: u64) -> Result<ClaimStore> {
        self.call(self.claims().claim_store(group, floor)).await
    }

    async fn acquire(&self, seat: &Seat, store: &ClaimStore, wanted: &[Resource]) -> Result<Vec<(Resource, Acquired)>> {
        self.call(self.claims().acquire(seat, store, wanted)).await
    }

    async fn release(&self, seat: &Seat, held: &[(Resource, Epoch)]) -> Result<()> {
        self.call(self.claims().release(seat, held)).await
    }

    fn watch_claims(&self, group: &GroupName, prove_every: Duration) -> ClaimsStream {
        self.news(self.claims().watch_claims(group, prove_every), |event, clock| match event {
            ClaimsEvent::All { claims, proven } => ClaimsEvent::All { claims, proven: clock.shows(proven) },
            ClaimsEvent::Changed { changes, proven } => ClaimsEvent::Changed { changes, proven: clock.shows(proven) },
            ClaimsEvent::Proven(at) => ClaimsEvent::Proven(clock.shows(at)),
            other => other,
        })
    }
}
