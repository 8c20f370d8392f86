//! Slow destinations: they accept events, but fewer than are read for them.
//!
//! What waits for one must not fill the memory, because then no events for other destinations could be read. While the memory is full, the
//! slow destinations keep half of it, in equal shares, and the rest of their events is put back: returned to the store for a while, without
//! charging an attempt. A busy destination is not slow: what is read for it is sent soon, however much it is.
//!
//! Where a send carries several aggregates, nothing is put back: all destinations of a batch wait for the slowest anyway.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use shardwise::Moment;

use super::Engine;
use super::act::FETCH_BYTES_MAX;
use super::destination::{HeadState, OUTAGE_DELAY_MAX, SendGate, spread};
use super::destinations::{DESTINATIONS_MAX, DestinationKey};
use super::flow::ReadAhead;
use super::reports::{NAMED_MAX, Report};
use crate::store::HeadUpdate;

/// A destination is slow if an aggregate has waited for a send there for this long, while the memory was full.
const SLOW_AFTER: Duration = Duration::from_secs(1);
/// It remains slow for this long after that, so that what is read for it meanwhile cannot fill the memory again.
const STAYS_SLOW: Duration = Duration::from_secs(1);
/// It is reported, and its events wait ever longer, until it was not slow for this long: what was put back has been read again by then.
const REPORTED_FOR: Duration = OUTAGE_DELAY_MAX.saturating_mul(2);
/// The events of a slow destination that return in a second, unless `batch` is larger: while it is slow, each is written once more. It
/// sends less than what fills the memory in `SLOW_AFTER`, so it does not run out of events.
const RETURNS_A_SECOND: usize = 1_000;

/// The time from one return to the next.
fn apart(batch: usize) -> Duration {
    Duration::from_secs(1) / u32::try_from(batch.max(RETURNS_A_SECOND)).unwrap_or(u32::MAX)
}

/// A known mistake that a test puts back in.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlowMistake {
    /// Nothing is put back.
    KeepsEverything,
    /// Whatever waits while the memory is full is slow.
    TakesBusyForSlow,
}

#[derive(Debug)]
struct SlowDestination {
    since: Moment,
    /// When it was last found to be slow.
    found_at: Moment,
    /// When the last event that was put back returns at the earliest.
    returns_at: Moment,
    /// Whether the log named it.
    is_named: bool,
}

#[derive(Debug, Default)]
pub(crate) struct SlowDestinations {
    known: BTreeMap<DestinationKey, SlowDestination>,
    /// Whether the store holds up the sends, and when it last did. What waited then says nothing about destinations.
    is_held_up: bool,
    pub(super) held_up_at: Moment,
    reports: Vec<Report>,
    /// Destinations of which events waited behind a send for `SLOW_AFTER` and more, within the last `STAYS_SLOW`, and when they last did.
    behind: BTreeMap<DestinationKey, Moment>,
    #[cfg(test)]
    pub(crate) mistake: Option<SlowMistake>,
}

impl SlowDestinations {
    /// Notes whether sends must wait until outcomes are recorded.
    pub(crate) fn held_up(&mut self, is_held_up: bool, now: Moment) {
        if is_held_up || self.is_held_up {
            self.held_up_at = now;
        }
        self.is_held_up = is_held_up;
    }

    fn found(&mut self, to: DestinationKey, now: Moment) {
        if let Some(known) = self.known.get_mut(&to) {
            known.found_at = now;
            return;
        }
        if self.known.len() >= DESTINATIONS_MAX {
            return;
        }
        let is_named = self.known.values().filter(|known| known.is_named).count() < NAMED_MAX;
        if is_named {
            self.reports.push(Report::Slow { to: to.clone() });
        }
        self.known.insert(to, SlowDestination { since: now, found_at: now, returns_at: now, is_named });
    }

    /// Ends the report of destinations that were not slow for long.
    fn end_reports(&mut self, now: Moment) {
        for (to, ended) in self.known.extract_if(.., |_, known| now.since(known.found_at) >= REPORTED_FOR) {
            if ended.is_named {
                self.reports.push(Report::InTime { to });
            }
        }
    }

