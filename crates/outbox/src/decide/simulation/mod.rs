//! Several engines against a model of a store and a destination. A seed decides everything: delays, lost answers, failing calls, calls
//! that the store executes after their caller gave up and retried, pauses beyond the TTL, crashes, refusals, and shardings that disagree.
//! Then the faults stop, and every event must arrive.
//!
//! Invariants checked in every step: a batch is sent only by the slots' holder in the store; each aggregate's first deliveries are its
//! first event, its second, its third …; without faults no event is sent twice; memory is bounded. Without faults, too: a slow destination
//! delays no event for another one, and where none is slow, none is put back. The model counts events; the engines see sequences that jump.
//!
//! This file: the simulated world and its checks. `traffic`: what is written, and how fast destinations are. `store`: the model of the
//! store. `tests`: which seeds run.

mod store;
mod tests;
mod traffic;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use shardwise::SlotSet;

use self::traffic::{SLOW_BY_MS, Traffic};
use super::destination::SendGate;
use super::slow::SlowMistake;
use super::tests::at;
use super::*;
use crate::sink::{Acceptance, Refusal};
use crate::store::HeadTrouble;
use crate::{AggregateId, Delivery, Poison};

const SLOTS: u32 = 8;
const ENGINES: usize = 3;
const AGGREGATES: AggregateId = 24;
/// The number of destinations; one of them is down for a while.
const KINDS: AggregateId = 3;
const OUTAGE_MS: std::ops::Range<u64> = 5_000..12_000;
const TTL_MS: u64 = 3_000;
const BATCH: usize = 7;
/// An aggregate's n-th event has this many times n as its sequence.
const APART: u64 = 7;
/// For this long after its caller gave up, a call may still be executed.
const LATE_MS: u64 = 2 * TTL_MS;

#[derive(Default)]
struct Aggregate {
    last: u64,
    done: u64,
    trouble: HeadTrouble,
    retry_at: u64,
    /// When each event was written.
    written: Vec<u64>,
    /// The largest number of an event that has arrived.
    arrived: u64,
    deliveries: u64,
}

fn slot(aggregate: AggregateId) -> u32 {
    u32::try_from(aggregate).unwrap() % SLOTS
}

/// A worker: its engine, its registration in the store, and answers on their way to it.
struct SimWorker {
    engine: Engine,
    incarnation: u64,
    paused_until: u64,
    inbox: Vec<(u64, EngineInput)>,
}

/// A known mistake that a test puts back in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EngineMistake {
    /// A store that grants a slot to every publisher that asks.
    NoFence,
    /// Engines that use a hold again after giving up its release.
    UsesWhatItReleases,
    /// Engines that treat slow destinations wrongly.
    OfSlow(SlowMistake),
}

impl EngineMistake {
    fn make(self, engine: &mut Engine) {
        engine.slots.forgets_releases = self == Self::UsesWhatItReleases;
        engine.slow.mistake = if let Self::OfSlow(mistake) = self { Some(mistake) } else { None };
    }
}

struct World {
    now: u64,
    random: Jitter,
    faults: bool,
    /// Slots move all the time, and calls fail more often.
    restless: bool,
    traffic: Traffic,
    mistake: Option<EngineMistake>,
    slots: BTreeMap<u32, (u64, Option<u64>)>,
    takers: BTreeMap<(u32, u64), u64>,
    /// Incarnation to the time when it was last seen.
    seen: BTreeMap<u64, u64>,
    aggregates: BTreeMap<AggregateId, Aggregate>,
    workers: Vec<SimWorker>,
    incarnations: u64,
    /// Batches on their way: when they arrive, from which worker, and what. Nothing cancels them, not even the end of their sender.
    wire: Vec<(u64, u64, SendId, Arc<[Delivery]>)>,
    /// Calls that their caller gave up and that the store still executes: when, for which worker, and what.
    late: Vec<(u64, u64, EngineAction)>,
    /// The number of occurrences of each kind of event.
    figures: BTreeMap<&'static str, u64>,
}

impl World {
    fn new(seed: u64, faults: bool) -> Self {
        Self::of(seed, faults, Traffic::Mixed)
    }

