//! The destinations of one sink, each with its own circuit breaker: a failing destination neither charges nor delays events for other
//! destinations.
//!
//! Events for a destination that is down must not fill the memory, because then no events for other destinations could be read. They are
//! put off: returned to the store until about the next probe, even if the destination was last heard from long ago. If no destination is
//! known to accept anything, the whole sink may be down. Events are then put off in steps, each twice as long as the one before, to keep
//! the load on the store low.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use shardwise::Moment;
use shardwise::core::exponential;

use super::destination::{Destination, SendGate};
use crate::Delivery;

/// The most destinations that are remembered. Beyond this the one not heard from for the longest time is forgotten. Its next failure is
/// not charged, and it counts as open until it fails again.
pub(super) const DESTINATIONS_MAX: usize = 1_024;
/// For this long after any acceptance, the other destinations are assumed to be up.
const LIVELY: Duration = Duration::from_secs(1);
/// The first and the longest interval between two steps of putting events off while nothing is accepted.
const STEP: Duration = Duration::from_millis(250);
const STEP_MAX: Duration = Duration::from_millis(500);

/// The destination of an event within the sink; `None` if the sink is a single destination.
pub(crate) type DestinationKey = Option<Arc<str>>;

/// Maps an event to its destination; must return the same destination for the same event.
pub(crate) type DestinationResolver = Box<dyn Fn(&Delivery) -> DestinationKey + Send + Sync>;

/// What has changed about a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DestinationChange {
    /// It refuses everything from now on; the last refusal's message.
    Refusing(String),
    Answering,
    /// It refused everything, and nothing is known of it any more: it was not tried for long, or others took its place.
    Forgotten,
}

pub(crate) type ChangedDestination = (DestinationKey, DestinationChange);

#[derive(Debug, Default)]
struct DestinationEntry {
    destination: Destination,
    /// A counter over all destinations: its value at the last answer from this one.
    heard: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Destinations {
    known: BTreeMap<DestinationKey, DestinationEntry>,
    /// How many of them are reported to refuse everything, and how many are down: asked at every turn.
    refusing: usize,
    down: usize,
    words: u64,
    changes: Vec<ChangedDestination>,
    last_accepted: Option<Moment>,
    steps: u32,
    step_at: Moment,
}

impl Destinations {
    /// Changes the state of a destination that was heard from. If there are too many, one is forgotten: the one heard from longest ago,
    /// preferably one that is up.
    pub(crate) fn update(&mut self, to: &DestinationKey, change: impl FnOnce(&mut Destination)) {
        if self.known.len() >= DESTINATIONS_MAX && !self.known.contains_key(to) {
            let rank = |known: &DestinationEntry| (known.destination.is_down(), known.destination.is_refusing(), known.heard);
            let oldest = self.known.iter().min_by_key(|(_, known)| rank(known)).map(|(to, _)| to.clone());
            if let Some((to, gone)) = oldest.and_then(|oldest| self.known.remove_entry(&oldest)) {
                self.recount(counted(&gone.destination), (false, false));
                if gone.destination.is_refusing() {
                    self.changes.push((to, DestinationChange::Forgotten));
                }
            }
        }
        self.words += 1;
        let known = self.known.entry(to.clone()).or_default();
        known.heard = self.words;
        let before = counted(&known.destination);
        change(&mut known.destination);
        let after = counted(&known.destination);
        match (before.0, after.0) {
            (false, true) => self.changes.push((to.clone(), DestinationChange::Refusing(known.destination.said().to_owned()))),
            (true, false) => self.changes.push((to.clone(), DestinationChange::Answering)),
            _ => {}
        }
        self.recount(before, after);
    }

    fn recount(&mut self, before: (bool, bool), after: (bool, bool)) {
        let moved = |count: usize, before: bool, after: bool| (count + usize::from(after)).saturating_sub(usize::from(before));
        (self.refusing, self.down) = (moved(self.refusing, before.0, after.0), moved(self.down, before.1, after.1));
    }

    /// Ends the report of a destination of which no event has been tried here for long. `sends_to` returns the number of sends under way.
    pub(crate) fn end_reports(&mut self, sends_to: impl Fn(&DestinationKey) -> usize, now: Moment) {
        if self.refusing == 0 {
            return;
        }
        for (to, known) in &mut self.known {
            if known.destination.is_refusing() && known.destination.is_quiet(now) && sends_to(to) == 0 {
                known.destination.end_report();
                self.refusing = self.refusing.saturating_sub(1);
                self.changes.push((to.clone(), DestinationChange::Forgotten));
            }
        }
    }