    fn slow_at(&self, now: Moment) -> impl Iterator<Item = &DestinationKey> {
        self.known.iter().filter(move |(_, known)| now.since(known.found_at) < STAYS_SLOW).map(|(to, _)| to)
    }

    /// The update for a head that is put back: it waits about as long as its destination has been slow, which bounds both how often it is
    /// written and how late it comes, and until those before it have returned, `apart` from one another: otherwise a large backlog would be
    /// rewritten every 30 s, however large. No attempt is charged.
    fn put_back(&mut self, to: &DestinationKey, head: HeadState, sequence: u64, now: Moment, apart: Duration, jitter: u64) -> HeadUpdate {
        let (lasted, turn_in) = self.known.get_mut(to).map_or((Duration::ZERO, Duration::ZERO), |known| {
            known.returns_at = known.returns_at.max(now).plus(apart);
            (now.since(known.since), known.returns_at.since(now))
        });
        let retry_in = spread(lasted.clamp(SLOW_AFTER, OUTAGE_DELAY_MAX), jitter).max(turn_in);
        let to = to.as_deref().unwrap_or_default();
        let error = format!("not sent yet: the destination {to} is slow, and events for others are read first");
        HeadUpdate::Retry { sequence, attempts: head.attempts, failures: head.failures, retry_in, error }
    }

    /// The number of destinations that are reported to be slow.
    pub(crate) fn count(&self) -> usize {
        self.known.len()
    }

    /// What the log should say now.
    pub(crate) fn take_reports(&mut self) -> Vec<Report> {
        std::mem::take(&mut self.reports)
    }
}

impl Engine {
    /// Makes room for events of other destinations if what waits for slow ones fills the memory.
    pub(super) fn make_room(&mut self, now: Moment) {
        self.slow.end_reports(now);
        // Heads that are put back while another recording is under way would pile up, and hold up the sends of other destinations.
        let most = self.options.batch.saturating_sub(self.flow.unrecorded());
        let can_record = most > 0 && !self.flow.is_recording() && self.record_pause.over(now);
        if self.limits.mixed || self.has_room() || !can_record || self.stop_by.is_some() {
            return;
        }
        #[cfg(test)]
        if self.slow.mistake == Some(SlowMistake::KeepsEverything) {
            return;
        }
        let Self { flow, slow, destinations, jitter, options, .. } = self;
        // What waits for a destination that is down is put off, and at another pace.
        let is_up = |to: &DestinationKey| destinations.gate(to, flow.sends_to(to), now) == SendGate::Open;
        let before = now.minus(SLOW_AFTER);
        #[cfg(test)]
        let before = if slow.mistake == Some(SlowMistake::TakesBusyForSlow) { now } else { before };
        if slow.held_up_at <= before {
            for to in flow.overdue(before).into_iter().filter(|to| is_up(to)) {
                slow.found(to, now);
            }
        }
        let slow_now: BTreeSet<DestinationKey> = slow.slow_at(now).filter(|&to| is_up(to)).cloned().collect();
        slow.behind.extend(flow.long_behind(before).into_iter().map(|to| (to, now)));
        slow.behind.retain(|_, found_at| now.since(*found_at) < STAYS_SLOW);
        let behind: BTreeSet<DestinationKey> = slow.behind.keys().cloned().collect();
        let count = slow_now.union(&behind).count();
        if count == 0 {
            return;
        }
        let share = ReadAhead { events: options.batch / 2 / count, bytes: FETCH_BYTES_MAX / 2 / count };
        let apart = apart(options.batch);
        let put_back = |to: &DestinationKey, head, sequence| slow.put_back(to, head, sequence, now, apart, jitter.next());
        flow.keep_share(&slow_now, &behind, share, most, put_back);
    }

    /// When a destination may be found to be slow.
    pub(super) fn room_at(&self, now: Moment) -> Option<Moment> {
        if self.limits.mixed || self.has_room() {
            return None;
        }
        let overdue_at = |since: Moment| since.max(self.slow.held_up_at).plus(SLOW_AFTER);
        self.flow.waits().map(overdue_at).filter(|at| *at > now).min()
    }
}

