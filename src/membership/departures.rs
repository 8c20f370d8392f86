//! Members that are gone from a group: those that left, which their records announced, those that vanished, and those that have left for
//! a while (`rejoin_grace`), whose places are kept.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use shardwise_core::{Incarnation, InstanceId, Member, MemberState, Moment, View};

use crate::error::locked;

/// How many are stored; older ones are dropped.
const KEPT: usize = 1_024;
/// How many incarnations are remembered as named; then some are named again.
const NAMED_MAX: usize = 16_384;
/// One that joins again under the same incarnation and vanishes again later is named again.
const NAMED_AGAIN: Duration = Duration::from_secs(10);

/// A member that is gone from its group.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Departure {
    /// Its id.
    pub instance_id: InstanceId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// When this was noticed, by this machine's clock.
    pub at: SystemTime,
    /// The last state in its record.
    pub last_state: MemberState,
}

impl Departure {
    /// Whether it is gone without having announced it: it died, lost its lease, or was cut off. A leaving member is seen as draining,
    /// pausing or away before its record is deleted.
    pub fn vanished(&self) -> bool {
        self.last_state == MemberState::Active
    }
}

/// Compares each view with the one before it, so no view may be skipped.
#[derive(Debug, Default)]
pub(crate) struct Departures(Mutex<DepartureLog>);

#[derive(Debug, Default)]
struct DepartureLog {
    before: Arc<View>,
    gone: VecDeque<Departure>,
}

impl Departures {
    /// The next view follows a gap: which members went meanwhile, and how, is unknown.
    pub(crate) fn start_over(&self) {
        locked(&self.0).before = Arc::default();
    }

    /// Handles a newer view. Returns the members that are gone since the one before; none if this one is older.
    pub(crate) fn on_view(&self, view: &Arc<View>) -> Vec<Departure> {
        let mut seen = locked(&self.0);
        if view.revision() < seen.before.revision() {
            return Vec::new();
        }
        let before = std::mem::replace(&mut seen.before, Arc::clone(view));
        let at = SystemTime::now();
        let departed = |member: &Member| Departure {
            instance_id: member.instance_id.clone(),
            incarnation: member.incarnation,
            at,
            // A member that leaves has nothing to say of its worker.
            last_state: if member.worker.is_some() { MemberState::Active } else { member.state },
        };
        // A member refused because it serves something else deletes its record itself.
        let gone: Vec<_> = view.gone_since(&before).filter(|member| before.belongs(member)).map(departed).collect();
        seen.gone.extend(gone.iter().cloned());
        let too_many = seen.gone.len().saturating_sub(KEPT);
        seen.gone.drain(..too_many);
        gone
    }

    pub(crate) fn all(&self) -> Vec<Departure> {
        locked(&self.0).gone.iter().cloned().collect()
    }

    /// Whether the last departure of that member was announced.
    pub(crate) fn has_left(&self, id: &InstanceId) -> bool {
        locked(&self.0).gone.iter().rev().find(|gone| gone.instance_id == *id).is_some_and(|gone| !gone.vanished())
    }
}

/// Whether no member of this process has named that vanished one in the log just now. Of many in one process each sees it vanish, and for
/// a thousand a thousand lines would say so.
pub(crate) fn is_first_to_name(incarnation: Incarnation) -> bool {
    static NAMED: Mutex<BTreeMap<Incarnation, Instant>> = Mutex::new(BTreeMap::new());
    let (mut named, now) = (locked(&NAMED), Instant::now());
    if named.len() >= NAMED_MAX {
        named.clear();
    }
    let before = named.insert(incarnation, now);
    let is_first = before.is_none_or(|before| now.duration_since(before) >= NAMED_AGAIN);
    if let Some(before) = before.filter(|_| !is_first) {
        named.insert(incarnation, before);
    }
    is_first
}

/// A member that has left for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Absence {
    /// The member.
    pub instance_id: InstanceId,
    /// The longest time for which its place is still kept: `rejoin_grace` less the time for which it has been seen away. An observer that
    /// started only after it left sees up to the whole `rejoin_grace`; records carry no times, because clocks differ between machines.
    pub within: Duration,
}

/// Since when each member's incarnation has been seen away.
#[derive(Default)]
pub(crate) struct Absences(Mutex<BTreeMap<InstanceId, (Incarnation, Moment)>>);

