//! What the log says of refusals: which destinations refuse everything, and which events are given up. Both are bounded, because a bad sink
//! must not fill a log.

use std::collections::BTreeMap;
use std::time::Duration;

use shardwise::Moment;

use super::destination::HeadState;
use super::destinations::{ChangedDestination, DestinationChange, DestinationKey};
use crate::store::HeadUpdate;
use crate::{Delivery, Poison};

/// How far apart two warnings of one destination are.
const LINES_APART: Duration = Duration::from_mins(1);
/// The most destinations, and the most events, that are named within that time.
pub(super) const NAMED_MAX: usize = 16;

/// A line for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Report {
    /// The destination refuses everything; `error` is the last refusal's message.
    Refusing {
        to: DestinationKey,
        error: String,
    },
    /// It answers again.
    Answering {
        to: DestinationKey,
    },
    /// The number of further destinations that refuse everything, each for more than a minute.
    MoreRefusing(usize),
    /// It is slow: events that wait for it are put back, so that those for other destinations are read.
    Slow {
        to: DestinationKey,
    },
    /// Nothing was put back for it for a minute.
    InTime {
        to: DestinationKey,
    },
    GivenUp(GivenUpEvent),
    /// The number of further events that are not tried again by themselves.
    MoreGivenUp(u64),
}

/// An event that is not tried again by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GivenUpEvent {
    pub(crate) id: String,
    /// Its aggregate's key.
    pub(crate) key: String,
    pub(crate) sequence: u64,
    /// How often it was sent, charged or not.
    pub(crate) attempts: u32,
    pub(crate) fate: Poison,
    pub(crate) error: String,
}

#[derive(Debug)]
struct NamedDestination {
    warned_at: Moment,
    /// What the log said last.
    is_refusing: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// Destinations that refuse everything according to the log, and those that it warned of within a minute.
    named: BTreeMap<DestinationKey, NamedDestination>,
    /// Destinations that refuse everything, of which the log does not warn yet: since when, and the last refusal's message.
    unnamed: BTreeMap<DestinationKey, (Moment, String)>,
    given_up: Vec<Report>,
    /// The numbers of destinations and of events named since that time.
    destinations_named: usize,
    events_named: usize,
    named_since: Moment,
    /// Events given up without a line.
    unlogged: u64,
}

impl Reports {
    /// Notes what became of a refused event, which had failed as `head` says before.
    pub(crate) fn judged(&mut self, event: &Delivery, head: HeadState, then: &HeadUpdate) {
        let (fate, error) = match then {
            HeadUpdate::Block { error, .. } => (Poison::Block, error),
            HeadUpdate::Park { error, .. } => (Poison::Park, error),
            HeadUpdate::Discard { error, .. } => (Poison::Discard, error),
            HeadUpdate::Next | HeadUpdate::Retry { .. } => return,
        };
        if self.events_named >= NAMED_MAX {
            self.unlogged += 1;
            return;
        }
        self.events_named += 1;
        self.given_up.push(Report::GivenUp(GivenUpEvent {
            id: event.id.clone(),
            key: event.key(),
            sequence: event.sequence,
            attempts: head.failures.saturating_add(1),
            fate,
            error: error.clone(),
        }));
    }

    /// The line on the events that have none, for the end of a minute and of the run.
    pub(crate) fn rest(&mut self) -> Option<Report> {
        let unlogged = std::mem::take(&mut self.unlogged);
        (unlogged > 0).then_some(Report::MoreGivenUp(unlogged))
    }

