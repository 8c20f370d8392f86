//! The status of an outbox, for operators and monitoring.

use std::time::Duration;

/// The most aggregates that are visited to count events without a publisher.
pub(crate) const UNPUBLISHED_MAX: i64 = 10_000;
/// A backlog is stuck if its oldest event is older than this, or than ten polls if that is longer: an operator should look, whatever the
/// cause is.
const OLD: Duration = Duration::from_mins(1);
/// See [`OLD`].
const OLD_POLLS: u32 = 10;

/// Why events wait that should have been delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stuck {
    /// The kind of reason.
    pub cause: StuckCause,
    /// What is stuck and what to do, in one line without a secret and safe for a terminal.
    pub detail: String,
}

/// See [`Stuck`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StuckCause {
    /// Events are pending in slots that no living publisher holds.
    NoPublisher,
    /// The oldest pending event is older than a minute and than ten polls.
    OldBacklog,
    /// See [`Status::needs_restored`].
    NotRestored,
}

impl StuckCause {
    /// The name in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoPublisher => "no_publisher",
            Self::OldBacklog => "old_backlog",
            Self::NotRestored => "not_restored",
        }
    }
}

/// The age from which a backlog is stuck, for publishers that check every `poll`.
pub(crate) fn old_after(poll: Duration) -> Duration {
    OLD.max(poll.saturating_mul(OLD_POLLS))
}

const NOT_RESTORED: &str = "every event is refused, and publishers stop: rows came without the values of sequences, as by logical replication, or a \
     number was too low. When all rows are here, run `shardwise outbox restored`";

/// The most characters of a sink's message in a [`Status`].
pub const ERROR_CHARS_MAX: usize = 300;

/// A blocked aggregate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockedAggregate {
    /// Its key, `aggregatetype/aggregateid`.
    pub key: String,
    /// The number of waiting events, including the blocked one.
    pub pending: u64,
    /// How long it has been blocked.
    pub blocked_for: Duration,
    /// The sink's message on one line, safe for a terminal, at most [`ERROR_CHARS_MAX`] characters.
    pub error: String,
}

/// Aggregates whose head failed and will be retried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retrying {
    /// The number of aggregates.
    pub aggregates: u64,
    /// The number of their waiting events, including the failing ones.
    pub pending: u64,
    /// Time since the first failure of the aggregate that has failed for the longest time.
    pub failing_for: Duration,
    /// Time until the next attempt at any of them; zero if one is due. While the destination seems to be down, publishers may wait a
    /// little longer; without a publisher nothing is tried.
    pub next_attempt_in: Duration,
    /// The aggregate of the latest failure, `aggregatetype/aggregateid`.
    pub key: String,
    /// Time since the latest failure.
    pub failed_ago: Duration,
    /// The sink's message at the latest failure, on one line, safe for a terminal, at most [`ERROR_CHARS_MAX`] characters.
    pub error: String,
}

/// A publisher as the store knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublisherStatus {
    /// Its name.
    pub publisher: String,
    /// Its incarnation, in hexadecimal.
    pub incarnation: String,
    /// Whether it was seen within its TTL, in this boot of the machine.
    pub alive: bool,
    /// Time since it was seen; `None` if that was in another boot.
    pub seen_ago: Option<Duration>,
    /// The number of slots it holds.
    pub slots: u32,
}

/// The size of the backlog, counted up to a limit so that it may be requested often; see [`Store::backlog`](super::Store::backlog).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Backlog {
    /// Events not delivered yet, including those behind a blocked head, without parked ones.
    pub pending: u64,
    /// Age of the oldest of them by the writer's clock.
    pub oldest_pending_age: Option<Duration>,
    /// The number of blocked aggregates.
    pub blocked_aggregates: u64,
    /// The number of parked events.
    pub parked: u64,
    /// Events that are not blocked but not sent either, because no live publisher holds their slots.
    pub unpublished: u64,
    /// Slots that no live publisher holds, with events or without.
    pub free_slots: u32,
    /// Whether everything was counted; if not, each number is a lower bound.
    pub complete: bool,
}

impl Backlog {
    /// Whether events are stuck, for publishers that check every `poll`.
    pub(crate) fn is_stuck(&self, poll: Duration) -> bool {
        self.unpublished > 0 || self.oldest_pending_age.is_some_and(|age| age > old_after(poll))
    }
}

/// The status of an outbox.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Status {
    /// Events not delivered yet, including those behind a blocked head, without parked ones.
    pub pending: u64,
    /// Age of the oldest of them by the writer's clock.
    pub oldest_pending_age: Option<Duration>,
    /// The number of blocked aggregates.
    pub blocked_aggregates: u64,
    /// The first hundred of them, the longest blocked first.
    pub blocked: Vec<BlockedAggregate>,
    /// The aggregates whose head failed and will be retried, if there are any.
    pub retrying: Option<Retrying>,
    /// The number of parked events.
    pub parked: u64,
    /// Publishers, by name.
    pub publishers: Vec<PublisherStatus>,
    /// The number of slots that publishers agreed on; `None` before the first publisher registered.
    pub slots: Option<u32>,
    /// Slots that no live publisher holds.
    pub free_slots: u32,
    /// Pending events that are not blocked but not sent either, because no live publisher holds their slots. While a publisher is alive
    /// this is a lower bound, counted over 10,000 aggregates.
    pub unpublished: u64,
    /// Every event is refused, and publishers stop, until `shardwise outbox restored` has run: rows came without the values of sequence
    /// objects, as by logical replication, or a number was too low. Only in PostgreSQL.
    pub needs_restored: bool,
}

