//! The example workers: each key is processed by one of them, and when a sidecar dies its worker stops and the other one takes over.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::common::PATIENCE;
use crate::common::process::Process;
use crate::{Sidecar, place};

const KEYS: usize = 40;

pub(crate) struct Workers {
    pub(crate) command: fn() -> Command,
    pub(crate) program: PathBuf,
}

/// A worker's present state, from its output lines.
struct Worker {
    process: Process,
    read: usize,
    at_work: BTreeSet<String>,
    worked: BTreeMap<String, usize>,
    /// Why its sidecar could not be reached.
    lost: Vec<String>,
}

impl Worker {
    fn start(workers: &Workers, sidecar: &Sidecar, keys: &PathBuf) -> Self {
        let mut command = (workers.command)();
        command.arg(&workers.program).args(["workers", &sidecar.url]).arg(keys);
        Self { process: Process::start(command), read: 0, at_work: BTreeSet::new(), worked: BTreeMap::new(), lost: Vec::new() }
    }

    fn catch_up(&mut self) {
        self.process.catch_up();
        for line in &self.process.printed[self.read..] {
            if line["did"] == "lost" {
                self.lost.push(line["why"].as_str().unwrap().to_owned());
                continue;
            }
            let key = line["key"].as_str().unwrap().to_owned();
            match line["did"].as_str().unwrap() {
                "began" => assert!(self.at_work.insert(key), "began twice: {line}"),
                "ended" => assert!(self.at_work.remove(&key), "ended without having begun: {line}"),
                "worked" => {
                    assert!(self.at_work.contains(&key), "worked on what it has not begun: {line}");
                    *self.worked.entry(key).or_default() += 1;
                }
                _ => panic!("what is this? {line}"),
            }
        }
        self.read = self.process.printed.len();
    }

    fn ends(&mut self) {
        self.process.signal(Signal::SIGTERM);
        let ran = self.process.ends("after SIGTERM");
        assert!(ran.code == Some(0) && ran.err.is_empty(), "{ran:?}");
        self.catch_up();
        assert!(self.at_work.is_empty(), "{:?}", self.at_work);
    }
}

fn until(what: &str, workers: &mut [&mut Worker], condition: impl Fn(&[&mut Worker]) -> bool) {
    let begun = Instant::now();
    loop {
        for worker in &mut *workers {
            worker.catch_up();
        }
        if condition(workers) {
            return;
        }
        let at_work: Vec<_> = workers.iter().map(|worker| worker.at_work.len()).collect();
        assert!(begun.elapsed() < PATIENCE, "waited in vain: {what}; {at_work:?} at work");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn follow_their_sidecars(workers: &Workers) {
    let place = place();
    let keys: BTreeSet<_> = (0..KEYS).map(|n| format!("tenant {n} größe/..")).collect();
    place.write("keys", keys.iter().fold(String::new(), |text, key| text + key + "\n"));
    let file = place.path("keys");
    let mut sidecars = [(); 2].map(|()| Sidecar::start(&place, &[]));
    let [mut one, mut other] = [0, 1].map(|at| Worker::start(workers, &sidecars[at], &file));

    until("each key has one worker", &mut [&mut one, &mut other], |both| {
        both.iter().map(|worker| worker.at_work.len()).sum::<usize>() == KEYS && both.iter().all(|worker| !worker.worked.is_empty())
    });
    let shared: BTreeSet<_> = one.at_work.union(&other.at_work).cloned().collect();
    assert_eq!(shared, keys, "each key once");

    sidecars[1].process.signal(Signal::SIGKILL);
    until("the worker without a sidecar has stopped", &mut [&mut one, &mut other], |both| both[1].at_work.is_empty());
    assert!(other.lost.iter().any(|why| why.contains("127.0.0.1")), "it says which sidecar, and why: {:?}", other.lost);
    let taken: Vec<_> = keys.iter().filter(|key| !one.at_work.contains(*key)).cloned().collect();
    until("the other one has taken over", &mut [&mut one, &mut other], |both| {
        both[0].at_work.len() == KEYS && taken.iter().all(|key| both[0].worked.contains_key(key))
    });
    other.ends();
    one.ends();
    sidecars[0].process.signal(Signal::SIGTERM);
    assert_eq!(sidecars[0].process.ends("after SIGTERM").code, Some(0));
}
