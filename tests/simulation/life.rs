//! One life of a fleet: a phase of faults, in which nothing may go wrong, a phase without, in which everything must come right, and a death.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use shardwise::core::holdings::OnDrainTimeout;
use shardwise::discovery::{Clock, MemoryBackend};
use shardwise::{GroupName, InstanceId, Moment, OwnershipMode, Policy, PolicyName};
use tokio::sync::Notify;

use crate::figures::Figures;
use crate::judge::Judge;
use crate::wire::Cut;
use crate::worker::{Fate, Group, NAMES, TTL, Worker};

const SLOTS: u32 = 24;
const BEGIN_WITH: u64 = 4;
const WORKERS_MAX: usize = 7;
const STEPS: u32 = 25;
/// Longest between two steps.
const STEP_MAX_MS: u64 = 1_500;
/// Besides every snapshot.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// From the end of the faults on: two TTLs and a second.
const SETTLES_WITHIN: Duration = Duration::from_secs(7);
/// From a death on, where nothing else is wrong.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(4);

pub(crate) struct Life {
    dice: StdRng,
    group: Group,
    born: u64,
    workers: Vec<Worker>,
    judge: Judge,
    figures: Figures,
    /// One key in each slot.
    keys: Vec<String>,
}

/// What came of a life that went well.
pub(crate) struct Lived {
    pub(crate) figures: Figures,
    pub(crate) digest: u64,
}

/// Lives the life of that seed on a runtime of its own, with clocks that are off by up to `drift` millionths.
///
/// # Errors
///
/// What went wrong.
pub(crate) fn live(seed: u64, drift: u64) -> Result<Lived, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(async { Life::new(seed, drift).lived().await })
}

fn policy(seed: u64) -> Policy {
    let mut policy = Policy::new(PolicyName::new("workers").expect("valid"), GroupName::new("group").expect("valid"));
    policy.ownership = OwnershipMode::Exclusive;
    (policy.placement.slots, policy.placement.virtual_nodes) = (SLOTS, 16);
    policy.drain_timeout = Duration::from_secs(1);
    policy.on_drain_timeout = if seed.is_multiple_of(2) { OnDrainTimeout::Hold } else { OnDrainTimeout::Release };
    policy
}

fn key_in(slot: u32) -> String {
    let mut keys = (0..).map(|n: u32| n.to_string());
    keys.find(|key| shardwise::slot_of(shardwise::ShardKey::key_hash(key), SLOTS) == slot).expect("some key is there")
}

impl Life {
    fn new(seed: u64, drift: u64) -> Self {
        let truth = Clock::tokio();
        let store = MemoryBackend::new(truth.clone());
        let group = Group { truth, store, policy: policy(seed), drift, published: Arc::new(Notify::new()) };
        Self {
            dice: StdRng::seed_from_u64(seed),
            group,
            born: 0,
            workers: Vec::new(),
            judge: Judge::default(),
            figures: Figures::default(),
            keys: (0..SLOTS).map(key_in).collect(),
        }
    }

    fn now(&self) -> Moment {
        self.group.truth.now()
    }

    async fn lived(mut self) -> Result<Lived, String> {
        let begun = self.now();
        (0..BEGIN_WITH).for_each(|_| self.joins());
        self.passes(TTL).await?;
        for _ in 0..STEPS {
            self.something_happens();
            let time = Duration::from_millis(self.dice.random_range(10..STEP_MAX_MS));
            self.passes(time).await?;
        }
        self.settles().await?;
        self.one_dies().await?;
        for (fault, times) in self.workers.iter().flat_map(|worker| worker.faults.happened()) {
            self.figures.count(&format!("{fault:?}"), times);
        }
        self.figures.count("lives", 1);
        self.figures.count("simulated seconds", self.now().since(begun).as_secs());
        self.figures.count("writes accepted", self.judge.accepted);
        self.figures.count("writes of ghosts refused", self.judge.refused);
        Ok(Lived { figures: self.figures, digest: self.judge.digest })
    }

    fn happened(&mut self, what: &str) {
        self.figures.count(what, 1);
    }

