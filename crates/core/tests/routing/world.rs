//! A group of members and its callers on simulated time. Members and callers decide with the real types; the wire, the handlers and the
//! arrivals are the simulation's.

mod steps;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use shardwise_core::routing::{Ask, InFlight, OwnerWidths, RouteTable, Undelivered, Width, WidthHints, WidthRules};
use shardwise_core::{Incarnation, InstanceId, Member, Moment, PlacementParams, Replicas, View, ViewPlacement};

use crate::dice::Dice;

pub(crate) const MEMBERS: u32 = 8;
/// How many handlers of a member run at once, and how long each takes.
const AT_ONCE: usize = 8;
const HANDLER: u64 = 20 * MS;
/// A member refuses further requests beyond so many, running or waiting.
const ADMITTED_MAX: usize = 64;
/// When it says to try again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// One way.
const NET: u64 = MS / 2;
pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000 * MS;
const WITHIN: Duration = Duration::from_secs(10);

/// Where the requests go.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Mix {
    /// The last key has so many times the load of each other key.
    Hot(usize),
    /// All keys have the same load.
    Even,
    /// The last key alone.
    Last,
    /// Any member.
    Any,
}

/// How requests arrive.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Arrivals {
    /// Independently of each other, at random callers.
    Random,
    /// At equal pauses, from one caller after the other.
    Regular,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    pub(crate) callers: usize,
    pub(crate) keys: usize,
    pub(crate) max_width: Width,
}

/// A member's handlers and its widths.
struct SimMember {
    widths: OwnerWidths,
    running: usize,
    waiting: VecDeque<usize>,
    is_dead: bool,
    /// All its places are taken, by requests that do not end.
    is_full: bool,
    /// Added to the load that it reports.
    more_load: u64,
    /// It reports the largest numbers instead of its own.
    forges: bool,
    /// It serves nothing and names that member.
    names: Option<u32>,
}

impl SimMember {
    fn admitted(&self) -> usize {
        if self.is_full { ADMITTED_MAX } else { self.running + self.waiting.len() }
    }
}

struct Caller {
    table: RouteTable,
    hints: WidthHints,
}

struct Reply {
    load: u64,
    width: Option<u64>,
    undelivered: Option<Undelivered>,
}

struct Request {
    caller: usize,
    /// The number of its key; `None` for any member.
    key: Option<usize>,
    begun: u64,
    ask: Ask,
    to: u32,
    in_flight: Option<InFlight>,
    reply: Option<Reply>,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Arrives,
    Reaches(usize),
    Handled(usize),
    Returns(usize),
    Again(usize),
}

/// One attempt at a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SimAttempt {
    pub(crate) at: u64,
    pub(crate) key: Option<usize>,
    pub(crate) to: u32,
}

pub(crate) struct World {
    setup: Setup,
    pub(crate) now: u64,
    dice: Dice,
    events: BTreeMap<(u64, u64), Event>,
    numbered: u64,
    members: Vec<SimMember>,
    callers: Vec<Caller>,
    keys: Vec<String>,
    /// The owner of each key.
    owners: Vec<u32>,
    requests: Vec<Request>,
    traffic: Option<(Mix, Arrivals, f64)>,
    pub(crate) attempts: Vec<SimAttempt>,
    /// When each answered request began, and how long it took.
    pub(crate) answered: Vec<(u64, u64)>,
    /// Requests without an answer.
    pub(crate) failed: Vec<String>,
}

fn moment(now: u64) -> Moment {
    // Not at the clock's beginning.
    Moment::from_nanos(1_000 * SECOND + now)
}

fn nanos(at: Moment) -> u64 {
    at.as_nanos() - 1_000 * SECOND
}

fn percent_99(mut took: Vec<u64>) -> u64 {
    took.sort_unstable();
    took.get(took.len() * 99 / 100).copied().expect("requests were answered")
}

impl World {
    pub(crate) fn new(setup: Setup) -> Self {
        let member = |number: u32| Member {
            incarnation: Incarnation::new(u64::from(number) + 1),
            ..Member::named(InstanceId::new(format!("member-{number}")).expect("a name"))
        };
        let view = Arc::new(View::new(1, (0..MEMBERS).map(member).collect()));
        let params = PlacementParams::default();
        let placement = ViewPlacement::of_view(&view, params).expect("a small ring");
        let replicas = Replicas::of_view(&view, params, usize::from(setup.max_width.get()));
        let table = || RouteTable::eventual(Arc::clone(&view), Some(&placement), Some(&replicas), None);
        let callers: Vec<_> = (0..setup.callers).map(|_| Caller { table: table(), hints: WidthHints::default() }).collect();
        let keys: Vec<_> = (0..setup.keys).map(|key| format!("{}/key-{key}", setup.seed)).collect();
        let owner = |key: &String| {
            let owner = placement.owner(key).expect("members have slots");
            let at = view.members().iter().position(|member| member.instance_id == *owner);
            u32::try_from(at.expect("a member")).expect("few members")
        };
        let owners = keys.iter().map(owner).collect();
        // As many as run at once: beyond it, requests of the key wait.
        let rules = WidthRules { saturated_at: 8, max_width: setup.max_width };
        let member = |_| SimMember {
            widths: OwnerWidths::new(rules),
            running: 0,
            waiting: VecDeque::new(),
            is_dead: false,
            is_full: false,
            more_load: 0,
            forges: false,
            names: None,
        };
        Self {
            setup,
            now: 0,
            dice: Dice::new(setup.seed),
            events: BTreeMap::new(),
            numbered: 0,
            members: (0..MEMBERS).map(member).collect(),
            callers,
            keys,
            owners,
            requests: Vec::new(),
            traffic: None,
            attempts: Vec::new(),
            answered: Vec::new(),
            failed: Vec::new(),
        }
    }

