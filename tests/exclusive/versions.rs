//! `version_rule = "newest"`: in a rolling upgrade a slot leaves an old worker only with it, and lands on a new one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shardwise::discovery::MemoryBackend;
use shardwise::settings::InstanceSettings;
use shardwise::{ErrorKind, Policy, Run, ShardingService, VersionRule};

use super::{SLOTS, World, eventually, held, policy, share};

/// How long work in a slot goes on after it was cancelled.
const WORK: Duration = Duration::from_millis(300);

fn newest() -> Policy {
    let mut policy = policy();
    policy.version_rule = VersionRule::Newest;
    policy
}

fn started(world: &World, id: &str, version: &str, policy: Policy) -> (ShardingService, MemoryBackend) {
    let mut instance = InstanceSettings::default();
    instance.version = Some(version.to_owned());
    let link = world.store.link();
    (world.factory_with(instance, id, Arc::new(link.clone()), policy).create("workers").expect("a known policy"), link)
}

/// Who works in each slot now, and who has begun to, in order.
#[derive(Default)]
struct VersionLog {
    now: BTreeMap<u32, String>,
    begun: Vec<(u32, String)>,
    overlaps: Vec<u32>,
}

type Shown = Arc<Mutex<VersionLog>>;

/// Shows the work as going on as long as it lives: that of a worker that is fenced is dropped where it awaits.
struct Here(u32, Shown);

impl Here {
    fn at(slot: u32, name: String, shown: Shown) -> Self {
        let mut log = shown.lock().expect("whole");
        log.begun.push((slot, name.clone()));
        if log.now.insert(slot, name).is_some() {
            log.overlaps.push(slot);
        }
        drop(log);
        Self(slot, shown)
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        self.1.lock().expect("whole").now.remove(&self.0);
    }
}

fn work(service: &ShardingService, shown: &Shown) -> Run {
    let (shown, name) = (Arc::clone(shown), service.instance_id().to_string());
    service.slots(move |slot, _, cancel| {
        let (shown, name) = (Arc::clone(&shown), name.clone());
        async move {
            let _here = Here::at(slot, name, shown);
            cancel.cancelled().await;
            tokio::time::sleep(WORK).await;
        }
    })
}

/// What has begun since the last call.
fn begun(shown: &Shown) -> Vec<(u32, String)> {
    std::mem::take(&mut shown.lock().expect("whole").begun)
}

struct Fleet {
    world: World,
    shown: Shown,
    workers: BTreeMap<String, (ShardingService, MemoryBackend, [Run; 2])>,
}

impl Fleet {
    /// Workers of version 1.9 that share everything.
    async fn of(workers: usize) -> Self {
        let mut fleet = Self { world: World::new(), shown: Shown::default(), workers: BTreeMap::new() };
        for i in 0..workers {
            fleet.join(&format!("old-{i}"), "1.9").await;
        }
        fleet.settled().await;
        begun(&fleet.shown);
        fleet
    }

    async fn join(&mut self, id: &str, version: &str) {
        let (service, link) = started(&self.world, id, version, newest());
        service.register_self().await.expect("it joins");
        let leader = service.singleton("leader").expect("exclusive").run(|context| async move {
            context.cancel().cancelled().await;
            Ok::<(), String>(())
        });
        let runs = [work(&service, &self.shown), leader];
        self.workers.insert(id.to_owned(), (service, link, runs));
    }

    /// It leaves in good order, or, cut off for ever, after its lease.
    async fn end(&mut self, id: &str, well: bool) {
        let (service, link, runs) = self.workers.remove(id).expect("it is there");
        if well {
            service.deregister_self().await.expect("it leaves");
        } else {
            link.set_reachable(false);
            eventually("it is fenced", || held(&service).is_empty()).await;
        }
        drop(runs);
    }

    async fn settled(&self) {
        let services: Vec<_> = self.workers.values().map(|(service, ..)| service).collect();
        let working = || self.shown.lock().expect("whole").now.len();
        eventually("every slot has a holder that works in it", || {
            share(&services) && working() == SLOTS as usize && self.leader().is_some()
        })
        .await;
        // A wrong takeover would have begun by now.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(share(&services), "it stays so");
    }

    fn leader(&self) -> Option<&str> {
        let leads = |service: &ShardingService| service.ownership().names().next().is_some();
        self.workers.iter().find(|(_, (service, ..))| leads(service)).map(|(id, _)| id.as_str())
    }
}

#[tokio::test(start_paused = true)]
async fn in_a_rolling_upgrade_each_slot_moves_once_to_a_new_worker() {
    for well in [true, false] {
        let mut fleet = Fleet::of(4).await;
        for i in 0..4 {
            let (old, new) = (format!("old-{i}"), format!("new-{i}"));
            fleet.join(&new, "1.10").await;
            fleet.settled().await;
            assert_eq!(begun(&fleet.shown), [], "a new worker takes nothing from anybody");
            let (leader, leaving) = (fleet.leader().map(str::to_owned), held(&fleet.workers[&old].0));
            fleet.end(&old, well).await;
            fleet.settled().await;
            let moved = begun(&fleet.shown);
            assert!(moved.iter().all(|(_, to)| to.starts_with("new")), "no old worker takes one while a new one has room: {moved:?}");
            if i < 3 {
                let mut slots: Vec<u32> = moved.iter().map(|(slot, _)| *slot).collect();
                slots.sort_unstable();
                assert!(slots.iter().eq(leaving.keys()), "what the leaver had moves, once, and nothing else: {moved:?}");
                let stays = leader.as_deref() != Some(&old);
                assert!(!stays || fleet.leader() == leader.as_deref(), "the singleton goes with its worker alone");
            }
        }
        assert_eq!(fleet.shown.lock().expect("whole").overlaps, [0; 0], "no slot has two workers");
        assert!(fleet.leader().is_some_and(|leader| leader.starts_with("new")));
    }
}

/// Two old workers die at once; the only new one takes its most, and the old one the rest.
#[tokio::test(start_paused = true)]
async fn what_new_workers_have_no_room_for_goes_to_old_ones() {
    let mut fleet = Fleet::of(4).await;
    fleet.join("new", "1.10").await;
    fleet.settled().await;
    for id in ["old-0", "old-1"] {
        fleet.workers[id].1.set_reachable(false);
    }
    for id in ["old-0", "old-1"] {
        fleet.end(id, false).await;
    }
    fleet.settled().await;
    let begun = begun(&fleet.shown);
    assert_eq!(held(&fleet.workers["new"].0).len(), 23, "ceil(64 * 1.05 / 3)");
    assert!(begun.iter().any(|(_, to)| to.starts_with("old")), "{begun:?}");
    assert_eq!(fleet.shown.lock().expect("whole").overlaps, [0; 0]);
}

#[tokio::test(start_paused = true)]
async fn members_must_agree_on_the_rule() {
    let world = World::new();
    let (a, _) = started(&world, "a", "1", newest());
    a.register_self().await.expect("it joins");
    let (b, _) = started(&world, "b", "1", policy());
    let error = b.register_self().await.expect_err("another rule");
    assert_eq!(error.kind(), ErrorKind::OtherPolicy);
    assert!(error.to_string().contains("version_rule"), "{error}");
}
