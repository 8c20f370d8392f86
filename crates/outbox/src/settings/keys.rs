//! The table of an outbox's settings keys, besides the library's own `policy`. Not formatted: a key takes two lines.

use std::time::Duration;

use shardwise::settings::SettingKey;
use shardwise::settings::Shape::{self, Flag, OneOf, Text};

const SECOND: Duration = Duration::from_secs(1);

pub(super) const STORE: SettingKey = SettingKey::new("store", Text,
    "where the events are: sqlite:PATH or postgres://USER@HOST:PORT/DATABASE")
    .required("say where the events are, such as store = \"sqlite:outbox.db\"");
pub(super) const STORE_PASSWORD_FILE: SettingKey = SettingKey::new("store_password_file", Text,
    "a file with the password of a PostgreSQL store; without it PGPASSWORD or ~/.pgpass");
pub(super) const SINK: SettingKey = SettingKey::new("sink", Text,
    "where the events go: stdout, file:PATH, or a server: nats://HOST, redis://HOST, redis+sentinel://HOST,HOST/NAME, amqp://HOST/VHOST, kafka://HOST, https://HOST/PATH")
    .required("say where the events go: sink = \"stdout\" or sink = \"file:events.jsonl\"");
pub(super) const SINK_PASSWORD_FILE: SettingKey = SettingKey::new("sink_password_file", Text,
    "a file with the password of the address's user, or with a token: NATS's where the address has no user, and a webhook's bearer token");
pub(super) const SINK_SENTINEL_USERNAME: SettingKey = SettingKey::new("sink_sentinel_username", Text,
    "the user at the Sentinels of Redis, if it is not the default one");
pub(super) const SINK_SENTINEL_PASSWORD_FILE: SettingKey = SettingKey::new("sink_sentinel_password_file", Text,
    "a file with the password at the Sentinels of Redis, if they ask for one");
pub(super) const SINK_CREDS_FILE: SettingKey = SettingKey::new("sink_creds_file", Text,
    "a credentials file of NATS with the user's JWT and NKey (.creds), instead of a user or a token");
pub(super) const SINK_CA_FILE: SettingKey = SettingKey::new("sink_ca_file", Text,
    "the CA, in PEM, that must have signed the sink's certificate; without it the system's");
pub(super) const SINK_CERT_FILE: SettingKey = SettingKey::new("sink_cert_file", Text,
    "this client's certificate chain for the sink, in PEM");
pub(super) const SINK_KEY_FILE: SettingKey = SettingKey::new("sink_key_file", Text,
    "the key of sink_cert_file, in PEM");
pub(super) const SINK_TO: SettingKey = SettingKey::new("sink_to", Text,
    "the subject (NATS), stream (Redis), routing key (RabbitMQ) or topic (Kafka) of an event, made of {aggregatetype}, {aggregateid}, {type}, {id} and {shardslot}; in HTTP the address itself has them");
pub(super) const SINK_MESSAGE_KEY: SettingKey = SettingKey::new("sink_message_key", Text,
    "the key of a message in Kafka, made like sink_to; {aggregateid} unless set; only events with the same topic and key keep their order");
pub(super) const SINK_SASL: SettingKey = SettingKey::new("sink_sasl", OneOf(&["plain", "scram-sha-256", "scram-sha-512"]),
    "how the address's user proves the password to Kafka, scram-sha-512 unless set; plain sends the password, so only over kafkas://");
pub(super) const SINK_FORMAT: SettingKey = SettingKey::new("sink_format", OneOf(&["binary", "structured"]),
    "binary: CloudEvents attributes are headers or fields; structured: an event is one JSON text; unless set, binary, and structured over HTTP");
pub(super) const SINK_STREAM: SettingKey = SettingKey::new("sink_stream", Text,
    "the stream of NATS, outbox unless set; its limits and replicas are yours to choose");
pub(super) const SINK_CREATE: SettingKey = SettingKey::new("sink_create", Flag,
    "true: a stream of NATS that is missing is made, with one replica; for trying things out");
pub(super) const SINK_FENCE: SettingKey = SettingKey::new("sink_fence", Flag,
    "true: NATS takes an event only directly after its aggregate's last one, so late and repeated events are refused; costs one read for each aggregate that is new to a publisher");