    fn joins(&mut self) {
        self.born += 1;
        self.joins_as(InstanceId::new(format!("w{:03}", self.born)).expect("valid"));
    }

    fn joins_as(&mut self, id: InstanceId) {
        let worker = Worker::joins(id, &mut self.dice, &self.group);
        self.workers.push(worker);
        self.happened("joins");
    }

    fn something_happens(&mut self) {
        let any = self.dice.random_range(0..self.workers.len());
        let staying = self.workers.iter().filter(|worker| worker.stays()).count();
        match self.dice.random_range(0..20) {
            0..2 if staying < WORKERS_MAX => self.joins(),
            2..4 if staying > 2 => self.dies(any),
            4..6 if staying > 2 => self.goes(any),
            6..9 if self.workers[any].runs() => self.pauses(any),
            9 | 10 if self.workers[any].stays() => self.is_cut(any),
            11 => self.backend_restarts(),
            12 | 13 => self.heals(),
            14 => self.workers[any].guards.clear(),
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
            self.happened("leaves");
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
        match self.dice.random_range(0..3) {
            0 => {
                self.workers[any].set_reachable(false);
                self.happened("connections cut");
            }
            1 => {
                self.workers[any].wire.cut(Cut::Requests);
                self.happened("requests cut");
            }
            _ => {
                self.workers[any].wire.cut(Cut::Answers);
                self.happened("answers and news cut");
            }
        }
    }

    /// It ends every connection, and keeps what it has confirmed.
    fn backend_restarts(&mut self) {
        self.workers.iter().for_each(|worker| worker.set_reachable(false));
        self.happened("restarts of the backend");
    }

    fn heals(&mut self) {
        for worker in self.workers.iter().filter(|worker| !matches!(worker.fate, Fate::Lost | Fate::Dead)) {
            worker.wire.cut(Cut::Nowhere);
            worker.set_reachable(true);
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

    async fn passes(&mut self, time: Duration) -> Result<(), String> {
        let ends = self.now().plus(time);
        loop {
            let now = self.now();
            self.wake(now);
            self.judge.note([now.as_nanos(), 0, 0]);
            self.judge.look(&self.workers)?;
            if now >= ends {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = self.group.published.notified() => {}
                () = tokio::time::sleep(LOOK_EVERY.min(ends.since(now))) => self.judge.haunt(&self.workers),
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
        let healed = self.now();
        while !self.is_settled() {
            let waited = self.now().since(healed);
            if waited > SETTLES_WITHIN {
                return Err(format!("not settled {waited:?} after the last fault: {}", self.told()));
            }
            self.passes(Duration::from_millis(20)).await?;
        }
        self.took("settled after the last fault", healed);
        Ok(())
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
                return Err(format!("not taken over {waited:?} after a death: {}", self.told()));
            }
            self.passes(Duration::from_millis(20)).await?;
        }
        self.took("taken over after a death", died);
        Ok(())
    }

    fn took(&mut self, what: &'static str, since: Moment) {
        self.figures.took(what, u64::try_from(self.now().since(since).as_millis()).unwrap_or(u64::MAX));
    }

    /// Every slot and every name is held once.
    fn is_whole(&self) -> bool {
        let living = || self.workers.iter().filter(|worker| worker.fate != Fate::Dead).filter_map(Worker::live);
        let mut slots: Vec<u32> = living().flat_map(|ownership| ownership.fences().map(|fence| fence.slot).collect::<Vec<_>>()).collect();
        slots.sort_unstable();
        slots.into_iter().eq(0..SLOTS) && living().map(|ownership| ownership.names().count()).sum::<usize>() == NAMES.len()
    }

    /// Every slot and every name is held once, and those who stay see each other and nobody else.
    fn is_settled(&self) -> bool {
        let mut ids: Vec<_> = self.workers.iter().filter(|worker| worker.stays()).map(|worker| &worker.id).collect();
        ids.sort();
        self.is_whole() && self.workers.iter().filter(|worker| worker.stays()).all(|worker| worker.agrees(&ids))
    }

    fn told(&self) -> String {
        self.workers.iter().map(|worker| format!("{:?} ({:?})", worker.service(), worker.fate)).collect::<Vec<_>>().join("; ")
    }
}
