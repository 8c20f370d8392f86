//! Work that runs on exactly one member of a group: a claim on a name, held by one at a time.

use std::fmt::Display;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use shardwise_core::{ClaimName, Epoch, Moment, OwnershipMode, Resource};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::enter::{Guard, enter_claim};
use crate::service::ShardingService;
use crate::shared::Ground;
use crate::{Error, ErrorKind, Ownership, Result};

/// First pause before work that failed is begun again; doubled for each further failure.
const RETRY_FIRST: Duration = Duration::from_millis(500);
/// Longest such pause.
const RETRY_LONGEST: Duration = Duration::from_secs(30);
/// Work that has run for this long begins with the first pause again.
const RUNS_WELL: Duration = Duration::from_mins(1);

/// Work of this name, which runs on one member of the group. Made by [`crate::ShardingFactory::singleton`] and [`ShardingService::singleton`].
#[derive(Debug)]
#[must_use = "nothing runs before `run`"]
pub struct Singleton {
    service: ShardingService,
    name: ClaimName,
}

/// What singleton work is told.
#[derive(Clone)]
pub struct SingletonContext {
    name: ClaimName,
    epoch: Epoch,
    cancel: CancellationToken,
    guard: Arc<Guard>,
}

impl SingletonContext {
    /// Its name.
    pub const fn name(&self) -> &ClaimName {
        &self.name
    }

    /// The epoch under which it runs: higher than that of every run of this name before. Put it into your own writes.
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Cancelled when it has to end: it goes to another member, is lost, or its run is stopped. After `drain_timeout`, or at once if it is lost,
    /// the work is dropped where it awaits.
    pub const fn cancel(&self) -> &CancellationToken {
        &self.cancel
    }

    /// Whether it has been this worker's without a gap until now; reads the clock.
    pub fn is_held(&self) -> bool {
        self.guard.is_held()
    }
}

impl ShardingService {
    /// Work of this name, to run on exactly one member of this service's group. Every member offers the same names; one that nobody else offers
    /// is run by whoever does, after a TTL at the latest.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`] if the policy's ownership is not exclusive, or the name is none.
    pub fn singleton(&self, name: &str) -> Result<Singleton> {
        if self.policy().ownership != OwnershipMode::Exclusive {
            let message = format!(
                "singleton {name:?}: policy {} has ownership = \"eventual\", and then two members may run it; write ownership = \"exclusive\"",
                self.policy().name
            );
            return Err(Error::new(ErrorKind::Settings, message));
        }
        let name =
            ClaimName::new(format!("singleton/{name}")).map_err(|error| Error::new(ErrorKind::Settings, format!("singleton: {error}")))?;
        Ok(Singleton { service: self.clone(), name })
    }
}

impl Singleton {
    /// Runs `work` wherever this worker holds the name: begun when it is claimed, ended when it goes to another member. Work that fails or panics
    /// is begun again after a pause that doubles from 0.5 s to 30 s, under the same epoch and, in between, still by this worker. Work that
    /// ends well is done until the name is claimed again.
    ///
    /// The service must have been registered, or be so later. Must be called inside a tokio runtime.
    pub fn run<F, W, E>(self, work: F) -> SingletonRun
    where
        F: Fn(SingletonContext) -> W + Send + Sync + 'static,
        W: Future<Output = std::result::Result<(), E>> + Send + 'static,
        E: Display + Send + 'static,
    {
        let (stop, finished) = (CancellationToken::new(), CancellationToken::new());
        let shared = self.service.shared();
        let runner = Runner {
            ground: Arc::clone(&shared.ground),
            ownership: shared.changes(),
            name: self.name.clone(),
            stop: stop.clone(),
            work: Arc::new(work),
        };
        let offer = shared.names.offer(self.name);
        let done = finished.clone().drop_guard();
        tokio::spawn(async move {
            runner.run().await;
            drop((offer, done));
        });
        SingletonRun { stop, finished }
    }
}

/// A singleton that this worker offers to run; dropping it takes the offer back.
pub struct SingletonRun {
    stop: CancellationToken,
    finished: CancellationToken,
}

