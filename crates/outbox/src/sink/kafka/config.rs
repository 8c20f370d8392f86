//! Which brokers, which topic and key, and what librdkafka is set to.

use std::path::PathBuf;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use secrecy::{ExposeSecret as _, SecretString};

use super::super::connection::ANSWER_WITHIN;
use super::super::message::secret_in_file;
use super::super::net::ServerAddress;
use super::super::{Mode, SaslMechanism, Template, TlsFiles};
use crate::{Error, ErrorKind, Result};

const SCHEMES: [(&str, u16); 2] = [("kafka", 9092), ("kafkas", 9092)];
/// The most bytes of a topic's name.
const TOPIC_BYTES_MAX: usize = 249;
/// The most bytes of an event: its payload, its key and its headers.
pub(super) const EVENT_BYTES_MAX: usize = 16 << 20;
/// What librdkafka allows a request: an event and its framing. A smaller limit would refuse events that this sink allows.
const REQUEST_BYTES_MAX: usize = EVENT_BYTES_MAX + (1 << 20);
/// The most bytes of events in one request. Small, so that few topics have a limit below it, and large enough for full throughput.
const REQUEST_BYTES: usize = 256 << 10;
/// The most events that wait in librdkafka, and the most kilobytes of them: those of every batch in flight.
const QUEUE_EVENTS_MAX: usize = 100_000;
const QUEUE_KILOBYTES_MAX: usize = 128 << 10;

#[derive(Debug, Clone)]
enum Password {
    None,
    Text(SecretString),
    File(PathBuf),
}

/// Where and how a [`KafkaSink`](super::KafkaSink) sends events. `Debug` shows no password.
#[derive(Debug, Clone)]
pub struct KafkaConfig {
    /// The brokers as `host:port,host:port`.
    pub(super) place: String,
    pub(super) user: Option<String>,
    pub(super) source: String,
    tls_needed: bool,
    password: Password,
    /// The trusted CA, and this client's own certificate.
    pub tls: TlsFiles,
    /// How the address's user proves the password; `None` is SCRAM-SHA-512. Set it only with a user, and `Plain` only with TLS.
    pub sasl: Option<SaslMechanism>,
    /// The topic of an event, `outbox.{aggregatetype}` by default. It must exist. Values are not escaped: an event is refused if the topic
    /// would have another character than ASCII letters, digits, `.`, `_` and `-`.
    pub topic: Template,
    /// The key of a message, `{aggregateid}` by default; values are not escaped. Events with the same topic and key are in one partition,
    /// and only there they have an order.
    pub key: Template,
    /// How an event is encoded.
    pub mode: Mode,
    /// How long the brokers may take to acknowledge a batch: 100 ms or more, 5 s by default. What was not sent by then is dropped, so keep
    /// it below the TTL of the publishers' leases.
    pub timeout: Duration,
}

