//! The latest rebalances of one worker, numbered, for clients that follow them.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use shardwise::core::{Cause, MemberChange, View};
use shardwise::{Departure, InstanceId, Rebalance};
use tokio::sync::watch;
use utoipa::ToSchema;

const KEPT: usize = 256;
/// The most members that an entry names as joined or left.
const NAMED: usize = 100;

/// A rebalance of this worker.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct Event {
    /// Its id, for Last-Event-ID.
    id: String,
    /// When it happened, by this machine's clock.
    at: String,
    /// joined, `members_changed`, `member_gate`, `policy_changed`, fenced, draining, refused, `claim_lost` or `owner_absent`.
    cause: &'static str,
    /// The view's number.
    revision: u64,
    /// How many members the group has now.
    members: usize,
    /// How many joined, and the first hundred of them.
    joined: usize,
    members_joined: Vec<String>,
    /// How many left, and the first hundred of them.
    left: usize,
    members_left: Vec<String>,
    /// How many of those vanished without leaving, because they died or lost their lease, and the first hundred of them.
    vanished: usize,
    members_vanished: Vec<String>,
    /// The members whose state or weight changed.
    members_changed: Vec<MemberChanges>,
    /// Slots owned now, gained and lost; null under a key placement. If the number of slots changes, the unit is a part that divides both
    /// numbers.
    slots_owned: Option<u32>,
    gained: Option<u32>,
    lost: Option<u32>,
    /// The share of all keys that this worker gained and lost together; null under a key placement.
    moved_share: Option<f64>,
    /// Milliseconds from when this worker saw the view until its claims had changed and work in flight had ended. It does not include the
    /// time until a dead member's lease expired.
    took_ms: u64,
}

