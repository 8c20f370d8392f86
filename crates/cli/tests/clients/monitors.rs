//! The example `alert_monitor` in each language, and on each backend that has exclusive ownership: three monitors as processes share the
//! rules, one is silenced, all are asked, and one is killed.
//!
//! Their lines have no times, so the test compares epochs: a monitor begins with a rule under rising ones, no epoch of a rule has two
//! monitors, and in the end each rule has one monitor, under the highest epoch. Whether two ever work at one moment is measured in
//! `exclusive_python` and `tests/servers/faults`, whose lines have times.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use shardwise_testkit::{Consul, Etcd, Nats, NatsOptions, Port, Postgres, PostgresOptions};
use tokio::runtime::Runtime;

use crate::common::lines::number;
use crate::common::process::Process;
use crate::common::{PATIENCE, Place, run};
use crate::{Sidecar, TOKEN};

/// With these names and so many slots each monitor has two rules or three.
const IDS: [&str; 3] = ["ada", "bob", "eve"];
const SLOTS: u32 = 256;
const RULES: usize = 8;
const POLL_EVERY: Duration = Duration::from_millis(20);

/// The example's tests in a language, whose workers lease from a sidecar or are members themselves.
macro_rules! on {
    ($language:ident, $has_sidecar:literal: $($backend:ident)+) => {
        mod $language {
            use crate::monitors::the_rules_are_shared;
            use crate::$language::monitor;

            $(#[test]
            fn $backend() {
                the_rules_are_shared(monitor, $has_sidecar, stringify!($backend));
            })+
        }
    };
}
// The backend is the sidecar's, whatever the language. Valkey has no exclusive ownership.
on!(rust, false: local consul etcd nats postgres);
on!(python, true: local consul nats);
on!(typescript, true: local etcd postgres);

fn the_rules_are_shared(program: fn() -> Command, has_sidecar: bool, backend: &str) {
    // One after the other: each has up to eight processes, and other tests of this program have limits on time.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut fleet = Fleet::start(program, has_sidecar, backend);
    let shares = fleet.settles("each rule has one monitor, and each monitor has rules");
    let (rule, victim) = shares.first_key_value().map(|(rule, id)| (rule.as_str(), *id)).unwrap();

    fleet.asks("silence", &[victim, rule], |lines| lines == [json!({"did": "answered", "by": victim, "answer": {"silenced": [rule]}})]);
    // Refused by the monitor; its status shows that it is not silenced.
    run(fleet.command("silence", &[victim, "no-such-rule"]), b"");
    let is_silenced_alone = |line: &Value| {
        let silenced = if line["by"] == victim { json!([rule]) } else { json!([]) };
        line["did"] == "answered" && line["answer"]["silenced"] == silenced
    };
    fleet.asks("status", &[victim], |lines| lines.len() == 1 && lines[0]["by"] == victim && is_silenced_alone(&lines[0]));
    fleet.asks("status", &[], |lines| {
        let by: BTreeSet<_> = lines.iter().filter_map(|line| line["by"].as_str()).collect();
        let evaluated: Vec<&Value> = lines.iter().filter_map(|line| line["answer"]["rules"].as_array()).flatten().collect();
        let is_each_once = evaluated.len() == RULES && shares.keys().all(|rule| evaluated.iter().any(|evaluated| **evaluated == *rule));
        by == BTreeSet::from(IDS) && lines.iter().all(is_silenced_alone) && is_each_once
    });
    fleet.asks("rules", &[], |lines| {
        let rules = lines[0]["answer"]["rules"].as_array();
        let is_whole = rules.is_some_and(|rules| rules.len() == RULES && shares.keys().all(|rule| rules.iter().any(|one| *one == *rule)));
        lines.len() == 1 && lines[0]["by"].as_str().is_some_and(|by| IDS.contains(&by)) && is_whole
    });

    fleet.kill(victim);
    fleet.settles("the others have the rules of the dead one");
    fleet.leave();
}

/// A backend, and the settings of a group that meets there.
struct Stage {
    place: Place,
    // Kept until the processes are gone.
    _server: Box<dyn Any>,
    _runtime: Runtime,
}