#[cfg(test)]
mod tests {
    use super::super::destination::Jitter;
    use super::super::tests::at;
    use super::*;

    fn named(n: usize) -> std::sync::Arc<str> {
        n.to_string().into()
    }

    #[test]
    fn so_many_are_known_and_named_and_each_line_has_its_end() {
        let mut slow = SlowDestinations::default();
        for n in 0..2 * DESTINATIONS_MAX {
            slow.found(Some(named(n)), at(1));
            slow.found(Some(named(n)), at(2));
        }
        assert_eq!((slow.count(), slow.take_reports().len(), slow.take_reports().len()), (DESTINATIONS_MAX, NAMED_MAX, 0));
        slow.found(Some(named(0)), at(3));
        slow.end_reports(at(2).plus(REPORTED_FOR));
        assert_eq!((slow.count(), slow.take_reports().len()), (1, NAMED_MAX - 1));
        slow.end_reports(at(3).plus(REPORTED_FOR));
        assert_eq!((slow.count(), slow.take_reports()), (0, vec![Report::InTime { to: Some(named(0)) }]));
    }

    #[test]
    fn what_is_put_back_waits_about_as_long_as_the_destination_has_been_slow() {
        let mut slow = SlowDestinations::default();
        slow.found(Some(named(1)), at(1_000));
        for (ms, least, most) in [(1_000, 500, 1_000), (2_000, 500, 1_000), (9_000, 4_000, 8_000), (500_000, 15_000, 30_000)] {
            for jitter in [0, u64::MAX / 2, u64::MAX] {
                let head = HeadState { attempts: 2, failures: 3, ..HeadState::default() };
                let HeadUpdate::Retry { sequence: 7, attempts: 2, failures: 3, retry_in, error } =
                    slow.put_back(&Some(named(1)), head, 7, at(ms), apart(1), jitter)
                else {
                    panic!("it is charged")
                };
                assert!((least..=most).contains(&retry_in.as_millis()), "{ms}: {retry_in:?}");
                assert!(error.contains("destination 1 is slow"), "{error}");
            }
        }
    }

    /// A slow destination with many aggregates, each of which is put back again as soon as it returns, for three minutes. The wait was at
    /// most 30 s, so a backlog of a million was a million writes in 30 s.
    #[test]
    fn a_large_backlog_is_not_rewritten_faster_than_so_many_a_second() {
        for (batch, aggregates, a_second) in [(10, 40_000, 1_000), (2_000, 80_000, 2_000), (10, 5_000, 400)] {
            let mut slow = SlowDestinations::default();
            slow.found(Some(named(1)), at(0));
            let mut due: BTreeSet<(Moment, u64)> = (0..aggregates).map(|n| (at(0), n)).collect();
            let (mut jitter, mut last_minute, mut longest) = (Jitter::new(1), 0, Duration::ZERO);
            while let Some((now, sequence)) = due.pop_first().filter(|(now, _)| *now < at(180_000)) {
                let update = slow.put_back(&Some(named(1)), HeadState::default(), sequence, now, apart(batch), jitter.next());
                let HeadUpdate::Retry { retry_in, .. } = update else { panic!("{update:?}") };
                due.insert((now.plus(retry_in), sequence));
                last_minute += u64::from(now >= at(120_000));
                longest = longest.max(retry_in);
            }
            assert!(last_minute <= 60 * a_second + 60, "{batch}, {aggregates}: {last_minute} in a minute");
            // Nor does it wait much longer than it has to for that.
            let fair = Duration::from_secs(aggregates / a_second).max(OUTAGE_DELAY_MAX);
            assert!(longest <= fair + Duration::from_secs(31), "{batch}, {aggregates}: {longest:?}");
        }
    }

    /// A store that does not answer makes events wait for all destinations.
    #[test]
    fn the_time_in_which_the_store_holds_up_the_sends_is_known() {
        let mut slow = SlowDestinations::default();
        for (is_held_up, ms, last) in [(false, 1, 0), (true, 5, 5), (false, 9_000, 9_000), (false, 9_001, 9_000)] {
            slow.held_up(is_held_up, at(ms));
            assert_eq!(slow.held_up_at, at(last), "at {ms}");
        }
    }
}
