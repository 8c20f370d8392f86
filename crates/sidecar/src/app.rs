//! The state that all requests share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use shardwise::core::{ViewPlacement, WorkerHealth};
use shardwise::discovery::LogThrottle;
use shardwise::{NotOwning, Observer, Router, ServiceState, Sharding as _, ShardingFactory, ShardingService};
use tokio::runtime::Handle;
use tokio::sync::{OnceCell, Semaphore};
use tracing::Instrument;

use crate::bodies::{Bodies, KEPT_BYTES_MAX};
use crate::cancel_table::CancelTable;
use crate::connection_table::ConnectionTable;
use crate::history::History;
use crate::leases::Leases;
use crate::options::Options;
use crate::page::Page;
use crate::problem::{Result, TOO_MANY, UNAVAILABLE};
use crate::rate::{RateLimiter, Suspected};
use crate::view_since::ViewSince;
use crate::worker_client::WorkerClient;

/// The most requests per second that need a placement or a call of the backend.
const COSTLY_PER_SECOND: u32 = 50;
/// The most requests per second that keep leases and finish grants, where --rate is lower than that.
const LEASE_CALLS_PER_SECOND: u32 = 1_000;
/// The most placements computed for clients at the same time.
const PLACING_MAX: usize = 2;
/// The most clients that may follow a stream of changes.
pub(crate) const FOLLOWERS_MAX: usize = 64;
/// The most requests that are forwarded to members at the same time, and the most that the local worker is asked.
pub(crate) const FORWARDS_MAX: usize = 64;
const CALL_WITHIN: Duration = Duration::from_secs(10);

/// A group that this sidecar has joined or only observes.
pub(crate) struct ServedGroup {
    pub(crate) service: ShardingService,
    /// The service never joins: this sidecar shows the group and owns nothing of it.
    pub(crate) only_observes: bool,
    /// Both ends of a connection prove that they are members of the group: they have a token or certificates.
    pub(crate) proves: bool,
    /// Knows the owners of all keys; set after the first view.
    pub(crate) observer: OnceLock<Observer>,
    pub(crate) history: History,
    pub(crate) view_since: ViewSince,
    /// The lease of the local worker, and what it was granted.
    pub(crate) leases: Arc<Leases>,
    /// Sends requests to a group that is only observed; made for the first one.
    pub(crate) router: OnceCell<Router>,
}

pub(crate) struct App {
    pub(crate) factory: ShardingFactory,
    pub(crate) policies: BTreeMap<String, Arc<ServedGroup>>,
    pub(crate) renewals: Handle,
    pub(crate) options: Options,
    rate: Option<RateLimiter>,
    /// Limits what [`crate::leases::keeps_lease`] names.
    lease_rate: Option<RateLimiter>,
    pub(crate) connections: Arc<ConnectionTable>,
    pub(crate) followers: Arc<Semaphore>,
    pub(crate) leaving: AtomicBool,
    pub(crate) document: Bytes,
    pub(crate) page: Page,
    pub(crate) log: LogThrottles,
    pub(crate) bodies: Arc<Bodies>,
    costly: RateLimiter,
    /// The turns of computations for clients.
    pub(crate) placing: Arc<Semaphore>,
    /// The turns of requests that are forwarded.
    pub(crate) forwards: Semaphore,
    /// The local worker, if there is one that takes requests.
    pub(crate) worker: Option<WorkerClient>,
    /// The turns of requests to it.
    pub(crate) worker_turns: Semaphore,
    /// Members whose workers were reported lately.
    pub(crate) suspected: Suspected,
    /// The requests in flight that their clients can cancel.
    pub(crate) cancels: CancelTable,
    /// The member with which the next search for any member begins.
    pub(crate) next: AtomicUsize,
}

/// Throttles of log lines.
#[derive(Default)]
pub(crate) struct LogThrottles {
    /// Requests without the operator's token, separately for possible actions.
    pub(crate) intruders: LogThrottle<bool>,
    /// Requests for another host or from a page of another origin, by status.
    pub(crate) outsiders: LogThrottle<u16>,
    /// Actions refused although the token was right, by reason.
    pub(crate) refused: LogThrottle<&'static str>,
    /// Requests that could not be forwarded to a member, by status.
    pub(crate) unbrought: LogThrottle<u16>,
    /// Requests that the local worker did not answer.
    pub(crate) unanswered: LogThrottle<()>,
}

