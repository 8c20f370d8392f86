//! Three members and one store, with slow calls, lost answers, lagging reports, fences and deaths, from a seed.
//!
//! After every step no resource is held by two members; everything held, or with work in flight, is held in the store under the same
//! epoch; and no epoch serves twice. In the end, without faults, each member holds what it wants, and the store has nothing else.

use std::collections::VecDeque;

use super::*;
use crate::AcquireOutcome;
use crate::mistakes::{Mistake, make};

const MEMBERS: usize = 3;
const SLOTS: u32 = 6;
const STEPS: u32 = 400;
const SEEDS: u64 = 300;

/// `SplitMix64` (Steele, Lea, Flood 2014): small, seeded, good enough to choose steps.
struct SeededRng(u64);

impl SeededRng {
    fn below(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % sides as u64).unwrap()
    }
}

#[derive(Default)]
struct Store {
    claims: BTreeMap<Resource, (usize, Epoch)>,
    last: u64,
}

type ClaimChanges = Vec<(Resource, Option<Claim>)>;

/// The outcome of a call, with its attempt.
enum Reply {
    Acquired(u64, Vec<(Resource, AcquireOutcome)>),
    Released(u64),
    Lost(u64),
}

struct Worker {
    holdings: Holdings,
    /// Calls that have not reached the store.
    calls: VecDeque<ClaimAction>,
    /// Answers that have not returned.
    answers: VecDeque<Reply>,
    /// Events that the watch has not reported yet.
    reports: VecDeque<ClaimChanges>,
    /// Resources with work in flight, with the epoch under which it started.
    busy: BTreeMap<Resource, Epoch>,
    rule: OnDrainTimeout,
    fenced: bool,
}

struct Fleet {
    rng: SeededRng,
    store: Store,
    workers: Vec<Worker>,
    now: u64,
    /// The epochs under which each resource has served, and their holders.
    served: BTreeMap<(Resource, Epoch), usize>,
}

impl Fleet {
    fn new(seed: u64) -> Self {
        let worker = |number: usize| {
            let rule = if seed.is_multiple_of(2) { OnDrainTimeout::Hold } else { OnDrainTimeout::Release };
            let holdings = Holdings::new(rules(rule), holder(&number.to_string()));
            let reports = VecDeque::from([Vec::new()]);
            Worker { holdings, calls: VecDeque::new(), answers: VecDeque::new(), reports, busy: BTreeMap::new(), rule, fenced: true }
        };
        let mut fleet = Self {
            rng: SeededRng(seed),
            store: Store::default(),
            workers: (0..MEMBERS).map(worker).collect(),
            now: 0,
            served: BTreeMap::new(),
        };
        for number in 0..MEMBERS {
            fleet.act(number, |h, now, out| h.on_all_claims(now, [], out));
            fleet.join(number);
        }
        fleet
    }

    fn act(&mut self, number: usize, call: impl FnOnce(&mut Holdings, Moment, &mut Vec<ClaimAction>)) {
        let mut actions = Vec::new();
        let worker = &mut self.workers[number];
        call(&mut worker.holdings, ms(self.now), &mut actions);
        for action in actions {
            match action {
                ClaimAction::Acquire { .. } | ClaimAction::Release { .. } => worker.calls.push_back(action),
                ClaimAction::Gained(gained) => {
                    for (resource, epoch) in gained {
                        worker.busy.insert(resource.clone(), epoch);
                        let before = self.served.insert((resource, epoch), number);
                        assert_eq!(before, None, "an epoch serves once");
                    }
                }
                // Cancelled work continues until it ends, unless its slot is released anyway.
                ClaimAction::Cancel(_) if worker.rule == OnDrainTimeout::Hold => {}
                ClaimAction::Cancel(over) | ClaimAction::Lost(over) => over.iter().for_each(|resource| {
                    worker.busy.remove(resource);
                }),
                ClaimAction::OpenStore { .. } | ClaimAction::Drain(_) | ClaimAction::Kept(_) | ClaimAction::Overlap(_) => {}
            }
        }
    }

