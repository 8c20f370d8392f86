//! Injected faults, from a seed: everything that a backend may do without breaking the contract.

mod watch;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::{StreamExt, stream};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use shardwise_core::{ClaimName, ClaimStore, Epoch, GroupName, Resource};
use tokio::sync::oneshot;

use self::watch::faulty;
use crate::{
    AcquireOutcome, Capabilities, Claims, ClaimsStream, Discovery, Error, ErrorKind, Grant, Note, Notes, RecordId, Registration, Result,
    ViewSnapshot, WatchStream, WriteOutcome,
};

/// How often each fault happens, from 0 (never) to 1 (always).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FaultRates {
    /// A call fails and was not carried out.
    pub fail_before: f64,
    /// A call was carried out and its answer is lost.
    pub fail_after: f64,
    /// A call, its answer, or an event of a watch, comes late, by up to [`FaultRates::delay_max`].
    pub delay: f64,
    /// The longest delay.
    pub delay_max: Duration,
    /// A call that changes something has no answer, or an error for one, and is carried out all the same: later, by up to
    /// [`FaultRates::execute_late_max`], when its caller has given it up and mostly has asked again.
    pub execute_late: f64,
    /// The longest time between such a call and its execution.
    pub execute_late_max: Duration,
    /// A renewal finds that the record is gone.
    pub lose_lease: f64,
    /// A watch reports that it cannot prove the view at present.
    pub fail_watch: f64,
    /// A watch keeps a change, or a proof, to itself until it next has something to say.
    pub drop_event: f64,
    /// A watch says everything twice.
    pub repeat_event: f64,
}

impl FaultRates {
    /// No faults at all.
    pub const NONE: Self = Self {
        fail_before: 0.0,
        fail_after: 0.0,
        delay: 0.0,
        delay_max: Duration::ZERO,
        execute_late: 0.0,
        execute_late_max: Duration::ZERO,
        lose_lease: 0.0,
        fail_watch: 0.0,
        drop_event: 0.0,
        repeat_event: 0.0,
    };
}

/// Any backend, with faults drawn from a seed: the same calls in the same order meet the same faults. A failed call is retryable; a
/// withheld change is delivered with the next event, so that no view goes back and none is lost for good.
///
/// Clones share the state.
#[derive(Clone)]
pub struct Faults {
    inner: Arc<dyn Discovery>,
    /// Carries out calls that their callers have given up.
    late: Arc<dyn Discovery>,
    state: Arc<Mutex<FaultState>>,
}

#[derive(Debug)]
struct FaultState {
    random: StdRng,
    rates: FaultRates,
    happened: BTreeMap<&'static str, u64>,
    /// How often each operation was called.
    called: BTreeMap<&'static str, u64>,
    /// Shared with each call that was given up and has not been carried out yet.
    pending: Arc<()>,
}

impl Faults {
    /// Lets the calls of `inner` go wrong at `rates`, drawn from `seed`.
    pub fn new(inner: Arc<dyn Discovery>, seed: u64, rates: FaultRates) -> Self {
        let random = StdRng::seed_from_u64(seed);
        let state = FaultState { random, rates, happened: BTreeMap::new(), called: BTreeMap::new(), pending: Arc::default() };
        Self { late: Arc::clone(&inner), inner, state: Arc::new(Mutex::new(state)) }
    }

    /// Calls that were given up are carried out over this connection, which may outlive the caller's own: a request that is with the
    /// backend already is carried out though its sender is dead or cut off by then.
    #[must_use]
    pub fn with_late_by(self, connection: Arc<dyn Discovery>) -> Self {
        Self { late: connection, ..self }
    }

    /// From now on at these rates.
    pub fn set_rates(&self, rates: FaultRates) {
        with(&self.state, |state| state.rates = rates);
    }