impl Absences {
    pub(crate) fn on_view(&self, view: &View, now: Moment) {
        let mut seen = locked(&self.0);
        let away = view.members().iter().filter(|member| member.state == MemberState::Away);
        *seen = away
            .map(|member| {
                let known = seen.get(&member.instance_id).filter(|(incarnation, _)| *incarnation == member.incarnation);
                (member.instance_id.clone(), (member.incarnation, known.map_or(now, |(_, since)| *since)))
            })
            .collect();
    }

    /// The members that are away in that view, with places kept for `rejoin_grace`.
    pub(crate) fn of_view(&self, view: &View, rejoin_grace: Duration, now: Moment) -> Vec<Absence> {
        let seen = locked(&self.0);
        let away = view.members().iter().filter(|member| member.state == MemberState::Away);
        away.map(|member| {
            let for_long = seen.get(&member.instance_id).map_or(Duration::ZERO, |(_, since)| now.since(*since));
            Absence { instance_id: member.instance_id.clone(), within: rejoin_grace.saturating_sub(for_long) }
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shardwise_core::Serves;

    fn view(revision: u64, members: &[(&str, u64, MemberState)]) -> Arc<View> {
        let member = |(id, incarnation, state): &(&str, u64, MemberState)| Member {
            incarnation: Incarnation::new(*incarnation),
            state: *state,
            ..Member::named(InstanceId::new(*id).unwrap())
        };
        Arc::new(View::new(revision, members.iter().map(member).collect()))
    }

    #[test]
    fn who_announced_it_has_left_and_who_did_not_has_vanished() {
        use MemberState::{Active, Away, Draining, Pausing};
        let departures = Departures::default();
        let all = [("a", 1, Active), ("b", 1, Active), ("c", 1, Draining), ("d", 1, Pausing), ("e", 1, Away)];
        assert!(departures.on_view(&view(1, &all)).is_empty());
        // An older view is ignored, and `a` is another incarnation.
        assert!(departures.on_view(&view(0, &[])).is_empty());
        let gone = departures.on_view(&view(2, &[("a", 2, Active)]));
        let seen: Vec<_> = gone.iter().map(|gone| (gone.instance_id.as_str(), gone.incarnation.get(), gone.vanished())).collect();
        assert_eq!(seen, [("a", 1, true), ("b", 1, true), ("c", 1, false), ("d", 1, false), ("e", 1, false)]);
        assert_eq!(departures.all(), gone);
        let id = |id| InstanceId::new(id).unwrap();
        assert!(departures.has_left(&id("c")) && !departures.has_left(&id("b")) && !departures.has_left(&id("z")));
    }

    #[test]
    fn nothing_is_reported_of_a_time_without_views() {
        let departures = Departures::default();
        departures.on_view(&view(5, &[("a", 1, MemberState::Active)]));
        departures.start_over();
        assert!(departures.on_view(&view(9, &[])).is_empty(), "it may have left meanwhile");
    }

    #[test]
    fn who_was_refused_for_what_it_works_for_has_not_vanished() {
        let member = |id: &str, joined, serves| Member {
            joined,
            serves: Some(serves),
            incarnation: Incarnation::new(joined),
            ..Member::named(InstanceId::new(id).unwrap())
        };
        let keys = member("keys", 1, Serves::Keys);
        let stranger = member("stranger", 2, Serves::Outbox { id: "00ff".into(), name: "orders".into() });
        let departures = Departures::default();
        departures.on_view(&Arc::new(View::new(1, vec![keys.clone(), stranger])));
        assert!(departures.on_view(&Arc::new(View::new(2, vec![keys]))).is_empty());
        assert_eq!(departures.on_view(&view(3, &[])).len(), 1, "one of the group has");
    }

    #[test]
    fn a_process_names_each_vanished_incarnation_once() {
        let [one, other] = [u64::MAX, u64::MAX - 1].map(Incarnation::new);
        assert_eq!([one, one, other, one].map(is_first_to_name), [true, false, true, false]);
    }

    #[test]
    fn only_so_many_are_remembered() {
        let departures = Departures::default();
        for n in 0..=2 * KEPT as u64 {
            departures.on_view(&view(n, &[("a", n, MemberState::Active)]));
        }
        let all = departures.all();
        assert_eq!((all.len(), all.last().map(|gone| gone.incarnation.get())), (KEPT, Some(2 * KEPT as u64 - 1)));
    }
}
