//! The stream as a fence: a message is taken only behind the one that it must follow.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use async_nats::jetstream::stream::LastRawMessageErrorKind;

use super::connection::Live;
use super::{Failure, NatsSink, words};
use crate::Delivery;
use crate::sink::Refusal;

/// How many subjects' last messages are remembered.
const REMEMBERED_MAX: usize = 100_000;
/// How often a message that somebody overtook looks again.
const LOOKS: usize = 3;

/// The place in the stream of the last message of a subject.
#[derive(Debug, Default)]
pub(super) struct Remembered(Mutex<HashMap<String, u64>>);

impl Remembered {
    fn get(&self, subject: &str) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(subject).copied()
    }

    fn forget(&self, subject: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(subject);
    }

    fn set(&self, subject: String, place: u64) {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if places.len() >= REMEMBERED_MAX && !places.contains_key(&subject) {
            // What is forgotten is asked for again.
            places.clear();
        }
        places.insert(subject, place);
    }
}

/// The last message of a subject.
struct Last {
    place: u64,
    sequence: u64,
    epoch: u64,
}

impl NatsSink {
    /// Sends one event behind the last message of its subject, unless that is this one or a later one.
    pub(super) async fn publish_fenced(&self, live: &Live, event: &Delivery, subject: String) -> Result<(), Failure> {
        for _ in 0..LOOKS {
            let follows = match self.remembered.get(&subject) {
                Some(place) => place,
                None => match self.last_of(live, &subject).await? {
                    None => 0,
                    // It is there already: its acknowledgement was lost, or another publisher sent it.
                    Some(last) if last.sequence >= event.sequence => return Ok(()),
                    Some(last) if last.epoch > event.epoch => {
                        let text = format!("{}: a publisher with a newer epoch has sent to this subject", self.name);
                        return Err(Refusal::retryable(text).into());
                    }
                    Some(last) => last.place,
                },
            };
            match self.publish(live, event, subject.clone(), Some(follows)).await {
                Ok(place) => {
                    self.remembered.set(subject, place);
                    return Ok(());
                }
                Err(Failure::Overtaken) => self.remembered.forget(&subject),
                Err(failure) => {
                    // It may be there all the same.
                    self.remembered.forget(&subject);
                    return Err(failure);
                }
            }
        }
        Err(Failure::Overtaken)
    }

    async fn last_of(&self, live: &Live, subject: &str) -> Result<Option<Last>, Failure> {
        let message = match live.stream.get_last_raw_message_by_subject(subject).await {
            Ok(message) => message,
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => return Ok(None),
            Err(error) => {
                let text = format!("{}: the last message of {subject} cannot be read: {}", self.name, words(&error));
                return Err(Refusal::retryable(text).into());
            }
        };
        let number = |name: &str| message.headers.get(name).and_then(|value| value.as_str().parse().ok()).unwrap_or(0);
        // Somebody else's message has neither, and is followed like any other.
        Ok(Some(Last { place: message.sequence, sequence: number("ce-sequence"), epoch: number("ce-shardepoch") }))
    }
}
