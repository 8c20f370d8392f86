//! One worker's membership in one group, and the answers to "which keys are mine?".

mod alone;
mod keys;
mod replicas;
mod requests;

pub(crate) use replicas::RankCache;

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use shardwise_core::machine::{Identity, Machine};
use shardwise_core::{
    GroupName, InstanceId, Member, MemberState, Moment, Ownership, OwnershipMode, Policy, Rebalance, Serves, ServiceState, Timing, View,
};
use shardwise_discovery::{Clock, Discovery, Registration};
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{Instrument, Span, field};

use crate::absence::Absence;
use crate::drain::{DrainFollower, DrainStore};
use crate::driver::{Driver, DriverCommand};
use crate::error::inside_runtime;
use crate::listeners::{Rebalances, Snapshots, WatchMembers};
use crate::placement_cache::placer;
use crate::settings::{MessagesSettings, PeersSettings, PolicySettings};
use crate::sharding::Sharding;
use crate::shared::Shared;
use crate::{Error, ErrorKind, Result, trace};

/// How long registering may take beyond the TTL after which a silent former self is gone.
const JOIN_GRACE: Duration = Duration::from_secs(5);
/// How long a backend that has not answered at all is waited for, whatever the TTL. Giving up takes half a second more, and within ten
/// whoever made a mistake in the settings is to know.
const SILENCE_MAX: Duration = Duration::from_secs(7);
/// Requests waiting for the driver.
const COMMANDS_MAX: usize = 8;

/// One worker's membership in one group. Made by [`crate::ShardingFactory::create`]; clones share one membership, and dropping the
/// last one (the factory's counts until [`crate::ShardingFactory::clear`]) leaves the group as well as it can.
///
/// Reading is synchronous, takes no lock and is cheap: call it as often as you like.
#[derive(Clone)]
pub struct ShardingService {
    handle: Arc<ServiceHandle>,
}

struct ServiceHandle {
    shared: Arc<Shared>,
    /// The driver, until it is started by the first registration; then the way to it. `None` for services that never join.
    engine: Option<Mutex<ServiceEngine>>,
    backend: Option<Arc<dyn Discovery>>,
    join_limit: Duration,
    /// What operators want of this member; nothing where nobody can want anything.
    follower: OnceLock<DrainFollower>,
    /// That is followed, from the first registration on.
    follows: AtomicBool,
}

impl Drop for ServiceHandle {
    fn drop(&mut self) {
        let engine = self.engine.as_ref().map(|engine| engine.lock().unwrap_or_else(PoisonError::into_inner));
        if engine.is_some_and(|engine| matches!(*engine, ServiceEngine::Running(_))) {
            self.shared.warn_if_member(
                "the last handle of this worker's service was dropped without deregister_self: it leaves its group on a best-effort basis; call \
                 deregister_self before",
            );
        }
    }
}

