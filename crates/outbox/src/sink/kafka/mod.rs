//! Kafka, by librdkafka.
//!
//! Order: a batch is handed over at once, except that an aggregate that is new to the producer is begun with one event, and the brokers get
//! one request at a time from each connection. librdkafka repeats a request of unknown fate before the next one. If an event fails, the
//! producer is given up with all that waits in it. So an aggregate's events may be repeated, but none comes for the first time before the
//! ones that it must follow.

mod config;
mod events;
mod outcome;
mod producer;
mod refusal;
mod reports;
mod sending;
mod started_aggregates;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, sleep_until, timeout};

pub use self::config::KafkaConfig;
use self::events::ProducerTrouble;
use self::outcome::BatchOutcome;
use self::producer::KafkaProducer;
use self::refusal::described;
use self::reports::{BatchReports, EventFate};
use super::connection::{ANSWER_WITHIN, Connection};
use super::{Acceptance, Refusal, Sink, SinkLimits};
use crate::{Delivery, Error, Result};

/// How long each request has one event after the brokers refused a request of several.
const SINGLY_FOR: Duration = Duration::from_mins(1);
/// How long the reports of a producer that was given up may take. They need no broker.
const REPORTS_WITHIN: Duration = Duration::from_secs(1);
/// Publishes events to Kafka topics, as `CloudEvents`; an event is accepted once all replicas in sync have it.
#[derive(Debug)]
pub struct KafkaSink {
    config: KafkaConfig,
    name: String,
    connection: Connection<KafkaProducer>,
    singly_until: Mutex<Option<Instant>>,
}

/// A batch that waits for its reports. If it is dropped meanwhile, what waits in the producer would be sent late.
struct PendingBatch<'a> {
    live: &'a KafkaProducer,
    waiting: bool,
}

impl Drop for PendingBatch<'_> {
    fn drop(&mut self) {
        if self.waiting {
            self.live.give_up(ProducerTrouble::Abandoned);
        }
    }
}

impl KafkaSink {
    /// Creates a sink that connects when it is used.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`](crate::ErrorKind::Settings): an invalid topic, or options that exclude each other.
    pub fn new(config: KafkaConfig) -> Result<Self> {
        let config = config.validated()?;
        let name = format!("kafka {}", config.place);
        Ok(Self { config, name, connection: Connection::default(), singly_until: Mutex::default() })
    }

    async fn live(&self) -> Result<Arc<KafkaProducer>> {
        let until = *self.singly_until.lock().unwrap_or_else(PoisonError::into_inner);
        let singly = until.is_some_and(|until| Instant::now() < until);
        let is_broken = |live: &KafkaProducer| live.is_given_up() || live.singly != singly;
        self.connection.get(is_broken, KafkaProducer::open(&self.config, singly)).await
    }