    /// The lines that are due. If a destination changes often, it gets two lines a minute, and the last one is right a minute later.
    pub(crate) fn due(&mut self, changes: Vec<ChangedDestination>, now: Moment) -> Vec<Report> {
        let mut due = std::mem::take(&mut self.given_up);
        for (to, change) in changes {
            match change {
                DestinationChange::Refusing(error) => {
                    self.unnamed.insert(to, (now, error));
                }
                DestinationChange::Forgotten => {
                    self.unnamed.remove(&to);
                    self.named.remove(&to);
                }
                DestinationChange::Answering => {
                    self.unnamed.remove(&to);
                    if let Some(named) = self.named.get_mut(&to).filter(|named| named.is_refusing) {
                        named.is_refusing = false;
                        due.push(Report::Answering { to });
                    }
                }
            }
        }
        if now.since(self.named_since) >= LINES_APART {
            (self.named_since, self.destinations_named, self.events_named) = (now, 0, 0);
            due.extend(self.rest());
            let all = self.unnamed.len();
            // One that the log named within the minute before waits for its own next line.
            self.unnamed.retain(|to, (since, _)| now.since(*since) < LINES_APART || self.named.contains_key(to));
            let more = all - self.unnamed.len();
            due.extend((more > 0).then_some(Report::MoreRefusing(more)));
        }
        if self.unnamed.is_empty() {
            return due;
        }
        self.named.retain(|_, named| named.is_refusing || now.since(named.warned_at) < LINES_APART);
        while self.destinations_named < NAMED_MAX
            && let Some(to) = self.unnamed.keys().find(|to| !self.named.contains_key(*to)).cloned()
            && let Some((_, error)) = self.unnamed.remove(&to)
        {
            self.destinations_named += 1;
            self.named.insert(to.clone(), NamedDestination { warned_at: now, is_refusing: true });
            due.push(Report::Refusing { to, error });
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{HOLD, delivery};
    use super::*;

    const fn at(secs: u64) -> Moment {
        Moment::from_nanos(secs * 1_000_000_000)
    }

    #[expect(clippy::unnecessary_wraps, reason = "a key of the sink's one destination is none")]
    fn named(name: &str) -> DestinationKey {
        Some(name.into())
    }

    fn refuses(to: &str) -> Vec<ChangedDestination> {
        vec![(named(to), DestinationChange::Refusing("503".into()))]
    }

    fn answers(to: &str) -> Vec<ChangedDestination> {
        vec![(named(to), DestinationChange::Answering)]
    }

    fn refusing(to: &str) -> Report {
        Report::Refusing { to: named(to), error: "503".into() }
    }

    fn answering(to: &str) -> Report {
        Report::Answering { to: named(to) }
    }

    #[test]
    fn an_outage_is_one_line_at_once_and_one_when_it_ends() {
        let mut reports = Reports::default();
        assert_eq!(reports.due(refuses("a"), at(1)), [refusing("a")]);
        assert_eq!(reports.due(Vec::new(), at(500)), []);
        assert_eq!(reports.due(answers("a"), at(900)), [answering("a")]);
        assert_eq!(reports.due(refuses("a"), at(901)), [refusing("a")], "the last warning is long ago");
    }

    #[test]
    fn a_destination_that_changes_all_the_time_is_two_lines_a_minute_and_the_last_one_is_right() {
        let (mut reports, mut lines) = (Reports::default(), Vec::new());
        for secs in 1..=59 {
            let changes = if secs % 2 == 1 { refuses("a") } else { answers("a") };
            lines.extend(reports.due(changes, at(secs)));
        }
        assert_eq!(lines, [refusing("a"), answering("a")]);
        assert_eq!(reports.due(refuses("b"), at(60)), [refusing("b")], "another one does not wait");
        assert_eq!(reports.due(Vec::new(), at(61)), [refusing("a")], "it still refuses everything");
        assert_eq!(reports.due(answers("a"), at(62)), [answering("a")]);
    }

    #[test]
    fn so_many_destinations_are_named_at_a_time() {
        let all = |of: fn(&str) -> Vec<ChangedDestination>| (0..1_000).flat_map(|n: u32| of(&n.to_string())).collect::<Vec<_>>();
        let mut reports = Reports::default();
        assert_eq!(reports.due(all(refuses), at(1)).len(), NAMED_MAX);
        for (secs, changes, lines) in [
            (59, Vec::new(), vec![]),
            (500, Vec::new(), vec![Report::MoreRefusing(984)]),
            (501, answers("0"), vec![answering("0")]),
            (502, refuses("late"), vec![refusing("late")]),
            (600, answers("999"), vec![]),
        ] {
            assert_eq!(reports.due(changes, at(secs)), lines, "those that refuse everything for long take no place: {secs}");
        }
        assert_eq!(reports.due(all(answers), at(601)).len(), NAMED_MAX - 1, "each line has its end");
        assert_eq!(reports.due(Vec::new(), at(900)), []);
    }

    #[test]
    fn a_destination_without_a_line_gets_one_in_the_next_minute_unless_its_outage_has_ended() {
        let mut reports = Reports::default();
        let sixteen: Vec<_> = (0..NAMED_MAX).flat_map(|n| refuses(&n.to_string())).collect();
        assert_eq!(reports.due(sixteen, at(1)).len(), NAMED_MAX);
        for (secs, changes, lines) in [
            (30, refuses("a"), vec![]),
            (31, refuses("b"), vec![]),
            (32, refuses("c"), vec![]),
            (33, vec![(named("c"), DestinationChange::Forgotten)], vec![]),
            (60, answers("b"), vec![refusing("a")]),
            (61, vec![(named("a"), DestinationChange::Forgotten)], vec![]),
            (62, refuses("a"), vec![refusing("a")]),
            (63, [refuses("d"), answers("d")].concat(), vec![]),
        ] {
            assert_eq!(reports.due(changes, at(secs)), lines, "{secs}");
        }
    }

    #[test]
    fn an_event_that_is_given_up_is_named_as_commands_name_it_with_its_real_attempts() {
        let mut reports = Reports::default();
        let (event, error) = (delivery(7, HOLD, 3), String::from("too large"));
        reports.judged(&event, HeadState::default(), &HeadUpdate::Next);
        reports.judged(&event, HeadState::default(), &HeadUpdate::Block { sequence: 3, attempts: 10, error: error.clone() });
        let head = HeadState { attempts: 9, failures: 12, ..HeadState::default() };
        reports.judged(&event, head, &HeadUpdate::Park { sequence: 3, error: error.clone() });
        let line = |attempts, fate| {
            let error = error.clone();
            Report::GivenUp(GivenUpEvent { id: "7-3".into(), key: "a/7".into(), sequence: 3, attempts, fate, error })
        };
        assert_eq!(reports.due(Vec::new(), at(1)), [line(1, Poison::Block), line(13, Poison::Park)]);
        assert_eq!(reports.due(Vec::new(), at(2)), []);
    }

    #[test]
    fn a_sink_that_refuses_every_event_for_good_is_sixteen_lines_a_minute() {
        let (mut reports, discard) = (Reports::default(), HeadUpdate::Discard { sequence: 1, error: "404".into() });
        for (secs, events, named, more) in
            [(1, 100, NAMED_MAX, None), (59, 100, 0, None), (60, 0, 0, Some(184)), (61, 100, NAMED_MAX, None), (500, 0, 0, Some(84))]
        {
            for _ in 0..events {
                reports.judged(&delivery(1, HOLD, 1), HeadState::default(), &discard);
            }
            let (lines, others): (Vec<_>, Vec<_>) =
                reports.due(Vec::new(), at(secs)).into_iter().partition(|line| matches!(line, Report::GivenUp(_)));
            let more: Vec<_> = more.into_iter().map(Report::MoreGivenUp).collect();
            assert_eq!((lines.len(), others), (named, more), "those without a line are counted: {secs}");
        }
        for _ in 0..=NAMED_MAX {
            reports.judged(&delivery(1, HOLD, 1), HeadState::default(), &discard);
        }
        assert_eq!((reports.rest(), reports.rest()), (Some(Report::MoreGivenUp(1)), None), "at the end of the run");
    }
}
