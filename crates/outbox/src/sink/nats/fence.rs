//! The stream as a fence: it accepts a message only if the message that it must follow is the subject's last one.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{LastRawMessageError, LastRawMessageErrorKind};

use super::connection::NatsConnection;
use super::{NatsSink, PublishFailure};
use crate::Delivery;
use crate::sink::Refusal;
use crate::sink::connection::words;
use crate::sink::message::header_value;

/// The number of subjects whose last messages are remembered.
const REMEMBERED_MAX: usize = 100_000;
/// How often a message that was overtaken checks the stream again.
const READS: usize = 3;

/// Subject to the position of its last message in the stream, and that message's sequence.
#[derive(Debug, Default)]
pub(super) struct LastPositions(Mutex<HashMap<String, (u64, u64)>>);

impl LastPositions {
    /// The position that an event with this sequence must follow; `None` for an event that is not later than the last one, which needs a
    /// closer check.
    fn before(&self, subject: &str, sequence: u64) -> Option<u64> {
        let places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        places.get(subject).filter(|(_, last)| *last < sequence).map(|(place, _)| *place)
    }

    fn forget(&self, subject: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(subject);
    }

    fn set(&self, subject: String, place: u64, sequence: u64) {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if places.len() >= REMEMBERED_MAX && !places.contains_key(&subject) {
            // Forgotten positions are requested again.
            places.clear();
        }
        places.insert(subject, (place, sequence));
    }
}

/// A message of a subject, with the event data in its headers.
struct StreamEvent {
    place: u64,
    sequence: u64,
    epoch: u64,
    id: Option<String>,
    source: Option<String>,
}

impl From<StreamMessage> for StreamEvent {
    fn from(message: StreamMessage) -> Self {
        let text = |name: &str| message.headers.get(name).map(|value| value.as_str().to_owned());
        // Another program's message may have no such headers, and is followed like any other.
        let number = |name: &str| text(name).and_then(|value| value.parse().ok()).unwrap_or(0);
        Self {
            place: message.sequence,
            sequence: number("ce-sequence"),
            epoch: number("ce-shardepoch"),
            id: text("ce-id"),
            source: text("ce-source"),
        }
    }
}

impl NatsSink {
    /// Sends one event after the last message of its subject, unless it is already there.
    pub(super) async fn publish_fenced(&self, live: &NatsConnection, event: &Delivery, subject: String) -> Result<(), PublishFailure> {
        for _ in 0..READS {
            let follows = match self.remembered.before(&subject, event.sequence) {
                Some(place) => place,
                None => match self.last_of(live, &subject).await? {
                    None => 0,
                    Some(last) if last.epoch > event.epoch => {
                        let text = format!(
                            "{}: a publisher with a newer epoch has sent to {subject}; if there is none, it was another outbox: use another \
                             subject",
                            self.name
                        );
                        return Err(Refusal::retryable(text).into());
                    }
                    // Its acknowledgement was lost, or another publisher sent it; or another outbox wrote to this subject.
                    Some(last) if last.sequence >= event.sequence => return self.is_there(live, event, &subject, last).await,
                    Some(last) => last.place,
                },
            };
            match self.publish(live, event, subject.clone(), Some(follows)).await {
                Ok(place) => {
                    self.remembered.set(subject, place, event.sequence);
                    return Ok(());
                }
                Err(PublishFailure::Overtaken) => self.remembered.forget(&subject),
                Err(failure) => {
                    // The message may have arrived all the same.
                    self.remembered.forget(&subject);
                    return Err(failure);
                }
            }
        }
        Err(PublishFailure::Overtaken)
    }

    /// Whether the message in the subject at this event's sequence is this very event. Treating another message as this event would lose
    /// the event.
    async fn is_there(&self, live: &NatsConnection, event: &Delivery, subject: &str, last: StreamEvent) -> Result<(), PublishFailure> {
        let source = header_value(&self.config.source);
        let ours = |there: &StreamEvent| there.source.as_ref() == Some(&source);
        let other = || {
            let text = format!(
                "{}: {subject} has another event at this place: it is another outbox's, or this outbox was recreated; use another subject",
                self.name
            );
            Err(Refusal::permanent(text).into())
        };
        if !ours(&last) {
            return other();
        }
        let Some(there) = self.find(live, event.sequence, subject, last).await? else {
            let text = format!(
                "{}: {subject} has later events but not this one, and it cannot be inserted before them: it was removed, or \
                 this is an old event replayed, or this outbox was recreated; use another subject",
                self.name
            );
            return Err(Refusal::permanent(text).into());
        };
        if ours(&there) && there.id == Some(header_value(&event.id)) { Ok(()) } else { other() }
    }

    /// Finds the message of a sequence by binary search: sequences grow with the positions.
    async fn find(
        &self,
        live: &NatsConnection,
        sequence: u64,
        subject: &str,
        last: StreamEvent,
    ) -> Result<Option<StreamEvent>, PublishFailure> {
        let (mut from, mut to) = (1, last.place);
        let mut there = last;
        while there.sequence != sequence {
            if from >= to {
                return Ok(None);
            }
            let middle = from + (to - from) / 2;
            there = match live.stream.get_first_raw_message_by_subject(subject, middle).await {
                Ok(message) => message.into(),
                Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => return Ok(None),
                Err(error) => return Err(self.unread(subject, &error)),
            };
            if there.sequence < sequence {
                from = there.place + 1;
            } else {
                to = middle;
            }
        }
        Ok(Some(there))
    }

    async fn last_of(&self, live: &NatsConnection, subject: &str) -> Result<Option<StreamEvent>, PublishFailure> {
        match live.stream.get_last_raw_message_by_subject(subject).await {
            Ok(message) => Ok(Some(message.into())),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(self.unread(subject, &error)),
        }
    }

    fn unread(&self, subject: &str, error: &LastRawMessageError) -> PublishFailure {
        Refusal::retryable(format!("{}: the messages of {subject} cannot be read: {}", self.name, words(error))).into()
    }
}
