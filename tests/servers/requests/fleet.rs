//! Worker processes, and a caller that is not a member of their group.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Child, ChildStdin};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shardwise::requests::{Answered, AskError, Request, To};
use shardwise::{InstanceId, Router, Settings, ShardKey, ShardingFactory, slot_of};
use shardwise_testkit::overlap_judge::{Line, StayLogReader};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::log::Calls;
use super::{SLOTS, TTL, log, worker};
use crate::exclusive::Place;
use crate::figures;
use crate::meeting::{Kind, runtime, until};

/// As long as a request may wait where nothing should keep it waiting, on a busy machine.
pub(crate) const LONG: Duration = Duration::from_mins(1);
/// In which a fleet settles to which nothing is done any more.
pub(crate) const SETTLED_WITHIN: Duration = Duration::from_mins(1);

/// How the members share keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    Exclusive,
    /// With hot keys at up to three members.
    Spread,
}

impl Sharing {
    const fn rules(self) -> &'static str {
        match self {
            Self::Exclusive => "ownership = \"exclusive\"\ndrain_timeout = \"5s\"\n",
            Self::Spread => "max_width = 3\nsaturated_at = 2\n",
        }
    }
}

/// A worker process, living or dead.
struct Member {
    name: String,
    child: Child,
    /// Closed to make it leave.
    input: Option<ChildStdin>,
    is_there: bool,
}

pub(crate) struct Fleet {
    members: Vec<Member>,
    pub(crate) router: Arc<Router>,
    sharing: Sharing,
    is_proxied: bool,
    folder: TempDir,
    pub(crate) place: Place,
    // Dropped last: servers and the router's connections stand on it.
    pub(crate) runtime: Runtime,
}

impl Fleet {
    pub(crate) fn start(kind: Option<Kind>, sharing: Sharing, members: usize) -> Self {
        Self::start_as(kind, sharing, members, false)
    }

