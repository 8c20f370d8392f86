//! Leaving for a while (`rejoin_grace`) by the whole library over the memory
//! backend: a rolling restart moves no slot, and without it how many.

#![expect(clippy::expect_used, clippy::panic, reason = "tests report by panicking, and print what they measured")]

#[path = "../common/mod.rs"]
mod common;
mod outcomes;
#[path = "../common/plain.rs"]
mod plain;
#[path = "../common/scripted.rs"]
mod scripted;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use shardwise::{Ownership, OwnershipMode, Policy, ServiceState, ShardingService, Snapshots};

use common::{World, eventually};

const SLOTS: u32 = 1_024;
const REJOIN_GRACE: Duration = Duration::from_secs(30);
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// How long a worker is away: three TTLs, in which the next in line would take slots without an owner.
const AWAY_FOR: Duration = Duration::from_secs(9);

fn policy(ownership: OwnershipMode, rejoin_grace: Duration) -> Policy {
    let mut policy = common::policy();
    (policy.ownership, policy.rejoin_grace) = (ownership, rejoin_grace);
    policy.placement.slots = SLOTS;
    policy.drain_timeout = Duration::from_secs(2);
    policy
}

async fn joined(world: &World, id: &str, policy: Policy) -> ShardingService {
    let service = world.factory_of(id, Arc::new(world.store.link()), policy).create("workers").expect("a known policy");
    service.register_self().await.expect("it joins");
    service
}

/// The slots that this worker owns now, each with its epoch, which is 0 under eventual ownership.
fn owned(service: &ShardingService) -> BTreeMap<u32, u64> {
    let ownership = service.ownership();
    if ownership.is_live_at(service.now()) { slots_of(&ownership) } else { BTreeMap::new() }
}

fn slots_of(ownership: &Ownership) -> BTreeMap<u32, u64> {
    let epochs: BTreeMap<_, _> = ownership.fences().map(|fence| (fence.slot, fence.epoch.get())).collect();
    ownership.slots().iter().map(|slot| (slot, epochs.get(&slot).copied().unwrap_or(0))).collect()
}

/// Who owns each slot.
fn owners(fleet: &BTreeMap<&str, ShardingService>) -> BTreeMap<u32, String> {
    fleet.iter().flat_map(|(id, service)| owned(service).into_keys().map(|slot| (slot, (*id).to_owned()))).collect()
}

/// Whether every slot has one owner.
fn settled<'a>(services: impl IntoIterator<Item = &'a ShardingService>) -> bool {
    let mut all: Vec<u32> = services.into_iter().flat_map(|service| owned(service).into_keys()).collect();
    all.sort_unstable();
    all.into_iter().eq(0..SLOTS)
}

async fn fleet<'a>(world: &World, policy: &Policy) -> BTreeMap<&'a str, ShardingService> {
    let mut fleet = BTreeMap::new();
    for id in NAMES {
        fleet.insert(id, joined(world, id, policy.clone()).await);
    }
    eventually("the five share", || settled(fleet.values()) && fleet.values().all(|service| service.members().members().len() == 5)).await;
    fleet
}

/// What became of the others while one was restarted: every snapshot they had.
struct Others(Vec<(String, BTreeMap<u32, u64>, Snapshots)>);

impl Others {
    fn of(fleet: &BTreeMap<&str, ShardingService>, but: &str) -> Self {
        let others = fleet.iter().filter(|(id, _)| **id != but);
        Self(others.map(|(id, service)| ((*id).to_owned(), owned(service), service.snapshots())).collect())
    }

    /// Fails unless each of them had the same slots, under the same epochs, all the time; answers how many snapshots that were.
    async fn kept_theirs(self) -> usize {
        let mut seen = 0;
        for (id, slots, mut snapshots) in self.0 {
            while let Ok(Some(snapshot)) = tokio::time::timeout(Duration::ZERO, snapshots.recv()).await {
                assert_eq!((snapshot.state(), slots_of(&snapshot) == slots), (ServiceState::Active, true), "{id} has something else");
                seen += 1;
            }
        }
        seen
    }
}

async fn a_rolling_restart_moves_no_slot(ownership: OwnershipMode) {
    let world = World::new();
    let policy = policy(ownership, REJOIN_GRACE);
    let mut fleet = fleet(&world, &policy).await;
    let before = owners(&fleet);
    for id in NAMES {
        let others = Others::of(&fleet, id);
        let leaver = fleet.remove(id).expect("it is there");
        let had = owned(&leaver);
        leaver.deregister_self().await.expect("leaves");
        drop(leaver);
        tokio::time::sleep(AWAY_FOR).await;
        let mut expected = before.clone();
        expected.retain(|_, owner| owner != id);
        assert_eq!(owners(&fleet), expected, "while {id} is away its slots are nobody's, and the rest is as it was");
        let back = joined(&world, id, policy.clone()).await;
        eventually("it has its slots back", || owned(&back).into_keys().eq(had.keys().copied())).await;
        if ownership == OwnershipMode::Exclusive {
            assert!(owned(&back).iter().all(|(slot, epoch)| *epoch > had[slot]), "each under a higher epoch");
        }
        fleet.insert(id, back);
        let seen = others.kept_theirs().await;
        assert!(seen >= 8, "each of the other four has seen one go and come: {seen} snapshots");
    }
    assert_eq!(owners(&fleet), before);
}

#[tokio::test(start_paused = true)]
async fn with_rejoin_grace_a_rolling_restart_moves_no_slot() {
    a_rolling_restart_moves_no_slot(OwnershipMode::Eventual).await;
}

#[tokio::test(start_paused = true)]
async fn with_rejoin_grace_a_rolling_restart_moves_no_claim() {
    a_rolling_restart_moves_no_slot(OwnershipMode::Exclusive).await;
}

/// The counterpart: a restarted worker's slots go out and come back, and with them some slots that bounded load moves between the others.
#[tokio::test(start_paused = true)]
async fn without_rejoin_grace_the_slots_move_out_and_return() {
    for ownership in [OwnershipMode::Eventual, OwnershipMode::Exclusive] {
        let world = World::new();
        let policy = policy(ownership, Duration::ZERO);
        let mut fleet = fleet(&world, &policy).await;
        let before = owners(&fleet);
        let (mut own, mut out, mut home) = (0, 0, 0);
        for id in NAMES {
            let leaver = fleet.remove(id).expect("it is there");
            let had = owned(&leaver).len();
            leaver.deregister_self().await.expect("leaves");
            drop(leaver);
            eventually("four share", || settled(fleet.values())).await;
            let between = owners(&fleet);
            fleet.insert(id, joined(&world, id, policy.clone()).await);
            eventually("five share", || settled(fleet.values()) && owners(&fleet) == before).await;
            let moved = before.iter().filter(|(slot, owner)| between[slot] != **owner).count();
            assert!(moved >= had, "{id}: {moved} of its {had} slots");
            (own, out, home) = (own + had, out + moved, home + moved);
        }
        println!(
            "{}: 5 of 5 restarted one by one, {SLOTS} slots, rejoin_grace 0s: {out} slots moved out and {home} back, {own} of them each way the \
             restarted members' own and {} by bounded load; with rejoin_grace none",
            ownership.as_str(),
            out - own
        );
        assert_eq!(own, SLOTS as usize);
    }
}