impl App {
    pub(crate) fn new(
        factory: ShardingFactory,
        policies: BTreeMap<String, Arc<ServedGroup>>,
        renewals: Handle,
        document: Bytes,
        options: Options,
    ) -> Self {
        Self {
            factory,
            policies,
            renewals,
            rate: options.limits.rate.map(RateLimiter::new),
            lease_rate: options.limits.rate.map(|rate| RateLimiter::new(rate.max(LEASE_CALLS_PER_SECOND))),
            connections: ConnectionTable::new(options.limits.connections),
            worker: options.peers.forward_to.clone().map(|target| WorkerClient::new(target, options.limits.clone())),
            options,
            followers: Arc::new(Semaphore::new(FOLLOWERS_MAX)),
            leaving: AtomicBool::new(false),
            document,
            page: Page::new(),
            log: LogThrottles::default(),
            bodies: Bodies::new(KEPT_BYTES_MAX),
            costly: RateLimiter::new(COSTLY_PER_SECOND),
            placing: Arc::new(Semaphore::new(PLACING_MAX)),
            forwards: Semaphore::new(FORWARDS_MAX),
            worker_turns: Semaphore::new(FORWARDS_MAX),
            suspected: Suspected::default(),
            cancels: CancelTable::default(),
            next: AtomicUsize::new(0),
        }
    }

    /// Counts one request of an admitted client against the rate that all clients share; an error if it is used up.
    pub(crate) fn admit(&self) -> Result<()> {
        let is_left = self.rate.as_ref().is_none_or(RateLimiter::passes);
        if is_left { Ok(()) } else { Err(TOO_MANY.because("there are more requests a second than --rate allows")) }
    }

    /// Counts one request that keeps a lease, against a rate that no other requests use up.
    pub(crate) fn admit_lease_call(&self) -> Result<()> {
        let is_left = self.lease_rate.as_ref().is_none_or(RateLimiter::passes);
        if is_left { Ok(()) } else { Err(TOO_MANY.because("there are too many renewals and reports of finished grants a second")) }
    }

    /// Counts one expensive request against its rate; an error if there were too many within the last seconds.
    pub(crate) fn spend(&self) -> Result<()> {
        let message = format!("at most {COSTLY_PER_SECOND} such requests a second");
        if self.costly.passes() { Ok(()) } else { Err(TOO_MANY.because(message)) }
    }

    /// Calls the backend on the runtime that owns its connections.
    pub(crate) async fn call<T, W>(&self, call: impl FnOnce(ShardingFactory) -> W) -> Result<T>
    where
        T: Send + 'static,
        W: Future<Output = shardwise::Result<T>> + Send + 'static,
    {
        self.spend()?;
        let call = self.renewals.spawn(tokio::time::timeout(CALL_WITHIN, call(self.factory.clone())).in_current_span());
        match call.await {
            Ok(Ok(answer)) => Ok(answer?),
            Ok(Err(_)) => Err(UNAVAILABLE.because(format!("the backend has not answered within {CALL_WITHIN:?}; try again"))),
            Err(_) => Err(UNAVAILABLE.because("this worker is stopping")),
        }
    }

    /// Why this worker is not ready; `None` if it is.
    pub(crate) fn not_ready(&self) -> Option<String> {
        if self.leaving.load(Ordering::Relaxed) {
            return Some("this worker is leaving".into());
        }
        self.policies.iter().find_map(|(name, joined)| Some(format!("policy {name}: {}", joined.not_ready()?)))
    }
}

/// Computes something that takes long on a separate thread once a permit is free. The permit is free again when the computation ends, even
/// if its caller no longer waits.
pub(crate) async fn in_turn<T: Send + 'static>(turns: &Arc<Semaphore>, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let late = || UNAVAILABLE.because(format!("the server is busy with other requests: no turn came within {CALL_WITHIN:?}; try again"));
    let turn = tokio::time::timeout(CALL_WITHIN, Arc::clone(turns).acquire_owned()).await.map_err(|_| late())?;
    let computed = tokio::task::spawn_blocking(move || {
        let computed = work();
        drop(turn);
        computed
    });
    computed.await.map_err(|_| UNAVAILABLE.because("this could not be computed; try again"))
}

/// The groups that are joined.
pub(crate) fn members(policies: &BTreeMap<String, Arc<ServedGroup>>) -> impl Iterator<Item = (&String, &Arc<ServedGroup>)> {
    policies.iter().filter(|(_, joined)| !joined.only_observes)
}

