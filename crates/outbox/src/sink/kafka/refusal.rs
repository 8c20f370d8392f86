//! What codes and failures mean for an event, and what an operator should do.

use std::time::Duration;

use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;

use super::config::KafkaConfig;
use super::events::ProducerTrouble;
use crate::sink::Refusal;
use crate::sink::connection::words;
use crate::{Error, ErrorKind};

/// For a user that the brokers give no idempotent producer.
const NO_PRODUCER: &str =
    "this user may not use an idempotent producer: give it IdempotentWrite on the cluster, or, from Kafka 3.0 on, Write on the topic";

const fn is_too_large(code: Code) -> bool {
    matches!(code, Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize)
}

/// Whether the brokers refused a whole request for what may be the fault of one event in it.
pub(super) const fn is_of_some_event(code: Code) -> bool {
    is_too_large(code) || matches!(code, Code::InvalidRecord | Code::InvalidMessage | Code::PolicyViolation)
}

/// Whether the event's fate is unknown, or it was not sent, because the producer was given up.
pub(super) const fn is_without_answer(code: Code) -> bool {
    matches!(code, Code::PurgeQueue | Code::PurgeInflight | Code::Fatal | Code::GaplessGuarantee)
}

/// What can be done about a topic that takes nothing.
pub(super) const fn kind(code: Code) -> ErrorKind {
    match code {
        Code::UnknownTopicOrPartition | Code::UnknownTopic => ErrorKind::Missing,
        Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed => ErrorKind::Denied,
        _ => ErrorKind::Unavailable,
    }
}

/// Why an event was refused with this code. `bytes` is its size, `alone` whether its request had no other event.
pub(super) fn of(config: &KafkaConfig, code: Code, topic: &str, bytes: usize, alone: bool, trouble: Option<&ProducerTrouble>) -> Refusal {
    let place = &config.place;
    let retryable = |what: String| Refusal::retryable(format!("Kafka at {place}: {what}"));
    match code {
        code if is_too_large(code) && alone => Refusal::permanent(format!(
            "Kafka at {place}: the event has {bytes} bytes, and the brokers take fewer in topic {topic}: raise the topic's max.message.bytes \
             (the brokers' message.max.bytes), or lower payload_bytes_max in outbox_meta"
        )),
        code if is_of_some_event(code) && !alone => {
            retryable(format!("a request to topic {topic} was refused ({code}), and its events are sent one by one"))
        }
        Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition => {
            retryable(format!("there is no topic {topic}: create topic {topic}, or name another one with sink_to"))
        }
        Code::TopicAuthorizationFailed => {
            retryable(format!("this user has no right to topic {topic}: correct the user, or give it Write and Describe on the topic"))
        }
        Code::ClusterAuthorizationFailed => retryable(NO_PRODUCER.to_owned()),
        Code::InvalidRecord | Code::InvalidMessage | Code::PolicyViolation => {
            Refusal::permanent(format!("Kafka at {place}: topic {topic} does not take the event: {code}"))
        }
        Code::OperationTimedOut | Code::BrokerTransportFailure | Code::MessageTimedOut => Refusal::retryable(described(config, trouble)),
        code if is_without_answer(code) => Refusal::retryable(described(config, trouble)),
        code => retryable(format!("topic {topic} does not take events now: {code}")),
    }
}

/// Why nothing is sent to a topic, before it was tried.
pub(super) fn of_topic(config: &KafkaConfig, code: Code, topic: &str, trouble: Option<&ProducerTrouble>) -> Refusal {
    match code {
        Code::OperationTimedOut => Refusal::retryable(format!(
            "Kafka at {}: no broker has answered in time whether there is a topic {topic}, and nothing was sent to it",
            config.place
        )),
        code => of(config, code, topic, 0, false, trouble),
    }
}

/// The error without the value of a setting, which may be a secret.
pub(super) fn cannot_be_made(error: &KafkaError) -> Error {
    let what = match error {
        KafkaError::ClientConfig(_, _, name, _) => format!("librdkafka does not take the value of {name}"),
        other => words(other),
    };
    let text = format!("the Kafka sink cannot be set up: {what}; correct sink, sink_ca_file, sink_cert_file or sink_key_file");
    Error::new(ErrorKind::Settings, text)
}

/// Whether an operator must change something before TLS works: a certificate is not accepted, or the port answers without TLS. A broker
/// that hangs up in the handshake may be about to restart.
fn is_of_tls(reason: &str) -> bool {
    let causes = ["certificate", "unknown ca", "alert access denied", "wrong version number", "packet length too long", "http request"];
    causes.iter().any(|cause| reason.contains(cause))
}

