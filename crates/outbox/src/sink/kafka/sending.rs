//! The events of a batch on their way into the producer, in order.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use rdkafka::message::{Header, OwnedHeaders};
use tokio::time::{Instant, sleep};

use super::config::{EVENT_BYTES_MAX, is_name};
use super::outcome::BatchOutcome;
use super::producer::{HandoverFailure, KafkaProducer, KafkaRecord};
use super::reports::{BatchReports, EventFate};
use super::{KafkaSink, refusal};
use crate::Delivery;
use crate::sink::Refusal;
use crate::sink::connection::ANSWER_WITHIN;
use crate::sink::message::BrokerMessage;

/// The pause when too much waits in the producer.
const FULL_PAUSE: Duration = Duration::from_millis(5);
/// After how many events other tasks have their turn.
const EVENTS_A_TURN: usize = 128;

/// Why the next event cannot be handed over.
enum HandoverError {
    /// The event is refused, and with it its successors.
    Event(Refusal),
    /// The producer takes nothing more.
    Producer,
}

impl KafkaSink {
    /// Hands everything over that is not done, in order. Of an aggregate that is new to this producer only the first event: returns whether
    /// others wait until that one is acknowledged. A broker accepts any first request of a producer that it does not know, and librdkafka
    /// sends one request more after a refusal, because that one is written already. Once a broker knows the producer it refuses a gap.
    pub(super) async fn hand_over(
        &self,
        live: &KafkaProducer,
        batch: &[Delivery],
        outcome: &mut BatchOutcome,
        reports: &Arc<BatchReports>,
        deadline: Instant,
    ) -> bool {
        let (fates, mut missing, mut begun, mut wait) = (reports.fates(), BTreeMap::new(), HashSet::new(), false);
        let sent = fates.iter().zip(batch).filter(|(fate, _)| **fate != EventFate::Unsent);
        let acknowledged: HashSet<_> = sent.map(|(_, event)| event.aggregate).collect();
        for (index, event) in batch.iter().enumerate() {
            if outcome.is_done(index, event) || fates[index] != EventFate::Unsent {
                continue;
            }
            let is_known = acknowledged.contains(&event.aggregate) || live.knows(event.aggregate);
            if !is_known && !begun.insert(event.aggregate) {
                wait = true;
                continue;
            }
            match self.hand_over_one(live, event, reports, index, deadline, &mut missing).await {
                Ok(()) => {}
                Err(HandoverError::Event(refusal)) => drop(outcome.refused.insert(event.aggregate, (index, refusal))),
                Err(HandoverError::Producer) => return false,
            }
            if index % EVENTS_A_TURN == EVENTS_A_TURN - 1 {
                tokio::task::yield_now().await;
            }
        }
        wait
    }

    async fn hand_over_one(
        &self,
        live: &KafkaProducer,
        event: &Delivery,
        reports: &Arc<BatchReports>,
        index: usize,
        deadline: Instant,
        missing: &mut BTreeMap<String, Refusal>,
    ) -> Result<(), HandoverError> {
        let topic = self.config.topic.unescaped(event);
        self.find_topic(live, &topic, deadline, missing).await?;
        let message = BrokerMessage::new(event, &self.config.source, self.config.mode);
        let key = self.config.key.unescaped(event);
        let (headers, header_bytes) = headers(&message);
        let bytes = message.body.len() + key.len() + header_bytes;
        if bytes > EVENT_BYTES_MAX {
            let text = format!("{}: the event has {bytes} bytes, and {EVENT_BYTES_MAX} are allowed", self.name);
            return Err(HandoverError::Event(Refusal::permanent(text)));
        }
        let record = KafkaRecord::with_opaque_to(&topic, reports.ticket(index));
        let mut record = record.key(key.as_bytes()).payload(message.body.as_slice()).headers(headers);
        loop {
            let (failure, back) = match live.send(record) {
                Ok(()) => return Ok(()),
                Err(failed) => failed,
            };
            record = back;
            match failure {
                HandoverFailure::Full if Instant::now() < deadline => sleep(FULL_PAUSE).await,
                failure => {
                    record.delivery_opaque.report(EventFate::Unsent);
                    return Err(self.not_taken(live, failure, event, &topic));
                }
            }
        }
    }

    fn not_taken(&self, live: &KafkaProducer, failure: HandoverFailure, event: &Delivery, topic: &str) -> HandoverError {
        match failure {
            HandoverFailure::Full => {
                live.time_is_over();
                HandoverError::Producer
            }
            HandoverFailure::Closed => HandoverError::Producer,
            HandoverFailure::Refused(code) => {
                HandoverError::Event(refusal::of(&self.config, code, topic, event.bytes(), true, live.trouble().as_ref()))
            }
        }
    }

    /// Finds out whether the topic takes events, before anything is sent to it.
    async fn find_topic(
        &self,
        live: &KafkaProducer,
        topic: &str,
        deadline: Instant,
        missing: &mut BTreeMap<String, Refusal>,
    ) -> Result<(), HandoverError> {
        if let Some(refusal) = missing.get(topic) {
            return Err(HandoverError::Event(refusal.clone()));
        }
        if !is_name(topic) {
            return Err(HandoverError::Event(Refusal::permanent(format!(
                "{}: the event's topic would be {:?}, and a topic has at most 249 ASCII letters, digits, dots, _ and -: give sink_to other \
                 fields",
                self.name,
                crate::one_line(topic, 100)
            ))));
        }
        if live.knows_topic(topic) {
            return Ok(());
        }
        // Many topics that no broker answers for would hold the batch up for a multiple of its time.
        let now = Instant::now();
        if now >= deadline {
            live.time_is_over();
        }
        if live.is_given_up() {
            return Err(HandoverError::Producer);
        }
        let code = tokio::select! {
            biased;
            () = live.given_up() => return Err(HandoverError::Producer),
            code = live.topic_error(topic, ANSWER_WITHIN.min(deadline - now)) => code,
        };
        let Some(code) = code else { return Ok(()) };
        let refusal = refusal::of_topic(&self.config, code, topic, live.trouble().as_ref());
        missing.insert(topic.to_owned(), refusal.clone());
        Err(HandoverError::Event(refusal))
    }
}

/// The headers, and their approximate size in bytes.
fn headers(message: &BrokerMessage) -> (OwnedHeaders, usize) {
    let mut headers = OwnedHeaders::new_with_capacity(message.attributes.len() + message.trace.len() + 1);
    let (mut bytes, mut name) = (0, String::from("ce_"));
    let mut add = |headers: OwnedHeaders, key: &str, value: &str| {
        bytes += key.len() + value.len() + 4;
        headers.insert(Header { key, value: Some(value) })
    };
    for (attribute, value) in &message.attributes {
        name.truncate(3);
        name.push_str(attribute);
        headers = add(headers, &name, value);
    }
    if let Some(content_type) = &message.content_type {
        headers = add(headers, "content-type", content_type);
    }
    for (key, value) in &message.trace {
        headers = add(headers, key, value);
    }
    (headers, bytes)
}
