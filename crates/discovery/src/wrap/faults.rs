//! Faults on purpose, from a seed: what a backend may do to its callers on a bad day, without breaking the contract.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use shardwise_core::{ClaimName, ClaimStore, Epoch, GroupName, Resource};

use super::faulty_watch::faulty;
use super::{claims_of, notes_of, watched_claims};
use crate::{
    Acquired, Capabilities, Claims, ClaimsStream, Discovery, Error, ErrorKind, Grant, Note, Noted, Notes, Registration, Result, Seat,
    Snapshot, WatchStream,
};

/// How often each fault happens, from 0 (never) to 1 (always).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FaultRates {
    /// A call fails and was not carried out.
    pub fail_before: f64,
    /// A call was carried out and its answer is lost.
    pub fail_after: f64,
    /// A call, its answer, or a watch's news, comes late, by up to [`FaultRates::delay_max`].
    pub delay: f64,
    /// The longest delay.
    pub delay_max: Duration,
    /// A renewal finds that the record is gone.
    pub lose_lease: f64,
    /// A watch says that it cannot prove the view just now.
    pub fail_watch: f64,
    /// A watch keeps a change, or a proof, to itself until it next has something to say.
    pub drop_event: f64,
    /// A watch says everything twice.
    pub repeat_event: f64,
}

impl FaultRates {
    const fn of(&self, fault: Fault) -> f64 {
        match fault {
            Fault::FailBefore => self.fail_before,
            Fault::FailAfter => self.fail_after,
            Fault::Delay => self.delay,
            Fault::LoseLease => self.lose_lease,
            Fault::FailWatch => self.fail_watch,
            Fault::DropEvent => self.drop_event,
            Fault::RepeatEvent => self.repeat_event,
        }
    }

    /// No faults at all.
    pub const NONE: Self = Self {
        fail_before: 0.0,
        fail_after: 0.0,
        delay: 0.0,
        delay_max: Duration::ZERO,
        lose_lease: 0.0,
        fail_watch: 0.0,
        drop_event: 0.0,
        repeat_event: 0.0,
    };
}

/// A kind of fault; each has its rate in [`FaultRates`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// A call failed and was not carried out.
    FailBefore,
    /// A call was carried out and its answer was lost.
    FailAfter,
    /// A call, its answer, or a watch's news, came late.
    Delay,
    /// A renewal found that the record was gone.
    LoseLease,
    /// A watch said that it could not prove the view.
    FailWatch,
    /// A watch kept something to itself.
    DropEvent,
    /// A watch said something twice.
    RepeatEvent,
}

/// Any backend, with faults drawn from a seed: the same calls in the same order meet the same faults. A failed call is retryable; a
/// withheld change is delivered with the next news, so that no view goes back and none is lost for good.
///
/// Clones share the dice.
#[derive(Debug, Clone)]
pub struct Faults<D> {
    inner: D,
    dice: Arc<Mutex<Dice>>,
}

#[derive(Debug)]
pub(super) struct Dice {
    random: StdRng,
    rates: FaultRates,
    happened: BTreeMap<Fault, u64>,
}

impl<D> Faults<D> {
    /// Lets the calls of `inner` go wrong at `rates`, drawn from `seed`.
    pub fn new(inner: D, seed: u64, rates: FaultRates) -> Self {
        Self { inner, dice: Arc::new(Mutex::new(Dice { random: StdRng::seed_from_u64(seed), rates, happened: BTreeMap::new() })) }
    }

    /// From now on at these rates.
    pub fn set_rates(&self, rates: FaultRates) {
        with(&self.dice, |dice| dice.rates = rates);
    }

    /// How many faults have been drawn so far, by kind.
    pub fn happened(&self) -> BTreeMap<Fault, u64> {
        with(&self.dice, |dice| dice.happened.clone())
    }

    async fn faulty<T>(&self, operation: &'static str, call: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let (late, before, after) = with(&self.dice, |dice| (dice.late(), dice.happens(Fault::FailBefore), dice.happens(Fault::FailAfter)));
        tokio::time::sleep(late.call).await;
        if before {
            return Err(injected(operation, "not carried out"));
        }
        let answer = call.await?;
        tokio::time::sleep(late.answer).await;
        if after { Err(injected(operation, "carried out, the answer was lost")) } else { Ok(answer) }
    }
}

pub(super) fn injected(operation: &'static str, what: &str) -> Error {
    Error::new(ErrorKind::Unavailable, operation, format!("a fault on purpose: {what}"))
}

