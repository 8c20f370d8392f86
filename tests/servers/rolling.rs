//! A rolling restart of the whole library on every backend: with `rejoin_grace` no slot moves, and without it how many move.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::json;
use shardwise::{Ownership, ServiceState, ShardingService, Snapshots};
use tokio::runtime::Runtime;

use crate::exclusive::{Place, as_placed, placed};
use crate::figures;
use crate::meeting::{Kind, runtime, until};

const SLOTS: u32 = 256;
const TTL: Duration = Duration::from_secs(3);
/// Long enough that no restart on a busy machine takes longer.
const REJOIN_GRACE: &str = "rejoin_grace = \"60s\"\n";
/// Longer than the TTL after which the next in line takes slots without an owner.
const AWAY_FOR: Duration = Duration::from_millis(3_500);
const SETTLED_WITHIN: Duration = Duration::from_secs(20);
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

on_all_at_once!(with_rejoin_grace_a_rolling_restart_moves_no_slot; soak: nats Nats, postgres Postgres);
on_all_at_once!(without_rejoin_grace_slots_move_out_and_return; soak: nats Nats, postgres Postgres);

type Slots = BTreeMap<u32, u64>;

/// Each slot that is held by this snapshot, with its epoch.
fn slots_of(ownership: &Ownership) -> Slots {
    ownership.fences().map(|fence| (fence.slot, fence.epoch.get())).collect()
}

struct Fleet {
    runtime: Runtime,
    place: Place,
    rules: String,
    members: BTreeMap<&'static str, ShardingService>,
}

impl Fleet {
    fn start(kind: Option<Kind>, rejoin_grace: &str) -> Self {
        let runtime = runtime("rolling");
        let place = runtime.block_on(Place::start(kind));
        let mut fleet = Self { runtime, place, rules: format!("slots = {SLOTS}\n{rejoin_grace}"), members: BTreeMap::new() };
        for id in NAMES {
            fleet.starts(id);
        }
        fleet.settles();
        fleet
    }

    fn starts(&mut self, id: &'static str) {
        let _inside = self.runtime.enter();
        let service = self.place.service_by(&self.rules, id, TTL);
        self.runtime.block_on(service.register_self()).unwrap();
        self.members.insert(id, service);
    }

    /// Ends its process, as far as the others can see.
    fn stops(&mut self, id: &str) {
        let service = self.members.remove(id).unwrap();
        self.runtime.block_on(service.deregister_self()).unwrap();
    }

    /// Until everybody sees everybody and holds its own.
    fn settles(&self) {
        let all: Vec<_> = self.members.values().collect();
        let owners = placed(&all);
        until("the fleet shares", SETTLED_WITHIN, || {
            let blind = all.iter().find(|service| service.members().active() != all.len());
            blind.map_or_else(|| as_placed(&all, &owners), |service| Err(format!("{} sees {:?}", service.instance_id(), service.members())))
        });
    }

    /// How many slots have another owner without that one, by the placement alone.
    fn move_without(&self, id: &str) -> usize {
        let all: Vec<_> = self.members.values().collect();
        let rest: Vec<_> = all.iter().copied().filter(|service| service.instance_id().as_str() != id).collect();
        let (with, without) = (placed(&all), placed(&rest));
        (0..SLOTS).filter(|slot| with.owner_of_slot(*slot) != without.owner_of_slot(*slot)).count()
    }

    fn holders(&self) -> BTreeMap<u32, &'static str> {
        self.members.iter().flat_map(|(id, service)| slots_of(&service.ownership()).into_keys().map(|slot| (slot, *id))).collect()
    }
}

/// A member's slots, and all its snapshots since.
struct Followed {
    had: Slots,
    since: Snapshots,
}

impl Followed {
    fn of(service: &ShardingService) -> Self {
        Self { had: slots_of(&service.ownership()), since: service.snapshots() }
    }

    /// How many snapshots there were. Each must have the same slots under the same epochs.
    fn kept(&mut self, runtime: &Runtime, id: &str) -> usize {
        let mut seen = 0;
        while let Ok(Some(snapshot)) = runtime.block_on(async { tokio::time::timeout(Duration::ZERO, self.since.recv()).await }) {
            assert_eq!((snapshot.state(), slots_of(&snapshot)), (ServiceState::Active, self.had.clone()), "{id} has something else");
            seen += 1;
        }
        seen
    }
}

