//! A sidecar and the Python worker next to it, as the test that causes the faults sees them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shardwise_testkit::overlap_judge::{Line, StayLogReader};
use shardwise_testkit::{Port, TcpProxy};

use crate::Whom;
use crate::common::ended;
use crate::stage::Stage;

/// What one worker process has written down.
pub(crate) struct WorkerLife {
    reader: StayLogReader,
    pub(crate) lines: Vec<Line>,
    /// The slots that it holds, each with its epoch, as its lines say; none once it is killed.
    holds: BTreeSet<(u32, u64)>,
    /// Those of them to which it has written since it entered.
    wrote: BTreeSet<(u32, u64)>,
}

impl WorkerLife {
    /// Reads what it has written since.
    fn catch_up(&mut self) {
        for line in self.reader.new_lines().unwrap() {
            match line {
                Line::Enter { slot, epoch, .. } => {
                    self.holds.insert((slot, epoch));
                }
                Line::Leave { slot, epoch, .. } | Line::Lost { slot, epoch, .. } => {
                    self.holds.remove(&(slot, epoch));
                    self.wrote.remove(&(slot, epoch));
                }
                Line::Wrote { slot, epoch, passed: true, .. } if self.holds.contains(&(slot, epoch)) => {
                    self.wrote.insert((slot, epoch));
                }
                Line::Wrote { .. } | Line::Held { .. } | Line::Fired { .. } => {}
            }
            self.lines.push(line);
        }
    }
}

pub(crate) struct Pair {
    pub(crate) name: String,
    /// Where its sidecars listen, one after the other.
    port: Port,
    sidecar: Option<Child>,
    worker: Option<Child>,
    /// Its worker processes, the last of which may still run.
    pub(crate) lives: Vec<WorkerLife>,
    pub(crate) proxies: Vec<TcpProxy>,
    /// Something is being done to it that will end.
    pub(crate) is_struck: bool,
}

impl Pair {
    /// Starts both.
    pub(crate) fn start(stage: &Stage, name: String, proxies: Vec<TcpProxy>) -> Self {
        let (lives, is_struck) = (Vec::new(), false);
        let mut pair = Self { name, port: Port::reserve().unwrap(), sidecar: None, worker: None, lives, proxies, is_struck };
        pair.start_missing(stage);
        pair
    }

    fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Starts what was killed.
    pub(crate) fn start_missing(&mut self, stage: &Stage) {
        if self.sidecar.is_none() {
            self.sidecar = Some(stage.start_sidecar(&self.name, self.address()));
        }
        if self.worker.is_none() {
            let path = stage.path(format!("{}-{}.jsonl", self.name, self.lives.len()));
            let reader = StayLogReader::open(&path).unwrap();
            self.lives.push(WorkerLife { reader, lines: Vec::new(), holds: BTreeSet::new(), wrote: BTreeSet::new() });
            self.worker = Some(stage.start_worker(&self.name, self.address(), &path));
        }
    }

    /// Whether both processes run.
    pub(crate) fn is_whole(&self) -> bool {
        self.sidecar.is_some() && self.worker.is_some()
    }

    /// Reads what its worker has written since.
    pub(crate) fn catch_up(&mut self) {
        self.lives.last_mut().into_iter().for_each(WorkerLife::catch_up);
    }

    fn life(&self) -> impl Iterator<Item = &WorkerLife> {
        self.lives.last().into_iter()
    }

    /// The slots that it holds, in order. One that is held under two epochs is there twice.
    pub(crate) fn slots(&self) -> Vec<u32> {
        self.life().flat_map(|life| life.holds.iter().map(|(slot, _)| *slot)).collect()
    }

    /// Whether it holds that slot and has written to it.
    pub(crate) fn works_in(&self, slot: u32) -> bool {
        self.life().any(|life| life.wrote.iter().any(|(wrote, _)| *wrote == slot))
    }

    /// SIGKILL, and waits for the end. Returns the slots that it held.
    pub(crate) fn kill(&mut self, whom: Whom) -> Vec<u32> {
        let processes = [self.sidecar.take_if(|_| whom.has_sidecar()), self.worker.take_if(|_| whom.has_worker())];
        let mut killed: Vec<Child> = processes.into_iter().flatten().collect();
        // All at once, before the end of any is waited for.
        for child in &mut killed {
            child.kill().unwrap();
        }
        for child in &mut killed {
            child.wait().unwrap();
        }
        self.catch_up();
        let held = self.slots();
        if self.worker.is_none() {
            for life in &mut self.lives {
                life.holds.clear();
                life.wrote.clear();
            }
        }
        held
    }

    pub(crate) fn signal(&self, whom: Whom, signal: Signal) {
        let sidecar = self.sidecar.as_ref().filter(|_| whom.has_sidecar());
        let worker = self.worker.as_ref().filter(|_| whom.has_worker());
        for child in sidecar.into_iter().chain(worker) {
            kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
        }
    }

    /// What has ended though nothing ended it.
    pub(crate) fn failure(&mut self) -> Option<String> {
        let processes = [("sidecar", &mut self.sidecar), ("worker", &mut self.worker)];
        processes.into_iter().find_map(|(which, child)| {
            let status = child.as_mut()?.try_wait().unwrap()?;
            Some(format!("the {which} of {} has ended by itself ({status}): see its log", self.name))
        })
    }

    /// Asks its worker to leave, by the end of its input.
    pub(crate) fn leave(&mut self) {
        drop(self.worker.as_mut().and_then(|worker| worker.stdin.take()));
    }

    /// Waits for the end of a worker that leaves, and then ends its sidecar in good order.
    pub(crate) fn ends_well(&mut self, within: Duration) {
        let what = |which: &str| format!("the {which} of {} leaves", self.name);
        let of_worker = self.worker.as_mut().map(|worker| ended(worker, within, &what("worker")));
        assert!(of_worker.as_ref().is_some_and(ExitStatus::success), "{}: {of_worker:?}: see its log", what("worker"));
        self.signal(Whom::Sidecar, Signal::SIGTERM);
        let of_sidecar = self.sidecar.as_mut().map(|sidecar| ended(sidecar, within, &what("sidecar")));
        assert!(of_sidecar.as_ref().is_some_and(ExitStatus::success), "{}: {of_sidecar:?}: see its log", what("sidecar"));
        self.catch_up();
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for child in [&mut self.worker, &mut self.sidecar].into_iter().flatten() {
            // One that has ended needs no end.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
