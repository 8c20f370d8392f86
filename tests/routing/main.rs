//! Requests to the owner of a key, the holder of a name, one member, a session and any: fleets in one process on paused time, with requests
//! that travel without a network.

#![expect(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "tests report by panicking")]

mod beside;
mod callers;
mod handover;
mod holders;
mod leaving;
mod limits;
mod members;
mod owners;
mod queues;
mod sessions;
mod spread;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shardwise::requests::{Answered, AskError, Owned, Request, To, Width};
use shardwise::settings::PolicySettings;
use shardwise::testing::TestFleet;
use shardwise::{GroupName, OwnershipMode, Policy, PolicyName, ShardingService, Timing};

/// As long as a request may wait where nothing should keep it waiting.
const LONG: Duration = Duration::from_mins(1);
const TTL: Duration = Duration::from_secs(3);

fn policy(ownership: OwnershipMode) -> Policy {
    let mut policy = Policy::new(PolicyName::new("workers").unwrap(), GroupName::new("group").unwrap());
    policy.ownership = ownership;
    policy.placement.slots = 16;
    policy.drain_timeout = Duration::from_secs(2);
    policy
}

fn settings(ownership: OwnershipMode, max_width: u64) -> PolicySettings {
    let mut settings = PolicySettings::new(policy(ownership));
    settings.timing = Timing::new(TTL, None, Duration::from_millis(100)).unwrap();
    settings.requests.max_width = Width::new(max_width).unwrap();
    settings.requests.saturated_at = 2;
    settings
}

async fn fleet(members: usize, ownership: OwnershipMode) -> TestFleet {
    TestFleet::start_as(members, settings(ownership, 1)).await
}

/// A key that only this member owns.
fn key_of(fleet: &TestFleet, member: usize) -> String {
    (0..10_000).map(|key| format!("key-{key}")).find(|key| fleet.owners(key) == [member]).expect("each member owns a part")
}

/// Answers requests to keys at `who` by the member's name, and by `helps` behind it if it is not the owner.
fn says_who(service: &ShardingService) {
    let id = service.instance_id().to_string();
    let handler = move |owned: Owned| {
        let id = id.clone();
        async move { if owned.is_owner() { id } else { format!("{id} helps") } }
    };
    service.on_owned("who", handler).unwrap();
}

fn text(answered: &Answered) -> String {
    String::from_utf8_lossy(&answered.answer.body).into_owned()
}

fn post(path: &str) -> Request {
    Request::post(path, "text/plain", "")
}

/// A request to the owner of a key, in a task.
fn asks(service: &ShardingService, key: &str, request: Request, within: Duration) -> tokio::task::JoinHandle<Result<Answered, AskError>> {
    let (service, key) = (service.clone(), key.to_owned());
    tokio::spawn(async move { service.ask(&To::owner(&key), request, within).await })
}

/// How many calls of a handler run.
#[derive(Clone, Default)]
struct Running(Arc<AtomicUsize>);

struct RunningCall(Running);

impl Running {
    fn begin(&self) -> RunningCall {
        self.0.fetch_add(1, Ordering::SeqCst);
        RunningCall(self.clone())
    }

    async fn are(&self, wanted: usize) {
        eventually(&format!("{wanted} calls run"), || self.0.load(Ordering::SeqCst) == wanted).await;
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Requests to keys at `hang` never end at this member.
fn hangs(service: &ShardingService) -> Running {
    let running = Running::default();
    let counted = running.clone();
    let handler = move |owned: Owned| {
        let call = counted.begin();
        async move {
            let _held = (owned, call);
            std::future::pending::<String>().await
        }
    };
    service.on_owned("hang", handler).unwrap();
    running
}

/// Which member handles each key at the moment; finds two at once.
#[derive(Clone, Default)]
struct Handling(Arc<Mutex<HandlingTable>>);

#[derive(Default)]
struct HandlingTable {
    by: HashMap<Vec<u8>, (String, usize)>,
    handled: usize,
    twice: Vec<String>,
}

impl Handling {
    fn begin(&self, key: &[u8], by: &str) {
        let mut table = self.0.lock().unwrap();
        let entry = table.by.entry(key.to_vec()).or_insert_with(|| (by.to_owned(), 0)).clone();
        if entry.1 > 0 && entry.0 != by {
            table.twice.push(format!("{by} while {} handled it too", entry.0));
        }
        table.by.insert(key.to_vec(), (by.to_owned(), entry.1 + 1));
        table.handled += 1;
    }

    fn end(&self, key: &[u8]) {
        if let Some(entry) = self.0.lock().unwrap().by.get_mut(key) {
            entry.1 -= 1;
        }
    }
}

/// Waits for a condition in the runtime's time.
async fn eventually(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what}: not within 50 s");
}