impl Stage {
    fn start(backend: &str) -> Self {
        let (place, runtime) = (Place::empty(), Runtime::new().unwrap());
        let (server, at): (Box<dyn Any>, String) = match backend {
            "consul" => {
                let consul = runtime.block_on(Consul::single()).unwrap();
                let at = format!("consul.address = {:?}", consul.address());
                (Box::new(consul), at)
            }
            "etcd" => {
                let etcd = runtime.block_on(Etcd::single()).unwrap();
                let at = format!("etcd.endpoints = [{:?}]", etcd.address());
                (Box::new(etcd), at)
            }
            "nats" => {
                let nats = runtime.block_on(Nats::start(NatsOptions::default().newest().durable())).unwrap();
                let at = format!("nats.urls = [{:?}]\nnats.sync_interval = \"always\"", nats.address());
                (Box::new(nats), at)
            }
            "postgres" => {
                let start = async { Postgres::start(PostgresOptions::default().durable()).await?.database().await };
                let database = runtime.block_on(start).unwrap();
                let at = format!("postgres.url = {:?}", database.url());
                (Box::new(database), at)
            }
            _ => (Box::new(()), format!("local.path = \"{}\"", place.path("workers.db").display())),
        };
        place.write("token", format!("{TOKEN}\n"));
        place.write("peers", "another-secret-for-the-members\n");
        let (table, peers) = ("[default.resilience.sharding", place.path("peers"));
        let discovery = format!("{table}.discovery]\nbackend = {backend:?}\nttl = \"3s\"\n{at}\n");
        let policy =
            format!("group_name = \"workers\"\nownership = \"exclusive\"\nslots = {SLOTS}\npeer_token_file = \"{}\"\n", peers.display());
        place.write("settings.toml", format!("{discovery}{table}.policies.workers]\n{policy}"));
        if backend == "postgres" {
            place.run(&["backend", "init"]).well();
        }
        Self { place, _server: server, _runtime: runtime }
    }
}

/// A rule that a monitor evaluates.
struct Stay {
    epoch: u64,
    /// Whether it has been evaluated under that epoch yet.
    is_evaluated: bool,
}

struct Monitor {
    id: &'static str,
    process: Process,
    /// None if it is a member itself.
    sidecar: Option<Sidecar>,
    /// Where requests reach it through its sidecar.
    _port: Port,
    read: usize,
    at_work: BTreeMap<String, Stay>,
}

/// The monitor that began with a rule under an epoch.
type Holders = BTreeMap<(String, u64), &'static str>;

/// Those that began with that rule under higher epochs.
fn later<'a>(holders: &'a Holders, rule: &str, epoch: u64) -> impl Iterator<Item = &'static str> + use<'a> {
    holders.range((rule.to_owned(), epoch + 1)..=(rule.to_owned(), u64::MAX)).map(|(_, by)| *by)
}

impl Monitor {
    fn start(program: fn() -> Command, has_sidecar: bool, stage: &Stage, id: &'static str) -> Self {
        let (mut command, port, place) = (program(), Port::reserve().unwrap(), &stage.place);
        let sidecar = has_sidecar.then(|| {
            let worker = format!("http://{}", port.address());
            Sidecar::start(place, &["--id", id, "--token-file", "token", "--forward-to", &worker])
        });
        command.arg("run").env("SHARDWISE_TOKEN", TOKEN);
        match &sidecar {
            Some(sidecar) => command.args(["workers", &sidecar.url]).arg(port.number().to_string()),
            None => command.arg(place.path("settings.toml")).arg("workers").env("SHARDWISE__RESILIENCE__SHARDING__INSTANCE__ID", id),
        };
        let mut process = Process::start(command);
        process.prints("it listens", |line| line["did"] == "listening");
        Self { id, process, sidecar, _port: port, read: 0, at_work: BTreeMap::new() }
    }

    /// Reads its new lines, each of which must follow from those before.
    fn catch_up(&mut self, holders: &mut Holders) {
        self.process.catch_up();
        for line in &self.process.printed[self.read..] {
            let (rule, epoch) = (line["rule"].as_str().unwrap_or_default().to_owned(), number(line, "epoch"));
            match line["did"].as_str().unwrap() {
                "began" => {
                    let holder = *holders.entry((rule.clone(), epoch)).or_insert(self.id);
                    assert_eq!(holder, self.id, "one epoch of a rule, two monitors: {line}");
                    assert!(!later(holders, &rule, epoch).any(|by| by == self.id), "{} had a higher epoch before: {line}", self.id);
                    let former = self.at_work.insert(rule, Stay { epoch, is_evaluated: false });
                    assert!(former.is_none(), "{} began twice: {line}", self.id);
                }
                "evaluated" => {
                    let stay = self.at_work.get_mut(&rule).filter(|stay| stay.epoch == epoch);
                    stay.unwrap_or_else(|| panic!("{} evaluated what it had not begun: {line}", self.id)).is_evaluated = true;
                }
                "ended" => assert!(self.at_work.remove(&rule).is_some(), "{} ended what it had not begun: {line}", self.id),
                _ => {}
            }
        }
        self.read = self.process.printed.len();
    }
}