    /// How many faults there were so far, by kind: `FailBefore` for [`FaultRates::fail_before`] and so on. `ExecuteAfterAnother` are those
    /// of `ExecuteLate` that were carried out after their caller had asked again.
    pub fn happened(&self) -> BTreeMap<&'static str, u64> {
        with(&self.state, |state| state.happened.clone())
    }

    /// How many calls were given up and have not been carried out yet.
    pub fn pending(&self) -> usize {
        with(&self.state, |state| Arc::strong_count(&state.pending) - 1)
    }

    async fn faulty<T>(&self, operation: &'static str, call: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let ((call_late, answer_late), before, after) = with(&self.state, |state| {
            let late = state.late();
            let before = state.happens("FailBefore", state.rates.fail_before);
            (late, before, state.happens("FailAfter", state.rates.fail_after))
        });
        tokio::time::sleep(call_late).await;
        if before {
            return Err(injected(operation, "not carried out"));
        }
        let answer = call.await?;
        tokio::time::sleep(answer_late).await;
        if after { Err(injected(operation, "carried out, the answer was lost")) } else { Ok(answer) }
    }

    /// A call that changes something, and may therefore matter when it is carried out too late.
    async fn changing<T: Send + 'static, C>(&self, operation: &'static str, call: impl FnOnce(Arc<dyn Discovery>) -> C + Send) -> Result<T>
    where
        C: Future<Output = Result<T>> + Send + 'static,
    {
        let Some(late) = with(&self.state, |state| state.executes_late(operation)) else {
            return self.faulty(operation, call(Arc::clone(&self.inner))).await;
        };
        let (state, call) = (Arc::clone(&self.state), call(Arc::clone(&self.late)));
        let pending = with(&state, |state| Arc::clone(&state.pending));
        let (_waits, given_up) = oneshot::channel::<()>();
        tokio::spawn(async move {
            // Ends when the caller has its error, or drops the call before.
            let _ = given_up.await;
            tokio::time::sleep(late.after).await;
            with(&state, |state| state.overtaken(operation, late.call));
            // The answer is not awaited any more.
            let _ = call.await;
            drop(pending);
        });
        tokio::time::sleep(late.silence).await;
        Err(injected(operation, "no answer, and it may be carried out later"))
    }
}

/// The claims of the backend behind the faults. Without any, `Faults` does not show
/// itself as [`Claims`]: only a caller who names the type gets here.
fn claims_of<'a>(inner: &'a dyn Discovery, operation: &'static str) -> Result<&'a dyn Claims> {
    inner.as_claims().ok_or_else(|| has_none(inner, operation, "claims"))
}

/// The notes of the backend behind the faults, likewise.
fn notes_of<'a>(inner: &'a dyn Discovery, operation: &'static str) -> Result<&'a dyn Notes> {
    inner.as_notes().ok_or_else(|| has_none(inner, operation, "notes"))
}

fn has_none(inner: &dyn Discovery, operation: &'static str, what: &str) -> Error {
    Error::new(ErrorKind::Misconfigured, operation, format!("the backend {} has no {what}", inner.capabilities().name))
}

fn injected(operation: &'static str, what: &str) -> Error {
    Error::new(ErrorKind::Unavailable, operation, format!("a fault on purpose: {what}"))
}

fn with<T>(state: &Mutex<FaultState>, f: impl FnOnce(&mut FaultState) -> T) -> T {
    f(&mut state.lock().unwrap_or_else(PoisonError::into_inner))
}

/// How a call is carried out that its caller has given up.
struct LateExecution {
    /// Which of the calls of its operation it is.
    call: u64,
    /// From when it was given up.
    after: Duration,
    /// The caller hears nothing for so long, unless it gives up before.
    silence: Duration,
}

impl FaultState {
    /// Whether and how a call is carried out only after its caller has given up. Some
    /// callers hear of a failure at once, and some of nothing.
    fn executes_late(&mut self, operation: &'static str) -> Option<LateExecution> {
        let called = self.called.entry(operation).or_default();
        *called += 1;
        let (call, max, share) = (*called, self.rates.execute_late_max, self.random.random::<f64>());
        let silence = if self.random.random() { max } else { Duration::ZERO };
        self.happens("ExecuteLate", self.rates.execute_late).then(|| LateExecution { call, after: max.mul_f64(share), silence })
    }

    /// A call of that number is carried out now.
    fn overtaken(&mut self, operation: &'static str, call: u64) {
        if self.called.get(operation).is_some_and(|last| *last > call) {
            *self.happened.entry("ExecuteAfterAnother").or_default() += 1;
        }
    }

    fn happens(&mut self, fault: &'static str, rate: f64) -> bool {
        // Drawn even where the rate is zero, so that one rate's change leaves the other draws alone.
        let happens = self.random.random_bool(rate.clamp(0.0, 1.0));
        if happens {
            *self.happened.entry(fault).or_default() += 1;
        }
        happens
    }