impl SingletonRun {
    /// Cancels the work if it runs here, waits until it has ended, and takes the offer back: another member runs it.
    pub async fn stop(self) {
        self.stop.cancel();
        self.finished.cancelled().await;
    }
}

impl Drop for SingletonRun {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

struct Runner<F> {
    ground: Arc<Ground>,
    ownership: watch::Receiver<Arc<Ownership>>,
    name: ClaimName,
    stop: CancellationToken,
    work: Arc<F>,
}

/// How one run came to its end.
enum Ended {
    Well,
    Failed,
    Told,
}

impl<F, W, E> Runner<F>
where
    F: Fn(SingletonContext) -> W + Send + Sync + 'static,
    W: Future<Output = std::result::Result<(), E>> + Send + 'static,
    E: Display + Send + 'static,
{
    async fn run(mut self) {
        let (stop, gone) = (self.stop.clone(), self.ground.gone.clone());
        tokio::select! {
            () = self.follow() => {}
            () = gone.cancelled() => {}
            // Told through its own context; it is waited for there.
            () = async { stop.cancelled().await; std::future::pending().await } => {}
        }
    }

    async fn follow(&mut self) {
        let (mut pause, mut done) = (RETRY_FIRST, None);
        while !self.stop.is_cancelled() {
            let Some(guard) = self.held(done).await else { return };
            let (epoch, begun) = (guard.epoch(), self.ground.clock.now());
            match self.once(guard).await {
                Ended::Well => done = epoch,
                Ended::Told => {}
                Ended::Failed => {
                    pause = if lasted(begun, self.ground.clock.now()) { RETRY_FIRST } else { pause };
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = self.stop.cancelled() => return,
                    }
                    pause = (pause * 2).min(RETRY_LONGEST);
                }
            }
        }
    }

    /// Waits until the name is held under another epoch than the one under which it was done; `None` when that cannot be any more.
    async fn held(&mut self, done: Option<Epoch>) -> Option<Guard> {
        loop {
            let seen = self.ownership.borrow_and_update().names().find(|(name, _)| **name == self.name).map(|(_, epoch)| epoch);
            let wanted = seen.is_some() && seen != done;
            if let Some(guard) = wanted.then(|| enter_claim(&self.ground, &Resource::Name(self.name.clone())).ok()).flatten() {
                return Some(guard);
            }
            tokio::select! {
                changed = self.ownership.changed() => changed.ok()?,
                () = self.stop.cancelled() => return None,
            }
        }
    }

    async fn once(&self, guard: Guard) -> Ended {
        let Some(epoch) = guard.epoch() else { return Ended::Told };
        let guard = Arc::new(guard);
        let context = SingletonContext { name: self.name.clone(), epoch, cancel: CancellationToken::new(), guard: Arc::clone(&guard) };
        let (cancel, work) = (context.cancel.clone(), Arc::clone(&self.work));
        // A task of its own, so that a panic ends it and nothing else; dropped with this future.
        let mut task =
            tokio_util::task::AbortOnDropHandle::new(tokio::spawn(self.ground.in_flight.track_future(async move { work(context).await })));
        let mut told = pin!(async {
            tokio::select! {
                () = guard.finish() => {}
                () = self.stop.cancelled() => {}
            }
            cancel.cancel();
            guard.lost().await;
        });
        let ended = tokio::select! {
            ended = &mut task => ended,
            () = &mut told => {
                tracing::warn!(name = %self.name, "singleton work did not end in time and was dropped");
                task.abort();
                task.await
            }
        };
        match ended {
            Ok(Ok(())) if !cancel.is_cancelled() => Ended::Well,
            Ok(Err(error)) if !cancel.is_cancelled() => {
                tracing::error!(name = %self.name, %error, "singleton work failed; it is begun again after a pause");
                Ended::Failed
            }
            Err(error) if error.is_panic() => {
                tracing::error!(name = %self.name, "singleton work panicked; it is begun again after a pause");
                Ended::Failed
            }
            _ => Ended::Told,
        }
    }
}

fn lasted(begun: Moment, now: Moment) -> bool {
    now.since(begun) >= RUNS_WELL
}

impl std::fmt::Debug for SingletonContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} under epoch {}", self.name, self.epoch)
    }
}
