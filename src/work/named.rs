//! Work under a claim on a name, which one member holds at a time: the common part of singletons, daemons and timers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shardwise_core::{Backoff, ClaimName, Epoch, Ownership, OwnershipMode, Policy, Resource};
use shardwise_discovery::Discovery;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::enter::{Guard, enter_claim};
use crate::backend::cannot_claim;
use crate::error::{Error, ErrorKind, Result, locked};
use crate::membership::{NoteBook, OwnershipContext};
use crate::service::ShardingService;

/// First pause before failed work is started again; doubled for each further failure.
const RETRY_FIRST: Duration = Duration::from_millis(500);
/// Longest such pause.
const RETRY_LONGEST: Duration = Duration::from_secs(30);
/// After running for this long, work that fails starts again after the first pause.
const RUNS_WELL: Duration = Duration::from_mins(1);

/// One period in which this worker holds a name.
#[derive(Clone)]
pub struct Tenure {
    name: ClaimName,
    epoch: Epoch,
    cancel: CancellationToken,
    guard: Arc<Guard>,
}

impl Tenure {
    /// The full name, such as `singleton/leader`, `daemon/3` or `timer/report`.
    pub const fn name(&self) -> &ClaimName {
        &self.name
    }

    /// The epoch of the claim: higher than that of every earlier holder of this name. Put it into your own writes.
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Cancelled when the work has to end: the name goes to another member or is lost, or the work is stopped. The work is dropped where
    /// it awaits after `drain_timeout`, or at once if the name is lost.
    pub const fn cancel(&self) -> &CancellationToken {
        &self.cancel
    }

    /// Cancelled when the name is lost, or the time for finishing has passed: stop now. It does not keep the name.
    pub fn lost_token(&self) -> &CancellationToken {
        self.guard.lost_token()
    }

    #[cfg(feature = "requests")]
    pub(crate) const fn guard(&self) -> &Arc<Guard> {
        &self.guard
    }

    /// Whether this worker has held the name without a gap until now; reads the clock.
    pub fn is_held(&self) -> bool {
        self.guard.is_held()
    }
}

impl fmt::Debug for Tenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} under epoch {}", self.name, self.epoch)
    }
}

/// The claim's name for a `what` with that name; `kind` is the word for it in messages.
pub(super) fn claim_name(policy: &Policy, backend: Option<&Arc<dyn Discovery>>, kind: &str, what: &str, name: String) -> Result<ClaimName> {
    if policy.ownership != OwnershipMode::Exclusive {
        // Where the backend would refuse exclusive ownership, advice to use it leads nowhere.
        let unable = backend.filter(|backend| backend.as_claims().is_none()).map(|backend| cannot_claim(&backend.capabilities()));
        let remedy = unable.map_or_else(
            || {
                "use a policy with ownership = \"exclusive\" and its own group_name, because all members of a group have the same ownership"
                    .to_owned()
            },
            |unable| format!("it needs ownership = \"exclusive\" on a backend that can hold claims, and {unable}"),
        );
        let message = format!(
            "{kind} {what:?}: policy {} has ownership = \"eventual\", under which two members may run it at once; {remedy}",
            policy.name
        );
        return Err(Error::new(ErrorKind::Settings, message));
    }
    ClaimName::new(name).map_err(|error| Error::new(ErrorKind::Settings, format!("{kind} {what:?}: {error}")))
}

/// The group's note with that name, whose calls have that time limit; an error if the backend does not support notes.
pub(super) fn note_book(policy: &Policy, backend: Option<&Arc<dyn Discovery>>, limit: Duration, name: ClaimName) -> Result<NoteBook> {
    let backend = backend.filter(|backend| backend.as_notes().is_some()).ok_or_else(|| {
        let message = format!(
            "{name}: policy {} has a backend that keeps no notes; use \"local\", \"consul\", \"etcd\", \"nats\" or \"postgres\", or implement \
             Notes for your own",
            policy.name
        );
        Error::new(ErrorKind::Settings, message)
    })?;
    Ok(NoteBook::new(Arc::clone(backend), policy.group.clone(), name, limit))
}

/// The context of runners of named work; like [`OwnershipContext`], it keeps no service alive.
#[derive(Clone)]
pub(super) struct NamedWorkContext {
    pub(super) context: Arc<OwnershipContext>,
    pub(super) ownership: watch::Receiver<Arc<Ownership>>,
    pub(super) names: Arc<OfferedNames>,
}

impl NamedWorkContext {
    pub(super) fn of(service: &ShardingService) -> Self {
        let membership = service.membership();
        Self { context: Arc::clone(&membership.ownership_context), ownership: membership.changes(), names: OfferedNames::of(membership) }
    }
}

/// Runs work wherever this worker holds the name.
pub(super) struct NamedRunner<F> {
    context: Arc<OwnershipContext>,
    ownership: watch::Receiver<Arc<Ownership>>,
    offer: Offer,
    name: ClaimName,
    stop: CancellationToken,
    work: Arc<F>,
}

enum RunEnd {
    Well,
    Failed,
    Asked,
}