pub(super) const SINK_EXCHANGE: SettingKey = SettingKey::new("sink_exchange", Text,
    "the exchange of RabbitMQ, outbox unless set; it must exist, and every event must reach a queue");
pub(super) const SINK_LENGTH: SettingKey = SettingKey::new("sink_length", Shape::whole(1, u32::MAX as u64),
    "about how many entries each stream of Redis keeps; all unless set");
pub(super) const SINK_SECRET_FILE: SettingKey = SettingKey::new("sink_secret_file", Text,
    "a file with the secret that webhooks are signed with, as text or as whsec_ and Base64");
pub(super) const SINK_PRIVATE: SettingKey = SettingKey::new("sink_private", Flag,
    "true: a webhook may have an address that is not public");
pub(super) const SINK_TIMEOUT: SettingKey = SettingKey::new("sink_timeout", Shape::time(Duration::from_millis(100), Duration::from_secs(20)),
    "how long a webhook may take to answer, 15s unless set; or Kafka to acknowledge a batch, 5s unless set: keep that below ttl");
pub(super) const BATCH: SettingKey = SettingKey::new("batch", Shape::whole(1, 10_000),
    "the most events fetched, sent and marked at once").or("1000");
pub(super) const MAX_ATTEMPTS: SettingKey = SettingKey::new("max_attempts", Shape::whole(1, 1_000),
    "failed attempts after which an event is poison; attempts during an outage do not count").or("10");
pub(super) const BACKOFF: SettingKey = SettingKey::new("backoff", Shape::time(Duration::from_millis(1), Duration::from_hours(1)),
    "the wait after an event's first failed attempt; doubles with each further one, up to five minutes").or("1s");
pub(super) const POISON: SettingKey = SettingKey::new("poison", OneOf(&["block", "park", "discard"]),
    "what a poison event does: block its aggregate until an operator helps, park and let later events pass, or discard: it is lost, and noted").or("block");
pub(super) const OUTAGE_LIMIT: SettingKey = SettingKey::new("outage_limit", Shape::time(SECOND, Duration::from_hours(30 * 24)),
    "when a sink has accepted nothing for this long, failed attempts count after all").or("1h");
pub(super) const POLL: SettingKey = SettingKey::new("poll", Shape::time(Duration::from_millis(25), Duration::from_mins(1)),
    "the longest interval between two polls of an idle outbox").or("1s");
pub(super) const LISTEN: SettingKey = SettingKey::new("listen", Flag,
    "PostgreSQL: be notified of commits while a publisher sleeps, instead of polling; not together with two-phase commit").or("false");
pub(super) const PARKED_RETENTION: SettingKey = SettingKey::new("parked_retention", Shape::time(SECOND, Duration::from_hours(3_650 * 24)),
    "how long parked events stay in the store, counted from when they were parked; then they are deleted, and noted").or("7d");
pub(super) const RETENTION: SettingKey = SettingKey::new("retention", Shape::time(Duration::ZERO, Duration::from_hours(3_650 * 24)),
    "how long delivered events stay in the store, counted from their writing; 0 deletes them at once").or("6h");

/// All keys, in the order of `settings.toml`.
pub(super) const OUTBOX: &[SettingKey] = &[
    STORE, STORE_PASSWORD_FILE, SINK, SINK_PASSWORD_FILE, SINK_CREDS_FILE, SINK_CA_FILE, SINK_CERT_FILE, SINK_KEY_FILE, SINK_TO,
    SINK_MESSAGE_KEY, SINK_SASL, SINK_FORMAT, SINK_STREAM, SINK_CREATE, SINK_FENCE, SINK_EXCHANGE, SINK_LENGTH, SINK_SENTINEL_USERNAME,
    SINK_SENTINEL_PASSWORD_FILE, SINK_SECRET_FILE, SINK_PRIVATE, SINK_TIMEOUT, BATCH, MAX_ATTEMPTS, BACKOFF, POISON,
    OUTAGE_LIMIT, POLL, LISTEN, RETENTION, PARKED_RETENTION,
];
