//! Four pairs on one backend, and the faults among them that are under way.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use shardwise::discovery::Clock;
use shardwise_testkit::Direction;
use shardwise_testkit::overlap_judge::{At, Line};
use sqlx::SqliteConnection;
use tokio::runtime::Runtime;

use crate::pair::Pair;
use crate::stage::Stage;
use crate::{PAIRS, SLOTS, Whom};

/// In which a fleet has settled to which nothing is done any more, on a busy machine.
const SETTLED_WITHIN: Duration = Duration::from_mins(1);
const POLL_EVERY: Duration = Duration::from_millis(5);

/// How a fault ends.
pub(crate) enum Undo {
    Continue(usize, Whom),
    Heal(usize),
    Unlock(SqliteConnection),
    Restart(usize),
}

pub(crate) struct Fleet {
    pub(crate) pairs: Vec<Pair>,
    undo: Vec<(Instant, Undo)>,
    stage: Stage,
    // Dropped last: servers and proxies stand on it.
    runtime: Runtime,
}

impl Fleet {
    /// Starts it on that backend, with that many servers, and waits until it has settled.
    pub(crate) fn start(backend: &str, servers: usize) -> Self {
        let runtime = Runtime::new().unwrap();
        let stage = runtime.block_on(Stage::start(backend, servers));
        let mut fleet = Self { pairs: Vec::new(), undo: Vec::new(), stage, runtime };
        for number in 0..PAIRS {
            let name = format!("worker-{number}");
            let proxies = fleet.runtime.block_on(fleet.stage.admit(&name, number));
            fleet.pairs.push(Pair::start(&fleet.stage, name, proxies));
        }
        fleet.settle();
        fleet
    }

    /// Ends a fault after that time.
    pub(crate) fn later(&mut self, after: Duration, undo: Undo) {
        self.undo.push((Instant::now() + after, undo));
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.undo.iter().any(|(_, undo)| matches!(undo, Undo::Unlock(_)))
    }

    /// Signals these processes, until [`Undo::Continue`].
    pub(crate) fn stop(&mut self, victim: usize, whom: Whom) {
        self.pairs[victim].is_struck = true;
        self.pairs[victim].signal(whom, Signal::SIGSTOP);
    }

    /// Cuts a sidecar off from its servers in one of five ways, until [`Undo::Heal`].
    pub(crate) fn cut(&mut self, victim: usize, how: u64) {
        self.pairs[victim].is_struck = true;
        for proxy in &self.pairs[victim].proxies {
            match how {
                0 => proxy.cut(Direction::ToServer),
                1 => proxy.cut(Direction::ToClient),
                2 => proxy.reset(),
                3 => self.runtime.block_on(proxy.refuse()).unwrap(),
                _ => proxy.cut_both(),
            }
        }
    }

    /// Blocks all writes to the file of the backend `local`, until [`Undo::Unlock`].
    pub(crate) fn lock(&mut self, lasts: Duration) {
        let lock = self.runtime.block_on(self.stage.lock());
        self.later(lasts, Undo::Unlock(lock));
    }

    /// Ends the faults whose time has come, and reads what the workers have written.
    fn observe(&mut self) {
        let now = Instant::now();
        for (_, undo) in self.undo.extract_if(.., |(at, _)| *at <= now).collect::<Vec<_>>() {
            match undo {
                Undo::Continue(victim, whom) => {
                    self.pairs[victim].signal(whom, Signal::SIGCONT);
                    self.pairs[victim].is_struck = false;
                }
                Undo::Heal(victim) => {
                    for proxy in &self.pairs[victim].proxies {
                        self.runtime.block_on(proxy.heal()).unwrap();
                    }
                    self.pairs[victim].is_struck = false;
                }
                Undo::Unlock(lock) => drop(lock),
                Undo::Restart(victim) => self.pairs[victim].start_missing(&self.stage),
            }
        }
        for pair in &mut self.pairs {
            pair.catch_up();
            if let Some(failure) = pair.failure() {
                panic!("{failure}");
            }
        }
    }

    pub(crate) fn wait(&mut self, long: Duration) {
        let begun = Instant::now();
        loop {
            self.observe();
            if begun.elapsed() >= long {
                return;
            }
            std::thread::sleep(POLL_EVERY);
        }
    }

    /// Waits until `check` finds nothing missing; returns the missing ones at a timeout.
    pub(crate) fn waited(&mut self, within: Duration, check: impl Fn(&[Pair]) -> Result<(), String>) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            self.observe();
            match check(&self.pairs) {
                Err(_) if begun.elapsed() < within => std::thread::sleep(POLL_EVERY),
                seen => return seen,
            }
        }
    }

    /// Ends all faults, and waits until each slot is held once and each whole pair holds some.
    pub(crate) fn settle(&mut self) {
        while let Some(last) = self.undo.iter().map(|(at, _)| *at).max() {
            self.wait(last.saturating_duration_since(Instant::now()));
        }
        self.shares(None);
    }

    /// Waits until each slot is held once and each whole pair holds some, but for a drained one, which holds none.
    fn shares(&mut self, drained: Option<usize>) {
        if let Err(why) = self.waited(SETTLED_WITHIN, |pairs| shared(pairs, drained)) {
            panic!("not settled within {SETTLED_WITHIN:?}: {why}");
        }
    }

    /// Drains a pair and ends that: all slots that move go from worker to worker in good order.
    pub(crate) fn drain_and_undrain(&mut self, number: usize) {
        for drained in [true, false] {
            self.stage.drain(&self.pairs[number].name, drained);
            self.shares(drained.then_some(number));
        }
    }

    /// The lines of all worker processes so far.
    pub(crate) fn lines(&self) -> Vec<Vec<Line>> {
        self.pairs.iter().flat_map(|pair| pair.lives.iter().map(|life| life.lines.clone())).collect()
    }

    /// Ends everything in good order.
    pub(crate) fn end(&mut self) {
        self.settle();
        self.pairs.iter_mut().for_each(Pair::leave);
        self.pairs.iter_mut().for_each(|pair| pair.ends_well(SETTLED_WITHIN));
    }

    /// How many rows of the fenced table stand behind one of the same slot under a higher epoch.
    pub(crate) fn disorder(&self) -> i64 {
        self.runtime.block_on(self.stage.disorder())
    }
}

/// The present moment on the clock of the lines.
pub(crate) fn now() -> At {
    Clock::system().now().as_nanos()
}

fn shared(pairs: &[Pair], drained: Option<usize>) -> Result<(), String> {
    let holds: Vec<_> = pairs.iter().map(|pair| (&pair.name, pair.slots())).collect();
    let is_wrong = |(number, pair): &(usize, &Pair)| match drained {
        Some(drained) if drained == *number => !pair.slots().is_empty(),
        _ => pair.is_whole() && pair.slots().is_empty(),
    };
    let wrong = pairs.iter().enumerate().find(is_wrong);
    let mut all: Vec<_> = holds.iter().flat_map(|(_, slots)| slots.iter().copied()).collect();
    all.sort_unstable();
    match wrong {
        Some((_, pair)) => Err(format!("{} holds {:?}; {holds:?}", pair.name, pair.slots())),
        None if all.iter().copied().eq(0..SLOTS) => Ok(()),
        None => Err(format!("not each slot is held once: {holds:?}")),
    }
}