    fn join(&mut self, number: usize) {
        self.workers[number].fenced = false;
        self.act(number, Holdings::open);
    }

    fn want(&mut self, slots_of: &[usize]) {
        for number in 0..MEMBERS {
            let wanted = slots((0..SLOTS).filter(|slot| slots_of[*slot as usize] == number));
            self.act(number, |h, now, out| h.want(now, wanted, out));
        }
    }

    fn report(&mut self, changes: &ClaimChanges) {
        self.workers.iter_mut().for_each(|worker| worker.reports.push_back(changes.clone()));
    }

    /// A call reaches the store; its answer is queued or lost.
    fn carry_out(&mut self, number: usize, loses: bool) {
        let Some(call) = self.workers[number].calls.pop_front() else { return };
        let lost = loses && self.rng.below(4) == 0;
        let (attempt, reply, changes) = match call {
            ClaimAction::Acquire { attempt, wanted } => {
                self.store.last += 1;
                let epoch = epoch(self.store.last);
                let mut changes = Vec::new();
                let grant = |resource: Resource| match self.store.claims.get(&resource) {
                    Some((holder, held)) if *holder == number => (resource, AcquireOutcome::Granted(*held)),
                    Some(_) => (resource, AcquireOutcome::Held),
                    None => {
                        self.store.claims.insert(resource.clone(), (number, epoch));
                        changes.push((resource.clone(), Some(Claim { holder: holder(&number.to_string()), epoch })));
                        (resource, AcquireOutcome::Granted(epoch))
                    }
                };
                let answers = wanted.into_iter().map(grant).collect();
                (attempt, Reply::Acquired(attempt, answers), changes)
            }
            ClaimAction::Release { attempt, held } => {
                let theirs = |resource: &Resource, epoch| self.store.claims.get(resource) == Some(&(number, epoch));
                let freed: Vec<_> = held.into_iter().filter(|(resource, epoch)| theirs(resource, *epoch)).collect();
                for (resource, _) in &freed {
                    self.store.claims.remove(resource);
                }
                (attempt, Reply::Released(attempt), freed.into_iter().map(|(resource, _)| (resource, None)).collect())
            }
            other => panic!("no call: {other:?}"),
        };
        self.report(&changes);
        self.workers[number].answers.push_back(if lost { Reply::Lost(attempt) } else { reply });
    }

    fn answer(&mut self, number: usize) {
        match self.workers[number].answers.pop_front() {
            None => {}
            Some(Reply::Lost(attempt)) => self.act(number, |h, now, out| h.failed(now, attempt, CallFailure::Retryable, out)),
            Some(Reply::Released(attempt)) => self.act(number, |h, now, out| h.released(now, attempt, out)),
            Some(Reply::Acquired(attempt, answers)) => self.act(number, |h, now, out| h.acquired(now, attempt, answers, out)),
        }
    }

    fn read_report(&mut self, number: usize) {
        if let Some(changes) = self.workers[number].reports.pop_front() {
            self.act(number, |h, now, out| h.on_claim_changes(now, changes, out));
        }
    }

    /// Starts work on everything that serves.
    fn begin_work(&mut self, number: usize) {
        let worker = &mut self.workers[number];
        worker.busy.extend(worker.holdings.serving().map(|(resource, epoch)| (resource.clone(), epoch)));
    }

    fn finish_work(&mut self, number: usize) {
        self.workers[number].busy.clear();
        let all = slots(0..SLOTS);
        self.act(number, |h, now, out| h.idle(now, &all, out));
    }

    /// The member's lease expires by its own clock, and perhaps in the store, which then frees the claims.
    fn fence(&mut self, number: usize) {
        let worker = &mut self.workers[number];
        worker.holdings.fence();
        (worker.fenced, worker.busy) = (true, BTreeMap::new());
        // Calls of the former incarnation still arrive, but the store executes none once the record is gone.
        if self.rng.below(2) == 0 {
            let freed: Vec<_> = self.store.claims.iter().filter(|(_, (holder, _))| *holder == number).map(|(r, _)| r.clone()).collect();
            self.store.claims.retain(|_, (holder, _)| *holder != number);
            self.workers[number].calls.clear();
            self.report(&freed.into_iter().map(|resource| (resource, None)).collect());
        }
    }

