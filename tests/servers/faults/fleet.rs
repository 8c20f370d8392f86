//! The worker processes of the fault test, as the test that causes the faults sees them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, ChildStdin};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shardwise::core::mistakes::Mistake;
use shardwise_testkit::TcpProxy;
use shardwise_testkit::overlap_judge::{Line, StayLogReader};

use super::{ALWAYS_HELD, TIMER, worker};

/// A worker process, living or dead.
pub(crate) struct Member {
    pub(crate) name: String,
    child: Child,
    /// Closed to make it leave.
    input: Option<ChildStdin>,
    reader: StayLogReader,
    /// Everything that it has written down so far.
    pub(crate) lines: Vec<Line>,
    /// The slots that it holds, and the singleton, each with its epoch, as its lines
    /// say: one that it has regained may still have work of an earlier epoch.
    pub(crate) holds: BTreeSet<(u32, u64)>,
    /// Those of them to which it has written since it entered.
    pub(crate) wrote: BTreeSet<(u32, u64)>,
    pub(crate) proxies: Vec<TcpProxy>,
    /// Neither killed nor asked to leave.
    pub(crate) is_there: bool,
    pub(crate) is_killed: bool,
    /// Something is being done to it that will end.
    pub(crate) is_struck: bool,
}

impl Member {
    /// Starts one, whose settings are in the folder.
    pub(crate) fn start(folder: &Path, name: String, proxies: Vec<TcpProxy>, mistake: Option<Mistake>) -> Self {
        let reader = StayLogReader::open(&folder.join(format!("{name}.jsonl"))).unwrap();
        let (child, input) = worker::start(folder, &name, mistake);
        let (holds, wrote) = (BTreeSet::new(), BTreeSet::new());
        let (is_there, is_killed, is_struck) = (true, false, false);
        Self { name, child, input: Some(input), reader, lines: Vec::new(), holds, wrote, proxies, is_there, is_killed, is_struck }
    }

    /// Reads what it has written since.
    pub(crate) fn catch_up(&mut self) {
        for line in self.reader.new_lines().unwrap() {
            match line {
                // Its jobs come and go.
                Line::Enter { slot: TIMER, .. } => {}
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
        if !self.is_there && self.has_ended() {
            self.holds.clear();
        }
    }

    /// The slots that it holds.
    pub(crate) fn slots(&self) -> BTreeSet<u32> {
        self.holds.iter().map(|(slot, _)| *slot).collect()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let id = self.child.id();
        match signal {
            Signal::SIGSTOP => shardwise_testkit::pause(id).unwrap(),
            _ => kill(Pid::from_raw(i32::try_from(id).unwrap()), signal).unwrap(),
        }
    }

    /// SIGKILL, and waits for the end; what it held.
    pub(crate) fn kill(&mut self) -> BTreeSet<u32> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.catch_up();
        let held = self.slots();
        (self.is_there, self.is_killed, self.input) = (false, true, None);
        self.catch_up();
        held
    }

    /// Asks it to leave in good order.
    pub(crate) fn leave(&mut self) {
        (self.is_there, self.input) = (false, None);
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for the end of one that leaves.
    pub(crate) fn ends_well(&mut self, within: Duration) {
        let name = self.name.clone();
        crate::meeting::until(&format!("{name} leaves"), within, || if self.has_ended() { Ok(()) } else { Err("it still runs".into()) });
        assert!(self.child.wait().unwrap().success(), "{name} did not end well: see its log");
        self.catch_up();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // One that has ended needs no end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether others have written to all these slots of one that is stopped.
pub(crate) fn others_work(members: &[Member], victim: usize, slots: &BTreeSet<u32>) -> Result<(), String> {
    let others = || members.iter().enumerate().filter(|(number, member)| *number != victim && member.is_there);
    let missing: Vec<_> =
        slots.iter().filter(|slot| !others().any(|(_, member)| member.wrote.iter().any(|(wrote, _)| wrote == *slot))).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("nobody else works in {missing:?}")) }
}

/// Whether each slot is held once, and everybody who is there holds some.
pub(crate) fn shared(members: &[Member]) -> Result<(), String> {
    let holds: Vec<_> = members.iter().filter(|member| !member.holds.is_empty()).map(|member| (&member.name, &member.holds)).collect();
    let idle = members.iter().find(|member| member.is_there && member.holds.is_empty());
    let mut all: Vec<_> = holds.iter().flat_map(|(_, held)| held.iter().map(|(slot, _)| *slot)).collect();
    all.sort_unstable();
    match idle {
        Some(member) => Err(format!("{} holds nothing; {holds:?}", member.name)),
        None if all.iter().copied().eq(0..ALWAYS_HELD) => Ok(()),
        None => Err(format!("not each slot is held once: {holds:?}")),
    }
}