impl KafkaConfig {
    /// Brokers such as `kafka://user@host:9092` or, with TLS, `kafkas://one:9093,two:9093`; `source` is the `CloudEvents` attribute, such
    /// as `/outbox/orders`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Settings`]: the address is invalid, or contains a password.
    pub fn from_url(url: &str, source: impl Into<String>) -> Result<Self> {
        let wrong = |what: &str| Error::new(ErrorKind::Settings, format!("the address of the Kafka sink {what}"));
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("must begin with kafka:// or kafkas://"))?;
        let (user, hosts) = rest.rsplit_once('@').map_or((None, rest), |(user, hosts)| (Some(user), hosts));
        if user.is_some_and(|user| user.contains(':')) {
            return Err(wrong("has a password in it: put it into a file"));
        }
        if user.is_some_and(str::is_empty) {
            return Err(wrong("has an @ without a user before it"));
        }
        let (mut brokers, mut tls_needed) = (Vec::new(), false);
        for host in hosts.split(',') {
            let address = ServerAddress::parse(&format!("{scheme}://{host}"), "Kafka", SCHEMES)?;
            if !address.path.is_empty() {
                return Err(wrong(
                    "has a path: write kafka://user@host:9092, several hosts separated by commas, and the topic into sink_to",
                ));
            }
            tls_needed = address.tls;
            brokers.push(address.place());
        }
        Ok(Self {
            place: brokers.join(","),
            user: user.map(str::to_owned),
            source: source.into(),
            tls_needed,
            password: Password::None,
            tls: TlsFiles::default(),
            sasl: None,
            topic: Template::parse("outbox.{aggregatetype}")?,
            key: Template::parse("{aggregateid}")?,
            mode: Mode::Binary,
            timeout: ANSWER_WITHIN,
        })
    }

    /// The password of the address's user.
    #[must_use]
    pub fn password(self, password: impl Into<String>) -> Self {
        Self { password: Password::Text(password.into().into()), ..self }
    }

    /// A file with the password of the address's user. It is read whenever the sink connects anew, so a password that has expired can be
    /// replaced without a restart.
    #[must_use]
    pub fn password_file(self, path: impl Into<PathBuf>) -> Self {
        Self { password: Password::File(path.into()), ..self }
    }

    /// Refuses a topic that Kafka would not take, and options that exclude each other.
    pub(super) fn validated(self) -> Result<Self> {
        let wrong = |what: &str| Err(Error::new(ErrorKind::Settings, what));
        if self.topic.texts().any(|text| !is_topic(text)) || self.topic.fixed().is_some_and(|name| !is_name(name)) {
            return wrong(
                "the topic of the Kafka sink must be at most 249 ASCII letters, digits, dots, _ and -, as in orders.{aggregatetype}",
            );
        }
        if self.timeout < Duration::from_millis(100) {
            return wrong("the timeout of the Kafka sink must be 100ms or more");
        }
        match self.sasl {
            Some(_) if self.user.is_none() => {
                return wrong(
                    "the Kafka sink has a SASL mechanism and no user: write the user into the address, as in kafkas://user@host:9093",
                );
            }
            Some(SaslMechanism::Plain) if !self.tls_needed => {
                return wrong("the Kafka sink would send the password in clear: write the address with kafkas://, or use SCRAM-SHA-512");
            }
            _ => {}
        }
        if !self.tls_needed && (self.tls.ca.is_some() || self.tls.identity.is_some()) {
            return wrong("the Kafka sink has files of TLS and an address without TLS: write the address with kafkas://");
        }
        match (&self.user, &self.password) {
            (Some(_), Password::None) => {
                wrong("the address of the Kafka sink has a user: name the file with the password in sink_password_file")
            }
            (None, Password::Text(_) | Password::File(_)) => {
                wrong("the Kafka sink has a password and no user: write the user into the address, as in kafka://user@host:9092")
            }
            _ => Ok(self),
        }
    }

    /// What one producer is set to; `singly`: each request has one event.
    pub(super) fn native(&self, singly: bool) -> Result<ClientConfig> {
        let timeout = millis(self.timeout);
        let mut native = ClientConfig::new();
        native
            .set("bootstrap.servers", self.place.as_str())
            .set("client.id", "shardwise-outbox")
            .set("allow.auto.create.topics", "false")
            .set("partitioner", "murmur2_random")
            .set("acks", "all")
            .set("enable.idempotence", "true")
            // An event that fails for good ends the producer, so that its successors are not sent.
            .set("enable.gapless.guarantee", "true")
            // A broker that does not know the producer yet accepts any first request, also the second of two. One in flight is not enough
            // to prevent that, because librdkafka has one more written behind it: an aggregate that is new to a producer is begun with one
            // event. With more in flight, more would have to be repeated.
            .set("max.in.flight.requests.per.connection", "1")
            .set("linger.ms", "2")
            .set("batch.size", REQUEST_BYTES.to_string())
            .set("batch.num.messages", if singly { "1" } else { "10000" })
            .set("message.max.bytes", REQUEST_BYTES_MAX.to_string())
            .set("queue.buffering.max.messages", QUEUE_EVENTS_MAX.to_string())
            .set("queue.buffering.max.kbytes", QUEUE_KILOBYTES_MAX.to_string())
            // None of librdkafka's: it would end an event that waits and send the next one, if a paused process woke between their ends.
            // The sink ends a batch as a whole, by dropping all that waits.
            .set("message.timeout.ms", "0")
            .set("request.timeout.ms", timeout.as_str())
            .set("socket.timeout.ms", timeout.as_str())
            .set("socket.connection.setup.timeout.ms", millis(ANSWER_WITHIN))
            .set("api.version.request.timeout.ms", millis(ANSWER_WITHIN))
            .set("socket.keepalive.enable", "true")
            .set("reconnect.backoff.ms", "50")
            .set("reconnect.backoff.max.ms", "1000")
            .set("retry.backoff.ms", "50")
            .set("log.connection.close", "false")
            .set("log.thread.name", "false")
            .set("enable.metrics.push", "false")
            // Failed connections are among these; they become reasons of refusals.
            .set_log_level(RDKafkaLogLevel::Info);
        let protocol = match (self.tls_needed, &self.user) {
            (false, None) => "plaintext",
            (true, None) => "ssl",
            (false, Some(_)) => "sasl_plaintext",
            (true, Some(_)) => "sasl_ssl",
        };
        native.set("security.protocol", protocol);
        if self.tls_needed {
            self.set_tls(&mut native)?;
        }
        if let Some(user) = &self.user {
            native
                .set("sasl.mechanism", self.sasl.unwrap_or_default().name())
                .set("sasl.username", user.as_str())
                .set("sasl.password", self.secret()?);
        }
        Ok(native)
    }

    fn set_tls(&self, native: &mut ClientConfig) -> Result<()> {
        let (certificate, key) = self.tls.identity.as_ref().map_or((None, None), |(certificate, key)| (Some(certificate), Some(key)));
        let files = [("ssl.ca.location", self.tls.ca.as_ref()), ("ssl.certificate.location", certificate), ("ssl.key.location", key)];
        for (name, path) in files.into_iter().filter_map(|(name, path)| Some((name, path?))) {
            let text = path
                .to_str()
                .ok_or_else(|| Error::new(ErrorKind::Settings, format!("the path {} of the Kafka sink must be UTF-8", path.display())))?;
            native.set(name, text);
        }
        Ok(())
    }

    fn secret(&self) -> Result<String> {
        match &self.password {
            Password::None => Ok(String::new()),
            Password::Text(text) => Ok(text.expose_secret().to_owned()),
            Password::File(path) => secret_in_file(path, "the Kafka sink's password"),
        }
    }
}

