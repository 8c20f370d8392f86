//! The latest rebalances of one worker, numbered, for clients that follow them.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use shardwise::core::{Cause, MemberChange, View};
use shardwise::{Departure, InstanceId, Rebalance};
use tokio::sync::watch;
use utoipa::ToSchema;

use crate::millis::millis;

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

#[derive(Debug)]
pub(crate) struct History {
    /// Distinguishes this process's numbers from those of its predecessor.
    life: u64,
    log: watch::Sender<EventLog>,
}

/// The latest rebalances, numbered from 1.
#[derive(Debug, Default)]
pub(crate) struct EventLog {
    /// The number of the latest one.
    pub(crate) last: u64,
    events: VecDeque<Event>,
}

impl EventLog {
    /// The number before the oldest entry that is kept.
    fn before_first(&self) -> u64 {
        self.last - self.events.len() as u64
    }

    /// The entries that a client has not read that has read up to this number, and whether some of them are no longer kept.
    pub(crate) fn behind(&self, read: u64) -> (impl Iterator<Item = &Event>, bool) {
        let skip = usize::try_from(read.saturating_sub(self.before_first())).unwrap_or(usize::MAX);
        (self.events.iter().skip(skip), read < self.before_first())
    }
}

impl History {
    pub(crate) fn new(life: u64) -> Self {
        Self { life, log: watch::Sender::default() }
    }

    /// Adds a rebalance; `took` is the time since its view.
    pub(crate) fn push(&self, rebalance: &Rebalance, took: Duration) {
        let by_slot = rebalance.slots_owned.is_some();
        let count = |slots: u32| by_slot.then_some(slots);
        let (gained, lost, slots) = (rebalance.gained.len(), rebalance.lost.len(), rebalance.gained.slots().max(1));
        let Rebalance { cause, members_joined, members_left, members_vanished, members_changed, .. } = rebalance;
        self.keep(Event {
            revision: rebalance.revision,
            members: rebalance.members_total,
            slots_owned: rebalance.slots_owned,
            gained: count(gained),
            lost: count(lost),
            moved_share: by_slot.then(|| f64::from(gained + lost) / f64::from(slots)),
            took_ms: millis(took),
            ..Event::of_members(*cause, members_joined, members_left, members_vanished, members_changed)
        });
    }

    fn keep(&self, event: Event) {
        self.log.send_modify(|log| {
            log.last += 1;
            log.events.push_back(Event { id: self.id(log.last), ..event });
            if log.events.len() > KEPT {
                log.events.pop_front();
            }
        });
    }

    /// Adds a change of a group that this sidecar only observes.
    ///
    /// `departures`: the departures in all views so far, because views between these two may have been skipped.
    pub(crate) fn push_change(&self, before: &View, after: &View, departures: &[Departure]) {
        let left = before.joined_since(after);
        let (joined, mut vanished, changed) = (after.joined_since(before), after.vanished_since(before), after.changed_since(before));
        vanished.retain(|id| departures.iter().rev().find(|gone| gone.instance_id == *id).is_none_or(Departure::vanished));
        if joined.is_empty() && left.is_empty() && changed.is_empty() {
            return;
        }
        self.keep(Event {
            revision: after.revision(),
            members: after.members().len(),
            ..Event::of_members(Cause::MembersChanged, &joined, &left, &vanished, &changed)
        });
    }

    fn id(&self, number: u64) -> String {
        format!("{:016x}-{number}", self.life)
    }

    pub(crate) fn past(&self) -> RebalanceList {
        RebalanceList { rebalances: self.log.borrow().events.iter().cloned().collect() }
    }

    pub(crate) fn follow(&self) -> watch::Receiver<EventLog> {
        self.log.subscribe()
    }

    /// The number of the entry with that id, and `false`; for an id of another process the number before the oldest entry kept, and
    /// `true`, because entries may be missing.
    pub(crate) fn number_of(&self, id: &str) -> (u64, bool) {
        let log = self.log.borrow();
        let number = id.strip_prefix(&format!("{:016x}-", self.life)).and_then(|number| number.parse().ok());
        number.filter(|number| *number <= log.last).map_or((log.before_first(), true), |number| (number, false))
    }
}

impl Event {
    /// The changes of members in this rebalance.
    fn of_members(cause: Cause, joined: &[InstanceId], left: &[InstanceId], vanished: &[InstanceId], changed: &[MemberChange]) -> Self {
        let names = |ids: &[InstanceId]| ids.iter().take(NAMED).map(|id| id.as_str().to_owned()).collect();
        let change = |change: &MemberChange| MemberChanges {
            instance_id: change.instance_id.as_str().to_owned(),
            state: change.state.map(|(before, now)| [before.as_str(), now.as_str()]),
            weight: change.weight.map(|(before, now)| [before.get().into(), now.get().into()]),
        };
        Self {
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

    /// The revisions of the new entries and whether some are missing; the client has read them.
    fn take(history: &History, read: &mut u64) -> (Vec<u64>, bool) {
        let log = history.log.borrow();
        let (new, has_gap) = log.behind(*read);
        *read = log.last;
        (new.map(|event| event.revision).collect(), has_gap)
    }

    #[test]
    fn a_client_that_comes_back_misses_nothing_that_is_kept_and_learns_what_is_not() {
        let history = History::new(7);
        let event = |revision| history.keep(Event { revision, ..Event::default() });
        let mut read = 0;
        assert_eq!(take(&history, &mut read), (vec![], false));
        (1..=3).for_each(event);
        assert_eq!(take(&history, &mut read), (vec![1, 2, 3], false));
        assert_eq!(take(&history, &mut read), (vec![], false));

        let (mut back, is_missing) = history.number_of(&history.id(1));
        assert!(take(&history, &mut back) == (vec![2, 3], false) && !is_missing);
        for strange in ["", "x", "0000000000000008-2", "0000000000000007-4", "0000000000000007-x"] {
            let (mut first, is_missing) = history.number_of(strange);
            assert!(take(&history, &mut first).0 == [1, 2, 3] && is_missing, "{strange:?}");
        }
        (4..=KEPT as u64 + 10).for_each(event);
        let (mut late, _) = history.number_of(&history.id(3));
        let (new, has_gap) = take(&history, &mut late);
        assert!(has_gap && new.len() == KEPT && new[0] == 11);
        assert!(!take(&history, &mut late).1);
    }
}