    /// A fleet that is settled; `is_proxied`: requests reach its members through proxies, whose connections can be cut. In a soak its
    /// backend is a cluster of three.
    pub(crate) fn start_as(kind: Option<Kind>, sharing: Sharing, members: usize, is_proxied: bool) -> Self {
        let runtime = runtime("asking");
        let place = runtime.block_on(Place::to_measure(kind));
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("token"), "members-know-this-one-alone").unwrap();
        let settings = Settings::from_toml_str(&settings(&place, &folder, sharing, "caller")).unwrap();
        let factory = ShardingFactory::from_settings(settings).unwrap();
        let router = Arc::new(runtime.block_on(factory.router("workers")).unwrap());
        let mut fleet = Self { members: Vec::new(), router, sharing, is_proxied, folder, place, runtime };
        (0..members).for_each(|number| fleet.admit(&format!("worker-{number}")));
        fleet.settle();
        fleet
    }

    /// Starts a worker of that name.
    pub(crate) fn admit(&mut self, name: &str) {
        let text = settings(&self.place, &self.folder, self.sharing, name);
        std::fs::write(self.folder.path().join(format!("{name}.toml")), text).unwrap();
        let (child, input) = worker::start(self.folder.path(), name, self.is_proxied);
        self.members.push(Member { name: name.to_owned(), child, input: Some(input), is_there: true });
    }

    /// The names of those that are there.
    pub(crate) fn names(&self) -> Vec<String> {
        self.members.iter().filter(|member| member.is_there).map(|member| member.name.clone()).collect()
    }

    fn member(&mut self, name: &str) -> &mut Member {
        let found = self.members.iter_mut().find(|member| member.is_there && member.name == name);
        found.unwrap_or_else(|| panic!("{name} is not there"))
    }

    /// SIGKILL, and waits for the end.
    pub(crate) fn kill(&mut self, name: &str) {
        let member = self.member(name);
        member.child.kill().unwrap();
        member.child.wait().unwrap();
        (member.is_there, member.input) = (false, None);
    }

    pub(crate) fn signal(&mut self, name: &str, signal: Signal) {
        let id = self.member(name).child.id();
        match signal {
            Signal::SIGSTOP => shardwise_testkit::pause(id).unwrap(),
            _ => kill(Pid::from_raw(i32::try_from(id).unwrap()), signal).unwrap(),
        }
    }

    /// Orders its proxy to do something; a process that has just ended cannot.
    pub(crate) fn order(&mut self, name: &str, order: &str) {
        if let Some(input) = &mut self.member(name).input {
            let _ = writeln!(input, "{order}");
        }
    }

    /// Asks it to leave in good order, and waits for its end.
    pub(crate) fn leave(&mut self, name: &str) {
        let folder = self.folder.path().to_owned();
        let member = self.member(name);
        (member.is_there, member.input) = (false, None);
        until(&format!("{name} leaves"), SETTLED_WITHIN, || match member.child.try_wait().unwrap() {
            Some(status) if status.success() => Ok(()),
            Some(status) => panic!("{name} ended with {status}: see {}", folder.join(format!("{name}.log")).display()),
            None => Err("it still runs".into()),
        });
    }

    /// Waits until the caller sees exactly those that are there, and each slot is held.
    pub(crate) fn settle(&self) {
        until("the fleet settles", SETTLED_WITHIN, || {
            let (mut wanted, view) = (self.names(), self.router.observer().members());
            let mut seen: Vec<_> = view.members().iter().map(|member| member.instance_id.to_string()).collect();
            wanted.sort();
            seen.sort();
            if wanted != seen || view.active() != seen.len() {
                return Err(format!("{seen:?} are members, and {wanted:?} are there"));
            }
            // The router follows the view a moment behind it.
            if let Some(unknown) = wanted.iter().find(|name| self.router.route(&To::Member(&instance(name))).is_err()) {
                return Err(format!("there is no route to {unknown}"));
            }
            if self.sharing == Sharing::Spread {
                return Ok(());
            }
            let held = self.router.observer().slots_held().map_err(|error| error.to_string())?;
            let is_shared = held.values().sum::<u32>() == SLOTS && wanted.iter().all(|name| held.keys().any(|id| id.as_str() == name));
            if is_shared { Ok(()) } else { Err(format!("slots are held like this: {held:?}")) }
        });
    }

    pub(crate) fn ask(&self, to: &To<'_>, request: Request) -> Result<Answered, AskError> {
        self.runtime.block_on(self.router.ask(to, request, LONG))
    }

    /// The answer as text, which must be a success.
    pub(crate) fn answer(&self, to: &To<'_>, request: Request) -> String {
        let answered = self.ask(to, request).unwrap_or_else(|error| panic!("{to:?}: {error}"));
        assert_eq!(answered.answer.status, 200, "{answered:?}");
        String::from_utf8(answered.answer.body).unwrap()
    }

    /// The member that serves a key by what the caller knows, once it knows of one.
    pub(crate) fn owner(&self, key: &str) -> String {
        let mut owner = String::new();
        until("a key has an owner", SETTLED_WITHIN, || {
            owner = self.router.route(&To::owner(key)).map_err(|error| error.to_string())?.member().to_string();
            Ok(())
        });
        owner
    }

    pub(crate) fn calls(&self) -> BTreeMap<String, Calls> {
        let mut calls = BTreeMap::new();
        let names: std::collections::BTreeSet<_> = self.members.iter().map(|member| &member.name).collect();
        for name in names {
            log::read(&worker::logs(self.folder.path(), name)[0], &mut calls);
        }
        calls
    }

    /// Waits until the calls for a request are as wanted.
    pub(crate) fn calls_are(&self, request: &str, wanted: impl Fn(Calls) -> bool) {
        until(&format!("the calls of {request}"), SETTLED_WITHIN, || {
            let calls = self.calls().get(request).copied().unwrap_or_default();
            if wanted(calls) { Ok(()) } else { Err(format!("{calls:?}")) }
        });
    }

    /// What each worker has written of the slots that it worked in. No two may have had one name.
    pub(crate) fn stays(&self) -> Vec<Vec<Line>> {
        let read = |member: &Member| StayLogReader::open(&worker::logs(self.folder.path(), &member.name)[1]).unwrap().new_lines().unwrap();
        self.members.iter().map(read).collect()
    }

    /// Ends everything in good order.
    pub(crate) fn end(&mut self) {
        for name in self.names() {
            self.leave(&name);
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for member in &mut self.members {
            // One that has ended needs no end.
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
        if std::thread::panicking() {
            self.folder.disable_cleanup(true);
            println!("what the workers wrote is in {}", self.folder.path().display());
        }
    }
}

fn settings(place: &Place, folder: &TempDir, sharing: Sharing, id: &str) -> String {
    let rules = format!("{}slots = {SLOTS}\npeer_token_file = {:?}\n", sharing.rules(), folder.path().join("token").display().to_string());
    place.settings_by(&rules, id, TTL)
}

/// A key in each slot.
pub(crate) fn keys() -> Vec<String> {
    let key_in = |slot: u32| (0..u64::MAX).map(|number| format!("key-{number}")).find(|key| slot_of(key.key_hash(), SLOTS) == slot);
    (0..SLOTS).filter_map(key_in).collect()
}

pub(crate) fn post(path: &str, body: impl Into<String>) -> Request {
    Request::post(path, "text/plain", body.into())
}

pub(crate) fn instance(name: &str) -> InstanceId {
    InstanceId::new(name).unwrap()
}

/// How many thousands of requests a soak wants; `None` for the short form.
pub(crate) fn thousands() -> Option<usize> {
    figures::wanted()
}