struct Fleet {
    program: fn() -> Command,
    monitors: Vec<Monitor>,
    holders: Holders,
    /// Commands go through it.
    observer: Sidecar,
    // Dropped last.
    _stage: Stage,
}

impl Fleet {
    fn start(program: fn() -> Command, has_sidecar: bool, backend: &str) -> Self {
        let stage = Stage::start(backend);
        let monitors = IDS.map(|id| Monitor::start(program, has_sidecar, &stage, id)).into();
        let observer = Sidecar::serve(&stage.place, &["--observe", "workers", "--token-file", "token"]);
        Self { program, monitors, holders: Holders::new(), observer, _stage: stage }
    }

    /// The monitor of each rule, once each rule has one that has evaluated it under the highest epoch of all, and each monitor has some.
    fn shares(&self) -> Option<BTreeMap<String, &'static str>> {
        let mut shares = BTreeMap::new();
        for monitor in &self.monitors {
            for (rule, stay) in &monitor.at_work {
                let is_newest = later(&self.holders, rule, stay.epoch).next().is_none();
                let is_only = shares.insert(rule.clone(), monitor.id).is_none();
                if !(stay.is_evaluated && is_newest && is_only) {
                    return None;
                }
            }
        }
        let is_shared = shares.len() == RULES && self.monitors.iter().all(|monitor| !monitor.at_work.is_empty());
        is_shared.then_some(shares)
    }

    fn settles(&mut self, what: &str) -> BTreeMap<String, &'static str> {
        let begun = Instant::now();
        loop {
            self.monitors.iter_mut().for_each(|monitor| monitor.catch_up(&mut self.holders));
            if let Some(shares) = self.shares() {
                return shares;
            }
            let last = || self.monitors.iter().map(|monitor| (monitor.id, monitor.at_work.keys(), monitor.process.printed.last()));
            assert!(begun.elapsed() < PATIENCE, "waited in vain: {what}; {:?}; epochs: {:?}", last().collect::<Vec<_>>(), self.holders);
            std::thread::sleep(POLL_EVERY);
        }
    }

    fn command(&self, verb: &str, rest: &[&str]) -> Command {
        let mut command = (self.program)();
        command.args([verb, "workers", &self.observer.url]).args(rest).env("SHARDWISE_TOKEN", TOKEN);
        command
    }

    /// Repeats a command until it prints what is wanted: a monitor may still join, and the view of the observer may be late.
    fn asks(&self, verb: &str, rest: &[&str], is_wanted: impl Fn(&[Value]) -> bool) {
        let begun = Instant::now();
        loop {
            let ran = run(self.command(verb, rest), b"");
            let lines: Vec<Value> = ran.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            if ran.code == Some(0) && !lines.is_empty() && is_wanted(&lines) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "waited in vain for the answer to {verb} {rest:?}; the last one: {ran:?}");
            std::thread::sleep(POLL_EVERY);
        }
    }

    /// SIGKILL, with its sidecar.
    fn kill(&mut self, id: &str) {
        let at = self.monitors.iter().position(|monitor| monitor.id == id).unwrap();
        let mut victim = self.monitors.remove(at);
        let processes = victim.sidecar.iter().map(|sidecar| &sidecar.process).chain([&victim.process]);
        processes.for_each(|process| process.signal(Signal::SIGKILL));
        victim.process.ends("after SIGKILL");
        victim.catch_up(&mut self.holders);
    }

    fn leave(mut self) {
        self.monitors.iter().for_each(|monitor| monitor.process.signal(Signal::SIGTERM));
        for monitor in &mut self.monitors {
            let ran = monitor.process.ends("after SIGTERM");
            monitor.catch_up(&mut self.holders);
            let has_left = monitor.process.printed.iter().any(|line| line["did"] == "left");
            assert!(ran.code == Some(0) && has_left && monitor.at_work.is_empty(), "{}: {ran:?}", monitor.id);
        }
    }
}
