//! One producer at a time, and the thread that serves it.
//!
//! librdkafka sends a request again until it is acknowledged, before the requests behind it. When it cannot (an event is refused for good,
//! a batch's time is over, no caller waits for it any more) the producer is given up with everything that waits in it, and the sink makes
//! another one. What an old producer had already sent may arrive later. It then is a run of events from the first one that was not
//! acknowledged, so it only repeats events; none comes before one that it must follow.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::types::RDKafkaErrorCode;
use tokio::task::spawn_blocking;

use super::super::connection::ANSWER_WITHIN;
use super::config::KafkaConfig;
use super::events::{ProducerEvents, ProducerTrouble};
use super::refusal;
use super::reports::Ticket;
use super::started_aggregates::StartedAggregates;
use crate::{AggregateId, Error, ErrorKind, Result};

/// How often the thread checks whether the producer is still in use.
const SERVE_FOR: Duration = Duration::from_millis(100);
/// How long each poll for an answer takes.
const ASK_FOR: Duration = Duration::from_millis(200);
/// The most topics that are remembered as existing.
const TOPICS_MAX: usize = 1_024;

/// An event as the producer takes it.
pub(super) type KafkaRecord<'a> = BaseRecord<'a, [u8], [u8], Box<Ticket>>;

/// Why an event was not handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HandoverFailure {
    /// Too much waits in the producer; there is room later.
    Full,
    /// The producer was given up.
    Closed,
    /// The producer refuses this event.
    Refused(RDKafkaErrorCode),
}

/// A producer that works, or has worked.
pub(super) struct KafkaProducer {
    base: Arc<BaseProducer<ProducerEvents>>,
    /// Whether each request has one event.
    pub(super) singly: bool,
    topics: Mutex<BTreeSet<String>>,
    started: Mutex<StartedAggregates>,
}

impl std::fmt::Debug for KafkaProducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaProducer").field("singly", &self.singly).finish_non_exhaustive()
    }
}

impl KafkaProducer {
    /// Makes a producer and waits until a broker has answered it.
    pub(super) async fn open(config: &KafkaConfig, singly: bool) -> Result<Self> {
        let native = config.native(singly)?;
        let events = ProducerEvents::new();
        let mut trouble = events.trouble.subscribe();
        // Reads the files of TLS.
        let made = spawn_blocking(move || native.create_with_context::<_, BaseProducer<ProducerEvents>>(events)).await;
        let base = match made {
            Ok(Ok(base)) => Arc::new(base),
            Ok(Err(error)) => return Err(refusal::cannot_be_made(&error)),
            Err(error) => return Err(Error::new(ErrorKind::Internal, format!("the Kafka producer was not made: {error}"))),
        };
        base.context().belong_to(&base);
        let served = Arc::clone(&base);
        let thread = thread::Builder::new().name("kafka-producer".into()).spawn(move || serve(&served));
        thread.map_err(|error| Error::new(ErrorKind::Unavailable, format!("no thread for the Kafka producer: {error}")))?;
        let asked = Arc::clone(&base);
        let within = 2 * ANSWER_WITHIN;
        let answered = spawn_blocking(move || is_answered(&asked, within));
        let failed = async { trouble.wait_for(Option::is_some).await.ok().and_then(|trouble| trouble.clone()) };
        tokio::select! {
            found = failed => Err(refusal::unusable(config, found.as_ref(), within)),
            answered = answered => if matches!(answered, Ok(true)) {
                Ok(Self { base, singly, topics: Mutex::default(), started: Mutex::default() })
            } else {
                let failure = base.context().connection_failure().map(ProducerTrouble::Unreachable);
                Err(refusal::unusable(config, failure.as_ref(), within))
            }
        }
    }

    pub(super) fn is_given_up(&self) -> bool {
        !*self.base.context().open()
    }

    /// Ends the producer, and drops everything that waits in it.
    pub(super) fn give_up(&self, trouble: ProducerTrouble) {
        self.base.context().give_up(trouble);
    }

    /// The same when the time of a batch is over.
    pub(super) fn time_is_over(&self) {
        self.base.context().time_is_over();
    }

    /// Resolves when the producer was given up.
    pub(super) async fn given_up(&self) {
        let mut trouble = self.base.context().trouble.subscribe();
        let ends =
            |trouble: &Option<ProducerTrouble>| trouble.as_ref().is_some_and(|trouble| !matches!(trouble, ProducerTrouble::Unreachable(_)));
        // An error is impossible: the sender is in `self`.
        let _ = trouble.wait_for(ends).await;
    }