    /// The owner of the last key.
    pub(crate) fn hot_owner(&self) -> u32 {
        self.owners[self.setup.keys - 1]
    }

    /// A member that serves the last key besides its owner.
    pub(crate) fn hot_helper(&self) -> u32 {
        let (owner, table, key) = (self.hot_owner(), &self.callers[0].table, &self.keys[self.setup.keys - 1]);
        let serves = |index: &u32| table.member(*index).is_some_and(|member| table.accepts(key, &member.instance_id));
        (0..MEMBERS).filter(|index| *index != owner).find(serves).expect("a successor")
    }

    /// The largest width that an owner has now.
    pub(crate) fn widest(&self) -> u8 {
        let wide = self.members.iter().flat_map(|member| member.widths.wide_at(moment(self.now)));
        wide.map(|(_, width)| width.get()).max().unwrap_or(1)
    }

    /// Requests arrive like this from now on, `per_second` of them.
    pub(crate) fn traffic(&mut self, mix: Mix, arrivals: Arrivals, per_second: f64) {
        let was_silent = self.traffic.replace((mix, arrivals, per_second)).is_none();
        if was_silent {
            self.push(self.now, Event::Arrives);
        }
    }

    pub(crate) fn silence(&mut self) {
        self.traffic = None;
    }

    pub(crate) fn dies(&mut self, member: u32) {
        let dead = &mut self.members[member as usize];
        (dead.is_dead, dead.running) = (true, 0);
        dead.waiting.clear();
        let is_lost = |request: &Request| request.to == member && request.in_flight.is_some() && request.reply.is_none();
        let lost: Vec<usize> = (0..self.requests.len()).filter(|id| is_lost(&self.requests[*id])).collect();
        self.events.retain(|_, event| !matches!(event, Event::Handled(id) | Event::Reaches(id) if lost.contains(id)));
        for id in lost {
            self.reply(id, Reply { load: 0, width: None, undelivered: Some(Undelivered::Unknown("the connection broke".into())) });
        }
    }

    pub(crate) fn fills(&mut self, member: u32) {
        self.members[member as usize].is_full = true;
    }

    pub(crate) fn reports_more_load(&mut self, member: u32, more: u64) {
        self.members[member as usize].more_load = more;
    }

    pub(crate) fn forges(&mut self, member: u32) {
        self.members[member as usize].forges = true;
    }

    /// From now on the member serves nothing and names another one.
    pub(crate) fn names(&mut self, member: u32, other: u32) {
        self.members[member as usize].names = Some(other);
    }

    /// The 99th percentile of the requests that began since, in nanoseconds.
    pub(crate) fn p99_since(&self, since: u64) -> u64 {
        percent_99(self.answered.iter().filter(|(begun, _)| *begun >= since).map(|(_, took)| *took).collect())
    }

    pub(crate) fn run_until(&mut self, end: u64) {
        while let Some(((at, _), event)) =
            self.events.first_key_value().map(|(key, event)| (*key, *event)).filter(|((at, _), _)| *at <= end)
        {
            self.events.pop_first();
            self.now = at;
            match event {
                Event::Arrives => self.arrives(),
                Event::Reaches(id) => self.reaches(id),
                Event::Handled(id) => self.handled(id),
                Event::Returns(id) => self.returns(id),
                Event::Again(id) => self.next_step(id),
            }
        }
        self.now = end;
    }

    fn push(&mut self, at: u64, event: Event) {
        self.numbered += 1;
        self.events.insert((at, self.numbered), event);
    }

    fn arrives(&mut self) {
        let Some((mix, arrivals, per_second)) = self.traffic else { return };
        let last = self.setup.keys - 1;
        let key = match mix {
            Mix::Hot(times) => Some(self.dice.below(times + last).min(last)),
            Mix::Even => Some(self.dice.below(self.setup.keys)),
            Mix::Last => Some(last),
            Mix::Any => None,
        };
        let (caller, pause) = match arrivals {
            Arrivals::Random => (self.dice.below(self.setup.callers), self.dice.pause(per_second)),
            Arrivals::Regular => (self.requests.len() % self.setup.callers, regular_pause(per_second)),
        };
        self.push(self.now + pause, Event::Arrives);
        self.ask(caller, key, WITHIN);
    }

    /// One request.
    pub(crate) fn ask(&mut self, caller: usize, key: Option<usize>, within: Duration) {
        let ask = Ask::new(moment(self.now), within, true).expect("a valid time limit");
        self.requests.push(Request { caller, key, begun: self.now, ask, to: 0, in_flight: None, reply: None });
        self.next_step(self.requests.len() - 1);
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a pause of seconds, never negative")]
fn regular_pause(per_second: f64) -> u64 {
    (1e9 / per_second) as u64
}