    pub(crate) fn accepted(&mut self, to: &DestinationKey, now: Moment) {
        self.update(to, |destination| destination.accepted(now));
        (self.last_accepted, self.steps, self.step_at) = (Some(now), 0, now);
    }

    /// What may be sent to a destination that already has `sends_under_way` sends.
    pub(crate) fn gate(&self, to: &DestinationKey, sends_under_way: usize, now: Moment) -> SendGate {
        self.known.get(to).map_or(SendGate::Open, |known| known.destination.gate(sends_under_way, now))
    }

    pub(crate) fn judge<T>(&self, to: &DestinationKey, judge: impl FnOnce(&Destination) -> T) -> T {
        match self.known.get(to) {
            Some(known) => judge(&known.destination),
            None => judge(&Destination::default()),
        }
    }

    /// The number of destinations that are down.
    pub(crate) const fn down(&self) -> usize {
        self.down
    }

    /// The number of destinations that are reported to refuse everything; one that is down is, unless it was not tried for long.
    pub(crate) const fn refusing(&self) -> usize {
        self.refusing
    }

    /// What has changed since the last call.
    pub(crate) fn take_changes(&mut self) -> Vec<ChangedDestination> {
        std::mem::take(&mut self.changes)
    }

    /// Whether events for destinations that are down may be put off now.
    pub(crate) fn may_put_off(&self, now: Moment) -> bool {
        self.down() > 0 && (now >= self.step_at || self.is_lively(now))
    }

    pub(crate) fn put_off(&mut self, now: Moment) {
        if !self.is_lively(now) {
            self.step_at = now.plus(exponential(STEP, self.steps, STEP_MAX));
            self.steps = self.steps.saturating_add(1);
        }
    }

    fn is_lively(&self, now: Moment) -> bool {
        self.last_accepted.is_some_and(|accepted| now.since(accepted) < LIVELY)
            || self.known.values().any(|known| known.destination.is_good())
    }

    /// When a gate opens for a probe, and when the next step of putting off is allowed; `sends_to` returns the number of sends under way.
    pub(crate) fn wake_at(&self, sends_to: impl Fn(&DestinationKey) -> usize, now: Moment) -> [Option<Moment>; 2] {
        let until = |(to, known): (&DestinationKey, &DestinationEntry)| {
            let under_way = sends_to(to);
            match known.destination.gate(under_way, now) {
                SendGate::Shut { until } if under_way == 0 => Some(until),
                _ => None,
            }
        };
        if self.down() == 0 { [None; 2] } else { [self.known.iter().filter_map(until).min(), Some(self.step_at)] }
    }
}

/// Whether a destination counts as refusing, and whether as down.
const fn counted(destination: &Destination) -> (bool, bool) {
    (destination.is_refusing(), destination.is_down())
}

#[cfg(test)]
mod tests {
    use super::super::tests::at;
    use super::DestinationChange::{Answering, Forgotten, Refusing};
    use super::*;
    use crate::AggregateId;

    fn named(name: impl Into<Arc<str>>) -> Arc<str> {
        name.into()
    }

    fn refuse(destinations: &mut Destinations, place: &DestinationKey, aggregates: &[AggregateId], ms: u64) {
        destinations.update(place, |destination| destination.refused(1, aggregates, "503", Duration::from_secs(1), at(ms)));
    }

    fn take_down(destinations: &mut Destinations, place: &DestinationKey, ms: u64) {
        refuse(destinations, place, &[1, 2, 3], ms);
        assert_ne!(destinations.gate(place, 0, at(ms)), SendGate::Open);
    }

    #[test]
    fn one_that_is_down_shuts_no_other() {
        let (mut destinations, a, b) = (Destinations::default(), Some(named("a")), Some(named("b")));
        refuse(&mut destinations, &a, &[1, 2], 0);
        refuse(&mut destinations, &b, &[3, 4], 0);
        assert_eq!((destinations.down(), destinations.gate(&a, 0, at(0))), (0, SendGate::Open), "two of each are not three of one");
        take_down(&mut destinations, &a, 0);
        assert_eq!((destinations.down(), destinations.gate(&b, 0, at(0))), (1, SendGate::Open));
        assert_eq!(destinations.take_changes(), [(a.clone(), Refusing("503".into()))]);
        destinations.accepted(&b, at(1));
        assert_ne!(destinations.gate(&a, 0, at(1)), SendGate::Open, "another's success says nothing about it");
        destinations.accepted(&a, at(2));
        assert_eq!((destinations.down(), destinations.take_changes()), (0, vec![(a, Answering)]));
    }

