//! `version_rule = "newest"` in a fleet of machines over one simulated backend: each member gets all views in order, but at different
//! times.

use super::*;
use crate::holdings::ClaimAction;
use crate::machine::ClaimInput;
use crate::{AcquireOutcome, Claim, ClaimName, ClaimStore, Epoch, MaxLoss, OwnershipMode, Resource, StoreId, VersionRule, hash_bytes};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const SLOTS: u32 = 100;
const SEEDS: u64 = 12;

fn rolling_policy() -> Policy {
    let placement = PlacementParams { slots: SLOTS, virtual_nodes: 64, ..PlacementParams::default() };
    Policy { ownership: OwnershipMode::Exclusive, version_rule: VersionRule::Newest, placement, ..policy() }
}

/// One incarnation of one member.
struct Worker {
    id: InstanceId,
    machine: Machine,
    record: Member,
    /// Inputs that it has not processed yet.
    inbox: VecDeque<Input>,
    lives: bool,
}

struct Fleet {
    seed: u64,
    rolls: u64,
    /// In microseconds.
    now: u64,
    revision: u64,
    policy: Policy,
    names: BTreeSet<ClaimName>,
    workers: Vec<Worker>,
    records: BTreeMap<InstanceId, Member>,
    claims: BTreeMap<Resource, Claim>,
    last_epoch: u64,
    /// The holders of each slot and each name, one after the other.
    past: BTreeMap<Resource, Vec<Holder>>,
}

