//! Work under ownership, with a guard for as long as it takes.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use shardwise_core::{Epoch, Fence, Moment, NotHeld, OwnedKey, Ownership, OwnershipMode, Resource, ShardKey, slot_of};
use tokio_util::sync::CancellationToken;

use crate::membership::{GuardKey, OwnershipContext, Signals};
use crate::service::ShardingService;

impl ShardingService {
    /// The fence of `key`: its slot and the epoch under which it is mine right now. Put both into your own writes, so that your database
    /// can reject a worker that was paused and does not know yet that another one has taken over.
    ///
    /// Take it once for a piece of work and use it for all its writes: with a new fence before each write, work that has lost the slot
    /// and regained it would continue under the new epoch. [`NotHeld`] if the key is not mine, or ownership is not exclusive.
    pub fn fence<K: ShardKey + ?Sized>(&self, key: &K) -> Result<Fence, NotHeld> {
        let membership = self.membership();
        counted(membership, membership.read(|ownership, now| ownership.fence_at(key, now)))
    }

    /// Starts work on `key`; [`NotHeld`] if the key is not mine. Under exclusive ownership it counts as in flight while the guard lives:
    /// the slot moves to another member only once the guard is dropped or, with `on_drain_timeout = "release"`, once `drain_timeout` has
    /// passed. Under eventual ownership the guard only shows whether and when the key is lost, and no member waits for it.
    pub fn enter<K: ShardKey + ?Sized>(&self, key: &K) -> Result<Guard, NotHeld> {
        let context = &self.membership().ownership_context;
        counted(context, enter(context, key))
    }

    /// Like [`ShardingService::enter`], for a whole slot, under exclusive ownership; else [`NotHeld::NoEpochs`].
    pub fn enter_slot(&self, slot: u32) -> Result<Guard, NotHeld> {
        let context = &self.membership().ownership_context;
        counted(context, enter_claim(context, &Resource::Slot(slot)))
    }

    /// Runs `work` on `key`, and drops it unfinished with [`NotHeld`] if it has to stop: when the key is lost or, under exclusive
    /// ownership, when the slot goes to another member and `drain_timeout` has passed.
    ///
    /// Dropped work stops at its next await; anything that it has started elsewhere continues. So put the fence into your writes.
    pub async fn run_exclusive<K: ShardKey + ?Sized, T>(&self, key: &K, work: impl Future<Output = T>) -> Result<T, NotHeld> {
        let guard = self.enter(key)?;
        tokio::select! {
            biased;
            () = guard.lost() => Err(self.not_held(key)),
            done = work => Ok(done),
        }
    }

    fn not_held<K: ShardKey + ?Sized>(&self, key: &K) -> NotHeld {
        let context = &self.membership().ownership_context;
        // The key may be held again by now; the work was cancelled nevertheless.
        context.read(|ownership, now| owned_at(context, ownership, key, now).err().unwrap_or_else(|| elsewhere(context, ownership, key)))
    }
}

/// Counts refusals; only a number is kept.
fn counted<T>(context: &OwnershipContext, answer: Result<T, NotHeld>) -> Result<T, NotHeld> {
    if answer.is_err() {
        context.refused.fetch_add(1, Ordering::Relaxed);
    }
    answer
}

fn owned_at<K: ShardKey + ?Sized>(context: &OwnershipContext, ownership: &Ownership, key: &K, now: Moment) -> Result<(), NotHeld> {
    match ownership.fence_at(key, now) {
        Err(NotHeld::NoEpochs) if ownership.owns_at(key, now) => Ok(()),
        Err(NotHeld::NoEpochs) => Err(elsewhere(context, ownership, key)),
        answer => answer.map(drop),
    }
}

/// The error that another member has it, in terms of the placement that the group serves.
fn elsewhere<K: ShardKey + ?Sized>(context: &OwnershipContext, ownership: &Ownership, key: &K) -> NotHeld {
    let serving = context.policy.serving(ownership.policy_fingerprint());
    let placement = serving.unwrap_or(context.policy.placement).kind;
    match placement.by_key() {
        Some(_) => NotHeld::KeyElsewhere { placement },
        None => NotHeld::Elsewhere { slot: slot_of(key.key_hash(), ownership.slots().slots()) },
    }
}