pub(super) fn with<T>(dice: &Mutex<Dice>, f: impl FnOnce(&mut Dice) -> T) -> T {
    f(&mut dice.lock().unwrap_or_else(PoisonError::into_inner))
}

/// By how much a call, and its answer, come late.
struct Late {
    call: Duration,
    answer: Duration,
}

impl Dice {
    pub(super) fn happens(&mut self, fault: Fault) -> bool {
        // Drawn even where the rate is zero, so that one rate's change leaves the other draws alone.
        let happens = self.random.random_bool(self.rates.of(fault).clamp(0.0, 1.0));
        if happens {
            *self.happened.entry(fault).or_default() += 1;
        }
        happens
    }

    /// Either the call or its answer comes late, if any does.
    fn late(&mut self) -> Late {
        let (delay, none) = (self.delay(), Duration::ZERO);
        if self.random.random() { Late { call: delay, answer: none } } else { Late { call: none, answer: delay } }
    }

    pub(super) fn delay(&mut self) -> Duration {
        let share: f64 = self.random.random();
        if self.happens(Fault::Delay) { self.rates.delay_max.mul_f64(share) } else { Duration::ZERO }
    }
}

#[async_trait]
impl<D: Discovery> Discovery for Faults<D> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn register(&self, registration: &Registration) -> Result<Grant> {
        self.faulty("register", self.inner.register(registration)).await
    }

    async fn renew(&self, seat: &Seat, ttl: Duration) -> Result<Grant> {
        if with(&self.dice, |dice| dice.happens(Fault::LoseLease)) {
            self.inner.deregister(seat).await?;
        }
        self.faulty("renew", self.inner.renew(seat, ttl)).await
    }

    async fn update(&self, registration: &Registration) -> Result<()> {
        self.faulty("update", self.inner.update(registration)).await
    }

    async fn deregister(&self, seat: &Seat) -> Result<()> {
        self.faulty("deregister", self.inner.deregister(seat)).await
    }

    async fn step_away(&self, registration: &Registration, grace: Duration) -> Result<()> {
        self.faulty("step_away", self.inner.step_away(registration, grace)).await
    }

    async fn members(&self, group: &GroupName) -> Result<Snapshot> {
        self.faulty("members", self.inner.members(group)).await
    }

    fn watch(&self, group: &GroupName, prove_every: Duration) -> WatchStream {
        faulty(self.inner.watch(group, prove_every), Arc::clone(&self.dice))
    }

    fn as_claims(&self) -> Option<&dyn Claims> {
        self.inner.as_claims().map(|_| self as &dyn Claims)
    }

    fn as_notes(&self) -> Option<&dyn Notes> {
        self.inner.as_notes().map(|_| self as &dyn Notes)
    }
}

#[async_trait]
impl<D: Discovery> Claims for Faults<D> {
    async fn claim_store(&self, group: &GroupName, floor: u64) -> Result<ClaimStore> {
        let inner = claims_of(&self.inner, "claim_store")?;
        self.faulty("claim_store", inner.claim_store(group, floor)).await
    }

    async fn acquire(&self, seat: &Seat, store: &ClaimStore, wanted: &[Resource]) -> Result<Vec<(Resource, Acquired)>> {
        let inner = claims_of(&self.inner, "acquire")?;
        self.faulty("acquire", inner.acquire(seat, store, wanted)).await
    }

    async fn release(&self, seat: &Seat, held: &[(Resource, Epoch)]) -> Result<()> {
        let inner = claims_of(&self.inner, "release")?;
        self.faulty("release", inner.release(seat, held)).await
    }

    fn watch_claims(&self, group: &GroupName, prove_every: Duration) -> ClaimsStream {
        faulty(watched_claims(&self.inner, group, prove_every), Arc::clone(&self.dice))
    }
}

#[async_trait]
impl<D: Discovery> Notes for Faults<D> {
    async fn note(&self, group: &GroupName, name: &ClaimName) -> Result<Option<Note>> {
        let inner = notes_of(&self.inner, "note")?;
        self.faulty("note", inner.note(group, name)).await
    }

    async fn write_note(&self, group: &GroupName, name: &ClaimName, expected: u64, text: &str) -> Result<Noted> {
        let inner = notes_of(&self.inner, "write_note")?;
        self.faulty("write_note", inner.write_note(group, name, expected, text)).await
    }
}
