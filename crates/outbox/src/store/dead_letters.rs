//! Dead letters: events that are set aside or stand at the head of a blocked aggregate, and what an operator does with them.

use std::time::Duration;

use async_trait::async_trait;

use crate::{Error, ErrorKind, Result, one_line};

/// The most dead letters or lines of the record that are read at once.
pub const LIST_MAX: usize = 10_000;
/// The most events that [`DeadLetters::replay_aggregate`] moves in one transaction: while it does, the aggregate's slot can neither be marked
/// nor taken, and its holder's other slots wait with it.
pub const REPLAY_EVENTS_MAX: usize = 10_000;
/// The most characters of who and of why.
const WORDS_CHARS_MAX: usize = 500;

/// Who acts, and why: goes into the outbox's record (`outbox_audit`) in the same transaction as what is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    who: String,
    why: String,
}

impl Signature {
    /// Both are needed; they are kept on one line and at most 500 characters long.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`] if one of them is empty.
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

/// What a dead letter waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeadState {
    /// Set aside; its aggregate has gone on.
    Parked,
    /// At the head of its aggregate, which waits.
    Blocked,
}

impl DeadState {
    /// Its name for people and programs.
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
    /// Its place in the aggregate's order.
    pub sequence: u64,
    /// Set aside, or at the head of a blocked aggregate.
    pub state: DeadState,
    /// Since when.
    pub dead_for: Duration,
    /// The sink's own words on one line, safe for a terminal, at most [`ERROR_CHARS_MAX`](super::ERROR_CHARS_MAX) characters.
    pub error: String,
    /// The size of its payload in bytes.
    pub payload_bytes: u64,
    /// The sequence that it had first, if it was sent again before.
    pub replayed: Option<u64>,
}

/// What became of one event that was to be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayResult {
    /// It was set aside: now it is the newest event of its aggregate, under this sequence, and is delivered as `replayed`.
    Appended {
        /// The new sequence.
        sequence: u64,
    },
    /// It is at the head of a blocked aggregate, which goes on with it. That is in order, and no replay.
    Unblocked,
}

/// What of an aggregate is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResendResult {
    /// Events from the one that was set aside on.
    pub events: u64,
    /// Events in between that are no longer there: retention or somebody has deleted them.
    pub gone: u64,
    /// The first sequence from now on.
    pub from: u64,
}

/// A line of the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// How long ago.
    pub ago: Duration,
    /// Who: a person, or a publisher.
    pub who: String,
    /// `replay`, `unblock`, `replay-aggregate`, `discard` or `expire`.
    pub action: String,
    /// The event, of `replay-aggregate` the first one.
    pub event: String,
    /// Its aggregate's key.
    pub key: String,
    /// The sequence that it had.
    pub sequence: u64,
    /// How many events it was about.
    pub events: u64,
    /// Why.
    pub why: String,
}

/// What an operator does with dead letters. Each call that changes something is one transaction, together with its line in the record;
/// doing it twice changes nothing the second time.
///
/// Nothing here touches an event that a publisher may have in its hands. What is set aside is behind the aggregate's mark, and what is
/// blocked is not read; to send an aggregate again, its slot is taken from whoever holds it, so that nothing that was sent before is
/// marked after.
#[async_trait]
pub trait DeadLetters: Send + Sync + 'static {
    /// Dead letters, of one aggregate or of all: the blocked ones first, then those set aside, the oldest first; `limit` at most, and never
    /// more than [`LIST_MAX`].
    async fn dead_letters(&self, key: Option<&str>, limit: usize) -> Result<Vec<DeadLetter>>;

    /// Sends the event of this id again. `None`: it is not a dead letter.
    ///
    /// One that was set aside becomes the newest event of its aggregate: consumers that drop what is not newer than what they have seen take
    /// it, and nothing is sent past its place.
    async fn replay(&self, id: &str, by: &Signature) -> Result<Option<ReplayResult>>;

    /// Sends an aggregate's events again from the first one on that is set aside, or from `from`, in their order and under sequences above all
    /// former ones. Those that were delivered before are `replayed`. The aggregate's slot changes hands like at a takeover: what is in
    /// flight of that slot may arrive twice. `None`: nothing of the aggregate is set aside, or not `from`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Event`] if there are more than `events_max` events from there on; nothing is done then.
    async fn replay_aggregate(&self, key: &str, from: Option<&str>, events_max: usize, by: &Signature) -> Result<Option<ResendResult>>;

    /// Deletes a dead letter; a blocked aggregate goes on behind it. `false`: it is not a dead letter.
    async fn discard(&self, id: &str, by: &Signature) -> Result<bool>;

    /// The record, the newest line first; `limit` at most, and never more than [`LIST_MAX`].
    async fn audit(&self, limit: usize) -> Result<Vec<AuditEntry>>;
}

/// The error for an aggregate with more events than may be moved at once.
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
    fn nobody_acts_without_a_name_and_a_reason() {
        for (who, why) in [("", "x"), ("x", ""), (" \n", "x")] {
            assert_eq!(Signature::new(who, why).unwrap_err().kind(), ErrorKind::Settings);
        }
        let signature = Signature::new("ann\n", "the\u{1b}[31m\nbroker\0").unwrap();
        assert_eq!((signature.who(), signature.why()), ("ann", r"the\u{1b}[31m broker\u{0}"));
    }
}
