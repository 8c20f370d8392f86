//! What a producer reports: the fate of each event, failed connections, and that it cannot go on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseProducer, Producer as _, ProducerContext, PurgeConfig};
use rdkafka::types::RDKafkaErrorCode;
use tokio::sync::watch;

use super::super::connection::words;
use super::refusal;
use super::reports::{EventFate, Ticket};

/// What is wrong with a producer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ProducerTrouble {
    /// No broker can be reached now. The producer goes on trying.
    Unreachable(String),
    /// The brokers do not accept the user. The producer was given up, as it is in all cases below.
    Denied(String),
    /// The user has no right to an idempotent producer.
    NoProducer(String),
    /// An event failed, so its successors must not be sent; or librdkafka cannot go on.
    Failed(String),
    /// A batch was not acknowledged in time; with the reason, if no broker could be reached.
    Unanswered(Option<String>),
    /// A batch was dropped before it was acknowledged.
    Abandoned,
}

impl ProducerTrouble {
    /// For librdkafka's fatal error with this code.
    pub(super) fn of_fatal(code: RDKafkaErrorCode, reason: String) -> Self {
        match code {
            RDKafkaErrorCode::ClusterAuthorizationFailed => Self::NoProducer(reason),
            _ => Self::Failed(reason),
        }
    }
}

/// Hears what librdkafka has to say, on the producer's thread.
pub(super) struct ProducerEvents {
    /// Whether the producer takes events. Locked while one is handed over, so that none is handed over behind a purge.
    open: Mutex<bool>,
    /// The newest failure of a connection.
    connection_failure: Mutex<Option<String>>,
    /// Whether an event was refused for a reason of its own.
    event_failed: AtomicBool,
    pub(super) trouble: watch::Sender<Option<ProducerTrouble>>,
    producer: OnceLock<Weak<BaseProducer<ProducerEvents>>>,
}

impl ProducerEvents {
    pub(super) fn new() -> Self {
        Self {
            open: Mutex::new(true),
            connection_failure: Mutex::default(),
            event_failed: AtomicBool::new(false),
            trouble: watch::Sender::new(None),
            producer: OnceLock::new(),
        }
    }

    /// Names the producer whose events these are; once.
    pub(super) fn belong_to(&self, producer: &Arc<BaseProducer<Self>>) {
        // It is not set twice.
        let _ = self.producer.set(Arc::downgrade(producer));
    }

    /// Whether the producer takes events, for as long as this is kept.
    pub(super) fn open(&self) -> MutexGuard<'_, bool> {
        lock(&self.open)
    }

    pub(super) fn connection_failure(&self) -> Option<String> {
        lock(&self.connection_failure).clone()
    }

    /// Whether an event was refused for a reason of its own: those without such a reason are then not the cause of anything.
    pub(super) fn event_failed(&self) -> bool {
        self.event_failed.load(Ordering::SeqCst)
    }

    /// librdkafka cannot go on; `said` is what its event says. The event comes before the report of the message that was refused for good,
    /// if that is why, but a send may be refused before it, so that one calls this too.
    pub(super) fn fatal(&self, said: Option<String>) {
        let (code, text) = self.fatal_error().unwrap_or((RDKafkaErrorCode::Fatal, String::new()));
        if code == RDKafkaErrorCode::GaplessGuarantee {
            self.event_failed.store(true, Ordering::SeqCst);
        }
        self.give_up(ProducerTrouble::of_fatal(code, said.unwrap_or_else(|| words(&text))));
    }

    /// Why librdkafka cannot go on, if it cannot.
    fn fatal_error(&self) -> Option<(RDKafkaErrorCode, String)> {
        self.producer.get()?.upgrade()?.client().fatal_error()
    }

    /// Ends the producer, and drops everything that waits in it. The first reason counts.
    pub(super) fn give_up(&self, trouble: ProducerTrouble) {
        if !std::mem::replace(&mut *lock(&self.open), false) {
            return;
        }
        self.trouble.send_replace(Some(trouble));
        if let Some(producer) = self.producer.get().and_then(Weak::upgrade) {
            producer.purge(PurgeConfig::default().queue().inflight().non_blocking());
        }
    }

    /// The same when the time of a batch is over.
    pub(super) fn time_is_over(&self) {
        let reason = match &*self.trouble.borrow() {
            Some(ProducerTrouble::Unreachable(reason)) => Some(reason.clone()),
            _ => None,
        };
        self.give_up(ProducerTrouble::Unanswered(reason));
    }

    fn unreachable(&self, reason: String) {
        // The lock, so that the reason of a producer that was given up is not replaced.
        let open = lock(&self.open);
        if *open {
            let failure = lock(&self.connection_failure).clone();
            self.trouble.send_replace(Some(ProducerTrouble::Unreachable(failure.unwrap_or(reason))));
        }
    }

    /// After an acknowledgement: the brokers can be reached.
    pub(super) fn reachable(&self) {
        let open = lock(&self.open);
        if *open && self.trouble.borrow().is_some() {
            self.trouble.send_replace(None);
        }
    }
}

impl ClientContext for ProducerEvents {
    /// Failures reach the operator as reasons of refusals; here they would repeat for each broker and each attempt.
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        let text = words(&message);
        if facility == "FAIL" {
            *lock(&self.connection_failure) = Some(text.clone());
        }
        let text = text.as_str();
        match level {
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => tracing::error!(facility, text, "librdkafka"),
            RDKafkaLogLevel::Debug => tracing::trace!(facility, text, "librdkafka"),
            _ => tracing::debug!(facility, text, "librdkafka"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let reason = words(&reason);
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::Fatal) => self.fatal(Some(reason)),
            // librdkafka gives every end of the handshake this code, also a lost connection; only its own codes are "Local".
            Some(RDKafkaErrorCode::Authentication) if reason.contains("mechanism handshake failed: Local:") => {
                *lock(&self.connection_failure) = Some(reason);
            }
            Some(RDKafkaErrorCode::Authentication | RDKafkaErrorCode::SaslAuthenticationFailed) => {
                self.give_up(ProducerTrouble::Denied(reason));
            }
            Some(RDKafkaErrorCode::AllBrokersDown) => self.unreachable(reason),
            _ => *lock(&self.connection_failure) = Some(reason),
        }
    }
}

impl ProducerContext for ProducerEvents {
    type DeliveryOpaque = Box<Ticket>;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: Box<Ticket>) {
        let code = match result {
            Ok(_) => return ticket.report(EventFate::Accepted),
            Err((error, _)) => error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail),
        };
        if !refusal::is_without_answer(code) {
            self.event_failed.store(true, Ordering::SeqCst);
        } else if self.fatal_error().is_some() {
            // librdkafka drops what waits in it before its event says why.
            self.fatal(None);
        }
        // Before the failure is reported: its successors wait in the producer.
        self.give_up(ProducerTrouble::Failed(code.to_string()));
        ticket.report(EventFate::Failed(code));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