    fn pass(&mut self, number: usize) {
        self.now += 20;
        self.act(number, Holdings::woken);
    }

    fn step(&mut self) {
        let number = self.rng.below(MEMBERS);
        match self.rng.below(16) {
            0..4 => self.carry_out(number, true),
            4..7 => self.answer(number),
            7..10 => self.read_report(number),
            10 => self.finish_work(number),
            11 => self.begin_work(number),
            12 | 13 => self.pass(number),
            14 if self.workers[number].fenced => self.join(number),
            14 => self.fence(number),
            _ => {
                let owners: Vec<_> = (0..SLOTS).map(|_| self.rng.below(MEMBERS)).collect();
                self.want(&owners);
            }
        }
    }

    fn check(&self) {
        let mut holders: BTreeMap<&Resource, usize> = BTreeMap::new();
        for (number, worker) in self.workers.iter().enumerate() {
            for (resource, epoch) in worker.holdings.held() {
                assert_eq!(holders.insert(resource, number), None, "{resource} has two holders");
                assert_eq!(self.store.claims.get(resource), Some(&(number, epoch)), "{resource} at member {number}");
            }
            for (resource, epoch) in &worker.busy {
                let held = self.store.claims.get(resource);
                assert_eq!(held, Some(&(number, *epoch)), "{resource} is given back while member {number} works on it");
            }
        }
    }

    /// No more faults: every call is executed and answered, all reports are processed, all work ends.
    fn settle(&mut self, owners: &[usize]) {
        for number in 0..MEMBERS {
            if self.workers[number].fenced {
                self.join(number);
            }
        }
        self.want(owners);
        for _ in 0..400 {
            for number in 0..MEMBERS {
                self.carry_out(number, false);
                self.answer(number);
                self.read_report(number);
                self.finish_work(number);
                self.pass(number);
                self.check();
            }
        }
    }
}

/// Runs the fleet with that seed.
///
/// # Panics
///
/// If an invariant is violated.
fn lives(seed: u64) {
    let mut fleet = Fleet::new(seed);
    for _ in 0..STEPS {
        fleet.step();
        fleet.check();
    }
    let owners: Vec<_> = (0..SLOTS).map(|_| fleet.rng.below(MEMBERS)).collect();
    fleet.settle(&owners);
    for (slot, owner) in (0..SLOTS).zip(&owners) {
        let holder = fleet.store.claims.get(&Resource::Slot(slot)).map(|(holder, _)| *holder);
        assert_eq!(holder, Some(*owner), "slot {slot}");
        let serves = fleet.workers[*owner].holdings.serving().any(|(resource, _)| *resource == Resource::Slot(slot));
        assert!(serves, "slot {slot} is held by {owner} and does not serve");
    }
    for worker in &fleet.workers {
        assert!(worker.holdings.wake_at().is_none(), "in a steady state nothing is due");
    }
}

/// The invariant violated by a run with that mistake, if one is.
fn found(mistake: Mistake, seed: u64) -> Option<String> {
    make(Some(mistake));
    let life = std::panic::catch_unwind(|| lives(seed));
    make(None);
    life.err().map(|panic| panic.downcast_ref::<String>().cloned().unwrap_or_default())
}

#[test]
fn no_resource_ever_has_two_holders_and_in_the_end_each_has_what_it_wants() {
    for seed in 0..SEEDS {
        assert!(std::panic::catch_unwind(|| lives(seed)).is_ok(), "seed {seed}");
    }
}

#[test]
fn a_release_before_its_drain_is_found() {
    let why = (0..10).find_map(|seed| found(Mistake::ReleaseBeforeDrain, seed)).expect("within ten seeds");
    assert!(why.contains("is given back while member"), "{why}");
}
