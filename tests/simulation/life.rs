//! One life of a fleet: a phase of faults, in which nothing may go wrong, a phase without, in which everything must come right, in some
//! lives a failure of all checks, a restart, and a death.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use shardwise::core::VersionRule;
use shardwise::core::holdings::OnDrainTimeout;
use shardwise::discovery::{Clock, Discovery, FaultRates, MemoryBackend, Notes};
use shardwise::{ClaimName, GroupName, InstanceId, MemberState, Moment, OwnershipMode, Policy, PolicyName};
use tokio::sync::Notify;

use crate::figures::Figures;
use crate::judge::Judge;
use crate::named_log::NamedLog;
use crate::wire::Cut;
use crate::worker::{BAD, Fate, Group, SINGLETONS, TTL, Worker};

/// One life in so many is that of a large fleet.
const LARGE_ONE_IN: u64 = 20;
/// In one life in so many the workers are checked.
const CHECKED_ONE_IN: u64 = 10;
const DAEMONS_MAX: u32 = 4;
/// Longer than a life: a worker that leaves for a while comes back before.
const REJOIN_GRACE: Duration = Duration::from_mins(10);
const STEPS: u32 = 25;
/// Longest between two steps.
const STEP_MAX_MS: u64 = 1_500;
/// Besides every snapshot.
const POLL_EVERY: Duration = Duration::from_millis(100);
/// How often it is looked whether a life has settled.
const SETTLED_EVERY: Duration = Duration::from_millis(50);
/// From the end of the faults on: two TTLs and a second.
const SETTLES_WITHIN: Duration = Duration::from_secs(7);
/// From a death on, where nothing else is wrong.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(4);

/// How large a fleet is.
#[derive(Debug, Clone, Copy)]
struct Size {
    slots: u32,
    begins_with: u64,
    workers_max: usize,
}

impl Size {
    const SMALL: Self = Self { slots: 24, begins_with: 4, workers_max: 7 };
    const LARGE: Self = Self { slots: 256, begins_with: 13, workers_max: 16 };

    const fn of(seed: u64) -> Self {
        if seed % LARGE_ONE_IN == LARGE_ONE_IN - 1 { Self::LARGE } else { Self::SMALL }
    }
}

pub(crate) struct Life {
    size: Size,
    pub(crate) dice: StdRng,
    pub(crate) group: Group,
    born: u64,
    pub(crate) workers: Vec<Worker>,
    pub(crate) judge: Judge,
    figures: Figures,
    /// The number of the newest version that is out.
    version: u32,
    /// The number of daemons wanted.
    daemons: u32,
    /// The members that have left for a while, and will come back.
    pub(crate) away: BTreeSet<InstanceId>,
    /// One key in each slot.
    keys: Vec<String>,
}

/// The result of a life that went well.
pub(crate) struct Lived {
    pub(crate) figures: Figures,
    pub(crate) digest: u64,
}

/// Lives the life of that seed on a separate runtime, with clocks that are off by up to `drift` millionths.
///
/// # Errors
///
/// A description of the failure.
pub(crate) fn live(seed: u64, drift: u64) -> Result<Lived, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(async { Life::new(seed, drift).lived().await })
}

fn policy(slots: u32, dice: &mut StdRng) -> Policy {
    let mut policy = Policy::new(PolicyName::new("workers").expect("valid"), GroupName::new("group").expect("valid"));
    policy.ownership = OwnershipMode::Exclusive;
    (policy.placement.slots, policy.placement.virtual_nodes) = (slots, 16);
    policy.drain_timeout = Duration::from_secs(1);
    policy.on_drain_timeout = if dice.random() { OnDrainTimeout::Hold } else { OnDrainTimeout::Release };
    policy.version_rule = if dice.random() { VersionRule::Newest } else { VersionRule::None };
    policy.rejoin_grace = if dice.random() { REJOIN_GRACE } else { Duration::ZERO };
    policy
}

fn key_in(slot: u32, slots: u32) -> String {
    let mut keys = (0..).map(|n: u32| n.to_string());
    keys.find(|key| shardwise::slot_of(shardwise::ShardKey::key_hash(key), slots) == slot).expect("some key is there")
}

