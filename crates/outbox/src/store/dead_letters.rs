//! Dead letters: events that are parked or block their aggregate, and an operator's actions on them.

use std::time::Duration;

use async_trait::async_trait;

use crate::{Error, ErrorKind, Result, one_line};

/// The most dead letters or audit entries that one call reads.
pub const LIST_MAX: usize = 10_000;
/// The most events that [`DeadLetters::replay_aggregate`] moves in one transaction. During it the aggregate's slot can be neither marked
/// nor taken, and its holder's other slots wait as well.
pub const REPLAY_EVENTS_MAX: usize = 10_000;
const WORDS_CHARS_MAX: usize = 500;

/// Who acts, and why: written to the outbox's audit table (`outbox_audit`) in the same transaction as the action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    who: String,
    why: String,
}

impl Signature {
    /// Both are kept on one line and cut to 500 characters. [`ErrorKind::Settings`] if one of them is empty.
    pub fn new(who: &str, why: &str) -> Result<Self> {
        let signature = Self { who: one_line(who, WORDS_CHARS_MAX), why: one_line(why, WORDS_CHARS_MAX) };
        if signature.who.is_empty() || signature.why.is_empty() {
            return Err(Error::new(ErrorKind::Settings, "who does this, and why? Both go into the outbox's record and may not be empty"));
        }
        Ok(signature)
    }

    /// Who.
    pub fn who(&self) -> &str {
        &self.who
    }

    /// Why.
    pub fn why(&self) -> &str {
        &self.why
    }
}

/// The state of a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeadState {
    /// Set aside; its aggregate has continued.
    Parked,
    /// At the head of its aggregate, which waits.
    Blocked,
}

impl DeadState {
    /// The name in messages and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Parked => "parked",
            Self::Blocked => "blocked",
        }
    }
}

/// An event that was given up for the time being.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Column `id`.
    pub id: String,
    /// Its aggregate's key, `aggregatetype/aggregateid`.
    pub key: String,
    /// Column `type`.
    pub event_type: String,
    /// Its place in the aggregate's order; numbers in between may never have been given.
    pub sequence: u64,
    /// Set aside, or at the head of a blocked aggregate.
    pub state: DeadState,
    /// How long it has been dead.
    pub dead_for: Duration,
    /// The sink's message on one line, safe for a terminal, at most [`ERROR_CHARS_MAX`](super::ERROR_CHARS_MAX) characters.
    pub error: String,
    /// The size of its payload in bytes.
    pub payload_bytes: u64,
    /// The original sequence, if the event was sent again before.
    pub replayed: Option<u64>,
}

/// The result of sending one event again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayResult {
    /// It was parked: it is now the newest event of its aggregate, with this sequence, and is delivered as `replayed`.
    Appended {
        /// The new sequence.
        sequence: u64,
    },
    /// It blocked its aggregate, which now continues with it. That keeps the order and is not a replay.
    Unblocked,
}

/// The events of an aggregate that are sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResendResult {
    /// The number of events, beginning with the one that was parked.
    pub events: u64,
    /// The number of events in between that no longer exist: retention or an operator has deleted them. `None` if the store cannot know
    /// it, because its sequences jump: on PostgreSQL.
    pub gone: Option<u64>,
    /// The first new sequence.
    pub from: u64,
}

/// An entry of the audit table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// How long ago it was written.
    pub ago: Duration,
    /// Who acted: a person, or a publisher.
    pub who: String,
    /// `replay`, `unblock`, `replay-aggregate`, `discard` or `expire`.
    pub action: String,
    /// The event; for `replay-aggregate` the first one.
    pub event: String,
    /// Its aggregate's key.
    pub key: String,
    /// The sequence that the event had.
    pub sequence: u64,
    /// How many events were affected.
    pub events: u64,
    /// The reason.
    pub why: String,
}

/// An operator's actions on dead letters. Each call that changes something is one transaction together with its audit entry; a repeated
/// call changes nothing.
///
/// No action changes an event that a publisher may have in memory. Parked events are behind the aggregate's mark, and blocked events
/// are not read. To send an aggregate again, its slot is taken from its holder, so that the holder cannot mark what it sent before.
#[async_trait]
pub trait DeadLetters: Send + Sync + 'static {
    /// Dead letters of one aggregate or of all: first the blocked ones, then the parked ones, the oldest first; at most `limit`, and never
    /// more than [`LIST_MAX`].
    async fn dead_letters(&self, key: Option<&str>, limit: usize) -> Result<Vec<DeadLetter>>;

    /// Sends the event with this id again. An event that was parked becomes the newest one of its aggregate: consumers that drop events not
    /// newer than those they have seen accept it, and nothing is sent out of order. `None`: it is not a dead letter.
    async fn replay(&self, id: &str, by: &Signature) -> Result<Option<ReplayResult>>;

    /// Sends an aggregate's events again, from the first one that is parked or from `from`, in order and with new sequences above all
    /// former ones. Events that were delivered before are marked `replayed`. The aggregate's slot is taken from its holder as in a
    /// takeover: events of that slot in flight may arrive twice. `None`: nothing of the aggregate is parked, or `from` is not.
    /// [`ErrorKind::Event`] if more than `events_max` events follow from there; nothing is changed then.
    async fn replay_aggregate(&self, key: &str, from: Option<&str>, events_max: usize, by: &Signature) -> Result<Option<ResendResult>>;

    /// Deletes a dead letter; a blocked aggregate continues behind it. `false`: it is not a dead letter.
    async fn discard(&self, id: &str, by: &Signature) -> Result<bool>;

    /// The audit entries, the newest first; at most `limit`, and never more than [`LIST_MAX`].
    async fn audit(&self, limit: usize) -> Result<Vec<AuditEntry>>;
}

/// The error for an aggregate with too many events to move at once.
pub(crate) fn too_many(key: &str, events: u64, events_max: usize) -> Error {
    let text = format!(
        "{key} has {events} events from there on, more than {events_max}: allow more (at most {REPLAY_EVENTS_MAX}), begin at a later one that is \
         parked, or replay the parked events one by one"
    );
    Error::new(ErrorKind::Event, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_action_passes_without_a_name_and_a_reason() {
        for (who, why) in [("", "x"), ("x", ""), (" \n", "x")] {
            assert_eq!(Signature::new(who, why).unwrap_err().kind(), ErrorKind::Settings);
        }
        let signature = Signature::new("ann\n", "the\u{1b}[31m\nbroker\0").unwrap();
        assert_eq!((signature.who(), signature.why()), ("ann", r"the\u{1b}[31m broker\u{0}"));
    }
}