impl Fleet {
    fn new(seed: u64, policy: Policy) -> Self {
        let names = (0..6).map(|i| ClaimName::new(format!("daemon/{i}")).unwrap()).collect();
        let (workers, records, claims, past) = (Vec::new(), BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { seed, rolls: 0, now: 0, revision: 0, policy, names, workers, records, claims, last_epoch: 0, past }
    }

    fn roll(&mut self, sides: usize) -> usize {
        self.rolls += 1;
        let rolled = hash_bytes(&[self.seed.to_le_bytes(), self.rolls.to_le_bytes()].concat());
        usize::try_from(rolled % sides as u64).unwrap()
    }

    fn moment(&self) -> Moment {
        Moment::from_nanos(self.now * 1_000)
    }

    fn start(&mut self, id: &str, version: Option<&str>) {
        let incarnation = Incarnation::new(self.workers.len() as u64);
        let id = InstanceId::new(id).unwrap();
        let me = Identity { instance_id: id.clone(), incarnation };
        let timing = Timing::new(TTL, None, Duration::from_millis(100)).unwrap();
        let machine = Machine::new(Arc::new(self.policy.clone()), timing, me, placer, self.moment());
        let record = Member {
            incarnation,
            version: version.map(str::to_owned),
            fingerprints: self.policy.fingerprints(),
            ..Member::named(id.clone())
        };
        let inbox = VecDeque::from([Input::Names(self.names.clone()), Input::Join]);
        self.workers.push(Worker { id, machine, record, inbox, lives: true });
    }

    /// Its latest incarnation.
    fn worker(&self, id: &str) -> usize {
        self.workers.iter().rposition(|worker| worker.id.as_str() == id).unwrap()
    }

    fn stop(&mut self, id: &str) {
        let at = self.worker(id);
        self.workers[at].inbox.push_back(Input::Leave);
    }

    /// Dies, and its lease expires.
    fn kill(&mut self, id: &str) {
        let at = self.worker(id);
        self.workers[at].lives = false;
        self.forget(at);
    }

    fn view(&self) -> Arc<View> {
        Arc::new(View::new(self.revision, self.records.values().cloned().collect()))
    }

    fn send_view(&mut self) {
        self.revision += 1;
        let seen = Input::Viewed { view: self.view(), proven: self.moment() };
        self.workers.iter_mut().for_each(|worker| worker.inbox.push_back(seen.clone()));
    }

    fn send_claims(&mut self, changes: Vec<(Resource, Option<Claim>)>) {
        let reported = Input::Claims(ClaimInput::Changed(changes));
        self.workers.iter_mut().for_each(|worker| worker.inbox.push_back(reported.clone()));
    }

    /// Deletes a worker's record and its claims.
    fn forget(&mut self, at: usize) {
        let (id, incarnation) = (self.workers[at].id.clone(), self.workers[at].record.incarnation);
        self.records.remove(&id);
        let gone = self.claims.iter().filter(|(_, claim)| claim.holder.incarnation == incarnation);
        let gone: Vec<_> = gone.map(|(resource, _)| (resource.clone(), None)).collect();
        self.claims.retain(|_, claim| claim.holder.incarnation != incarnation);
        self.send_claims(gone);
        self.send_view();
    }

    fn acquire(&mut self, at: usize, wanted: Vec<Resource>) -> Vec<(Resource, AcquireOutcome)> {
        let holder = Holder { instance_id: self.workers[at].id.clone(), incarnation: self.workers[at].record.incarnation };
        let (mut answers, mut changes) = (Vec::new(), Vec::new());
        for resource in wanted {
            match self.claims.get(&resource) {
                Some(claim) if claim.holder != holder => answers.push((resource, AcquireOutcome::Held)),
                Some(claim) => answers.push((resource, AcquireOutcome::Granted(claim.epoch))),
                None => {
                    self.last_epoch += 1;
                    let claim = Claim { holder: holder.clone(), epoch: Epoch::new(self.last_epoch).unwrap() };
                    self.past.entry(resource.clone()).or_default().push(holder.clone());
                    self.claims.insert(resource.clone(), claim.clone());
                    answers.push((resource.clone(), AcquireOutcome::Granted(claim.epoch)));
                    changes.push((resource, Some(claim)));
                }
            }
        }
        self.send_claims(changes);
        answers
    }

    fn carry_out(&mut self, at: usize, action: Action) {
        let now = self.moment();
        let reply = match action {
            Action::BeginLife(incarnation) => {
                self.workers[at].record.incarnation = incarnation;
                None
            }
            Action::Call { op: Op::Register, attempt } => {
                let record = self.workers[at].record.clone();
                self.records.insert(record.instance_id.clone(), record);
                self.send_view();
                Some(Input::Registered { attempt, started: now, ttl: TTL })
            }
            Action::Call { op: Op::Renew, attempt } => {
                self.workers[at].inbox.push_back(Input::Proven { at: now });
                Some(Input::Renewed { attempt, started: now, ttl: TTL })
            }
            Action::StartWatch => Some(Input::Claims(ClaimInput::All(self.claims.clone().into_iter().collect()))),
            Action::ReadGroup => Some(Input::Viewed { view: self.view(), proven: now }),
            Action::MarkDraining | Action::MarkLoss(_) => {
                let id = self.workers[at].id.clone();
                if let (Some(record), action) = (self.records.get_mut(&id), action) {
                    match action {
                        Action::MarkLoss(missing) => record.loss = (!missing.is_empty()).then_some(crate::Loss::Missing(missing)),
                        _ => record.state = MemberState::Draining,
                    }
                    self.send_view();
                }
                None
            }
            Action::AwaitInFlight => Some(Input::InFlightDone),
            Action::Deregister => {
                self.forget(at);
                Some(Input::Deregistered)
            }
            Action::Claim(claim) => self.carry_out_claim(at, claim).map(Input::Claims),
            Action::Reclaim(count) => {
                let worker = &mut self.workers[at];
                worker.record.reclaims = count;
                if let Some(record) = self.records.get_mut(&worker.id) {
                    record.reclaims = count;
                    self.send_view();
                }
                None
            }
            Action::MarkPausing | Action::StepAway { .. } => unreachable!("the policy has no rejoin_grace"),
            Action::StopWatch | Action::Publish(_) | Action::Rebalanced(_) => None,
        };
        self.workers[at].inbox.extend(reply);
    }

    fn carry_out_claim(&mut self, at: usize, action: ClaimAction) -> Option<ClaimInput> {
        match action {
            ClaimAction::OpenStore { attempt } => Some(ClaimInput::Opened { attempt, store: ClaimStore { id: StoreId::new(1), floor: 0 } }),
            ClaimAction::Acquire { attempt, wanted } => Some(ClaimInput::Acquired { attempt, answers: self.acquire(at, wanted) }),
            ClaimAction::Release { attempt, held } => {
                let mine = |(resource, epoch): &(Resource, Epoch)| self.claims.get(resource).is_some_and(|claim| claim.epoch == *epoch);
                let free: Vec<_> = held.into_iter().filter(mine).map(|(resource, _)| (resource, None)).collect();
                self.claims.retain(|resource, _| free.iter().all(|(freed, _)| freed != resource));
                self.send_claims(free);
                Some(ClaimInput::Released { attempt })
            }
            ClaimAction::Drain(resources) => Some(ClaimInput::Idle(resources)),
            _ => None,
        }
    }

    /// Lets one worker process its next input.
    fn next(&mut self) -> Option<Input> {
        let busy: Vec<usize> =
            (0..self.workers.len()).filter(|at| self.workers[*at].lives && !self.workers[*at].inbox.is_empty()).collect();
        if busy.is_empty() {
            return None;
        }
        let at = busy[self.roll(busy.len())];
        self.now += 10;
        let input = self.workers[at].inbox.pop_front().unwrap();
        let (now, mut actions) = (self.moment(), Vec::new());
        self.workers[at].machine.step(now, input.clone(), &mut actions);
        for action in actions {
            self.carry_out(at, action);
        }
        self.no_member_serves_what_another_holds();
        Some(input)
    }

    /// Runs until all inputs are processed and no worker has anything to do within `quiet_for`.
    fn runs(&mut self, quiet_for: Duration) {
        let mut quiet_since = self.moment();
        for _ in 0..200_000 {
            if let Some(input) = self.next() {
                if !matches!(input, Input::Woken | Input::Renewed { .. } | Input::Proven { .. }) {
                    quiet_since = self.moment();
                }
                continue;
            }
            let wakes = |worker: &Worker| worker.machine.wake_at().filter(|_| worker.lives);
            let Some(wake) = self.workers.iter().filter_map(wakes).min() else { return };
            if wake.since(quiet_since) > quiet_for {
                return;
            }
            self.now = self.now.max(wake.as_nanos().div_ceil(1_000));
            let now = self.moment();
            for worker in self.workers.iter_mut().filter(|worker| worker.lives && worker.machine.wake_at().is_some_and(|wake| wake <= now))
            {
                worker.inbox.push_back(Input::Woken);
            }
        }
        panic!("seed {}: it never comes to rest", self.seed);
    }

    fn settles(&mut self) {
        self.runs(Duration::from_millis(500));
        let held: BTreeSet<_> = self.claims.keys().cloned().collect();
        let everything: BTreeSet<_> = (0..SLOTS).map(Resource::Slot).chain(self.names.iter().cloned().map(Resource::Name)).collect();
        assert_eq!(held, everything, "seed {}: everything has a holder", self.seed);
    }

    fn no_member_serves_what_another_holds(&self) {
        for worker in self.workers.iter().filter(|worker| worker.lives) {
            for fence in worker.machine.ownership().fences() {
                let claim = self.claims.get(&Resource::Slot(fence.slot));
                assert!(claim.is_some_and(|claim| claim.epoch == fence.epoch), "seed {}: {fence:?} at {:?}", self.seed, worker.id);
            }
        }
    }

    fn holder(&self, resource: &Resource) -> &Holder {
        &self.claims[resource].holder
    }

    fn slots_of(&self, id: &str) -> usize {
        let mine =
            |(resource, claim): &(&Resource, &Claim)| matches!(resource, Resource::Slot(_)) && claim.holder.instance_id.as_str() == id;
        self.claims.iter().filter(mine).count()
    }

    fn version_of(&self, holder: &Holder) -> Option<&str> {
        self.workers.iter().find(|worker| worker.record.incarnation == holder.incarnation).unwrap().record.version.as_deref()
    }

    fn placements(&self) -> u64 {
        self.workers.iter().map(|worker| worker.machine.placements_computed()).sum()
    }

    /// The present holder of everything.
    fn standing(&self) -> BTreeMap<Resource, Holder> {
        self.claims.iter().map(|(resource, claim)| (resource.clone(), claim.holder.clone())).collect()
    }
}

/// With new ids or the old ones, by leaving or by dying: while versions differ only the leaver's slots move, each once, and to a new
/// worker as long as one has room.
#[test]
fn in_a_rolling_upgrade_each_slot_leaves_with_its_worker_and_lands_on_a_new_one() {
    for seed in 0..SEEDS {
        let (in_place, by_dying) = (seed % 2 == 1, seed % 3 == 1);
        let mut fleet = Fleet::new(seed, rolling_policy());
        (0..5).for_each(|i| fleet.start(&format!("w{i}"), Some("1.9")));
        fleet.settles();
        let away = |fleet: &mut Fleet, i: usize| if by_dying { fleet.kill(&format!("w{i}")) } else { fleet.stop(&format!("w{i}")) };
        let mut overflowed = 0;
        for i in 0..5 {
            let new = if in_place { format!("w{i}") } else { format!("new{i}") };
            if !in_place {
                let before = fleet.standing();
                fleet.start(&new, Some("1.10"));
                fleet.settles();
                assert_eq!(fleet.standing(), before, "seed {seed}: a new worker takes nothing from anybody");
            }
            let before = fleet.standing();
            let differ = if in_place { i > 0 } else { true } && i < 4;
            away(&mut fleet, i);
            fleet.settles();
            for (resource, old) in before.iter().filter(|_| differ) {
                let now = fleet.holder(resource);
                if old.instance_id.as_str() != format!("w{i}") || fleet.version_of(old) == Some("1.10") {
                    assert_eq!(now, old, "seed {seed}: {resource} stays where it is");
                } else if fleet.version_of(now) == Some("1.9") {
                    overflowed += 1;
                }
            }
            if in_place {
                let before = fleet.standing();
                fleet.start(&new, Some("1.10"));
                fleet.settles();
                assert!(i == 4 || fleet.standing() == before, "seed {seed}: a new worker takes nothing from anybody");
            }
        }
        assert_eq!(overflowed, 0, "seed {seed}: the new ones always had room");
        let none: Vec<_> = fleet.claims.values().filter(|claim| fleet.version_of(&claim.holder) != Some("1.10")).collect();
        assert!(none.is_empty(), "seed {seed}: {none:?}");
    }
}

/// Workers of any version join, leave and die at any moment; in the end everything has a holder and no claim is being released.
#[test]
fn whatever_happens_meanwhile_everything_has_a_holder_in_the_end() {
    for seed in 0..SEEDS * 3 {
        let mut fleet = Fleet::new(seed, rolling_policy());
        (0..3).for_each(|i| fleet.start(&format!("w{i}"), Some("1")));
        for born in 3..12 {
            for _ in 0..fleet.roll(60) {
                fleet.next();
            }
            let stays = |record: &&Member| record.state == MemberState::Active;
            let there: Vec<_> = fleet.records.values().filter(stays).map(|record| record.instance_id.to_string()).collect();
            match fleet.roll(4) {
                0 if there.len() > 2 => {
                    let id = &there[fleet.roll(there.len())];
                    fleet.kill(id);
                }
                1 if there.len() > 2 => {
                    let id = &there[fleet.roll(there.len())];
                    fleet.stop(id);
                }
                version => fleet.start(&format!("w{born}"), [None, Some("1"), Some("2"), Some("2.0")][version]),
            }
        }
        fleet.settles();
        let before = fleet.standing();
        fleet.start("last", Some("3"));
        fleet.settles();
        assert_eq!(fleet.standing(), before, "seed {seed}: versions differ, so nothing moves");
    }
}

/// How often the slots change holders when five workers are replaced, and the most changes of one slot.
fn moves(rule: VersionRule, all_first: bool) -> (usize, usize) {
    let mut fleet = Fleet::new(7, Policy { version_rule: rule, ..rolling_policy() });
    let start = |fleet: &mut Fleet, i: usize| {
        fleet.start(&format!("new{i}"), Some("2"));
        fleet.settles();
    };
    (0..5).for_each(|i| fleet.start(&format!("w{i}"), Some("1")));
    fleet.settles();
    fleet.past.clear();
    (0..5).filter(|_| all_first).for_each(|i| start(&mut fleet, i));
    for i in 0..5 {
        if !all_first {
            start(&mut fleet, i);
        }
        if i == 4 && rule == VersionRule::Newest {
            let most = fleet.past.values().map(Vec::len).max().unwrap();
            assert_eq!(most, 1, "moves of one slot before the last old one leaves");
        }
        fleet.stop(&format!("w{i}"));
        fleet.settles();
    }
    let counts: Vec<usize> = (0..SLOTS).map(|slot| fleet.past[&Resource::Slot(slot)].len()).collect();
    (counts.iter().sum(), counts.into_iter().max().unwrap())
}

/// An upgrade with new ids, in figures: nothing moves back and forth, and at its end the placement decides again.
#[test]
fn a_slot_moves_once_in_an_upgrade_and_once_more_at_most_when_it_is_over() {
    for all_first in [false, true] {
        let ((plain, _), (newest, most)) = (moves(VersionRule::None, all_first), moves(VersionRule::Newest, all_first));
        let how = if all_first { "the new ones first" } else { "one by one" };
        println!("five workers are replaced, {how}: {SLOTS} slots make {newest} moves with the rule and {plain} without");
        assert!(most <= 2 && newest < plain, "{newest} moves and at most {most} of a slot, {plain} without the rule");
        assert!(!all_first || newest < SLOTS as usize * 5 / 4, "{newest} moves: what lands in the upgrade stays");
    }
}

#[test]
fn what_new_workers_have_no_room_for_goes_to_old_ones() {
    let mut fleet = Fleet::new(1, rolling_policy());
    (0..4).for_each(|i| fleet.start(&format!("w{i}"), Some("1")));
    fleet.start("new", Some("2"));
    fleet.settles();
    // Two at once: the new one has room for a third of all, and the others for the rest.
    fleet.kill("w0");
    fleet.kill("w1");
    fleet.settles();
    assert_eq!(fleet.slots_of("new"), 35, "ceil(100 * 1.05 / 3)");
    assert!(fleet.slots_of("w2") + fleet.slots_of("w3") == 65);
}

#[test]
fn equal_versions_are_placed_as_without_the_rule() {
    for version in [None, Some("1.0"), Some("")] {
        let mut fleet = Fleet::new(2, rolling_policy());
        (0..4).for_each(|i| fleet.start(&format!("w{i}"), version));
        fleet.settles();
        fleet.start("w4", version.map(|_| "1.00").filter(|_| version == Some("1.0")).or(version));
        fleet.settles();
        let plain = crate::SlotOwners::of_view(&fleet.view(), fleet.policy.placement);
        for slot in 0..SLOTS {
            assert_eq!(Some(&fleet.holder(&Resource::Slot(slot)).instance_id), plain.owner_of_slot(slot));
        }
    }
}

#[test]
fn odd_versions_have_an_order_too_and_everything_has_a_holder() {
    for seed in 0..SEEDS {
        let mut fleet = Fleet::new(seed, rolling_policy());
        let odd = [None, Some(""), Some("..1"), Some("v2"), Some("\u{1f980}"), Some("2.-"), Some("18446744073709551616.0")];
        for (i, version) in odd.into_iter().enumerate() {
            fleet.start(&format!("w{i}"), version);
        }
        fleet.settles();
        for i in 0..6 {
            fleet.stop(&format!("w{i}"));
            fleet.settles();
        }
        assert_eq!(fleet.slots_of("w6"), SLOTS as usize);
    }
}

/// Claims that go as assigned cost no placement, and each change of the group costs each worker one of each kind.
#[test]
fn a_takeover_is_placed_once_by_each_worker_however_many_claims_move() {
    let mut fleet = Fleet::new(3, rolling_policy());
    (0..4).for_each(|i| fleet.start(&format!("w{i}"), Some("1")));
    fleet.start("new", Some("2"));
    fleet.settles();
    let before = fleet.placements();
    // Its mark is one change of the group, and its end another.
    fleet.stop("w0");
    fleet.settles();
    let placed = fleet.placements() - before;
    assert!((4..=4 * 2 * 2).contains(&placed), "{placed} placements");
}

/// A worker of the newest version that never claims anything: the next in line takes its slots, and keeps them.
#[test]
fn who_is_to_take_a_slot_and_does_not_come_is_stood_in_for() {
    let mut fleet = Fleet::new(4, rolling_policy());
    (0..3).for_each(|i| fleet.start(&format!("w{i}"), Some("1")));
    fleet.settles();
    fleet.start("mute", Some("2"));
    let mute = fleet.workers.pop().unwrap();
    fleet.records.insert(mute.id.clone(), Member { incarnation: Incarnation::new(99), ..mute.record });
    fleet.send_view();
    fleet.settles();
    fleet.kill("w0");
    fleet.runs(Duration::from_millis(500));
    let taken = fleet.claims.len();
    assert!(taken < 100, "{taken} of 106 are held while the mute one has its time");
    fleet.runs(TTL * 4);
    fleet.settles();
    let before = fleet.standing();
    fleet.start("w3", Some("1"));
    fleet.settles();
    assert_eq!(fleet.standing(), before, "whoever has stood in goes on");
}

#[test]
fn while_too_many_are_missing_each_keeps_what_it_has() {
    let mut fleet = Fleet::new(5, Policy { max_loss: MaxLoss::percent(40), ..rolling_policy() });
    (0..4).for_each(|i| fleet.start(&format!("w{i}"), Some(if i < 3 { "1" } else { "2" })));
    fleet.settles();
    let before = fleet.standing();
    for id in ["w0", "w1"] {
        let at = fleet.worker(id);
        fleet.workers[at].lives = false;
        fleet.records.remove(&InstanceId::new(id).unwrap());
        fleet.claims.retain(|_, claim| claim.holder.instance_id.as_str() != id);
    }
    let gone: Vec<_> =
        before.keys().filter(|resource| !fleet.claims.contains_key(*resource)).map(|resource| (resource.clone(), None)).collect();
    fleet.send_view();
    fleet.send_claims(gone);
    fleet.runs(TTL);
    assert!(fleet.claims.iter().all(|(resource, claim)| before[resource] == claim.holder), "nobody takes over");
    let kept = before.values().filter(|holder| ["w2", "w3"].contains(&holder.instance_id.as_str())).count();
    assert_eq!(fleet.claims.len(), kept, "and nobody gives anything away");
    for id in ["w0", "w1"] {
        fleet.start(id, Some("2"));
    }
    fleet.settles();
}