impl Life {
    fn new(seed: u64, drift: u64) -> Self {
        let (size, truth, mut dice) = (Size::of(seed), Clock::tokio(), StdRng::seed_from_u64(seed));
        let (store, policy) = (MemoryBackend::new(truth.clone()), policy(size.slots, &mut dice));
        let (published, log) = (Arc::new(Notify::new()), NamedLog::default());
        let checks = (seed % CHECKED_ONE_IN == 2).then(|| Arc::new(AtomicBool::new(true)));
        let group = Group { truth, store, policy, drift, rates: BAD, log, published, checks };
        Self {
            size,
            dice,
            group,
            version: 1,
            daemons: 0,
            away: BTreeSet::new(),
            born: 0,
            workers: Vec::new(),
            judge: Judge::default(),
            figures: Figures::default(),
            keys: (0..size.slots).map(|slot| key_in(slot, size.slots)).collect(),
        }
    }

    pub(crate) fn now(&self) -> Moment {
        self.group.truth.now()
    }

    async fn lived(mut self) -> Result<Lived, String> {
        let begun = self.now();
        if self.group.policy.version_rule == VersionRule::Newest {
            self.happened("lives with versions");
        }
        if self.size.slots == Size::LARGE.slots {
            self.happened("lives of up to 16 members with 256 slots");
        }
        (0..self.size.begins_with).for_each(|_| self.joins());
        self.passes(TTL).await?;
        for _ in 0..STEPS {
            self.something_happens().await;
            let time = Duration::from_millis(self.dice.random_range(10..STEP_MAX_MS));
            self.passes(time).await?;
        }
        self.settles().await?;
        self.all_checks_fail().await?;
        self.one_is_restarted().await?;
        self.one_dies().await?;
        for faults in self.workers.iter().flat_map(|worker| [&worker.faults, &worker.faults_of_notes]) {
            for (fault, times) in faults.happened() {
                self.figures.count(fault, times);
            }
        }
        let arrived_late = self.workers.iter().map(|worker| worker.wire.arrived_late()).sum();
        self.figures.count("renewals that stalled in the store", self.workers.iter().map(Worker::stalled).sum());
        self.figures.count("requests let through after their caller gave up", arrived_late);
        self.figures.count("periods fired", self.group.log.periods());
        self.figures.count("lives", 1);
        self.figures.count("simulated seconds", self.now().since(begun).as_secs());
        self.figures.count("writes accepted", self.judge.accepted);
        self.figures.count("writes of ghosts refused", self.judge.refused);
        Ok(Lived { figures: self.figures, digest: self.judge.digest })
    }

    pub(crate) fn happened(&mut self, what: &str) {
        self.figures.count(what, 1);
    }

    fn joins(&mut self) {
        let id = self.new_id();
        self.joins_as(id);
    }

    pub(crate) fn new_id(&mut self) -> InstanceId {
        self.born += 1;
        InstanceId::new(format!("w{:03}", self.born)).expect("valid")
    }

    /// Everything that must run somewhere.
    pub(crate) fn names(&self) -> BTreeSet<ClaimName> {
        let singletons = SINGLETONS.into_iter().map(|name| format!("singleton/{name}"));
        let all = singletons.chain((0..self.daemons).map(|number| format!("daemon/{number}"))).chain(["timer/tick".to_owned()]);
        all.map(|name| ClaimName::new(name).expect("valid")).collect()
    }

    pub(crate) fn joins_as(&mut self, id: InstanceId) {
        // Of the newest version or the one before.
        let version = self.dice.random_range(self.version - 1..=self.version);
        self.joins_with(id, version);
    }

    pub(crate) fn joins_with(&mut self, id: InstanceId, version: u32) {
        self.away.remove(&id);
        let worker = Worker::joins(self.workers.len(), id, version, &mut self.dice, &self.group);
        self.workers.push(worker);
        self.happened("joins");
    }

    async fn something_happens(&mut self) {
        let any = self.dice.random_range(0..self.workers.len());
        let staying = self.workers.iter().filter(|worker| worker.stays()).count();
        match self.dice.random_range(0..23) {
            0..2 if staying < self.size.workers_max => self.joins(),
            2..4 if staying > 2 => self.dies(any),
            4..6 if staying > 2 => self.goes(any),
            6..9 if self.workers[any].runs() => self.pauses(any),
            9 | 10 if self.workers[any].stays() => self.is_cut(any),
            11 => self.backend_restarts(),
            12 | 13 => self.heals(),
            14 => self.workers[any].guards.clear(),
            15 => self.daemons_change().await,
            16 => {
                self.version += 1;
                self.happened("new versions");
            }
            17 => self.one_returns(),
            18 => self.one_joins_again(),
            _ => self.works(any),
        }
    }