/// How the driver is set going: `tokio::spawn`, but for test fleets.
pub(crate) type Spawn = Box<dyn FnOnce(BoxFuture<'static, ()>) + Send>;

enum ServiceEngine {
    Parked(Box<Driver>, Spawn),
    Running(mpsc::Sender<DriverCommand>),
}

impl ShardingService {
    pub(crate) fn new(settings: &PolicySettings, member: Member, backend: Arc<dyn Discovery>, clock: Clock) -> Self {
        let spawn = Box::new(|driver: BoxFuture<'static, ()>| drop(tokio::spawn(driver)));
        let PolicySettings { policy, timing, .. } = settings;
        let follower = DrainStore::of(policy, *timing, &backend).filter(|_| policy.placement.kind.by_key().is_none());
        let follower = follower.map(|drains| DrainFollower { drains, me: member.instance_id.clone(), read_every: timing.ttl / 2 });
        let service = Self::driven_by(spawn, settings, member, backend, clock);
        if let Some(follower) = follower {
            // It is a new service's, so nobody has set it.
            let _ = service.handle.follower.set(follower);
        }
        service
    }

    pub(crate) fn driven_by(
        spawn: Spawn,
        settings: &PolicySettings,
        mut member: Member,
        backend: Arc<dyn Discovery>,
        clock: Clock,
    ) -> Self {
        let (policy, timing) = (Arc::new(settings.policy.clone()), settings.timing);
        member.fingerprints = policy.fingerprints();
        let me = Identity { instance_id: member.instance_id.clone(), incarnation: member.incarnation };
        let machine = Machine::new(Arc::clone(&policy), timing, me, |params| placer(&policy.group, params), clock.now());
        let registration =
            Registration { group: policy.group.clone(), member, ttl: timing.ttl, claims: policy.ownership == OwnershipMode::Exclusive };
        let ways = (settings.messages.clone(), settings.peers.clone());
        let ownership = Arc::clone(machine.ownership());
        let shared = Arc::new(Shared::new(policy, timing, &registration.member, ways, clock, ownership));
        let join_limit = timing.ttl + backend.capabilities().margin + JOIN_GRACE;
        let driver = Driver::new(Arc::clone(&shared), Arc::clone(&backend), machine, registration);
        let engine = Some(Mutex::new(ServiceEngine::Parked(Box::new(driver), spawn)));
        Self {
            handle: Arc::new(ServiceHandle {
                shared,
                engine,
                backend: Some(backend),
                join_limit,
                follower: OnceLock::new(),
                follows: AtomicBool::new(false),
            }),
        }
    }

    /// A service that never joins and whose share never changes.
    pub(crate) fn fixed(policy: Policy, member: &Member, ownership: Ownership, clock: Clock) -> Self {
        let ways = (MessagesSettings::default(), PeersSettings::default());
        let shared = Arc::new(Shared::new(Arc::new(policy), Timing::default(), member, ways, clock, Arc::new(ownership)));
        Self {
            handle: Arc::new(ServiceHandle {
                shared,
                engine: None,
                backend: None,
                join_limit: Duration::ZERO,
                follower: OnceLock::new(),
                follows: AtomicBool::new(false),
            }),
        }
    }

    /// A service of one worker that owns everything, without any backend.
    pub(crate) fn unsharded(policy: Policy, member: &Member, clock: Clock) -> Self {
        let view = Arc::new(View::new(0, vec![member.clone()]));
        let ownership = Ownership::unsharded(&policy.placement, view, clock.now());
        Self::fixed(policy, member, ownership, clock)
    }

    /// Joins the group and waits until this worker is an active member. Joining twice is joining once.
    ///
    /// A former self of the same id that died without leaving is waited out for one TTL.
    ///
    /// Once it has joined, a worker stays a member until [`ShardingService::deregister_self`]: it registers anew by itself after its lease
    /// was lost, and goes on trying, slowly, where it is refused then ([`ServiceState::Refused`]).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InstanceIdInUse`] if a living member has this id, [`ErrorKind::OtherPolicy`] if the group has agreed on other
    /// constants or works for something else, [`ErrorKind::Backend`] for wrong credentials or settings, and, retryable, [`ErrorKind::Unavailable`] if
    /// the backend does not let it in within the TTL and 5 s, or does not answer at all for 7 s; [`ErrorKind::NoRuntime`] outside a tokio runtime. After
    /// an error this worker is not a member; call again to
    /// try again.
    ///
    /// Dropping the future does not take the wish back: the worker goes on joining. Call [`ShardingService::deregister_self`] for that.
    pub async fn register_self(&self) -> Result<()> {
        inside_runtime()?;
        let span = tracing::info_span!(
            "join",
            "shardwise.policy" = %self.shared().policy.name,
            "shardwise.instance" = %self.shared().instance_id,
            otel.status_code = field::Empty,
            "error.type" = field::Empty
        );
        let joined = self.join(&span).instrument(span.clone()).await;
        if joined.is_err() {
            trace::failed(&span, "not_joined");
        }
        joined
    }

    async fn join(&self, span: &Span) -> Result<()> {
        self.hear_operators().await?;
        let Some(commands) = self.ask(|taken| DriverCommand::Join(span.clone(), taken)).await? else {
            self.begin_alone();
            return Ok(());
        };
        let mut blinded = self.shared().blinded.subscribe();
        let decision = tokio::select! {
            decision = self.decision() => decision,
            // Without a view it can never own anything, and only a change of somebody's would help.
            Ok(why) = async { blinded.wait_for(Option::is_some).await.map(|why| why.as_deref().unwrap_or_default().to_owned()) } => {
                Err(Error::new(ErrorKind::Backend, why))
            }
            () = commands.closed() => return Err(stopped()),
        };
        let error = match decision {
            Ok(ownership) => match (ownership.state(), ownership.refusal()) {
                (ServiceState::Active | ServiceState::Stale, _) => return Ok(()),
                (ServiceState::Refused, Some(refusal)) => Error::from(refusal),
                (state, _) => Error::new(ErrorKind::Closed, format!("the worker did not become active but {state}")),
            },
            Err(error) => error,
        };
        self.deregister_self().await?;
        Err(error)
    }

    /// Takes in whether an operator wants this member drained, each time it joins, and follows that from the first time on.
    async fn hear_operators(&self) -> Result<()> {
        let Some(follower) = self.handle.follower.get() else { return Ok(()) };
        if let Some(wanted) = follower.wanted_at_start().await {
            self.ask(|taken| DriverCommand::Drain(wanted, taken)).await?;
        }
        if let Some(ways) = self.commands()
            && !self.handle.follows.swap(true, Ordering::Relaxed)
        {
            tokio::spawn(follower.clone().follow(ways.downgrade(), self.shared().changes(), self.shared().noted.subscribe()));
        }
        Ok(())
    }

    /// The snapshot with which joining ends, or why there is none in time.
    async fn decision(&self) -> Result<Arc<Ownership>> {
        let mut changes = self.shared().changes();
        let mut decided = pin!(async {
            let decided = changes.wait_for(|ownership| !matches!(ownership.state(), ServiceState::Joining | ServiceState::Fenced));
            decided.await.map(|ownership| Arc::clone(&ownership))
        });
        let begun = tokio::time::Instant::now();
        let mut limit = self.handle.join_limit.min(SILENCE_MAX);
        loop {
            match tokio::time::timeout_at(begun + limit, &mut decided).await {
                Ok(ownership) => return ownership.map_err(|_| stopped()),
                Err(_) if limit < self.handle.join_limit && self.shared().answered.load(Ordering::Relaxed) => {
                    limit = self.handle.join_limit;
                }
                Err(_) => break,
            }
        }
        let failure = self.shared().failure.load_full();
        let why = failure.as_deref().map_or("the backend let nobody in yet", String::as_str);
        Err(Error::new(ErrorKind::Unavailable, format!("not a member after {limit:?}: {why}; mend that, or just try again")))
    }

    /// Leaves the group: takes nothing new, waits for work in flight up to the policy's `drain_timeout`, deregisters. Leaving twice is
    /// leaving once.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Closed`] if the runtime that ran the service is gone, [`ErrorKind::NoRuntime`] outside a tokio runtime.
    pub async fn deregister_self(&self) -> Result<()> {
        self.leave(DriverCommand::Leave).await
    }

    /// The same without keeping a place for this worker, whatever `rejoin_grace` says: the others take over at once. A worker that has left already
    /// and whose place is kept gives it up. For whoever will not come back; for one that is gone see
    /// [`crate::ShardingFactory::end_absence`].
    ///
    /// # Errors
    ///
    /// Those of [`ShardingService::deregister_self`].
    pub async fn deregister_self_for_good(&self) -> Result<()> {
        self.leave(DriverCommand::LeaveForGood).await
    }

    async fn leave(&self, command: impl FnOnce(Span, oneshot::Sender<()>) -> DriverCommand) -> Result<()> {
        inside_runtime()?;
        if !self.is_running() {
            self.end_alone().await;
            return Ok(());
        }
        let span = tracing::info_span!(
            "leave",
            "shardwise.policy" = %self.shared().policy.name,
            "shardwise.instance" = %self.shared().instance_id
        );
        let Some(commands) = self.ask(|taken| command(span.clone(), taken)).await? else { return Ok(()) };
        let mut changes = self.shared().changes();
        tokio::select! {
            biased;
            left = changes.wait_for(|ownership| ownership.state() == ServiceState::Left) => left.map(drop).map_err(|_| stopped()),
            () = commands.closed() => Err(stopped()),
        }
    }

    /// Sends a command and waits until it is taken in; the way to the driver, or `None` for a service that never joins.
    async fn ask(&self, command: impl FnOnce(oneshot::Sender<()>) -> DriverCommand) -> Result<Option<mpsc::Sender<DriverCommand>>> {
        let Some(commands) = self.commands() else { return Ok(None) };
        let (taken, answer) = oneshot::channel();
        commands.send(command(taken)).await.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?;
        Ok(Some(commands))
    }

    /// The way to the driver, which is started here if it was not.
    fn commands(&self) -> Option<mpsc::Sender<DriverCommand>> {
        let mut engine = self.handle.engine.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        if let ServiceEngine::Running(commands) = &*engine {
            return Some(commands.clone());
        }
        let (sender, receiver) = mpsc::channel(COMMANDS_MAX);
        if let ServiceEngine::Parked(driver, spawn) = std::mem::replace(&mut *engine, ServiceEngine::Running(sender.clone())) {
            spawn(Box::pin(driver.run(receiver)));
        }
        Some(sender)
    }

    fn is_running(&self) -> bool {
        let engine = self.handle.engine.as_ref().map(|engine| engine.lock().unwrap_or_else(PoisonError::into_inner));
        engine.is_some_and(|engine| matches!(*engine, ServiceEngine::Running(_)))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }

    /// Where it meets the others; `None` for services that never join.
    pub(crate) fn backend(&self) -> Option<&Arc<dyn Discovery>> {
        self.handle.backend.as_ref()
    }

    /// The latest snapshot. Ask it with [`ShardingService::now`], so that its deadline counts.
    pub fn ownership(&self) -> Arc<Ownership> {
        self.shared().ownership()
    }

    /// The group's members as last seen.
    pub fn members(&self) -> Arc<View> {
        Arc::clone(self.shared().ownership().view())
    }

    /// The members that have left for a while (`rejoin_grace`), and how long their places are kept for them at most.
    pub fn absences(&self) -> Vec<Absence> {
        self.shared().absences.told(&self.members(), self.policy().rejoin_grace, self.now())
    }

    /// Where the service stands right now.
    pub fn state(&self) -> ServiceState {
        self.shared().read(Ownership::state_at)
    }

    /// Whether the group sees this worker as drained by an operator's wish: it is a member and owns nothing
    /// ([`crate::ShardingFactory::drain`]).
    pub fn is_drained(&self) -> bool {
        let ownership = self.shared().ownership();
        let me = ownership.view().member(self.instance_id());
        ownership.state() == ServiceState::Active && me.is_some_and(|me| me.state == MemberState::Draining)
    }

    /// How many placements this worker has asked for: one for each change of the group that it took in, none for a renewal.
    pub fn rebuilds(&self) -> u64 {
        self.shared().rebuilds.load(Ordering::Relaxed)
    }

    /// This worker's name in its group.
    pub fn instance_id(&self) -> &InstanceId {
        &self.shared().instance_id
    }

    /// The group it shares the work with.
    pub fn group_name(&self) -> &GroupName {
        &self.shared().policy.group
    }

    /// The policy it was made from.
    pub fn policy(&self) -> &Policy {
        &self.shared().policy
    }

    /// The present moment on the clock of the deadlines.
    pub fn now(&self) -> Moment {
        self.shared().clock.now()
    }

    /// The latest snapshot now and whenever it changes: slots, state, view or deadline.
    pub fn ownership_changes(&self) -> watch::Receiver<Arc<Ownership>> {
        self.shared().changes()
    }

    /// The group's members now and whenever they change.
    pub fn watch_members(&self) -> WatchMembers {
        WatchMembers::new(self.shared().changes())
    }

    /// The rebalances from now on, as a stream that ends with the service. A slow reader gets them merged.
    pub fn rebalances(&self) -> Rebalances {
        self.shared().rebalances.subscribe()
    }

    /// Every snapshot from now on, in order: what [`ShardingService::ownership_changes`] would skip for a slow reader too.
    pub fn snapshots(&self) -> Snapshots {
        self.shared().snapshots.subscribe()
    }

    /// Calls `callback` for each rebalance from now on: one call at a time, off the driver, merged when it is slow. A panic in it is
    /// logged and stops nothing.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn on_rebalance(&self, callback: impl Fn(&Rebalance) + Send + Sync + 'static) {
        let callback = Arc::new(callback);
        let mut rebalances = self.rebalances();
        tokio::spawn(async move {
            while let Some(rebalance) = rebalances.recv().await {
                let callback = Arc::clone(&callback);
                // It may block, so it runs on a thread made for that; waiting for it keeps the calls in order.
                if tokio::task::spawn_blocking(move || callback(&rebalance)).await.is_err() {
                    tracing::error!("a callback of on_rebalance panicked; it will be called again at the next rebalance");
                }
            }
        });
    }
}

fn stopped() -> Error {
    Error::new(ErrorKind::Closed, "the service has stopped: the runtime that ran it is gone")
}

impl Sharding for ShardingService {
    fn ownership(&self) -> Arc<Ownership> {
        self.shared().ownership()
    }

    fn ownership_changes(&self) -> watch::Receiver<Arc<Ownership>> {
        self.shared().changes()
    }

    fn now(&self) -> Moment {
        self.shared().clock.now()
    }

    fn instance_id(&self) -> &InstanceId {
        &self.shared().instance_id
    }

    fn timing(&self) -> Timing {
        self.shared().timing
    }

    fn serves(&self) -> Option<Serves> {
        self.shared().serves.clone()
    }
}

impl std::fmt::Debug for ShardingService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shared = self.shared();
        write!(f, "ShardingService({} as {:?}: {:?})", shared.policy.name, shared.instance_id, shared.ownership())
    }
}
