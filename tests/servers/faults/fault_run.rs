//! What is done to the fleet, when, and what came of it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rand::RngExt;
use rand::rngs::StdRng;
use serde_json::Value;
use shardwise::core::mistakes::Mistake;
use shardwise::discovery::Clock;
use shardwise_testkit::Direction;
use shardwise_testkit::overlap_judge::{At, Findings, findings};
use sqlx::SqliteConnection;
use tokio::runtime::Runtime;

use super::figures::{Kill, disorder, figures};
use super::fleet::{Member, others_work, shared};
use super::stage::Stage;
use super::{Fault, TTL};
use crate::meeting::{Kind, runtime};

/// How many workers there are, but for those that are just being replaced.
const MEMBERS: usize = 4;
/// In which a fleet has settled to which nothing is done any more, on a busy machine; NATS elects for up to 9 s.
const SETTLED_WITHIN: Duration = Duration::from_mins(1);
/// In which the others hold and have written to what one held that is stopped.
const REPLACED_WITHIN: Duration = Duration::from_secs(10);
const POLL_EVERY: Duration = Duration::from_millis(5);
/// In which servers that do not hear each other may elect others, or lack a majority.
const ROUTES_CUT: Duration = Duration::from_secs(10);
/// Less than a renewal waits for its answer: a third of the TTL, on etcd.
const LATE: Duration = Duration::from_millis(600);

/// How a fault ends.
enum Undo {
    Continue(usize),
    /// Nothing reaches the servers any more, though answers still come.
    Silence(usize),
    Heal(usize),
    Revive(usize),
    Resume(usize),
    Rejoin,
    Unlock(SqliteConnection),
    Replace,
}

/// The result of a run in which the workers make a mistake.
pub(crate) struct Wrong {
    pub(crate) faults: u32,
    /// Slots held by two workers at one moment.
    pub(crate) overlaps: usize,
    /// Slots held under an epoch that is not above an earlier one.
    pub(crate) falls: usize,
}

pub(crate) struct FaultRun {
    backend: &'static str,
    /// The workers' mistake.
    mistake: Option<Mistake>,
    stage: Stage,
    members: Vec<Member>,
    rng: StdRng,
    undo: Vec<(Instant, Undo)>,
    counts: BTreeMap<Fault, u32>,
    kills: Vec<Kill>,
    /// When the leading server was killed or stopped last, or came back where it is the only one.
    leader_killed: Option<At>,
    /// Slots of those that were stopped until others held them: their writes after that must be refused.
    replaced: usize,
    // Dropped last: servers and proxies stand on it.
    runtime: Runtime,
}

impl FaultRun {
    pub(crate) fn start(kind: Option<Kind>, servers: usize, rng: StdRng, mistake: Option<Mistake>) -> Self {
        let runtime = runtime("play");
        let stage = runtime.block_on(Stage::start(kind, servers));
        let (undo, counts, kills) = (Vec::new(), BTreeMap::new(), Vec::new());
        let (backend, members) = (stage.backend(), Vec::new());
        let mut run = Self { backend, mistake, stage, members, rng, undo, counts, kills, leader_killed: None, replaced: 0, runtime };
        (0..MEMBERS).for_each(|_| run.admit());
        run.settle();
        run
    }

    fn admit(&mut self) {
        let number = self.members.len();
        let name = format!("worker-{number}");
        let proxies = self.runtime.block_on(self.stage.admit(&name));
        self.members.push(Member::start(self.stage.folder(), name, proxies, self.mistake));
    }

    fn up_to(&mut self, longest: Duration) -> Duration {
        longest.mul_f64(self.rng.random())
    }

    /// Does it to the fleet, alone or while others go on, and waits a little.
    pub(crate) fn strike(&mut self, fault: Fault) {
        let alone = fault == Fault::PauseUntilReplaced || self.rng.random_bool(0.4);
        if alone {
            self.settle();
        }
        let free: Vec<_> = (0..self.members.len()).filter(|n| self.members[*n].is_there && !self.members[*n].is_struck).collect();
        let server_is_up =
            !self.undo.iter().any(|(_, undo)| matches!(undo, Undo::Revive(_) | Undo::Resume(_) | Undo::Rejoin | Undo::Unlock(_)));
        let to_server = matches!(fault, Fault::Server | Fault::ServerPause | Fault::Routes | Fault::Clock | Fault::Lock);
        if free.len() < 2 || to_server && !server_is_up {
            self.settle();
            return self.strike(fault);
        }
        let victim = free[self.rng.random_range(0..free.len())];
        *self.counts.entry(fault).or_default() += 1;
        println!(
            "{} {:>12} {}{}",
            self.backend,
            now(),
            fault.name(),
            if to_server { String::new() } else { format!(": {}", self.members[victim].name) }
        );
        self.carry_out(fault, victim, alone);
        let rest = self.up_to(Duration::from_secs(1));
        if alone { self.settle() } else { self.wait(rest) }
    }