impl<F, W, E> NamedRunner<F>
where
    F: Fn(Tenure) -> W + Send + Sync + 'static,
    W: Future<Output = std::result::Result<(), E>> + Send + 'static,
    E: Display + Send + 'static,
{
    /// Offers the name from here on.
    pub(super) fn new(work_context: NamedWorkContext, name: ClaimName, stop: CancellationToken, work: F) -> Self {
        let NamedWorkContext { context, ownership, names } = work_context;
        Self { context, ownership, offer: names.offer(name.clone()), name, stop, work: Arc::new(work) }
    }

    /// Runs until it is stopped or the service is gone. The offer ends with it.
    pub(super) async fn run(mut self) {
        let (turn, gone, stop) = (Arc::clone(&self.offer.turn), self.context.gone.clone(), self.stop.clone());
        let turn = tokio::select! {
            turn = turn.acquire() => turn,
            () = stop.cancelled() => return,
        };
        tokio::select! {
            () = self.follow() => {}
            () = gone.cancelled() => {}
        }
        drop(turn);
    }

    async fn follow(&mut self) {
        let (mut backoff, mut done) = (Backoff::new(RETRY_FIRST, RETRY_LONGEST), None);
        while !self.stop.is_cancelled() {
            let Some(guard) = self.held(done).await else { return };
            let (epoch, begun) = (guard.epoch(), self.context.clock.now());
            match self.once(guard).await {
                RunEnd::Well => done = epoch,
                RunEnd::Asked => {}
                RunEnd::Failed => {
                    if self.context.clock.now().since(begun) >= RUNS_WELL {
                        backoff.reset();
                    }
                    tokio::select! {
                        () = tokio::time::sleep(backoff.fail()) => {}
                        () = self.stop.cancelled() => return,
                    }
                }
            }
        }
    }

    /// Waits until the name is held under another epoch than `done`; `None` once that is impossible.
    async fn held(&mut self, done: Option<Epoch>) -> Option<Guard> {
        loop {
            let seen = self.ownership.borrow_and_update().names().find(|(name, _)| **name == self.name).map(|(_, epoch)| epoch);
            let wanted = seen.is_some() && seen != done;
            if let Some(guard) = wanted.then(|| enter_claim(&self.context, &Resource::Name(self.name.clone())).ok()).flatten() {
                return Some(guard);
            }
            tokio::select! {
                // A fixed order, here and below, so that a seed reproduces a run.
                biased;
                () = self.stop.cancelled() => return None,
                changed = self.ownership.changed() => changed.ok()?,
            }
        }
    }

    async fn once(&self, guard: Guard) -> RunEnd {
        let Some(epoch) = guard.epoch() else { return RunEnd::Asked };
        let guard = Arc::new(guard);
        let tenure = Tenure { name: self.name.clone(), epoch, cancel: CancellationToken::new(), guard: Arc::clone(&guard) };
        let (cancel, work) = (tenure.cancel.clone(), Arc::clone(&self.work));
        // A separate task, so that a panic ends only that; dropped with this future.
        let mut task =
            tokio_util::task::AbortOnDropHandle::new(tokio::spawn(self.context.in_flight.track_future(async move { work(tenure).await })));
        let mut asked = pin!(async {
            let patience = tokio::select! {
                biased;
                () = guard.finish() => None,
                () = self.stop.cancelled() => Some(self.context.policy.drain_timeout),
            };
            cancel.cancel();
            match patience {
                Some(patience) => drop(tokio::time::timeout(patience, guard.lost()).await),
                None => guard.lost().await,
            }
        });
        let ended = tokio::select! {
            biased;
            ended = &mut task => ended,
            () = &mut asked => {
                tracing::warn!(name = %self.name, "work under this name did not end in time and was dropped");
                task.abort();
                task.await
            }
        };
        match ended {
            Ok(Ok(())) if !cancel.is_cancelled() => RunEnd::Well,
            Ok(Err(error)) if !cancel.is_cancelled() => {
                tracing::error!(name = %self.name, %error, "work under this name failed; it is begun again after a pause");
                RunEnd::Failed
            }
            Err(error) if error.is_panic() => {
                tracing::error!(name = %self.name, "work under this name panicked; it is begun again after a pause");
                RunEnd::Failed
            }
            _ => RunEnd::Asked,
        }
    }
}

/// The offered names, each with the number of its offers. The driver claims them.
pub(super) struct OfferedNames {
    offers: Mutex<BTreeMap<ClaimName, OfferCount>>,
    /// The offered names; changed under the lock of `offers`, so that the driver never sees an older set after a newer one.
    wanted: watch::Sender<BTreeSet<ClaimName>>,
}

struct OfferCount {
    times: usize,
    /// Of several runs in one worker that offer the same name, one works at a time.
    turn: Arc<Semaphore>,
}

/// An offer; dropping it withdraws it.
pub(super) struct Offer {
    names: Arc<OfferedNames>,
    name: ClaimName,
    pub(super) turn: Arc<Semaphore>,
}

impl OfferedNames {
    pub(super) fn of(context: &OwnershipContext) -> Arc<Self> {
        context.extensions.get_or_make(|| Self { offers: Mutex::default(), wanted: context.wanted_names.clone() })
    }

    pub(super) fn offer(self: &Arc<Self>, name: ClaimName) -> Offer {
        let mut offers = locked(&self.offers);
        let count = offers.entry(name.clone()).or_insert_with(|| OfferCount { times: 0, turn: Arc::new(Semaphore::new(1)) });
        count.times += 1;
        let turn = Arc::clone(&count.turn);
        self.wanted.send_modify(|wanted| wanted.extend([name.clone()]));
        Offer { names: Arc::clone(self), name, turn }
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        let mut offers = locked(&self.names.offers);
        let Some(count) = offers.get_mut(&self.name) else { return };
        count.times -= 1;
        if count.times == 0 {
            offers.remove(&self.name);
            self.names.wanted.send_if_modified(|wanted| wanted.remove(&self.name));
        }
    }
}