/// The changes of a member; unchanged fields are null.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Changed)]
pub(crate) struct MemberChanges {
    instance_id: String,
    /// Its state before and now.
    state: Option<[&'static str; 2]>,
    /// Its weight before and now.
    weight: Option<[u32; 2]>,
}

/// The rebalances so far.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Past)]
pub(crate) struct RebalanceList {
    /// The oldest first.
    rebalances: Vec<Event>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct History {
    /// Distinguishes this process's numbers from those of its predecessor.
    life: u64,
    events: Mutex<VecDeque<Event>>,
    /// The number of rebalances so far.
    total: watch::Sender<u64>,
}

/// The position up to which a client has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cursor(u64);

/// The entries that a client has not read yet.
#[derive(Debug)]
pub(crate) struct NewEvents {
    pub(crate) events: Vec<Event>,
    /// Some entries in between are no longer kept.
    pub(crate) has_gap: bool,
}

impl History {
    pub(crate) fn new(life: u64) -> Self {
        Self { life, events: Mutex::default(), total: watch::Sender::new(0) }
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a rebalance; `took` is the time since its view.
    pub(crate) fn push(&self, rebalance: &Rebalance, took: Duration) {
        let number = *self.total.borrow() + 1;
        self.keep(Event::of(self.id(number), rebalance, took));
    }

    /// Only one task calls this.
    fn keep(&self, event: Event) {
        let mut events = self.events();
        events.push_back(event);
        if events.len() > KEPT {
            events.pop_front();
        }
        drop(events);
        self.total.send_modify(|total| *total += 1);
    }

    /// Adds a change of a group that this sidecar only observes.
    ///
    /// `departures`: the departures in all views so far, because views between these two may have been skipped.
    pub(crate) fn push_change(&self, before: &View, after: &View, departures: &[Departure]) {
        let number = *self.total.borrow() + 1;
        let left = before.joined_since(after);
        let (joined, mut vanished, changed) = (after.joined_since(before), after.vanished_since(before), after.changed_since(before));
        vanished.retain(|id| departures.iter().rev().find(|gone| gone.instance_id == *id).is_none_or(Departure::vanished));
        if joined.is_empty() && left.is_empty() && changed.is_empty() {
            return;
        }
        self.keep(Event {
            revision: after.revision(),
            members: after.members().len(),
            ..Event::of_members(self.id(number), Cause::MembersChanged, &joined, &left, &vanished, &changed)
        });
    }

    fn id(&self, number: u64) -> String {
        format!("{:016x}-{number}", self.life)
    }

    pub(crate) fn past(&self) -> RebalanceList {
        RebalanceList { rebalances: self.events().iter().cloned().collect() }
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.total.subscribe()
    }

    /// The cursor for entries from now on.
    pub(crate) fn now(&self) -> Cursor {
        Cursor(*self.total.borrow())
    }

    /// The cursor behind the entry with that id. For an id of another process it begins with the oldest entry kept, with a gap.
    pub(crate) fn behind(&self, id: &str) -> Result<Cursor, Cursor> {
        let number =
            id.split_once('-').filter(|(life, _)| *life == format!("{:016x}", self.life)).and_then(|(_, number)| number.parse().ok());
        let total = *self.total.borrow();
        let first = Cursor(total.saturating_sub(self.events().len() as u64));
        number.filter(|number| *number <= total).map_or(Err(first), |number| Ok(Cursor(number)))
    }

    /// The new entries behind the cursor, which moves.
    pub(crate) fn take(&self, cursor: &mut Cursor) -> NewEvents {
        let total = *self.total.borrow();
        let events = self.events();
        // An entry may have been added that is not counted yet: the next call returns it.
        let last = events.back().and_then(|event| event.id.rsplit_once('-')?.1.parse::<u64>().ok()).unwrap_or(total);
        let first = last + 1 - events.len() as u64;
        let has_gap = cursor.0 + 1 < first;
        let skip = usize::try_from((cursor.0 + 1).saturating_sub(first)).unwrap_or(usize::MAX);
        let new = events.iter().skip(skip).cloned().collect();
        *cursor = Cursor(last.max(cursor.0));
        NewEvents { events: new, has_gap }
    }
}

impl Event {
    fn of(id: String, rebalance: &Rebalance, took: Duration) -> Self {
        let by_slot = rebalance.slots_owned.is_some();
        let count = |slots: u32| by_slot.then_some(slots);
        let (gained, lost, slots) = (rebalance.gained.len(), rebalance.lost.len(), rebalance.gained.slots().max(1));
        let Rebalance { cause, members_joined, members_left, members_vanished, members_changed, .. } = rebalance;
        Self {
            revision: rebalance.revision,
            members: rebalance.members_total,
            slots_owned: rebalance.slots_owned,
            gained: count(gained),
            lost: count(lost),
            moved_share: by_slot.then(|| f64::from(gained + lost) / f64::from(slots)),
            took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            ..Self::of_members(id, *cause, members_joined, members_left, members_vanished, members_changed)
        }
    }

    /// The changes of members in this rebalance.
    fn of_members(
        id: String,
        cause: Cause,
        joined: &[InstanceId],
        left: &[InstanceId],
        vanished: &[InstanceId],
        changed: &[MemberChange],
    ) -> Self {
        let names = |ids: &[InstanceId]| ids.iter().take(NAMED).map(|id| id.as_str().to_owned()).collect();
        let change = |change: &MemberChange| MemberChanges {
            instance_id: change.instance_id.as_str().to_owned(),
            state: change.state.map(|(before, now)| [before.as_str(), now.as_str()]),
            weight: change.weight.map(|(before, now)| [before.get().into(), now.get().into()]),
        };
        Self {
            id,
            at: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            cause: cause.as_str(),
            joined: joined.len(),
            members_joined: names(joined),
            left: left.len(),
            members_left: names(left),
            vanished: vanished.len(),
            members_vanished: names(vanished),
            members_changed: changed.iter().take(NAMED).map(change).collect(),
            ..Self::default()
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
        history.keep(Event { revision: number, ..Event::of_members(history.id(number), Cause::Joined, &[], &[], &[], &[]) });
    }

    fn numbers(new: &NewEvents) -> Vec<u64> {
        new.events.iter().map(|event| event.revision).collect()
    }

    #[test]
    fn a_client_that_comes_back_misses_nothing_that_is_kept_and_learns_what_is_not() {
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
