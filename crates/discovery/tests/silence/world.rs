//! The world of one life: processes, the store and its outages, and events in the order of true time.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use shardwise_core::Moment;

use crate::Figures;
use crate::clock::OwnClock;
use crate::network::Call;
use crate::process::{Message, Process};
use crate::store::{LifeId, Store};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Runs,
    Stopped,
    /// Killed, or left.
    Dead,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    Nowhere,
    Requests,
    Answers,
    Both,
}

/// A process and its connection.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) process: Process,
    pub(crate) fate: Fate,
    pub(crate) cut: Cut,
    /// The number of its connection. What belongs to an earlier one does not arrive.
    pub(crate) link: u64,
    /// Messages of a connection arrive in order: when the last one does.
    pub(crate) last_due: u64,
    /// Changes are pushed to it.
    pub(crate) subscribed: bool,
    /// Messages that arrived while it was stopped.
    pub(crate) mailbox: Vec<Message>,
    pub(crate) wake: Option<u64>,
    /// The latest start, by its own clock, of a write that the store carried out.
    pub(crate) carried_out: Moment,
    /// When something other than a long outage last kept it from renewing.
    pub(crate) troubled: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutageKind {
    /// The store is stopped: calls wait for its end, given up or not.
    Stopped,
    /// The network loses all calls.
    Unreachable,
    /// Half of the calls fail at once, the others are lost, and all connections break.
    Down,
}

/// The store carries out no call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outage {
    pub(crate) kind: OutageKind,
    pub(crate) ends: u64,
}

#[derive(Debug)]
pub(crate) enum Event {
    Arrives(Call),
    Delivered {
        to: usize,
        link: u64,
        message: Message,
    },
    Wakes {
        who: usize,
        at: u64,
    },
    GoesOn(usize),
    Heals(usize),
    /// A process starts under that name.
    Starts(usize),
    OutageEnds,
    Chaos,
}

/// A record that was deleted because its member was silent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EvictedRecord {
    pub(crate) life: LifeId,
    pub(crate) at: u64,
    /// `None` if it was absent.
    pub(crate) renewed: Option<u64>,
}

pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) dice: StdRng,
    /// Whether calls and answers go wrong.
    pub(crate) faults: bool,
    drift: u64,
    pub(crate) is_large: bool,
    pub(crate) polls: bool,
    pub(crate) store: Store,
    pub(crate) outage: Option<Outage>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) names: usize,
    pub(crate) evicted: Vec<EvictedRecord>,
    pub(crate) lost_at: u64,
    pub(crate) figures: Figures,
    /// Changes with every event.
    pub(crate) digest: u64,
    events: BTreeMap<(u64, u64), Event>,
    numbered: u64,
}

impl World {
    pub(crate) fn new(seed: u64, drift: u64, is_large: bool) -> Self {
        let mut dice = StdRng::seed_from_u64(seed);
        let polls = dice.random();
        Self {
            now: 0,
            dice,
            faults: true,
            drift,
            is_large,
            polls,
            store: Store::new(),
            outage: None,
            workers: Vec::new(),
            names: 0,
            evicted: Vec::new(),
            lost_at: 0,
            figures: Figures::default(),
            digest: 0,
            events: BTreeMap::new(),
            numbered: 0,
        }
    }

    pub(crate) fn push(&mut self, at: u64, event: Event) {
        self.numbered += 1;
        self.events.insert((at, self.numbered), event);
    }

    /// # Errors
    ///
    /// What must not happen and did.
    pub(crate) fn run_until(&mut self, end: u64) -> Result<(), String> {
        while let Some(entry) = self.events.first_entry() {
            let (at, number) = *entry.key();
            if at > end {
                break;
            }
            let event = entry.remove();
            self.now = at;
            self.digest = (self.digest ^ at ^ (number << 40)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17);
            self.happens(event)?;
        }
        self.now = end;
        Ok(())
    }

    fn happens(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Arrives(call) => return self.arrives(call),
            Event::Delivered { to, link, message } => self.delivered(to, link, message),
            Event::Wakes { who, at } => {
                let worker = &mut self.workers[who];
                if worker.wake == Some(at) {
                    worker.wake = None;
                    if worker.fate == Fate::Runs {
                        self.act(who, None);
                    }
                }
            }
            Event::GoesOn(who) => self.goes_on(who),
            Event::Heals(who) => self.heals(who),
            Event::Starts(name) => self.starts(name),
            Event::OutageEnds => self.outage_ends(),
            Event::Chaos => self.chaos(),
        }
        Ok(())
    }

    pub(crate) fn living(&self) -> Vec<usize> {
        (0..self.workers.len()).filter(|who| self.workers[*who].fate != Fate::Dead).collect()
    }

    /// Something other than a long outage keeps it from renewing.
    pub(crate) fn trouble(&mut self, who: usize) {
        self.workers[who].troubled = self.workers[who].troubled.max(self.now);
    }

    pub(crate) fn starts(&mut self, name: usize) {
        let life = LifeId { name, incarnation: self.workers.len() as u64 + 1 };
        let clock = OwnClock::drawn(&mut self.dice, self.drift);
        let process = Process::new(life, clock, self.polls, clock.shows(self.now));
        self.workers.push(Worker {
            process,
            fate: Fate::Runs,
            cut: Cut::Nowhere,
            link: 1,
            last_due: 0,
            subscribed: false,
            mailbox: Vec::new(),
            wake: None,
            carried_out: Moment::ZERO,
            troubled: self.now,
        });
        self.figures.count("starts", 1);
        self.act(self.workers.len() - 1, None);
    }

    pub(crate) fn act(&mut self, who: usize, message: Option<Message>) {
        let worker = &mut self.workers[who];
        let now = worker.process.clock.shows(self.now);
        let requests = worker.process.act(now, message, &mut self.dice);
        let wake = worker.process.clock.truth_of(worker.process.wake_at()).max(self.now + 1);
        if worker.wake.replace(wake) != Some(wake) {
            self.push(wake, Event::Wakes { who, at: wake });
        }
        for outgoing in requests {
            self.send(who, outgoing);
        }
    }

    pub(crate) fn goes_on(&mut self, who: usize) {
        let worker = &mut self.workers[who];
        if worker.fate != Fate::Stopped {
            return;
        }
        worker.fate = Fate::Runs;
        let mailbox = std::mem::take(&mut worker.mailbox);
        self.trouble(who);
        for message in mailbox {
            self.act(who, Some(message));
        }
        self.act(who, None);
    }

    pub(crate) fn heals(&mut self, who: usize) {
        let cut = std::mem::replace(&mut self.workers[who].cut, Cut::Nowhere);
        if cut != Cut::Nowhere {
            self.trouble(who);
        }
        if matches!(cut, Cut::Answers | Cut::Both) {
            self.break_link(who);
        }
    }

    pub(crate) fn outage_ends(&mut self) {
        if let Some(Outage { kind: OutageKind::Down, .. }) = self.outage.take() {
            for who in self.living() {
                self.break_link(who);
            }
        }
    }
}