    fn carry_out(&mut self, fault: Fault, victim: usize, alone: bool) {
        let (brief, long) = (self.up_to(Duration::from_secs(1)), self.up_to(TTL + Duration::from_secs(1)));
        match fault {
            Fault::Kill => {
                let at = now();
                let held = self.members[victim].kill();
                if alone {
                    self.kills.push(Kill { at, held, leader_killed: self.leader_killed });
                    self.settle();
                }
                self.later(brief, Undo::Replace);
            }
            Fault::Pause => {
                self.strike_one(victim, |member| member.signal(Signal::SIGSTOP));
                self.later(long, Undo::Continue(victim));
            }
            Fault::PauseUntilReplaced => {
                self.strike_one(victim, |member| member.signal(Signal::SIGSTOP));
                self.members[victim].catch_up();
                let before = self.members[victim].slots();
                // It may have been stopped inside a write, which blocks all other writers until it continues.
                if self.waited(REPLACED_WITHIN, |members| others_work(members, victim, &before)).is_ok() {
                    self.replaced += before.len();
                }
                self.later(Duration::ZERO, Undo::Continue(victim));
            }
            Fault::Cut => {
                let how = self.rng.random_range(0..5);
                let runtime = self.runtime.handle().clone();
                self.strike_one(victim, |member| {
                    for proxy in &member.proxies {
                        match how {
                            0 => proxy.cut(Direction::ToServer),
                            1 => proxy.cut(Direction::ToClient),
                            2 => proxy.reset(),
                            3 => runtime.block_on(proxy.refuse()).unwrap(),
                            _ => proxy.cut_both(),
                        }
                    }
                });
                self.later(long, Undo::Heal(victim));
            }
            Fault::Late => {
                self.strike_one(victim, |member| member.proxies.iter().for_each(|proxy| proxy.delay(Direction::ToClient, LATE)));
                self.later(TTL, Undo::Silence(victim));
            }
            Fault::Server => {
                let server = self.leader();
                self.stage.servers().kill(server);
                self.later(brief, Undo::Revive(server));
            }
            Fault::ServerPause => {
                let server = self.leader();
                self.stage.servers().pause(server);
                self.later(long, Undo::Resume(server));
            }
            Fault::Routes => {
                let (which, direction) = (self.rng.random_range(0..4), self.rng.random_range(0..3));
                self.stage.servers().cut_routes(which, direction);
                self.leader_killed = Some(now());
                let lasts = self.up_to(ROUTES_CUT);
                self.later(lasts, Undo::Rejoin);
            }
            Fault::Clock => {
                let hours = self.rng.random_range(-48..=48);
                self.runtime.block_on(self.stage.servers().set_clock(hours));
            }
            Fault::Lock => {
                let lock = self.runtime.block_on(self.stage.lock());
                self.later(long, Undo::Unlock(lock));
            }
            Fault::Leave => {
                self.members[victim].leave();
                self.later(brief, Undo::Replace);
            }
        }
    }

    /// The server that leads just now; of NATS the one that leads the stream, or a consumer of it.
    fn leader(&mut self) -> usize {
        let of_consumer = self.rng.random();
        let leader = self.runtime.block_on(self.stage.servers().leader(of_consumer));
        self.leader_killed = Some(now());
        leader
    }

    fn strike_one(&mut self, victim: usize, does: impl Fn(&Member)) {
        let member = &mut self.members[victim];
        member.is_struck = true;
        does(member);
    }

    fn later(&mut self, after: Duration, undo: Undo) {
        self.undo.push((Instant::now() + after, undo));
    }