    fn of(seed: u64, faults: bool, traffic: Traffic) -> Self {
        let slots = (0..SLOTS).map(|slot| (slot, (0, None))).collect();
        let aggregates = (0..AGGREGATES).map(|id| (id, Aggregate::default())).collect();
        let random = Jitter::new(seed);
        let mut world = Self {
            now: 1,
            random,
            faults,
            restless: seed.is_multiple_of(3),
            traffic,
            mistake: None,
            slots,
            takers: BTreeMap::new(),
            late: Vec::new(),
            seen: BTreeMap::new(),
            aggregates,
            workers: Vec::new(),
            incarnations: 0,
            wire: Vec::new(),
            figures: BTreeMap::new(),
        };
        for _ in 0..ENGINES {
            let worker = world.worker();
            world.workers.push(worker);
        }
        world
    }

    fn with(mut self, mistake: EngineMistake) -> Self {
        self.mistake = Some(mistake);
        self.workers.iter_mut().for_each(|worker| mistake.make(&mut worker.engine));
        self
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.random.next() >> 16) % limit
    }

    fn fault(&mut self, per_mille: u64) -> bool {
        self.faults && self.below(1_000) < per_mille
    }

    fn count(&mut self, what: &'static str, times: u64) {
        *self.figures.entry(what).or_default() += times;
    }

    fn worker(&mut self) -> SimWorker {
        self.incarnations += 1;
        let options = PublisherOptions { batch: BATCH, poison: Poison::Block, retention: Duration::ZERO, ..PublisherOptions::default() };
        let (traffic, limits) = (self.traffic, self.limits());
        let timing = Timing::new(Duration::from_millis(TTL_MS), None, Duration::from_millis(100)).unwrap();
        let kinds = self.below(3);
        let address = move |event: &Delivery| {
            if traffic != Traffic::Mixed {
                return Some(if traffic::is_quick(event) { "quick".into() } else { "slow".into() });
            }
            let kind = (event.aggregate % KINDS, if kinds == 2 { event.sequence % 2 } else { 0 });
            (kinds > 0).then(|| format!("{kind:?}").into())
        };
        let mut engine = Engine::new(options, limits, timing, SLOTS, self.incarnations, Box::new(address));
        if let Some(mistake) = self.mistake {
            mistake.make(&mut engine);
        }
        SimWorker { engine, incarnation: self.incarnations, paused_until: 0, inbox: Vec::new() }
    }

    /// One millisecond: what is due happens, then the engines' actions are carried out.
    fn step(&mut self) {
        self.now += 1;
        self.happen();
        let late: Vec<_> = self.late.extract_if(.., |(due, ..)| *due <= self.now).collect();
        for (_, from, action) in late {
            self.count("calls executed after they were given up and asked again", 1);
            self.answer(from, action);
        }
        let due: Vec<_> = self.wire.extract_if(.., |(due, ..)| *due <= self.now).collect();
        for (_, from, id, batch) in due {
            self.arrive(from, id, &batch);
        }
        for n in 0..ENGINES {
            if self.now < self.workers[n].paused_until {
                continue;
            }
            let now = at(self.now);
            let worker = &mut self.workers[n];
            let due: Vec<_> = worker.inbox.extract_if(.., |(due, _)| *due <= self.now).collect();
            for (_, input) in due {
                let taken = match &input {
                    EngineInput::Sent { id, accepted, .. } => worker.engine.flow.accepted_of(*id, accepted),
                    _ => BTreeMap::new(),
                };
                worker.engine.on(input, now);
                for to in taken.keys() {
                    assert_eq!(worker.engine.destinations.gate(to, 0, now), SendGate::Open, "it has just accepted something");
                }
            }
            let actions = worker.engine.next(now);
            assert!(worker.engine.counters(now).in_memory <= 5 * BATCH, "memory: {:?}", worker.engine.counters(now));
            for action in actions {
                self.carry_out(n, action);
            }
        }
    }

    /// The environment: events are written, shardings change and disagree, processes pause and crash.
    fn happen(&mut self) {
        if self.now < 20_000 && self.below(self.traffic.writes_every_ms()) == 0 {
            let id = AggregateId::try_from(self.below(AGGREGATES.unsigned_abs())).unwrap();
            let aggregate = self.aggregates.get_mut(&id).unwrap();
            aggregate.last += 1;
            aggregate.written.push(self.now);
            self.count("events written", 1);
        }
        // A slot that moves waits for the sends of its slow events, so slots stay where the speed of destinations is tested.
        let moves = self.now % 700 == 1 && (self.traffic == Traffic::Mixed || self.now < 1_000);
        if moves || self.fault(if self.restless { 30 } else { 3 }) {
            let turn = self.below(100);
            self.share(turn, 0);
            // And immediately another change, as when a member comes back.
            if self.fault(300) {
                let other = turn + 1 + self.below(2);
                self.share(other, 50);
            }
        }
        let n = usize::try_from(self.below(ENGINES as u64)).unwrap();
        if self.fault(1) {
            self.count("publishers paused", 1);
            self.workers[n].paused_until = self.now + self.below(3 * TTL_MS);
        }
        if self.fault(1) && self.below(3) == 0 {
            self.count("publishers killed", 1);
            self.workers[n] = self.worker();
        }
    }

    /// Distributes the slots, with some disagreement; each engine learns of it at its own time.
    fn share(&mut self, turn: u64, after: u64) {
        for n in 0..ENGINES as u64 {
            let mine = (0..SLOTS).filter(|slot| (u64::from(*slot) + turn) % ENGINES as u64 == n);
            let extra = (0..SLOTS).filter(|_| self.fault(150)).collect::<Vec<_>>();
            let slots = SlotSet::from_slots(SLOTS, mine.chain(extra));
            let due = self.now + after + self.below(50);
            let until = self.fault(300).then(|| at(due + self.below(500)));
            self.workers[usize::try_from(n).unwrap()].inbox.push((due, EngineInput::Wanted { slots, until }));
        }
    }

    fn is_alive(&self, incarnation: u64) -> bool {
        self.seen.get(&incarnation).is_some_and(|seen| self.now - seen <= TTL_MS)
    }

    fn holds(&self, incarnation: u64, hold: Hold) -> bool {
        self.slots.get(&hold.slot) == Some(&(hold.epoch, Some(incarnation)))
    }

    /// Whether this incarnation holds the slot in the store and no other has held it since that epoch. The epoch may have risen: by a
    /// `Take` that was given up and executed late.
    fn has_held_since(&self, incarnation: u64, hold: Hold) -> bool {
        let (epoch, holder) = self.slots[&hold.slot];
        holder == Some(incarnation) && (hold.epoch..=epoch).all(|epoch| self.takers[&(hold.slot, epoch)] == incarnation)
    }

    /// Executes the action now and delivers its answer later. With faults, it may fail before or after it is executed, or be executed
    /// after its caller gave up and retried.
    fn carry_out(&mut self, n: usize, action: EngineAction) {
        let (me, slow) = (self.workers[n].incarnation, if self.fault(20) { 2_000 } else { 12 });
        let due = self.now + 1 + self.below(slow);
        let call = match &action {
            EngineAction::Register | EngineAction::Touch | EngineAction::Take(_) | EngineAction::Release(_) | EngineAction::Leave => {
                Some(StoreCall::Fence)
            }
            EngineAction::ReadMark => Some(StoreCall::ReadMark),
            EngineAction::Place { .. } => Some(StoreCall::Place),
            EngineAction::Fetch(_) => Some(StoreCall::Fetch),
            EngineAction::Record(_) => Some(StoreCall::Record),
            EngineAction::Sweep { .. } => Some(StoreCall::Sweep),
            EngineAction::Clean { .. } => Some(StoreCall::Clean),
            EngineAction::FallAsleep | EngineAction::AskEnded(_) | EngineAction::Withdraw(_) => Some(StoreCall::Sleep),
            EngineAction::Send { .. } | EngineAction::Cancel(_) | EngineAction::Finish => None,
        };
        if let Some(call) = call.filter(|_| self.fault(if self.restless { 100 } else { 20 })) {
            match self.below(3) {
                0 => {
                    self.count("calls executed whose answer was lost", 1);
                    self.answer(me, action);
                }
                1 => {
                    let late = due + 1 + self.below(LATE_MS);
                    self.late.push((late, me, action));
                }
                _ => self.count("calls not executed", 1),
            }
            self.workers[n].inbox.push((due, EngineInput::Failed(call)));
            return;
        }
        let input = match action {
            // The batch may still arrive, but its answer is not received.
            EngineAction::Cancel(_) => return,
            EngineAction::Finish => unreachable!("the simulation never stops a publisher"),
            EngineAction::Send { id, batch } => {
                for event in batch.iter() {
                    let hold = Hold { slot: event.slot, epoch: event.epoch };
                    assert!(self.workers[n].engine.slots.may_send(hold, at(self.now)), "{me} may not send {} of {hold:?}", event.id);
                    assert!(
                        self.has_held_since(me, hold) && self.is_alive(me),
                        "{me} sends {} without {hold:?}: {:?}",
                        event.id,
                        self.slots
                    );
                }
                self.wire.push((due + if self.is_slow(&batch) { SLOW_BY_MS } else { 0 }, me, id, batch));
                return;
            }
            other => self.answer(me, other),
        };
        self.workers[n].inbox.push((due, input));
    }

    /// A batch reaches the destination, and its answer reaches the sender if that still lives; or the answer is lost. Either the first
    /// refused event stops the batch, or aggregates are independent, and then several events may be refused.
    fn arrive(&mut self, from: u64, id: SendId, batch: &[Delivery]) {
        // Aggregate to the index of its first refused event.
        let mut refused_at: BTreeMap<AggregateId, usize> = BTreeMap::new();
        if self.fault(50) {
            for _ in 0..=self.below(2 * batch.len() as u64) {
                let at = usize::try_from(self.below(batch.len() as u64)).unwrap();
                refused_at.entry(batch[at].aggregate).and_modify(|first| *first = at.min(*first)).or_insert(at);
            }
        }
        if self.faults && OUTAGE_MS.contains(&self.now) {
            for (index, event) in batch.iter().enumerate().rev().filter(|(_, event)| event.aggregate % KINDS == 0) {
                refused_at.insert(event.aggregate, index);
            }
        }
        let alone = self.below(2) == 0;
        let first = refused_at.values().min().copied();
        let mut apart = BTreeMap::new();
        let mut events = 0;
        for (index, event) in batch.iter().enumerate() {
            let stop = if alone { refused_at.get(&event.aggregate).copied() } else { first };
            if stop.is_some_and(|stop| index >= stop) {
                continue;
            }
            events += 1;
            let aggregate = self.aggregates.get_mut(&event.aggregate).unwrap();
            let number = event.sequence / APART;
            assert!(number <= aggregate.arrived + 1, "{} after {}", event.id, aggregate.arrived);
            let again = number <= aggregate.arrived;
            self.traffic.check(event, self.now, self.now - aggregate.written[usize::try_from(number).unwrap() - 1]);
            aggregate.arrived = aggregate.arrived.max(number);
            aggregate.deliveries += 1;
            self.count(if again { "events delivered again" } else { "events delivered" }, 1);
        }
        let unknown_end = self.fault(20);
        if alone && !unknown_end {
            for (aggregate, at) in &refused_at {
                let before = batch[..*at].iter().filter(|event| event.aggregate == *aggregate).count();
                // Lack of time explains a rest only if something was accepted.
                let refusal = (before == 0 || self.below(2) == 0).then(|| Refusal::retryable("no"));
                apart.insert(*aggregate, (before, refusal));
            }
            events = batch.len();
        }
        let refusal = (unknown_end || (!alone && first.is_some())).then(|| Refusal::retryable("no"));
        let accepted = Acceptance { events: if unknown_end { 0 } else { events }, refusal, apart };
        let input = EngineInput::Sent { id, accepted, unknown_end };
        if let Some(worker) = self.workers.iter_mut().find(|worker| worker.incarnation == from) {
            worker.inbox.push((self.now, input));
        }
    }

    fn settled(&self) -> bool {
        self.aggregates.values().all(|aggregate| aggregate.done == aggregate.last)
    }
}