impl Status {
    /// What is stuck, for publishers that check every `poll`. Empty: events are accepted, every pending event has a live publisher, and
    /// none is older than a minute and than ten polls.
    pub fn stuck(&self, poll: Duration) -> Vec<Stuck> {
        let not_restored = self.needs_restored.then(|| Stuck { cause: StuckCause::NotRestored, detail: NOT_RESTORED.to_owned() });
        let no_publisher = (self.unpublished > 0).then(|| Stuck { cause: StuckCause::NoPublisher, detail: self.without_publisher() });
        let limit = old_after(poll);
        let old = self.oldest_pending_age.filter(|age| *age > limit);
        let old = old.map(|age| Stuck { cause: StuckCause::OldBacklog, detail: self.of_age(age, limit) });
        not_restored.into_iter().chain(no_publisher).chain(old).collect()
    }

    fn living(&self) -> usize {
        self.publishers.iter().filter(|publisher| publisher.alive).count()
    }

    fn without_publisher(&self) -> String {
        let events = if self.unpublished == 1 { "1 event waits".to_owned() } else { format!("{} events wait", self.unpublished) };
        let holders = match (self.living(), self.slots) {
            (0, None) => return format!("{events}, and no publisher has ever run: start `shardwise outbox run`"),
            (0, Some(_)) => return format!("{events}, and no publisher is alive: start `shardwise outbox run`"),
            (1, _) => "the only living publisher does not hold".to_owned(),
            (living, _) => format!("none of the {living} living publishers holds"),
        };
        let free = if self.free_slots == 1 { "1 slot".to_owned() } else { format!("{} slots", self.free_slots) };
        format!(
            "{events} in slots that {holders} ({free} without one): something else is a member of their group, or a publisher does not take its \
             slots; see `shardwise members` and the publishers' logs"
        )
    }

    /// The likely causes, most likely first.
    fn of_age(&self, age: Duration, limit: Duration) -> String {
        let cause = if self.blocked_aggregates > 0 {
            let blocked = match self.blocked_aggregates {
                1 => "1 aggregate is blocked".to_owned(),
                blocked => format!("{blocked} aggregates are blocked"),
            };
            format!("{blocked}: `shardwise outbox list` shows what blocks them")
        } else if let Some(retrying) = &self.retrying {
            let fail = match retrying.aggregates {
                1 => "1 aggregate fails and is tried again".to_owned(),
                aggregates => format!("{aggregates} aggregates fail and are tried again, the last one"),
            };
            format!("{fail} with: {}", retrying.error)
        } else if self.living() == 0 {
            "no publisher is alive".to_owned()
        } else {
            "its publishers are alive and do not keep up, or the sink accepts nothing: see their logs".to_owned()
        };
        format!("the oldest pending event has waited for {age:.0?}, more than {limit:.0?}: {cause}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publisher(alive: bool) -> PublisherStatus {
        PublisherStatus { publisher: "a".into(), incarnation: "1".into(), alive, seen_ago: Some(Duration::ZERO), slots: 3 }
    }

    fn causes(status: &Status, poll: Duration) -> Vec<&'static str> {
        status.stuck(poll).iter().map(|stuck| stuck.cause.as_str()).collect()
    }

    #[test]
    fn events_without_a_publisher_are_stuck_at_once_and_the_reason_is_named() {
        let poll = Duration::from_secs(1);
        let mut status = Status { pending: 5, unpublished: 5, oldest_pending_age: Some(Duration::ZERO), ..Status::default() };
        assert_eq!(causes(&status, poll), ["no_publisher"]);
        assert!(status.stuck(poll)[0].detail.contains("no publisher has ever run"));
        (status.slots, status.publishers) = (Some(64), vec![publisher(false)]);
        assert!(status.stuck(poll)[0].detail.contains("no publisher is alive"));
        (status.publishers, status.free_slots) = (vec![publisher(true)], 31);
        let detail = &status.stuck(poll)[0].detail;
        assert!(detail.starts_with("5 events wait in slots that the only living publisher does not hold (31 slots"), "{detail}");
        (status.publishers, status.free_slots, status.unpublished) = (vec![publisher(true), publisher(true)], 1, 1);
        let detail = &status.stuck(poll)[0].detail;
        assert!(detail.starts_with("1 event waits in slots that none of the 2 living publishers holds (1 slot without"), "{detail}");
        status.unpublished = 0;
        assert_eq!(causes(&status, poll), [""; 0]);
        status.needs_restored = true;
        assert_eq!(causes(&status, poll), ["not_restored"], "with nothing pending too");
    }

    #[test]
    fn an_old_backlog_is_stuck_by_a_minute_and_by_ten_polls() {
        let mut status = Status { pending: 1, publishers: vec![publisher(true)], ..Status::default() };
        for (age, poll, stuck) in [(60, 1, false), (61, 1, true), (61, 30, false), (300, 30, false), (301, 30, true)] {
            status.oldest_pending_age = Some(Duration::from_secs(age));
            assert_eq!(!causes(&status, Duration::from_secs(poll)).is_empty(), stuck, "{age} s, polls of {poll} s");
        }
        let detail = |status: &Status| status.stuck(Duration::from_secs(1))[0].detail.clone();
        assert!(detail(&status).contains("do not keep up"));
        status.blocked_aggregates = 2;
        assert!(detail(&status).contains("2 aggregates are blocked"));
        status.blocked_aggregates = 1;
        assert!(detail(&status).contains(": 1 aggregate is blocked: "));
    }
}
