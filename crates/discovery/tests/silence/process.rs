//! A process of one member: its lease, its claims and its observer, driven by messages and by its own clock. It does no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use shardwise_core::Moment;
use shardwise_core::mistakes::trusts_server_time;
use shardwise_discovery::silence::{Silence, SilenceInput};

use crate::clock::OwnClock;
use crate::store::{ClaimOutcome, LifeId, Listing, WriteOutcome};

pub(crate) const TTL: Duration = Duration::from_secs(3);
/// Between two renewals, and the timeout of a call.
pub(crate) const PERIOD: Duration = Duration::from_secs(1);
/// From the start of a renewal to the deadline: 0.99 of the TTL.
pub(crate) const OWNED: Duration = Duration::from_millis(2_970);
pub(crate) const RESOURCES: usize = 4;
/// Pauses after failed writes double.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_LONGEST: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
pub(crate) enum Request {
    Write { registers: bool, lists: bool },
    Acquire { resource: usize },
    Evict { life: LifeId, seen: Option<u64>, silent_since: Moment },
    Leave,
}

/// A request on its way out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outgoing {
    pub(crate) attempt: u64,
    pub(crate) started: Moment,
    pub(crate) request: Request,
}

#[derive(Debug, Clone)]
pub(crate) enum Message {
    Written {
        attempt: u64,
        outcome: WriteOutcome,
        list: Option<Vec<Listing>>,
    },
    Acquired {
        attempt: u64,
        outcome: ClaimOutcome,
    },
    /// The call was not carried out.
    Failed {
        attempt: u64,
    },
    Seen(Listing),
    Gone(LifeId),
    LinkLost,
}

/// A call that is not answered yet.
#[derive(Debug, Clone, Copy)]
struct Flight {
    attempt: u64,
    started: Moment,
}

impl Flight {
    fn gives_up(self) -> Moment {
        self.started.plus(PERIOD)
    }
}

#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) life: LifeId,
    pub(crate) clock: OwnClock,
    /// It lists the group with each write; else only after its link broke.
    polls: bool,
    needs_list: bool,
    silence: Silence,
    /// It has a record, as far as it can know.
    registered: bool,
    deadline: Moment,
    held: BTreeSet<usize>,
    write: Option<Flight>,
    write_due: Moment,
    failures: u32,
    acquire: Option<(Flight, usize)>,
    acquire_due: Moment,
    /// The resource to ask for next.
    turn: usize,
    attempts: u64,
    /// Others that hold what it wants.
    holders: BTreeMap<usize, LifeId>,
    /// The life that has its name in use.
    rival: Option<LifeId>,
    waits: BTreeSet<LifeId>,
}

impl Process {
    pub(crate) fn new(life: LifeId, clock: OwnClock, polls: bool, now: Moment) -> Self {
        let mut silence = Silence::default();
        silence.step(now, SilenceInput::Mine(BTreeSet::from([life.record().instance_id])));
        Self {
            life,
            clock,
            polls,
            needs_list: true,
            silence,
            registered: false,
            deadline: Moment::ZERO,
            held: BTreeSet::new(),
            write: None,
            write_due: now,
            failures: 0,
            acquire: None,
            acquire_due: now,
            turn: life.name % RESOURCES,
            attempts: 0,
            holders: BTreeMap::new(),
            rival: None,
            waits: BTreeSet::new(),
        }
    }

    /// Whether it believes at that moment of its clock that it holds the resource.
    pub(crate) fn believes(&self, resource: usize, now: Moment) -> bool {
        self.registered && now < self.deadline && self.held.contains(&resource)
    }

    /// Takes one message, or none, and returns the requests that follow.
    pub(crate) fn act(&mut self, now: Moment, message: Option<Message>, dice: &mut StdRng) -> Vec<Outgoing> {
        let mut out = Vec::new();
        if self.registered && now >= self.deadline {
            self.fence();
        }
        if let Some(message) = message {
            self.take(now, message, &mut out);
        }
        if self.write.is_some_and(|flight| flight.gives_up() <= now) {
            self.write = None;
            self.failed(now);
        }
        if self.acquire.is_some_and(|(flight, _)| flight.gives_up() <= now) {
            self.acquire = None;
        }
        self.call(now, dice, &mut out);
        out
    }

    /// When to act again without a message.
    pub(crate) fn wake_at(&self) -> Moment {
        let next = self.silence.next_write().map_or(self.write_due, |at| at.min(self.write_due));
        let write = self.write.map_or(next, Flight::gives_up);
        let acquire = self.acquire.map(|(flight, _)| flight.gives_up()).or(self.registered.then_some(self.acquire_due));
        acquire.map_or(write, |acquire| acquire.min(write))
    }

    fn fence(&mut self) {
        self.registered = false;
        self.held.clear();
        self.acquire = None;
    }