fn millis(duration: Duration) -> String {
    duration.as_millis().min(900_000).to_string()
}

fn is_topic(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// Whether Kafka takes it as a topic's name.
pub(super) fn is_name(topic: &str) -> bool {
    is_topic(topic) && !matches!(topic, "" | "." | "..") && topic.len() <= TOPIC_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> KafkaConfig {
        KafkaConfig::from_url(url, "/").unwrap()
    }

    #[test]
    fn what_cannot_be_used_is_reported_and_no_password_is_shown() {
        for (url, expected) in [
            ("http://host", "must begin with kafka:// or kafkas://"),
            ("kafka", "must begin with kafka://"),
            ("kafka://", "cannot be read"),
            ("kafka://host,", "cannot be read"),
            ("kafka://host:port", "cannot be read"),
            ("kafka://@host", "without a user"),
            ("kafka://host/topic", "the topic into sink_to"),
            ("kafka://me:secret@host", "has a password in it: put it into a file"),
        ] {
            let error = KafkaConfig::from_url(url, "/").unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("secret"), "{url}: {error}");
        }
        let config = config("kafkas://me@one,two:9093,[::1]:1").password("secret").validated().unwrap();
        assert_eq!((config.place.as_str(), config.user.as_deref()), ("one:9092,two:9093,[::1]:1", Some("me")));
        assert!(!format!("{config:?}").contains("secret") && !format!("{:?}", config.native(false).unwrap()).contains("secret"));
    }

    #[test]
    fn a_user_has_a_password_and_a_password_a_user() {
        let error = |config: KafkaConfig| config.validated().unwrap_err().to_string();
        assert!(error(config("kafka://me@host")).contains("sink_password_file"));
        assert!(error(config("kafka://host").password("secret")).contains("no user"));
        let missing = config("kafka://me@host").password_file("no/such/file").native(false).unwrap_err();
        assert!(missing.to_string().contains("no/such/file"), "{missing}");
    }

    /// Regression: files of TLS and a mechanism had no effect there, and a password was sent in clear.
    #[test]
    fn nothing_is_ignored_and_no_password_is_sent_in_clear() {
        let with = |url: &str, sasl| KafkaConfig { sasl, ..config(url) };
        let error = |config: KafkaConfig| config.validated().unwrap_err().to_string();
        let userless = error(with("kafkas://host", Some(SaslMechanism::ScramSha256)));
        assert!(userless.contains("no user"), "{userless}");
        let plain = Some(SaslMechanism::Plain);
        assert!(error(with("kafka://me@host", plain).password("secret")).contains("in clear"));
        assert!(with("kafkas://me@host", plain).password("secret").validated().is_ok());
        assert!(with("kafka://me@host", Some(SaslMechanism::ScramSha512)).password("secret").validated().is_ok());
        for files in
            [TlsFiles { ca: Some("ca.pem".into()), identity: None }, TlsFiles { ca: None, identity: Some(("c".into(), "k".into())) }]
        {
            let tls = |url| KafkaConfig { tls: files.clone(), ..config(url) };
            assert!(error(tls("kafka://host")).contains("kafkas://"));
            assert!(tls("kafkas://host").validated().is_ok());
        }
    }

    #[test]
    fn topics_are_those_of_kafka() {
        let topic = |text| KafkaConfig { topic: Template::parse(text).unwrap(), ..config("kafka://host") };
        for good in ["orders", "orders.{aggregatetype}", "{type}", "a-{id}_b.c"] {
            assert!(topic(good).validated().is_ok(), "{good}");
        }
        let long = "x".repeat(250);
        for bad in ["a b", "a/{type}", "ü", "..", long.as_str()] {
            assert!(topic(bad).validated().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_producer_keeps_the_order() {
        let native = config("kafkas://me@host").password("secret").native(true).unwrap();
        for (name, value) in [
            ("acks", "all"),
            ("enable.idempotence", "true"),
            ("enable.gapless.guarantee", "true"),
            ("max.in.flight.requests.per.connection", "1"),
            ("partitioner", "murmur2_random"),
            ("message.timeout.ms", "0"),
            ("batch.num.messages", "1"),
            ("security.protocol", "sasl_ssl"),
            ("sasl.mechanism", "SCRAM-SHA-512"),
        ] {
            assert_eq!(native.get(name), Some(value), "{name}");
        }
    }
}