/// Why no broker can be used.
pub(super) fn unusable(config: &KafkaConfig, trouble: Option<&ProducerTrouble>, within: Duration) -> Error {
    let place = &config.place;
    match trouble {
        Some(ProducerTrouble::Denied(_) | ProducerTrouble::NoProducer(_)) => Error::new(ErrorKind::Denied, described(config, trouble)),
        Some(ProducerTrouble::Unreachable(reason)) if is_of_tls(reason) => {
            let text = format!("TLS with Kafka at {place} fails: {reason}; correct the address (kafka:// is without TLS) or sink_ca_file");
            Error::new(ErrorKind::Denied, text)
        }
        None => Error::new(ErrorKind::Unavailable, format!("Kafka at {place} does not answer within {within:?}")),
        _ => Error::new(ErrorKind::Unavailable, described(config, trouble)),
    }
}

/// What an operator should know about an event that has no answer of its own.
pub(super) fn described(config: &KafkaConfig, trouble: Option<&ProducerTrouble>) -> String {
    let (place, timeout) = (&config.place, config.timeout);
    match trouble {
        Some(ProducerTrouble::Denied(reason)) => format!(
            "Kafka at {place} does not accept this user, or the credentials have expired: correct the user in the address, sink_sasl and the \
             file of sink_password_file: {reason}"
        ),
        Some(ProducerTrouble::Unreachable(reason)) => format!("Kafka at {place} cannot be reached: {reason}"),
        Some(ProducerTrouble::NoProducer(reason)) => format!("Kafka at {place}: {NO_PRODUCER}: {reason}"),
        Some(ProducerTrouble::Failed(reason)) => format!("Kafka at {place}: the producer cannot go on, and another one is made: {reason}"),
        Some(ProducerTrouble::Abandoned) => format!("Kafka at {place}: another batch was given up, and the producer with it"),
        Some(ProducerTrouble::Unanswered(Some(reason))) => format!("Kafka at {place} has not acknowledged within {timeout:?}: {reason}"),
        Some(ProducerTrouble::Unanswered(None)) | None => format!(
            "Kafka at {place} has not acknowledged within {timeout:?}: a partition may have no leader, or fewer replicas in sync than \
             min.insync.replicas"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_that_is_not_answered_for_has_its_own_text() {
        let config = KafkaConfig::from_url("kafka://host", "/").unwrap();
        let refusal = of_topic(&config, Code::OperationTimedOut, "orders", None);
        assert!(!refusal.permanent && refusal.message.contains("whether there is a topic orders"), "{refusal:?}");
        assert!(of_topic(&config, Code::UnknownTopic, "orders", None).message.contains("create topic orders"));
    }

    /// Brokers before 3.0 refuse the producer's number and, if the right was taken away later, each of its requests.
    #[test]
    fn a_user_without_an_idempotent_producer_is_told_which_right_is_missing() {
        let config = KafkaConfig::from_url("kafka://app@host", "/").unwrap();
        let trouble = ProducerTrouble::of_fatal(Code::ClusterAuthorizationFailed, "Failed to acquire idempotence PID".into());
        let error = unusable(&config, Some(&trouble), Duration::from_secs(1));
        assert_eq!((error.kind(), kind(Code::ClusterAuthorizationFailed)), (ErrorKind::Denied, ErrorKind::Denied));
        let refusal = of(&config, Code::ClusterAuthorizationFailed, "orders", 1, true, None);
        assert!(!refusal.permanent && !refusal.blameless, "{refusal:?}");
        for text in [error.to_string(), described(&config, Some(&trouble)), refusal.message] {
            assert!(text.contains("give it IdempotentWrite on the cluster") && text.lines().count() == 1, "{text}");
        }
        let other = ProducerTrouble::of_fatal(Code::OutOfOrderSequenceNumber, "gap".into());
        assert_eq!(other, ProducerTrouble::Failed("gap".into()));
    }

    /// What librdkafka says, with OpenSSL 3.
    #[test]
    fn tls_that_fails_needs_an_operator_and_a_broker_that_hangs_up_does_not() {
        let config = KafkaConfig::from_url("kafkas://host", "/").unwrap();
        let kind = |reason: &str| unusable(&config, Some(&ProducerTrouble::Unreachable(reason.to_owned())), Duration::from_secs(1)).kind();
        for reason in [
            "ssl://host:9092/bootstrap: SSL handshake failed: error:0A000086:SSL routines::certificate verify failed: broker certificate",
            "ssl://host:9092/bootstrap: Failed to verify broker certificate: hostname mismatch",
            "ssl://host:9092/bootstrap: SSL handshake failed: error:0A00010B:SSL routines::wrong version number: connecting to a PLAINTEXT",
            "ssl://host:9092/1: SSL handshake failed: error:0A000418:SSL routines::tlsv1 alert unknown ca: SSL alert number 48",
        ] {
            assert_eq!(kind(reason), ErrorKind::Denied, "{reason}");
        }
        for reason in [
            "ssl://host:9092/bootstrap: SSL handshake failed: Disconnected: connection closed by peer: connecting to a PLAINTEXT broker listener?",
            "ssl://host:9092/bootstrap: SSL handshake failed: SSL transport error: Connection timed out",
            "ssl://host:9092/bootstrap: Connect to ipv4#127.0.0.1:9092 failed: Connection refused",
        ] {
            assert_eq!(kind(reason), ErrorKind::Unavailable, "{reason}");
        }
    }
}