    fn dies(&mut self, any: usize) {
        if self.workers[any].fate == Fate::Dead {
            return;
        }
        self.workers[any].dies();
        self.happened("crashes");
        // Started again at once under its name, as a supervisor does.
        if self.dice.random() {
            let id = self.workers[any].id.clone();
            self.joins_as(id);
        }
    }

    fn goes(&mut self, any: usize) {
        let worker = &mut self.workers[any];
        if !worker.runs() {
            return;
        }
        if self.dice.random() {
            worker.leaves();
            let id = worker.id.clone();
            if self.group.policy.rejoin_grace.is_zero() {
                self.happened("leaves");
            } else {
                self.away.insert(id);
                self.happened("leaves for a while");
            }
        } else {
            worker.set_reachable(false);
            worker.fate = Fate::Lost;
            self.happened("cut off for ever");
        }
    }

    fn pauses(&mut self, any: usize) {
        let time = TTL.mul_f64(self.dice.random_range(0.2..2.5));
        let until = self.now().plus(time);
        self.workers[any].pauses(until);
        self.happened(if time > TTL { "pauses beyond the TTL" } else { "pauses within the TTL" });
    }

    fn is_cut(&mut self, any: usize) {
        match self.dice.random_range(0..4) {
            0 => {
                self.workers[any].set_reachable(false);
                self.happened("connections cut");
            }
            1 => {
                self.workers[any].wire.cut(Cut::Requests);
                self.happened("requests cut");
            }
            2 => {
                self.workers[any].wire.cut(Cut::Readings);
                self.happened("readings cut");
            }
            _ => {
                self.workers[any].wire.cut(Cut::Answers);
                self.happened("answers and news cut");
            }
        }
    }

    /// An operator, whose way to the backend is a good one, sets another number of daemons.
    async fn daemons_change(&mut self) {
        self.daemons = self.dice.random_range(0..=DAEMONS_MAX);
        let (store, group) = (&self.group.store, &self.group.policy.group);
        let name = ClaimName::new("daemon").expect("valid");
        let there = store.note(group, &name).await.expect("read").map_or(0, |note| note.version);
        store.write_note(group, &name, there, &format!("{{\"n\":{}}}", self.daemons)).await.expect("written");
        self.happened("numbers of daemons changed");
    }

    /// One of those who left for a while is started again, as another process: the former one has ended by then, or is ended.
    fn one_returns(&mut self) {
        let Some(id) = self.away.first().cloned() else { return };
        self.workers.iter_mut().filter(|worker| worker.id == id).for_each(Worker::dies);
        self.joins_as(id);
        self.happened("comes back");
    }

    /// One that has left joins again, as the same process.
    fn one_joins_again(&mut self) {
        let left = |worker: &&mut Worker| worker.fate == Fate::Leaves && worker.has_left();
        let Some(worker) = self.workers.iter_mut().rfind(left) else { return };
        worker.joins_again();
        self.away.remove(&worker.id);
        self.figures.count("joins again", 1);
    }

    /// It ends every connection, and keeps what it has confirmed.
    fn backend_restarts(&mut self) {
        self.workers.iter().for_each(|worker| worker.set_reachable(false));
        self.happened("restarts of the backend");
    }

    fn heals(&mut self) {
        for worker in self.workers.iter().filter(|worker| worker.fate != Fate::Lost) {
            // Requests of the dead arrive too.
            worker.wire.cut(Cut::Nowhere);
            if worker.fate != Fate::Dead {
                worker.set_reachable(true);
            }
        }
    }

    fn works(&mut self, any: usize) {
        if matches!(self.workers[any].fate, Fate::Paused(_) | Fate::Dead) {
            return;
        }
        for _ in 0..6 {
            let key = &self.keys[self.dice.random_range(0..self.keys.len())];
            let guard = self.workers[any].service().enter(key).ok();
            self.workers[any].guards.extend(guard);
        }
    }

