//! The rebalances of one worker: the latest ones are kept, numbered, and told to whoever follows.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use shardwise::{InstanceId, Rebalance};
use tokio::sync::watch;
use utoipa::ToSchema;

/// How many are kept.
const KEPT: usize = 256;
/// How many members an entry names that came or went.
const NAMED: usize = 100;

/// A rebalance of this worker.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Event {
    /// Names it; to be sent as Last-Event-ID.
    id: String,
    /// When, by this machine's clock.
    at: String,
    /// joined, `members_changed`, `member_gate`, `policy_changed`, fenced, draining, refused, `claim_lost` or `owner_absent`.
    cause: &'static str,
    /// The view's number.
    revision: u64,
    /// How many members the group has now.
    members: usize,
    /// How many came, and which; of very many the first hundred.
    joined: usize,
    members_joined: Vec<String>,
    /// How many went, and which.
    left: usize,
    members_left: Vec<String>,
    /// Slots owned now, gained and lost; null under a key placement. Where the number of slots changes, they are parts that divide both numbers.
    slots_owned: Option<u32>,
    gained: Option<u32>,
    lost: Option<u32>,
    /// The share of all keys that this worker gained and lost together; null under a key placement.
    moved_share: Option<f64>,
    /// Milliseconds from this worker's seeing the view to having changed what it holds: claims, and work in flight that was waited for. How long a dead
    /// member's lease had still to run is not in it.
    took_ms: u64,
}

/// What has happened.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Past {
    /// The oldest first.
    rebalances: Vec<Event>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct History {
    /// Tells this process's numbers from those of the one before.
    life: u64,
    events: Mutex<VecDeque<Event>>,
    /// How many there have been.
    total: watch::Sender<u64>,
}

/// How far somebody has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cursor(u64);

/// What is new to somebody.
#[derive(Debug)]
pub(crate) struct New {
    pub(crate) events: Vec<Event>,
    /// Some between are not kept any more.
    pub(crate) has_gap: bool,
}

impl History {
    pub(crate) fn new(life: u64) -> Self {
        Self { life, events: Mutex::default(), total: watch::Sender::new(0) }
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `took`: how long after its view it came about.
    pub(crate) fn push(&self, rebalance: &Rebalance, took: Duration) {
        let number = *self.total.borrow() + 1;
        let mut events = self.events();
        events.push_back(Event::of(self.id(number), rebalance, took));
        if events.len() > KEPT {
            events.pop_front();
        }
        drop(events);
        self.total.send_replace(number);
    }

    fn id(&self, number: u64) -> String {
        format!("{:016x}-{number}", self.life)
    }

    pub(crate) fn past(&self) -> Past {
        Past { rebalances: self.events().iter().cloned().collect() }
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.total.subscribe()
    }

    /// From now on.
    pub(crate) fn now(&self) -> Cursor {
        Cursor(*self.total.borrow())
    }

    /// Behind the event of that id; of an id that is not this process's, from the first one that is kept, with a gap.
    pub(crate) fn behind(&self, id: &str) -> Result<Cursor, Cursor> {
        let number =
            id.split_once('-').filter(|(life, _)| *life == format!("{:016x}", self.life)).and_then(|(_, number)| number.parse().ok());
        let total = *self.total.borrow();
        let first = Cursor(total.saturating_sub(self.events().len() as u64));
        number.filter(|number| *number <= total).map_or(Err(first), |number| Ok(Cursor(number)))
    }

    /// What is new behind the cursor, which is moved.
    pub(crate) fn take(&self, cursor: &mut Cursor) -> New {
        let total = *self.total.borrow();
        let events = self.events();
        // One may have been added that is not counted yet: it is taken the next time.
        let last = events.back().and_then(|event| event.id.rsplit_once('-')?.1.parse::<u64>().ok()).unwrap_or(total);
        let first = last + 1 - events.len() as u64;
        let has_gap = cursor.0 + 1 < first;
        let skip = usize::try_from((cursor.0 + 1).saturating_sub(first)).unwrap_or(usize::MAX);
        let new = events.iter().skip(skip).cloned().collect();
        *cursor = Cursor(last.max(cursor.0));
        New { events: new, has_gap }
    }
}

impl Event {
    fn of(id: String, rebalance: &Rebalance, took: Duration) -> Self {
        let by_slot = rebalance.slots_owned.is_some();
        let count = |slots: u32| by_slot.then_some(slots);
        let names = |ids: &[InstanceId]| ids.iter().take(NAMED).map(ToString::to_string).collect();
        let (gained, lost, slots) = (rebalance.gained.len(), rebalance.lost.len(), rebalance.gained.slots().max(1));
        Self {
            id,
            at: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            cause: rebalance.cause.as_str(),
            revision: rebalance.revision,
            members: rebalance.members_total,
            joined: rebalance.members_joined.len(),
            members_joined: names(&rebalance.members_joined),
            left: rebalance.members_left.len(),
            members_left: names(&rebalance.members_left),
            slots_owned: rebalance.slots_owned,
            gained: count(gained),
            lost: count(lost),
            moved_share: by_slot.then(|| f64::from(gained + lost) / f64::from(slots)),
            took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(history: &History, number: u64) {
        let mut events = history.events();
        let none = Event {
            id: history.id(number),
            at: String::new(),
            cause: "joined",
            revision: number,
            members: 1,
            joined: 0,
            members_joined: Vec::new(),
            left: 0,
            members_left: Vec::new(),
            slots_owned: None,
            gained: None,
            lost: None,
            moved_share: None,
            took_ms: 0,
        };
        events.push_back(none);
        if events.len() > KEPT {
            events.pop_front();
        }
        drop(events);
        history.total.send_replace(number);
    }

    fn numbers(new: &New) -> Vec<u64> {
        new.events.iter().map(|event| event.revision).collect()
    }

    #[test]
    fn whoever_comes_back_misses_nothing_that_is_kept_and_is_told_what_is_not() {
        let history = History::new(7);
        let mut cursor = history.now();
        assert!(history.take(&mut cursor).events.is_empty());
        (1..=3).for_each(|n| event(&history, n));
        let new = history.take(&mut cursor);
        assert!(numbers(&new) == [1, 2, 3] && !new.has_gap && history.take(&mut cursor).events.is_empty());

        let mut back = history.behind(&history.id(1)).unwrap();
        assert_eq!(numbers(&history.take(&mut back)), [2, 3]);
        for strange in ["", "x", "0000000000000008-2", "0000000000000007-4", "0000000000000007-x"] {
            let mut first = history.behind(strange).unwrap_err();
            assert_eq!(numbers(&history.take(&mut first)), [1, 2, 3], "{strange:?}");
        }
        (4..=KEPT as u64 + 10).for_each(|n| event(&history, n));
        let mut late = history.behind(&history.id(3)).unwrap();
        let new = history.take(&mut late);
        assert!(new.has_gap && new.events.len() == KEPT && numbers(&new)[0] == 11);
        assert!(!history.take(&mut late).has_gap);
    }
}