    #[test]
    fn one_that_refuses_too_little_to_be_down_is_counted_and_reported_once() {
        let (mut destinations, a) = (Destinations::default(), Some(named("a")));
        let counts = |destinations: &Destinations| (destinations.refusing(), destinations.down());
        for (aggregate, expected) in [(1, (0, 0)), (1, (0, 0)), (1, (1, 0)), (2, (1, 0)), (3, (1, 1)), (4, (1, 1))] {
            refuse(&mut destinations, &a, &[aggregate], 0);
            assert_eq!(counts(&destinations), expected, "after {aggregate}");
        }
        assert_eq!(destinations.take_changes(), [(a.clone(), Refusing("503".into()))]);
        destinations.accepted(&a, at(1));
        assert_eq!((counts(&destinations), destinations.take_changes()), ((0, 0), vec![(a, Answering)]));
    }

    /// The last event there may have been given up.
    #[test]
    fn one_that_is_not_tried_any_more_is_not_reported_and_stays_down() {
        for (aggregates, down) in [(&[1][..], 0), (&[1, 2, 3][..], 1)] {
            let (mut destinations, a) = (Destinations::default(), Some(named("a")));
            for _ in 0..3 {
                refuse(&mut destinations, &a, aggregates, 0);
            }
            assert_eq!(destinations.take_changes(), [(a.clone(), Refusing("503".into()))]);
            for (sends, ms, refusing, changes) in
                [(0, 599_999, 1, vec![]), (1, 600_000, 1, vec![]), (0, 600_000, 0, vec![(a.clone(), Forgotten)]), (0, 700_000, 0, vec![])]
            {
                destinations.end_reports(|_| sends, at(ms));
                assert_eq!(
                    (destinations.refusing(), destinations.down(), destinations.take_changes()),
                    (refusing, down, changes),
                    "{sends} {ms}"
                );
            }
            destinations.update(&a, |destination| destination.probing(1));
            refuse(&mut destinations, &a, aggregates, 700_001);
            assert_eq!(destinations.refusing(), down, "a probe that is refused is reported at once, and another event is not");
        }
    }

    #[test]
    fn so_many_are_remembered_and_those_that_are_down_the_longest() {
        let mut destinations = Destinations::default();
        take_down(&mut destinations, &Some(named("down")), 0);
        for n in 0..3 * DESTINATIONS_MAX {
            destinations.accepted(&Some(named(n.to_string())), at(1));
        }
        assert_eq!((destinations.known.len(), destinations.down()), (DESTINATIONS_MAX, 1));
        destinations.take_changes();
        for n in 0..DESTINATIONS_MAX {
            take_down(&mut destinations, &Some(named(format!("also down {n}"))), 2);
        }
        assert_eq!(
            (destinations.known.len(), destinations.down(), destinations.refusing()),
            (DESTINATIONS_MAX, DESTINATIONS_MAX, DESTINATIONS_MAX)
        );
        assert_eq!(destinations.gate(&Some(named("down")), 0, at(2)), SendGate::Open, "forgotten");
        let forgotten: Vec<_> = destinations.take_changes().into_iter().filter(|(_, change)| *change == Forgotten).collect();
        assert_eq!(forgotten, [(Some(named("down")), Forgotten)]);
    }

    #[test]
    fn putting_off_slows_down_while_nothing_is_accepted() {
        let (mut destinations, a) = (Destinations::default(), Some(named("a")));
        take_down(&mut destinations, &a, 0);
        let (mut now, mut waits) = (0, Vec::new());
        for _ in 0..7 {
            assert!(destinations.may_put_off(at(now)));
            destinations.put_off(at(now));
            let next = (now..now + 10_000).find(|ms| destinations.may_put_off(at(*ms))).unwrap();
            assert!(destinations.wake_at(|_| 0, at(now)).contains(&Some(at(next))), "it wakes then");
            waits.push(next - now);
            now = next;
        }
        assert_eq!(waits, [250, 500, 500, 500, 500, 500, 500]);
        let b = Some(named("b"));
        destinations.accepted(&b, at(now));
        for later in [now, now + 3_600_000] {
            destinations.put_off(at(later));
            assert!(destinations.may_put_off(at(later)), "another is up, and needs the room whenever it comes");
        }
        now += 3_600_000;
        take_down(&mut destinations, &b, now);
        destinations.put_off(at(now));
        assert!(!destinations.may_put_off(at(now)), "all are down");
    }
}