    fn outgoing(&mut self, now: Moment, request: Request) -> Outgoing {
        self.attempts += 1;
        Outgoing { attempt: self.attempts, started: now, request }
    }

    fn take(&mut self, now: Moment, message: Message, out: &mut Vec<Outgoing>) {
        match message {
            Message::Written { attempt, outcome, list } => self.written(now, attempt, outcome, list, out),
            Message::Acquired { attempt, outcome } => self.acquired(now, attempt, outcome),
            Message::Failed { attempt } => {
                if self.write.take_if(|flight| flight.attempt == attempt).is_some() {
                    self.failed(now);
                }
            }
            Message::Seen(listing) => {
                self.silence.step(now, SilenceInput::Seen(listing.seen));
            }
            Message::Gone(life) => {
                self.silence.step(now, SilenceInput::Gone(life.record()));
            }
            Message::LinkLost => {
                self.needs_list = true;
                self.silence.step(now, SilenceInput::Interrupted);
            }
        }
    }

    fn written(&mut self, now: Moment, attempt: u64, outcome: WriteOutcome, list: Option<Vec<Listing>>, out: &mut Vec<Outgoing>) {
        let Some(Flight { started, .. }) = self.write.take_if(|flight| flight.attempt == attempt) else { return };
        if let Some(list) = list {
            self.needs_list = false;
            self.listed(now, list);
        }
        self.failures = 0;
        self.write_due = started.plus(PERIOD);
        match outcome {
            WriteOutcome::Kept => {
                self.rival = None;
                self.deadline = self.deadline.max(started.plus(OWNED));
                self.registered = now < self.deadline;
            }
            WriteOutcome::Lost => {
                self.fence();
                self.write_due = now;
            }
            WriteOutcome::InUse(rival) => {
                self.rival = Some(rival);
                self.write_due = now.plus(PERIOD / 2);
            }
        }
        self.wait(now);
        for eviction in self.silence.step(now, SilenceInput::Written { started }) {
            let (life, silent_since) = (LifeId::of(&eviction.record), started.minus(TTL));
            let request = Request::Evict { life, seen: eviction.seen, silent_since };
            out.push(self.outgoing(now, request));
        }
    }

    fn listed(&mut self, now: Moment, list: Vec<Listing>) {
        if trusts_server_time() {
            for Listing { seen, age } in &list {
                self.silence.step(now.minus(*age), SilenceInput::Seen(seen.clone()));
            }
        }
        let records = list.into_iter().map(|listing| listing.seen).collect();
        self.silence.step(now, SilenceInput::Listed(records));
    }

    fn acquired(&mut self, now: Moment, attempt: u64, outcome: ClaimOutcome) {
        let Some((_, resource)) = self.acquire.take_if(|(flight, _)| flight.attempt == attempt) else { return };
        self.holders.remove(&resource);
        match outcome {
            ClaimOutcome::Granted => {
                self.held.insert(resource);
            }
            ClaimOutcome::HeldBy(holder) => {
                self.holders.insert(resource, holder);
            }
            ClaimOutcome::NoRecord => {}
        }
        self.wait(now);
    }

    /// Says for whose end it waits, if that has changed.
    fn wait(&mut self, now: Moment) {
        let lives: BTreeSet<LifeId> = self.holders.values().chain(self.rival.as_ref()).copied().collect();
        if lives != self.waits {
            let records = lives.iter().map(|life| (life.record(), TTL)).collect();
            self.silence.step(now, SilenceInput::Waits(records));
            self.waits = lives;
        }
    }

    fn failed(&mut self, now: Moment) {
        self.silence.step(now, SilenceInput::Interrupted);
        let pause = PAUSE_FIRST * 2_u32.pow(self.failures.min(5));
        self.write_due = now.plus(pause.min(PAUSE_LONGEST));
        self.failures += 1;
    }

    fn call(&mut self, now: Moment, dice: &mut StdRng, out: &mut Vec<Outgoing>) {
        let is_due = self.write_due <= now || self.silence.next_write().is_some_and(|at| at <= now);
        if self.write.is_none() && is_due {
            let request = Request::Write { registers: !self.registered, lists: self.polls || self.needs_list };
            let outgoing = self.outgoing(now, request);
            self.write = Some(Flight { attempt: outgoing.attempt, started: now });
            out.push(outgoing);
        }
        if self.registered && self.acquire.is_none() && self.acquire_due <= now {
            self.acquire_due = now.plus(Duration::from_millis(dice.random_range(200..700)));
            let wanted =
                (self.turn..self.turn + RESOURCES).map(|resource| resource % RESOURCES).find(|resource| !self.held.contains(resource));
            if let Some(resource) = wanted {
                self.turn = resource + 1;
                let outgoing = self.outgoing(now, Request::Acquire { resource });
                self.acquire = Some((Flight { attempt: outgoing.attempt, started: now }, resource));
                out.push(outgoing);
            }
        }
    }
}