    /// Ends the faults whose time has come, and reads what the workers have written.
    fn observe(&mut self) {
        let now = Instant::now();
        for (_, undo) in self.undo.extract_if(.., |(at, _)| *at <= now).collect::<Vec<_>>() {
            match undo {
                Undo::Continue(victim) => {
                    self.members[victim].signal(Signal::SIGCONT);
                    self.members[victim].is_struck = false;
                }
                Undo::Silence(victim) => {
                    self.members[victim].proxies.iter().for_each(|proxy| proxy.cut(Direction::ToServer));
                    self.later(TTL + Duration::from_secs(1), Undo::Heal(victim));
                }
                Undo::Heal(victim) => {
                    for proxy in &self.members[victim].proxies {
                        self.runtime.block_on(proxy.heal()).unwrap();
                    }
                    self.members[victim].is_struck = false;
                }
                Undo::Revive(server) => {
                    self.runtime.block_on(self.stage.servers().revive(server));
                    self.note_return();
                }
                Undo::Resume(server) => {
                    self.stage.servers().resume(server);
                    self.note_return();
                }
                Undo::Rejoin => {
                    self.runtime.block_on(self.stage.servers().heal_routes());
                    self.leader_killed = Some(self::now());
                }
                Undo::Unlock(lock) => drop(lock),
                Undo::Replace => self.admit(),
            }
        }
        self.members.iter_mut().for_each(Member::catch_up);
    }

    /// Where there is one server, what observers have seen begins anew when it is back.
    fn note_return(&mut self) {
        if self.stage.servers().addresses().len() == 1 {
            self.leader_killed = Some(now());
        }
    }

    fn wait(&mut self, long: Duration) {
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
    fn waited(&mut self, within: Duration, check: impl Fn(&[Member]) -> Result<(), String>) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            self.observe();
            match check(&self.members) {
                Err(_) if begun.elapsed() < within => std::thread::sleep(POLL_EVERY),
                seen => return seen,
            }
        }
    }

    /// Ends all faults, and waits until each slot is held once and everybody who is there holds some.
    fn settle(&mut self) {
        while let Some(last) = self.undo.iter().map(|(at, _)| *at).max() {
            self.wait(last.saturating_duration_since(Instant::now()));
        }
        if let Err(why) = self.waited(SETTLED_WITHIN, shared) {
            self.stage.keep();
            panic!("not settled within {SETTLED_WITHIN:?}: {why}; what the workers wrote is in {}", self.stage.folder().display());
        }
    }

    /// Ends everything in good order.
    fn ends(&mut self) {
        self.settle();
        self.members.iter_mut().filter(|member| member.is_there).for_each(Member::leave);
        self.members.iter_mut().filter(|member| !member.is_killed).for_each(|member| member.ends_well(SETTLED_WITHIN));
    }

    /// The findings in the workers' lines so far.
    fn found(&self) -> Findings {
        findings(&self.members.iter().map(|member| member.lines.clone()).collect::<Vec<_>>())
    }

    /// The failures so far, where the workers make a mistake.
    pub(crate) fn wrong(&self) -> Wrong {
        let Findings { overlaps, falls, .. } = self.found();
        Wrong { faults: self.counts.values().sum(), overlaps: overlaps.len(), falls: falls.len() }
    }

    /// Ends a run in which the workers make a mistake.
    pub(crate) fn end_wrong(mut self) -> Wrong {
        self.ends();
        self.wrong()
    }

    /// Ends it, and returns its figures.
    pub(crate) fn end(mut self) -> Value {
        self.ends();
        let found = self.found();
        let disorder = self.runtime.block_on(disorder(&self.stage));
        let figures_of_run = figures(self.backend, &self.counts, &self.kills, &found);
        let well = found.unfit.is_empty()
            && found.overlaps.is_empty()
            && found.falls.is_empty()
            && found.stale_writes.is_empty()
            && found.fired_twice.is_empty()
            && found.fired > 0
            && (found.owned_late, found.wrongly_refused, disorder) == (0, 0, 0)
            // Each one that was stopped until others held its slots has asked the table once more for each.
            && found.late_refused >= self.replaced;
        if !well {
            self.stage.keep();
            let Findings { unfit, overlaps, falls, stale_writes, fired, fired_twice, .. } = &found;
            panic!(
                "lines that do not follow from those before: {unfit:?}\noverlaps: {overlaps:?}\nfallen epochs: {falls:?}\nstale writes \
                 that passed: {stale_writes:?}\nof {fired} periods fired twice: {fired_twice:?}\nrows out of order: {disorder}; {} slots \
                 were taken from stopped workers\n{figures_of_run}\nwhat the workers wrote is in {}",
                self.replaced,
                self.stage.folder().display()
            );
        }
        figures_of_run
    }
}

/// The present moment on the clock of the lines.
fn now() -> At {
    Clock::system().now().as_nanos()
}