    fn send_singly(&self) {
        *self.singly_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + SINGLY_FOR);
        tracing::warn!(
            sink = self.name.as_str(),
            "the brokers refused a request of several events, so each is sent alone for {SINGLY_FOR:?}, which is slow; if this comes \
             again, raise the topic's max.message.bytes to 1 MiB or more"
        );
    }

    /// Sends what is left of the batch. Returns whether another attempt with single events is needed to find out which one is refused.
    async fn attempt(&self, live: &KafkaProducer, batch: &[Delivery], outcome: &mut BatchOutcome) -> bool {
        let deadline = Instant::now() + self.config.timeout;
        let reports = BatchReports::new(batch.len());
        let mut pending = PendingBatch { live, waiting: true };
        let settled = loop {
            let others_wait = self.hand_over(live, batch, outcome, &reports, deadline).await;
            let settled = settle(live, &reports, deadline).await;
            if !others_wait || settled != BatchEnd::Reported {
                break settled;
            }
        };
        pending.waiting = false;
        self.judge(live, batch, outcome, &reports.fates(), settled)
    }

    /// Adds the fates to the outcome.
    fn judge(&self, live: &KafkaProducer, batch: &[Delivery], outcome: &mut BatchOutcome, fates: &[EventFate], settled: BatchEnd) -> bool {
        let (trouble, ended_by_others) = (live.trouble(), live.ended_by_others(settled == BatchEnd::OutOfTime));
        // Of a batch that was tried in part, what was not tried is not the cause.
        let is_tried = fates.iter().any(|fate| matches!(fate, EventFate::Failed(_) | EventFate::Open));
        let without_answer = |by_others: bool| {
            let reason = described(&self.config, trouble.as_ref());
            if by_others { Refusal::blameless(reason) } else { Refusal::retryable(reason) }
        };
        let (mut failed, mut together) = (BTreeMap::new(), false);
        for (index, event) in batch.iter().enumerate() {
            if outcome.is_done(index, event) || failed.contains_key(&event.aggregate) {
                continue;
            }
            let refusal = match fates[index] {
                EventFate::Accepted => {
                    outcome.accepted[index] = true;
                    continue;
                }
                EventFate::Failed(code) if refusal::is_without_answer(code) => without_answer(ended_by_others),
                EventFate::Failed(code) => {
                    together |= !live.singly && refusal::is_of_some_event(code);
                    let topic = self.config.topic.unescaped(event);
                    refusal::of(&self.config, code, &topic, event.bytes(), live.singly, trouble.as_ref())
                }
                EventFate::Open => without_answer(ended_by_others),
                EventFate::Unsent => without_answer(ended_by_others || is_tried),
            };
            failed.insert(event.aggregate, (index, refusal));
        }
        let accepted = batch.iter().zip(fates).filter(|(_, fate)| **fate == EventFate::Accepted);
        live.remember(accepted.map(|(event, _)| event.aggregate));
        if failed.is_empty() {
            live.reachable();
        } else if !together {
            // Each is before the one that was refused when it was handed over.
            outcome.refused.extend(failed);
        }
        together
    }
}

/// How the wait for reports ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BatchEnd {
    /// Each event has its report, and the producer can go on.
    Reported,
    /// The producer was given up within this batch's time.
    GivenUp,
    /// This batch's time was over.
    OutOfTime,
}

/// Waits for the reports of what was handed over.
async fn settle(live: &KafkaProducer, reports: &BatchReports, deadline: Instant) -> BatchEnd {
    let settled = tokio::select! {
        biased;
        () = live.given_up() => if Instant::now() < deadline { BatchEnd::GivenUp } else { BatchEnd::OutOfTime },
        () = reports.settled() => return BatchEnd::Reported,
        () = sleep_until(deadline) => {
            live.time_is_over();
            BatchEnd::OutOfTime
        }
    };
    // An event without a report even then is one of unknown fate.
    let _ = timeout(REPORTS_WITHIN, reports.settled()).await;
    settled
}

#[async_trait]
impl Sink for KafkaSink {
    fn name(&self) -> &str {
        &self.name
    }

    /// Several batches at once share the requests to each broker.
    fn limits(&self) -> SinkLimits {
        SinkLimits { concurrency: 4, ..SinkLimits::default() }
    }

    fn destination(&self, event: &Delivery) -> Option<String> {
        self.config.topic.destination(event)
    }

    async fn check(&self) -> Result<()> {
        let live = self.live().await?;
        let Some(topic) = self.config.topic.fixed() else { return Ok(()) };
        match live.topic_error(topic, ANSWER_WITHIN).await {
            None => Ok(()),
            Some(code) => Err(Error::new(refusal::kind(code), refusal::of_topic(&self.config, code, topic, None).message)),
        }
    }

    async fn deliver(&self, batch: Arc<[Delivery]>) -> Acceptance {
        let mut outcome = BatchOutcome::new(&batch);
        for is_last in [false, true] {
            let live = match self.live().await {
                Ok(live) => live,
                Err(error) if is_last => return outcome.refusing(&batch, &error).acceptance(&batch),
                Err(error) => return Acceptance::up_to(0, Refusal::retryable(error.to_string())),
            };
            if !self.attempt(&live, &batch, &mut outcome).await {
                break;
            }
            self.send_singly();
        }
        outcome.acceptance(&batch)
    }
}
