//! Whether the stream is still the one that this process knows, and one rising line of revisions if it is not.
//!
//! Sequences of a stream rise. A publish that began after a sequence was seen gets a higher one; if not, acknowledged messages are lost: an
//! older copy was restored, or an election went wrong. That, and a stream that was made at another time, begins a new *era* here, in which
//! revisions go on above all that were shown before.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Failure, NatsResult};

/// What was known before a request was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BeforeRequest {
    /// How often an era has begun.
    pub(crate) era: u64,
    /// The highest sequence that was seen in it.
    pub(crate) sequence: u64,
}

/// What the connections of one backend have seen.
#[derive(Debug, Default)]
pub(crate) struct StreamHistory(Mutex<SeenStream>);

#[derive(Debug, Default)]
struct SeenStream {
    era: u64,
    /// When the stream was made, by its own account.
    created: Option<String>,
    sequence: u64,
    /// The highest revision shown.
    shown: u64,
    /// What is added to the revisions of this era.
    offset: u64,
}

impl SeenStream {
    fn begin_era(&mut self) {
        *self = Self { era: self.era + 1, created: None, sequence: 0, shown: self.shown, offset: self.shown + 1 };
    }
}

impl StreamHistory {
    fn seen(&self) -> MutexGuard<'_, SeenStream> {
        // Nothing under this lock can panic halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be asked before a request is sent.
    pub(crate) fn now(&self) -> BeforeRequest {
        let SeenStream { era, sequence, .. } = *self.seen();
        BeforeRequest { era, sequence }
    }

    /// The stream was described.
    pub(crate) fn describe(&self, created: &str) {
        let mut seen = self.seen();
        if seen.created.as_deref().is_some_and(|known| known != created) {
            tracing::warn!(from = seen.created, to = created, "the bucket was recreated; all groups are read again");
            seen.begin_era();
        }
        seen.created = Some(created.to_owned());
    }

    /// A publish was acknowledged with that sequence. One that crosses the beginning of an era belongs to none.
    pub(crate) fn acknowledge(&self, before: BeforeRequest, sequence: u64) -> NatsResult<()> {
        let mut seen = self.seen();
        if seen.era != before.era {
            return Err(Failure::Replaced);
        }
        if sequence <= before.sequence {
            tracing::warn!(
                seen = before.sequence,
                acknowledged = sequence,
                "the stream has lost messages that it had acknowledged: an older copy was restored, or an election lost them; all groups are \
                 read again"
            );
            let created = seen.created.take();
            seen.begin_era();
            seen.created = created;
        }
        seen.sequence = seen.sequence.max(sequence);
        Ok(())
    }

    /// A message with that sequence was seen, asked for in that era.
    pub(crate) fn saw(&self, era: u64, sequence: u64) -> NatsResult<()> {
        let mut seen = self.seen();
        if seen.era != era {
            return Err(Failure::Replaced);
        }
        seen.sequence = seen.sequence.max(sequence);
        Ok(())
    }

    /// What to show for the revision of a group that was read in that era.
    pub(crate) fn show(&self, era: u64, revision: u64) -> NatsResult<u64> {
        let mut seen = self.seen();
        if seen.era != era {
            return Err(Failure::Replaced);
        }
        let shown = seen.offset.saturating_add(revision);
        seen.shown = seen.shown.max(shown);
        Ok(shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_that_overtake_each_other_are_no_new_era() {
        let history = StreamHistory::default();
        let (first, second) = (history.now(), history.now());
        history.acknowledge(second, 8).unwrap();
        history.acknowledge(first, 7).unwrap();
        history.acknowledge(history.now(), 9).unwrap();
        assert_eq!(history.now(), BeforeRequest { era: 0, sequence: 9 });
    }

    #[test]
    fn a_sequence_that_falls_or_another_stream_is_a_new_era_with_higher_revisions() {
        let history = StreamHistory::default();
        history.describe("monday");
        history.acknowledge(history.now(), 100).unwrap();
        assert_eq!(history.show(0, 41).ok(), Some(41));
        let early = history.now();
        history.acknowledge(history.now(), 100).unwrap();
        assert_eq!(history.now(), BeforeRequest { era: 1, sequence: 100 });
        assert!(history.acknowledge(early, 101).is_err(), "of the old era or of the new one?");
        assert!(history.show(0, 42).is_err() && history.saw(0, 101).is_err());
        assert_eq!(history.show(1, 3).ok(), Some(45));
        history.describe("monday");
        assert_eq!(history.now().era, 1);
        history.describe("tuesday");
        assert_eq!((history.now().era, history.show(2, 0).ok()), (2, Some(46)));
    }
}
