//! A process of the crowd: many members of one group, which share a connection and a watch, and a log of what they see and hold.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use shardwise::{Fingerprint, Moment, Ownership, OwnershipMode, ServiceState, Settings, ShardingFactory, ShardingService};
use shardwise_testkit::{Usage, start_test};
use tokio::sync::mpsc;

/// The folder, the name and the number of members of a process; unset in the tests themselves.
const FOLDER: &str = "SHARDWISE_TEST_CROWD_FOLDER";
const NAME: &str = "SHARDWISE_TEST_CROWD_NAME";
const MEMBERS: &str = "SHARDWISE_TEST_CROWD_MEMBERS";
const POLL_EVERY: Duration = Duration::from_millis(50);
/// How often the process writes down what it has used, in polls.
const POLLS_PER_USAGE: u64 = 100;
/// How long a member that could not join waits before it tries again.
const AGAIN: Duration = Duration::from_millis(200);
/// In which members leave that are asked to.
const LEFT_WITHIN: Duration = Duration::from_mins(1);

/// Not a test: what a process of the crowd runs, until its input ends.
#[test]
fn crowd_process() {
    let (Some(folder), Ok(name), Ok(members)) = (std::env::var_os(FOLDER), std::env::var(NAME), std::env::var(MEMBERS)) else { return };
    crate::meeting::runtime(&name).block_on(live(Path::new(&folder), &name, members.parse().unwrap()));
}

/// Starts one, whose settings are in the folder. It is killed by the kernel when the thread ends that starts it.
pub(crate) fn start(folder: &Path, name: &str, members: usize) -> (Child, ChildStdin) {
    let variables = [(FOLDER, folder.to_str().unwrap()), (NAME, name), (MEMBERS, &members.to_string())];
    start_test("crowd::process::crowd_process", &variables, &folder.join(format!("{name}.log"))).unwrap()
}

/// The id of a member.
pub(crate) fn id(process: &str, number: usize) -> String {
    format!("{process}-{number}")
}

/// Does what the lines of its input say, `join N` or `leave N`, and leaves with all at its end.
async fn live(folder: &Path, name: &str, members: usize) {
    let _log = tracing_subscriber::fmt().with_ansi(false).with_max_level(tracing::Level::WARN).try_init();
    let (said, mut orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || std::io::stdin().lock().lines().map_while(Result::ok).try_for_each(|line| said.send(line)));
    let log = File::options().create(true).append(true).open(folder.join(format!("{name}.crowd"))).unwrap();
    let settings = std::fs::read_to_string(folder.join(format!("{name}.toml"))).unwrap();
    let mut crowd = Crowd { name: name.to_owned(), settings, log: Log(Arc::new(Mutex::new(log))), present: BTreeMap::new(), shown: None };
    (0..members).for_each(|number| crowd.join(number));
    let mut polls = tokio::time::interval(POLL_EVERY);
    for poll in 0_u64.. {
        tokio::select! {
            order = orders.recv() => match order.as_deref().and_then(|order| order.split_once(' ')) {
                Some(("join", number)) => crowd.join(number.parse().unwrap()),
                Some(("leave", number)) => crowd.leave(number.parse().unwrap()),
                _ => break,
            },
            _ = polls.tick() => crowd.observe(),
        }
        if poll.is_multiple_of(POLLS_PER_USAGE) {
            crowd.note_usage();
        }
    }
    crowd.note_usage();
    let numbers: Vec<_> = crowd.present.keys().copied().collect();
    for number in numbers {
        crowd.leave(number);
    }
    let left = async {
        while !crowd.present.is_empty() {
            polls.tick().await;
            crowd.observe();
        }
    };
    tokio::time::timeout(LEFT_WITHIN, left).await.unwrap();
}

/// Where all members of the process write, a line of JSON at a time.
#[derive(Clone)]
struct Log(Arc<Mutex<File>>);