pub(crate) fn enter<K: ShardKey + ?Sized>(context: &Arc<OwnershipContext>, key: &K) -> Result<Guard, NotHeld> {
    let policy = &context.policy;
    if policy.ownership == OwnershipMode::Exclusive {
        return enter_claim(context, &Resource::Slot(slot_of(key.key_hash(), policy.placement.slots)));
    }
    let owned = |key: &OwnedKey| context.read(|ownership, now| owned_at(context, ownership, key, now));
    let (under, signals) = context.guards.enter_key(key.with_key(|key| OwnedKey::from(key)), owned)?;
    Ok(Guard { context: Arc::clone(context), under, signals })
}

/// Counts work under a claim that serves.
pub(crate) fn enter_claim(context: &Arc<OwnershipContext>, resource: &Resource) -> Result<Guard, NotHeld> {
    let held = || context.read(|ownership, now| ownership.epoch_at(resource, now));
    let (under, signals) = context.guards.enter_claim(resource.clone(), context.clock.now(), held)?;
    Ok(Guard { context: Arc::clone(context), under, signals })
}

/// Work on something that is mine, for as long as this lives.
///
/// A guard that is never dropped keeps its slot from moving to another member as long as this worker's lease lasts; after `drain_timeout`
/// the log shows its age.
#[must_use = "the work counts as in flight only while the guard lives"]
pub struct Guard {
    context: Arc<OwnershipContext>,
    under: GuardKey,
    signals: Signals,
}

impl Guard {
    #[cfg(feature = "requests")]
    pub(crate) const fn context(&self) -> &Arc<OwnershipContext> {
        &self.context
    }

    /// Whether what was entered has been mine without a gap until now. It reads the clock, so it is false in a process that was paused
    /// beyond its lease, even before anything else has noticed.
    pub fn is_held(&self) -> bool {
        let holds = |ownership: &Ownership, now| match self.under {
            GuardKey::Claim(..) => ownership.claims_end().is_some_and(|end| now < end),
            GuardKey::Key(_) => ownership.is_live_at(now),
        };
        !self.signals.lost.is_cancelled() && self.context.read(holds)
    }

    /// The slot and the epoch of the claim, for your own writes; `None` unless ownership is exclusive, and for names.
    pub const fn fence(&self) -> Option<Fence> {
        match self.under {
            GuardKey::Claim(Resource::Slot(slot), epoch) => Some(Fence { slot, epoch }),
            _ => None,
        }
    }

    /// The epoch of the claim; `None` unless ownership is exclusive.
    pub const fn epoch(&self) -> Option<Epoch> {
        match self.under {
            GuardKey::Claim(_, epoch) => Some(epoch),
            GuardKey::Key(_) => None,
        }
    }

    /// Resolves when the slot must be handed over: finish soon, and start nothing new. At once if it is lost.
    pub async fn finish(&self) {
        self.signals.finish.cancelled().await;
    }

    /// Resolves when it is not mine any more, or when the time for finishing has passed: stop now.
    pub async fn lost(&self) {
        self.signals.lost.cancelled().await;
    }

    /// The token that is cancelled when [`Guard::lost`] resolves. It does not keep the guard alive.
    pub const fn lost_token(&self) -> &CancellationToken {
        &self.signals.lost
    }

    /// The token that is cancelled when [`Guard::finish`] resolves.
    #[cfg(feature = "requests")]
    pub(crate) fn finish_token(&self) -> CancellationToken {
        self.signals.finish.clone()
    }

    /// Whether [`Guard::finish`] has resolved.
    pub fn is_asked_to_finish(&self) -> bool {
        self.signals.finish.is_cancelled()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.context.guards.leave(&self.under);
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guard({:?}, held: {})", self.under, self.is_held())
    }
}
