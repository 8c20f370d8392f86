//! A push consumer: the last message of each subject, and then every later one, in the order of their sequences. It lives in the memory of
//! one server. What it misses is noticed by its own count or by missed heartbeats, and then the reader makes another one.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{Message, Subscriber};
use bytes::Bytes;
use futures::StreamExt as _;
use tokio::time::{Instant, timeout_at};

use crate::connection::BucketConnection;
use crate::error::{Failure, NatsResult};
use crate::jetstream;
use crate::names::Bucket;
use crate::refusals::AwaitedRefusal;

/// How often the server says that there is nothing to say.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Two missed heartbeats, and a busy machine.
const SILENCE_LIMIT: Duration = Duration::from_millis(2_500);
/// Of a heartbeat or a request for flow control, which are no messages of the stream.
const STATUS_IDLE: u16 = 100;
const LAST_CONSUMER: &str = "Nats-Last-Consumer";
const STALLED: &str = "Nats-Consumer-Stalled";
/// Headers of a message that says that a key is gone: of clients, with `DEL` or `PURGE`, and of servers.
const OPERATION: &str = "KV-Operation";
const MARKER_REASON: &str = "Nats-Marker-Reason";

/// A message of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StreamDelivery {
    pub(crate) subject: String,
    pub(crate) sequence: u64,
    /// When the server took it, in nanoseconds since 1970. Only for how old it is beside others.
    pub(crate) stored_at: u64,
    pub(crate) payload: Bytes,
    /// Its headers say that the key is gone.
    pub(crate) is_marker: bool,
}

/// A consumer and where it is.
pub(crate) struct PushConsumer {
    connection: Arc<BucketConnection>,
    bucket: Bucket,
    name: String,
    messages: Subscriber,
    /// The consumer's own count.
    counted: u64,
    heard: Instant,
    /// The subject at which a request for flow control expects its answer.
    answer: Option<String>,
    /// The last such answer. Without the right to it the server stops sending, and its heartbeats go on.
    answered: Option<AwaitedRefusal>,
    /// How many messages the list has that were not delivered yet.
    listing: u64,
}

impl PushConsumer {
    /// Makes a consumer of these subjects.
    pub(crate) async fn open(connection: Arc<BucketConnection>, bucket: &Bucket, filters: &[String]) -> NatsResult<Self> {
        let (inbox, messages) = connection.inbox().await?;
        let name = format!("shardwise-{:016x}", rand::random::<u64>());
        let listing = jetstream::create_consumer(&connection, bucket, &name, &inbox, filters, HEARTBEAT).await?;
        let (bucket, heard) = (bucket.clone(), Instant::now());
        Ok(Self { connection, bucket, name, messages, counted: 0, heard, answer: None, answered: None, listing })
    }

    /// Whether everything that was there when it was made has been delivered.
    pub(crate) const fn has_listed(&self) -> bool {
        self.listing == 0
    }

    /// The next message. May be dropped at any point without losing one.
    pub(crate) async fn next(&mut self) -> NatsResult<StreamDelivery> {
        loop {
            if let Some(subject) = self.answer.clone() {
                self.answered = Some(self.connection.send(subject).await?);
                self.answer = None;
            }
            let answered = self.answered.as_ref();
            let refused = async {
                match answered {
                    Some(answered) => self.connection.refused(answered).await,
                    None => std::future::pending().await,
                }
            };
            let until = self.heard + SILENCE_LIMIT;
            let message = tokio::select! {
                message = timeout_at(until, self.messages.next()) => message,
                failure = refused => return Err(failure),
                () = self.connection.broke() => return Err(Failure::Broken),
            };
            let Ok(Some(message)) = message else { return Err(Failure::Missed) };
            self.heard = Instant::now();
            if let Some(delivery) = self.take(message)? {
                return Ok(delivery);
            }
        }
    }

    fn take(&mut self, message: Message) -> NatsResult<Option<StreamDelivery>> {
        if let Some(status) = message.status {
            return if status.as_u16() == STATUS_IDLE { self.take_idle(&message).map(|()| None) } else { Err(Failure::Missed) };
        }
        let place = message.reply.as_ref().and_then(|reply| DeliveryPlace::read(reply.as_str())).ok_or(Failure::Missed)?;
        if place.consumer != self.counted + 1 {
            return Err(Failure::Missed);
        }
        self.counted = place.consumer;
        self.listing = if place.pending == 0 { 0 } else { self.listing.saturating_sub(1) };
        let DeliveryPlace { stream: sequence, stored_at, .. } = place;
        let is_marker =
            message.headers.as_ref().is_some_and(|headers| [OPERATION, MARKER_REASON].iter().any(|name| headers.get(*name).is_some()));
        Ok(Some(StreamDelivery { subject: message.subject.into_string(), sequence, stored_at, payload: message.payload, is_marker }))
    }

    /// A heartbeat says how many messages were sent. One that was not received is missed: they arrive in order.
    fn take_idle(&mut self, message: &Message) -> NatsResult<()> {
        let header = |name: &str| message.headers.as_ref().and_then(|headers| headers.get(name)).map(|value| value.as_str().to_owned());
        self.answer = message.reply.as_ref().map(|reply| reply.as_str().to_owned()).or_else(|| header(STALLED));
        let sent = header(LAST_CONSUMER).and_then(|sent| sent.parse::<u64>().ok());
        if sent.is_some_and(|sent| sent != self.counted) { Err(Failure::Missed) } else { Ok(()) }
    }
}

impl Drop for PushConsumer {
    /// Deletes it at the server, which would do so by itself some seconds later.
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (connection, bucket, name) = (Arc::clone(&self.connection), self.bucket.clone(), std::mem::take(&mut self.name));
        if !connection.is_broken() {
            runtime.spawn(async move {
                let _ = jetstream::delete_consumer(&connection, &bucket, &name).await;
            });
        }
    }
}

/// What the subject for the acknowledgement of a message says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeliveryPlace {
    stream: u64,
    consumer: u64,
    stored_at: u64,
    pending: u64,
}

impl DeliveryPlace {
    /// `$JS.ACK.<stream>.<consumer>.<deliveries>.<stream sequence>.<consumer sequence>.<time>.<pending>`, or the same with the domain and
    /// the account behind `ACK`.
    pub(crate) fn read(reply: &str) -> Option<Self> {
        let tokens: Vec<_> = reply.strip_prefix("$JS.ACK.")?.split('.').collect();
        let first = match tokens.len() {
            7 => 3,
            9.. => 5,
            _ => return None,
        };
        let number = |index: usize| tokens.get(first + index).and_then(|token| token.parse().ok());
        Some(Self { stream: number(0)?, consumer: number(1)?, stored_at: number(2)?, pending: number(3)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_message_is_read_in_both_forms() {
        let place = DeliveryPlace { stream: 50, consumer: 9, stored_at: 1_700_000_000_000_000_000, pending: 3 };
        for reply in [
            "$JS.ACK.KV_b.c.1.50.9.1700000000000000000.3",
            "$JS.ACK._.hash.KV_b.c.1.50.9.1700000000000000000.3",
            "$JS.ACK.hub.hash.KV_b.c.1.50.9.1700000000000000000.3.rand",
        ] {
            assert_eq!(DeliveryPlace::read(reply), Some(place), "{reply}");
        }
        for reply in ["", "$JS.ACK.", "$JS.ACK.KV_b.c.1.50.9.1700000000000000000", "$JS.ACK.KV_b.c.1.x.9.1.3", "_INBOX.a"] {
            assert_eq!(DeliveryPlace::read(reply), None, "{reply}");
        }
    }
}