fn with_rejoin_grace_a_rolling_restart_moves_no_slot(kind: Option<Kind>) {
    let mut fleet = Fleet::start(kind, REJOIN_GRACE);
    let before = fleet.holders();
    let (mut seen, mut longest) = (0, Duration::ZERO);
    for (number, id) in NAMES.into_iter().enumerate() {
        let mut others: BTreeMap<_, _> =
            fleet.members.iter().filter(|(other, _)| **other != id).map(|(id, service)| (*id, Followed::of(service))).collect();
        let had = slots_of(&fleet.members[id].ownership());
        let left = Instant::now();
        fleet.stops(id);
        // Once long enough for the next in line to take slots without an owner.
        std::thread::sleep(if number == 0 { AWAY_FOR } else { Duration::from_millis(200) });
        let mut rest = before.clone();
        rest.retain(|_, holder| *holder != id);
        assert_eq!(fleet.holders(), rest, "while {id} is away its slots are nobody's, and the rest is as it was");
        fleet.starts(id);
        let back = &fleet.members[id];
        until("it has its slots back", SETTLED_WITHIN, || {
            let now = slots_of(&back.ownership());
            assert!(
                now.iter().all(|(slot, epoch)| had.get(slot).is_some_and(|before| epoch > before)),
                "its own, each under a higher epoch"
            );
            if now.len() == had.len() { Ok(()) } else { Err(format!("{id} has {} of {} slots", now.len(), had.len())) }
        });
        longest = longest.max(left.elapsed());
        fleet.settles();
        seen += others.iter_mut().map(|(id, followed)| followed.kept(&fleet.runtime, id)).sum::<usize>();
    }
    assert_eq!(fleet.holders(), before);
    assert!(seen >= NAMES.len() * (NAMES.len() - 1), "each has at least seen each of the others go: {seen} snapshots");
    gives_up_its_place(&mut fleet);
    let name = fleet.place.name();
    figures::note(&json!({
        "scene": "rolling", "backend": name, "rejoin_grace": true, "restarts": NAMES.len(), "slots": SLOTS, "moved": 0, "snapshots": seen,
        "longest_away_ms": longest.as_millis()
    }));
}

/// Of those that are away, and whose absence the others see, one decides not to come back, and of another an operator says so: their slots
/// are the others' at once. The second one comes back all the same, as a newcomer.
fn gives_up_its_place(fleet: &mut Fleet) {
    let leaver = steps_away(fleet, "a");
    fleet.runtime.block_on(leaver.deregister_self_for_good()).unwrap();
    fleet.settles();
    let leaver = steps_away(fleet, "b");
    let operator = {
        let _inside = fleet.runtime.enter();
        fleet.place.factory_by(&fleet.rules, "operator", TTL)
    };
    assert!(fleet.runtime.block_on(operator.end_absence("workers", leaver.instance_id())).unwrap());
    fleet.settles();
    fleet.runtime.block_on(leaver.register_self()).unwrap();
    fleet.members.insert("b", leaver);
    fleet.settles();
}

fn steps_away(fleet: &mut Fleet, id: &str) -> ShardingService {
    let leaver = fleet.members.remove(id).unwrap();
    fleet.runtime.block_on(leaver.deregister_self()).unwrap();
    let sees = |service: &ShardingService| service.absences().iter().any(|absence| absence.instance_id == *leaver.instance_id());
    until("the others see it away", SETTLED_WITHIN, || {
        let blind = fleet.members.values().find(|service| !sees(service));
        blind.map_or(Ok(()), |service| Err(format!("{} sees {:?}", service.instance_id(), service.members())))
    });
    leaver
}

/// The counterpart: a restarted worker's slots go out and come back, and with them some slots that bounded load moves between the others.
fn without_rejoin_grace_slots_move_out_and_return(kind: Option<Kind>) {
    let mut fleet = Fleet::start(kind, "");
    let before = fleet.holders();
    let (mut own, mut out) = (0, 0);
    for id in NAMES {
        let had = fleet.members[id].ownership().slots().len();
        let expected = fleet.move_without(id);
        fleet.stops(id);
        fleet.settles();
        let between = fleet.holders();
        let moved = before.iter().filter(|(slot, holder)| between[slot] != **holder).count();
        assert_eq!(moved, expected, "{id}: by the placements with it and without it");
        assert!(moved >= had as usize, "{id}: {moved} of its {had} slots");
        fleet.starts(id);
        until("all is as it was", SETTLED_WITHIN, || if fleet.holders() == before { Ok(()) } else { Err(format!("{:?}", fleet.members)) });
        (own, out) = (own + had, out + moved);
    }
    assert_eq!(own, SLOTS, "each slot was its holder's once");
    figures::note(&json!({
        "scene": "rolling", "backend": fleet.place.name(), "rejoin_grace": false, "restarts": NAMES.len(), "slots": SLOTS, "moved_out": out,
        "moved_back": out, "of_the_restarted": own, "by_bounded_load": out - own as usize
    }));
}