    pub(super) fn trouble(&self) -> Option<ProducerTrouble> {
        self.base.context().trouble.borrow().clone()
    }

    /// Whether something ended the producer that an event without an answer of its own is not the cause of. `out_of_time`: the time of the
    /// event's batch is over. An outage is not such a thing, or it would not be noticed.
    pub(super) fn ended_by_others(&self, out_of_time: bool) -> bool {
        match self.trouble() {
            Some(ProducerTrouble::Abandoned) => true,
            Some(ProducerTrouble::Failed(_)) => self.base.context().event_failed(),
            // The first batch that is over time ends the producer, and its events are the ones that were not acknowledged.
            Some(ProducerTrouble::Unanswered(None)) => !out_of_time,
            _ => false,
        }
    }

    /// After a batch was acknowledged.
    pub(super) fn reachable(&self) {
        self.base.context().reachable();
    }

    pub(super) fn knows(&self, aggregate: AggregateId) -> bool {
        self.started.lock().unwrap_or_else(PoisonError::into_inner).contains(aggregate, Instant::now())
    }

    /// An event of each of these was acknowledged.
    pub(super) fn remember(&self, aggregates: impl Iterator<Item = AggregateId>) {
        self.started.lock().unwrap_or_else(PoisonError::into_inner).remember(aggregates, Instant::now());
    }

    /// Hands an event over; it is sent later. Gives the record back if it is not taken.
    pub(super) fn send<'a>(&self, record: KafkaRecord<'a>) -> Result<(), (HandoverFailure, KafkaRecord<'a>)> {
        let open = self.base.context().open();
        if !*open {
            return Err((HandoverFailure::Closed, record));
        }
        let sent = self.base.send(record);
        drop(open);
        sent.map_err(|(error, record)| {
            let failure = match error.rdkafka_error_code() {
                Some(RDKafkaErrorCode::QueueFull) => HandoverFailure::Full,
                Some(RDKafkaErrorCode::Fatal) => {
                    // The event with the reason may come later, and without the reason the batch would seem unacknowledged.
                    self.base.context().fatal(None);
                    HandoverFailure::Closed
                }
                code => HandoverFailure::Refused(code.unwrap_or(RDKafkaErrorCode::Fail)),
            };
            (failure, record)
        })
    }

    /// Whether the topic was found lately.
    pub(super) fn knows_topic(&self, topic: &str) -> bool {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner).contains(topic)
    }

    /// Asks the brokers for a topic for so long, unless it is known. An event for a topic that does not exist would wait in the producer
    /// until its time is over, and end it.
    pub(super) async fn topic_error(&self, topic: &str, within: Duration) -> Option<RDKafkaErrorCode> {
        if self.knows_topic(topic) {
            return None;
        }
        let (base, name) = (Arc::clone(&self.base), topic.to_owned());
        let asked = spawn_blocking(move || {
            let metadata = base.client().fetch_metadata(Some(&name), within)?;
            let found = metadata.topics().iter().find(|found| found.name() == name);
            Ok::<_, KafkaError>(found.map_or(Some(RDKafkaErrorCode::UnknownTopicOrPartition), |found| found.error().map(Into::into)))
        });
        let error = match asked.await {
            Ok(Ok(error)) => error,
            Ok(Err(error)) => error.rdkafka_error_code().or(Some(RDKafkaErrorCode::Fail)),
            Err(_) => Some(RDKafkaErrorCode::Fail),
        };
        // Without a leader for now; librdkafka waits for one.
        let error = error.filter(|error| *error != RDKafkaErrorCode::LeaderNotAvailable);
        if error.is_none() {
            let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
            if topics.len() >= TOPICS_MAX {
                topics.clear();
            }
            topics.insert(topic.to_owned());
        }
        error
    }
}

/// Waits until a broker has answered, or until the caller is gone: it has the producer, and so do this task and the thread that serves it.
fn is_answered(base: &Arc<BaseProducer<ProducerEvents>>, within: Duration) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < within && Arc::strong_count(base) > 2 {
        let asked = Instant::now();
        // A cluster may have no id, which is then known at once.
        if base.client().fetch_cluster_id(ASK_FOR).is_some() || asked.elapsed() < ASK_FOR / 2 {
            return true;
        }
    }
    false
}

/// Runs until this thread is the last owner, and ends the producer, which takes up to half a second that no task waits for.
fn serve(base: &Arc<BaseProducer<ProducerEvents>>) {
    while Arc::strong_count(base) > 1 {
        base.poll(SERVE_FOR);
    }
}