impl ServedGroup {
    fn not_ready(&self) -> Option<String> {
        if self.only_observes {
            let age = self.observer.get().map(Observer::view_age);
            if let Some(age) = age.filter(|age| *age > self.service.timing().ttl * 2) {
                return Some(format!("the backend has not answered for {age:.0?}"));
            }
        } else if let Some(why) = self.lacks_lease() {
            return Some(why);
        } else if let Some(why) = self.not_owning() {
            return Some(why.to_string());
        } else if self.service.is_drained() {
            let (id, policy) = (self.service.instance_id(), &self.service.policy().name);
            return Some(format!("drained by an operator; to undo it, run shardwise undrain {id} --policy {policy}"));
        } else if let Some(why) = self.worker_fails() {
            return Some(why);
        }
        self.observer().err().map(|problem| problem.detail().to_owned())
    }

    /// Why this worker owns nothing at all. While no key has an owner, the hint names the failure of the local worker, if that is why.
    pub(crate) fn not_owning(&self) -> Option<NotOwning> {
        let why = self.service.ownership().not_owning_at(self.service.now())?;
        let may_be_the_worker = why.state == ServiceState::Active && !self.service.is_drained() && !self.service.is_spared();
        let of_worker = may_be_the_worker.then(|| self.lacks_lease().or_else(|| self.worker_fails())).flatten();
        Some(NotOwning { hint: of_worker.unwrap_or(why.hint), ..why })
    }

    /// Why this member of the group owns nothing for want of a lease.
    fn lacks_lease(&self) -> Option<String> {
        let is_member = self.service.ownership().state() == ServiceState::Active;
        let lacks = is_member && self.service.worker().borrow().leased == Some(false);
        lacks.then(|| match self.leases.age_and_rest() {
            None => format!("the worker has no lease, so this member owns nothing: the worker opens one with POST {}", self.leases.route()),
            Some(_) => "the worker's lease waits until this member has released what an earlier lease was granted".into(),
        })
    }

    /// Why the worker that this sidecar speaks for has no share, or should have none.
    fn worker_fails(&self) -> Option<String> {
        let report = self.service.worker().borrow().clone();
        let why = report.failure.as_deref().unwrap_or("no check has succeeded yet");
        Some(match report.health? {
            WorkerHealth::Absent => format!("the worker has not been seen yet: {why}"),
            // One check more decides.
            WorkerHealth::Failing(_) if !report.fails => return None,
            WorkerHealth::Failing(_) if self.service.is_spared() => format!(
                "the worker's checks fail: {why}. It keeps its share, because fewer than half of the group, or than min_members, would stay active without it"
            ),
            WorkerHealth::Failing(_) => format!("the worker's checks fail: {why}"),
        })
    }

    /// The observer of the group; an error before the first view.
    pub(crate) fn observer(&self) -> Result<&Observer> {
        self.observer.get().ok_or_else(|| UNAVAILABLE.because("the group has not been seen yet"))
    }

    /// The placement in force in the group; `None` if no member owns anything.
    pub(crate) fn placed(&self) -> Result<Option<ViewPlacement>> {
        Ok(self.observer()?.placed()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[tokio::test]
    async fn a_turn_ends_with_the_work_and_not_with_the_caller_that_waits_for_it() {
        let turns = Arc::new(Semaphore::new(1));
        let ((go, wait), (begun, begins)) = (mpsc::channel::<()>(), mpsc::channel());
        let work = in_turn(&turns, move || {
            begun.send(()).unwrap();
            let _ = wait.recv();
        });
        assert!(tokio::time::timeout(Duration::from_millis(1), work).await.is_err(), "nobody waits for it any more");
        tokio::task::spawn_blocking(move || begins.recv().unwrap()).await.unwrap();
        assert_eq!(turns.available_permits(), 0, "and it is being computed still");
        drop(go);
        assert!(in_turn(&turns, || 7).await.is_ok_and(|seven| seven == 7));
    }

    #[tokio::test(start_paused = true)]
    async fn no_request_waits_for_ever_for_a_turn() {
        let turns = Arc::new(Semaphore::new(0));
        let begun = tokio::time::Instant::now();
        let refusal = in_turn(&turns, || ()).await.unwrap_err();
        assert_eq!((refusal.status(), begun.elapsed()), (503, CALL_WITHIN));
    }
}