    /// By how much the call and its answer come late: one of them, if any does.
    fn late(&mut self) -> (Duration, Duration) {
        let (delay, none) = (self.delay(), Duration::ZERO);
        if self.random.random() { (delay, none) } else { (none, delay) }
    }

    fn delay(&mut self) -> Duration {
        let share: f64 = self.random.random();
        if self.happens("Delay", self.rates.delay) { self.rates.delay_max.mul_f64(share) } else { Duration::ZERO }
    }
}

#[async_trait]
impl Discovery for Faults {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn register(&self, registration: &Registration) -> Result<Grant> {
        let registration = registration.clone();
        self.changing("register", |inner| async move { inner.register(&registration).await }).await
    }

    async fn renew(&self, record_id: &RecordId, ttl: Duration) -> Result<Grant> {
        if with(&self.state, |state| state.happens("LoseLease", state.rates.lose_lease)) {
            self.inner.deregister(record_id).await?;
        }
        let record_id = record_id.clone();
        self.changing("renew", move |inner| async move { inner.renew(&record_id, ttl).await }).await
    }

    async fn update(&self, registration: &Registration) -> Result<()> {
        let registration = registration.clone();
        self.changing("update", |inner| async move { inner.update(&registration).await }).await
    }

    async fn deregister(&self, record_id: &RecordId) -> Result<()> {
        let record_id = record_id.clone();
        self.changing("deregister", |inner| async move { inner.deregister(&record_id).await }).await
    }

    async fn step_away(&self, registration: &Registration, rejoin_grace: Duration) -> Result<()> {
        let registration = registration.clone();
        self.changing("step_away", move |inner| async move { inner.step_away(&registration, rejoin_grace).await }).await
    }

    async fn members(&self, group: &GroupName) -> Result<ViewSnapshot> {
        self.faulty("members", self.inner.members(group)).await
    }

    fn watch(&self, group: &GroupName, prove_every: Duration) -> WatchStream {
        faulty(self.inner.watch(group, prove_every), Arc::clone(&self.state))
    }

    fn as_claims(&self) -> Option<&dyn Claims> {
        self.inner.as_claims().map(|_| self as &dyn Claims)
    }

    fn as_notes(&self) -> Option<&dyn Notes> {
        self.inner.as_notes().map(|_| self as &dyn Notes)
    }
}

#[async_trait]
impl Claims for Faults {
    async fn claim_store(&self, group: &GroupName, floor: u64) -> Result<ClaimStore> {
        let inner = claims_of(&*self.inner, "claim_store")?;
        self.faulty("claim_store", inner.claim_store(group, floor)).await
    }

    async fn acquire(&self, record_id: &RecordId, store: &ClaimStore, wanted: &[Resource]) -> Result<Vec<(Resource, AcquireOutcome)>> {
        let (record_id, store, wanted) = (record_id.clone(), *store, wanted.to_vec());
        self.changing("acquire", move |inner| async move { claims_of(&*inner, "acquire")?.acquire(&record_id, &store, &wanted).await })
            .await
    }

    async fn release(&self, record_id: &RecordId, held: &[(Resource, Epoch)]) -> Result<()> {
        let (record_id, held) = (record_id.clone(), held.to_vec());
        self.changing("release", |inner| async move { claims_of(&*inner, "release")?.release(&record_id, &held).await }).await
    }

    fn watch_claims(&self, group: &GroupName, prove_every: Duration) -> ClaimsStream {
        let none = |error| stream::iter([Err(error)]).boxed();
        let claims = claims_of(&*self.inner, "watch_claims").map_or_else(none, |claims| claims.watch_claims(group, prove_every));
        faulty(claims, Arc::clone(&self.state))
    }
}

#[async_trait]
impl Notes for Faults {
    async fn note(&self, group: &GroupName, name: &ClaimName) -> Result<Option<Note>> {
        let inner = notes_of(&*self.inner, "note")?;
        self.faulty("note", inner.note(group, name)).await
    }

    async fn write_note(&self, group: &GroupName, name: &ClaimName, expected: u64, text: &str) -> Result<WriteOutcome> {
        let (group, name, text) = (group.clone(), name.clone(), text.to_owned());
        let call = move |inner: Arc<dyn Discovery>| async move {
            notes_of(&*inner, "write_note")?.write_note(&group, &name, expected, &text).await
        };
        self.changing("write_note", call).await
    }
}