    pub(crate) async fn passes(&mut self, time: Duration) -> Result<(), String> {
        let ends = self.now().plus(time);
        loop {
            let now = self.now();
            self.wake(now);
            self.judge.note([now.as_nanos(), 0, 0]);
            self.judge.check(&self.workers)?;
            self.group.log.check()?;
            if now >= ends {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = self.group.published.notified() => {}
                () = tokio::time::sleep(POLL_EVERY.min(ends.since(now))) => self.judge.write_stale(&self.workers),
            }
        }
    }

    /// Those whose pause is over go on.
    fn wake(&mut self, now: Moment) {
        for worker in &mut self.workers {
            if matches!(worker.fate, Fate::Paused(until) if now >= until) {
                worker.goes_on();
            }
        }
    }

    async fn settles(&mut self) -> Result<(), String> {
        self.workers.iter_mut().for_each(Worker::is_healed);
        self.group.rates = FaultRates::NONE;
        self.note_away_members().await;
        while !self.away.is_empty() {
            self.one_returns();
        }
        let mut healed = self.now();
        loop {
            if self.workers.iter().any(Worker::has_pending) {
                // The faults are over when the last call that was given up has been carried out.
                healed = self.now();
            } else if self.is_settled() {
                break;
            }
            let waited = self.now().since(healed);
            if waited > SETTLES_WITHIN {
                return Err(format!("not settled {waited:?} after the last fault: {}", self.summary()));
            }
            self.passes(SETTLED_EVERY).await?;
        }
        self.took("settled after the last fault", healed);
        Ok(())
    }

    /// Notes the members that stay away because their replacement was cut off or died before it joined.
    async fn note_away_members(&mut self) {
        let view = self.group.store.members(&self.group.policy.group).await.expect("read").view;
        let away = view.members().iter().filter(|member| member.state == MemberState::Away).map(|member| &member.instance_id);
        let comes = |id: &InstanceId| self.workers.iter().any(|worker| worker.stays() && worker.id == *id);
        self.away.extend(away.filter(|id| !comes(id)).cloned());
    }

    /// One that is a member dies with nothing else wrong.
    async fn one_dies(&mut self) -> Result<(), String> {
        if self.workers.iter().filter(|worker| worker.stays()).count() < 2 {
            return Ok(());
        }
        let time = Duration::from_millis(self.dice.random_range(0..1_000));
        self.passes(time).await?;
        let died = self.now();
        self.workers.iter_mut().find(|worker| worker.stays()).into_iter().for_each(Worker::dies);
        while !self.is_whole() {
            let waited = self.now().since(died);
            if waited > TAKEN_OVER_WITHIN {
                return Err(format!("not taken over {waited:?} after a death: {}", self.summary()));
            }
            self.passes(SETTLED_EVERY).await?;
        }
        self.took("taken over after a death", died);
        Ok(())
    }

    pub(crate) fn took(&mut self, what: &'static str, since: Moment) {
        self.figures.took(what, u64::try_from(self.now().since(since).as_millis()).unwrap_or(u64::MAX));
    }

    /// Every slot and every name is held once.
    fn is_whole(&self) -> bool {
        let living = || self.workers.iter().filter(|worker| worker.fate != Fate::Dead).filter_map(Worker::live);
        let mut slots: Vec<u32> = living().flat_map(|ownership| ownership.fences().map(|fence| fence.slot).collect::<Vec<_>>()).collect();
        slots.sort_unstable();
        let mut names: Vec<_> =
            living().flat_map(|ownership| ownership.names().map(|(name, _)| name.clone()).collect::<Vec<_>>()).collect();
        names.sort_unstable();
        slots.into_iter().eq(0..self.size.slots) && names.iter().eq(&self.names())
    }

    /// Every slot and every name is held once, each slot by its owner, and the staying workers see each other and no other member. With
    /// the version rule `newest` the owners depend on who held what before.
    pub(crate) fn is_settled(&self) -> bool {
        let staying = || self.workers.iter().filter(|worker| worker.stays());
        let mut ids: Vec<_> = staying().map(|worker| &worker.id).collect();
        ids.sort();
        let by_placement = self.group.policy.version_rule == VersionRule::None;
        self.is_whole() && staying().all(|worker| worker.agrees(&ids) && (!by_placement || worker.holds_its_own(&self.keys)))
    }

    pub(crate) fn summary(&self) -> String {
        self.workers.iter().map(|worker| format!("{:?} ({:?})", worker.service(), worker.fate)).collect::<Vec<_>>().join("; ")
    }
}