impl Log {
    fn write(&self, line: &Value) {
        // One write for a line: the process may be killed at any time.
        self.0.lock().unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

struct Present {
    service: ShardingService,
    is_leaving: bool,
    /// Slots, under exclusive ownership with their epochs.
    held: BTreeSet<(u32, u64)>,
    /// A moment at which it still held them.
    at: Moment,
}

struct Crowd {
    name: String,
    settings: String,
    log: Log,
    present: BTreeMap<usize, Present>,
    /// What all members of the process saw when they last saw one thing: the fingerprint of the view. Its revision differs between members
    /// that see the same: one that has just joined reads the group itself, at the store's revision of that moment.
    shown: Option<Fingerprint>,
}

impl Crowd {
    fn join(&mut self, number: usize) {
        let text = format!("{}[default.resilience.sharding.instance]\nid = \"{}\"\n", self.settings, id(&self.name, number));
        let service = ShardingFactory::from_settings(Settings::from_toml_str(&text).unwrap()).unwrap().create("workers").unwrap();
        let (joining, mut snapshots, log) = (service.clone(), service.snapshots(), self.log.clone());
        tokio::spawn(async move {
            while let Err(error) = joining.register_self().await {
                println!("{} has not joined: {error}", joining.instance_id());
                tokio::time::sleep(AGAIN).await;
            }
        });
        let name = id(&self.name, number);
        tokio::spawn(async move {
            while let Some(snapshot) = snapshots.recv().await {
                if snapshot.state() == ServiceState::Fenced {
                    log.write(&json!({ "fenced": name }));
                }
            }
        });
        let at = service.now();
        self.present.insert(number, Present { service, is_leaving: false, held: BTreeSet::new(), at });
    }

    fn leave(&mut self, number: usize) {
        let Some(member) = self.present.get_mut(&number) else { return };
        member.is_leaving = true;
        let service = member.service.clone();
        tokio::spawn(async move {
            if let Err(error) = service.deregister_self().await {
                println!("{} has not left in good order: {error}", service.instance_id());
            }
        });
    }

    /// Writes down what has changed since the last poll.
    fn observe(&mut self) {
        let mut seen = BTreeSet::new();
        for (number, member) in &mut self.present {
            let before = member.service.now();
            let ownership = member.service.ownership();
            let after = member.service.now();
            let held = held(&member.service, &ownership, after);
            for (slot, epoch) in member.held.difference(&held) {
                self.log.write(&json!({ "left": slot, "epoch": epoch, "at": member.at.as_nanos() }));
            }
            for (slot, epoch) in held.difference(&member.held) {
                self.log.write(&json!({ "entered": slot, "epoch": epoch, "id": id(&self.name, *number), "at": after.as_nanos() }));
            }
            (member.held, member.at) = (held, before);
            if !member.is_leaving {
                let is_active = ownership.state() == ServiceState::Active;
                seen.insert(is_active.then(|| ownership.view().fingerprint()));
            }
        }
        if let (Some(Some(fingerprint)), 1) = (seen.first(), seen.len()) {
            self.note_view(*fingerprint);
        }
        self.present.retain(|_, member| !member.is_leaving || member.service.state() != ServiceState::Left);
    }

    fn note_view(&mut self, fingerprint: Fingerprint) {
        if self.shown == Some(fingerprint) {
            return;
        }
        let Some(member) = self.present.values().find(|member| !member.is_leaving) else { return };
        let (view, at) = (member.service.members(), member.service.now());
        // Another view may have come in between; the next poll has it.
        if view.fingerprint() == fingerprint {
            self.log.write(&json!({ "seen": view.members().len(), "fingerprint": fingerprint.to_string(), "at": at.as_nanos() }));
            self.shown = Some(fingerprint);
        }
    }

    fn note_usage(&self) {
        let Some(member) = self.present.values().next() else { return };
        let (usage, at) = (Usage::of_threads("").unwrap(), member.service.now().as_nanos());
        let processor = u64::try_from(usage.processor.as_micros()).unwrap();
        self.log.write(&json!({ "life": std::process::id(), "processor_us": processor, "memory": usage.memory, "at": at }));
    }
}

/// What a member holds at that moment.
fn held(service: &ShardingService, ownership: &Ownership, at: Moment) -> BTreeSet<(u32, u64)> {
    match service.policy().ownership {
        _ if !ownership.is_live_at(at) => BTreeSet::new(),
        OwnershipMode::Exclusive => ownership.fences().map(|fence| (fence.slot, fence.epoch.get())).collect(),
        _ => ownership.slots().iter().map(|slot| (slot, 0)).collect(),
    }
}
