//! The known keys: what may be written, with default and one line why. Where they stand is in `tree`; the keys of a backend are the
//! backend's own.

use std::time::Duration;

use shardwise_core::{DRAIN_TIMEOUT_MAX, KEEP_FOR_MAX, MEMBERS_MAX, REJOIN_GRACE_MAX, SLOTS_MAX, VIRTUAL_NODES_MAX, WEIGHT_MAX};

use super::value::Shape;

/// What holds where nobody has written the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fallback {
    /// This text, read like an environment variable's.
    Text(&'static str),
    /// Something that depends on other keys or on the machine.
    Computed,
    /// Nothing; the key is optional.
    Unset,
    /// The key must be written; the text says what to write.
    Required(&'static str),
}

/// One key.
#[derive(Debug, Clone, Copy)]
pub(super) struct SettingKey {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    pub(super) fallback: Fallback,
    pub(super) why: &'static str,
    /// A customary environment variable of other tools that holds where nobody has written the key.
    pub(super) variable: Option<&'static str>,
}

const fn key(name: &'static str, shape: Shape, fallback: Fallback, why: &'static str) -> SettingKey {
    SettingKey { name, shape, fallback, why, variable: None }
}

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_hours(24);

pub(super) const ENABLED: SettingKey =
    key("enabled", Shape::Flag, Fallback::Text("true"), "false: no coordination, this worker owns everything and warns at every start");

pub(super) const ID: SettingKey = key(
    "id",
    Shape::Text,
    Fallback::Computed,
    "this worker's name in every group; the host's name and 8 random hexadecimal digits unless set",
);
pub(super) const ADDRESS: SettingKey =
    key("address", Shape::Text, Fallback::Unset, "host name or IP address where others reach this worker");
pub(super) const PORT: SettingKey = key("port", Shape::Whole { min: 1, max: 65_535 }, Fallback::Unset, "its TCP port; needs address");
pub(super) const ZONE: SettingKey =
    key("zone", Shape::Text, Fallback::Unset, "its failure domain: keys that are kept more than once go to different ones");
pub(super) const WEIGHT: SettingKey = key(
    "weight",
    Shape::Whole { min: 1, max: WEIGHT_MAX as u32 },
    Fallback::Text("1"),
    "its share beside the others': weight 2 gets twice the slots of weight 1",
);
pub(super) const VERSION: SettingKey =
    key("version", Shape::Text, Fallback::Unset, "the application's version, shown to others; version_rule goes by it");
pub(super) const METADATA: SettingKey =
    key("metadata", Shape::Text, Fallback::Unset, "texts that others see beside this worker; at most 4096 bytes together");

pub(super) const BACKEND: SettingKey = key(
    "backend",
    Shape::Text,
    Fallback::Text("local"),
    "where workers meet: local is one SQLite file for all workers of one machine; consul and etcd are for several machines",
);
pub(super) const TTL: SettingKey =
    key("ttl", Shape::Time { min: Duration::ZERO, max: DAY }, Fallback::Text("10s"), "a worker that is silent for this long is gone");
pub(super) const RENEW_EVERY: SettingKey = key(
    "renew_every",
    Shape::Time { min: Duration::ZERO, max: DAY },
    Fallback::Computed,
    "time between signs of life; a third of ttl unless set, and never more",
);
pub(super) const STOP_MARGIN: SettingKey = key(
    "stop_margin",
    Shape::Time { min: Duration::ZERO, max: DAY },
    Fallback::Text("100ms"),
    "how much before its lease ends a worker stops owning",
);
pub(super) const GROUP_NAME: SettingKey = key(
    "group_name",
    Shape::Text,
    Fallback::Required("name the group of workers that share this work, such as group_name = \"orders\""),
    "the workers that share one workload; all of them write the same name",
);
const PLACEMENTS: Shape = Shape::OneOf { built: &["ring", "quota", "uhashring", "modulo", "hashring"], later: &[] };
pub(super) const PLACEMENT: SettingKey = key(
    "placement",
    PLACEMENTS,
    Fallback::Text("ring"),
    "how keys find their owner: ring is slots on a consistent-hash ring, quota the same for workers of different weights; uhashring, modulo and hashring are other fleets' rules",
);
pub(super) const OWNERSHIP: SettingKey = key(
    "ownership",
    Shape::OneOf { built: &["eventual", "exclusive"], later: &[] },
    Fallback::Text("eventual"),
    "eventual: for a moment around a change two workers may own one key; exclusive: a slot has one owner at a time, under an epoch",
);
pub(super) const SLOTS: SettingKey = key(
    "slots",
    Shape::Whole { min: 1, max: SLOTS_MAX },
    Fallback::Text("16384"),
    "parts into which the keys are cut; 1024 unless set when ownership is exclusive or an outbox uses the policy",
);
pub(super) const VIRTUAL_NODES: SettingKey = key(
    "virtual_nodes",
    Shape::Whole { min: 1, max: VIRTUAL_NODES_MAX },
    Fallback::Text("1024"),
    "points on the ring per unit of weight; more are evener and slower to place",
);
pub(super) const LOAD_MARGIN: SettingKey = key(
    "load_margin",
    Shape::Margin,
    Fallback::Text("0.05"),
    "how far above its fair share a worker may be loaded: 0.05 is 5 %; \"none\" is no limit",
);
/// What may change of the placement, beside what it was.
pub(super) const NEXT_PLACEMENT: SettingKey = key(
    "placement",
    PLACEMENTS,
    Fallback::Unset,
    "how keys will find their owner from then on; what next does not name stays as it is, or with another placement is the default",
);
pub(super) const NEXT_SLOTS: SettingKey = key(
    "slots",
    Shape::Whole { min: 1, max: SLOTS_MAX },
    Fallback::Unset,
    "slots from then on; cannot change where an outbox uses the policy",
);
pub(super) const NEXT_VIRTUAL_NODES: SettingKey =
    key("virtual_nodes", Shape::Whole { min: 1, max: VIRTUAL_NODES_MAX }, Fallback::Unset, "points from then on");
pub(super) const NEXT_LOAD_MARGIN: SettingKey = key("load_margin", Shape::Margin, Fallback::Unset, "load margin from then on");
pub(super) const MIN_MEMBERS: SettingKey = key(
    "min_members",
    Shape::Whole { min: 1, max: MEMBERS_MAX },
    Fallback::Text("1"),
    "with fewer active workers than this nobody owns anything",
);
pub(super) const DRAIN_TIMEOUT: SettingKey = key(
    "drain_timeout",
    Shape::Time { min: Duration::ZERO, max: DRAIN_TIMEOUT_MAX },
    Fallback::Text("30s"),
    "how long a leaving worker waits for its work in flight, and with exclusive ownership work in a slot that goes to another worker",
);
pub(super) const REJOIN_GRACE: SettingKey = key(
    "rejoin_grace",
    Shape::Time { min: Duration::ZERO, max: REJOIN_GRACE_MAX },
    Fallback::Text("0s"),
    "how long the slots of a worker that was stopped in good order wait for it to come back under its own instance.id; 0s does not wait",
);
pub(super) const ON_DRAIN_TIMEOUT: SettingKey = key(
    "on_drain_timeout",
    Shape::OneOf { built: &["hold", "release"], later: &[] },
    Fallback::Unset,
    "only with exclusive ownership: hold keeps a slot whose work does not end until it does, release gives it away though work may still run",
);
pub(super) const EPOCH_FLOOR: SettingKey = key(
    "epoch_floor",
    Shape::EpochFloor,
    Fallback::Unset,
    "only with exclusive ownership: after the store of claims was wiped or replaced, a number above the highest epoch used before",
);

pub(super) const VERSION_RULE: SettingKey = key(
    "version_rule",
    Shape::OneOf { built: &["none", "newest"], later: &[] },
    Fallback::Unset,
    "only with exclusive ownership: while versions differ, newest lets workers keep what they hold and gives what is free to the newest; none unless set",
);
pub(super) const MESSAGES_LISTEN: SettingKey = key(
    "messages_listen",
    Shape::Text,
    Fallback::Unset,
    "only with exclusive ownership: IP address and port where messages to singletons arrive; a free port of this machine alone unless set",
);
pub(super) const MESSAGES_TOKEN_FILE: SettingKey = key(
    "messages_token_file",
    Shape::Text,
    Fallback::Unset,
    "a file with the token that both sides prove that they know, the same for all workers, at least 16 bytes; needed unless messages_listen is this machine alone",
);
pub(super) const PEER_NETWORKS: SettingKey = key(
    "peer_networks",
    Shape::Texts,
    Fallback::Text("127.0.0.0/8,::1/128"),
    "networks to which requests and messages between members may go; addresses elsewhere are never connected to",
);
pub(super) const PEER_LISTEN: SettingKey = key(
    "peer_listen",
    Shape::Text,
    Fallback::Unset,
    "IP address and port where a worker without a sidecar listens for requests, on this machine alone; a free port unless set",
);
pub(super) const PEER_TOKEN_FILE: SettingKey = key(
    "peer_token_file",
    Shape::Text,
    Fallback::Unset,
    "a file with the token that members prove to each other that they know, the same for all, at least 16 bytes; without it only GET is answered",
);
pub(super) const ON_BACKEND_LOSS: SettingKey = key(
    "on_backend_loss",
    Shape::OneOf { built: &["stop", "keep"], later: &[] },
    Fallback::Text("stop"),
    "stop: without the backend nothing is owned; keep: the last view counts for keep_for, and work may be done twice",
);
pub(super) const KEEP_FOR: SettingKey = key(
    "keep_for",
    Shape::Time { min: Duration::from_millis(1), max: KEEP_FOR_MAX },
    Fallback::Unset,
    "how long the last view counts without the backend; only with on_backend_loss = \"keep\", and 5m unless set",
);
pub(super) const MAX_LOSS: SettingKey = key(
    "max_loss",
    Shape::Percent,
    Fallback::Unset,
    "if more members than this vanish within one ttl, nobody takes over what they had until enough are back or somebody runs confirm-loss",
);

pub(super) const POLICY: SettingKey = key(
    "policy",
    Shape::Text,
    Fallback::Required("name the policy by which publishers share this outbox, such as policy = \"outbox_publishers\""),
    "the policy by which publishers share this outbox; no other outbox may have it, and no other worker may join its group",
);
pub(super) const STORE: SettingKey = key(
    "store",
    Shape::Text,
    Fallback::Required("say where the events are, such as store = \"sqlite:outbox.db\""),
    "where the events are: sqlite:PATH or postgres://USER@HOST:PORT/DATABASE",
);
pub(super) const STORE_PASSWORD_FILE: SettingKey = key(
    "store_password_file",
    Shape::Text,
    Fallback::Unset,
    "a file with the password of a PostgreSQL store; without it PGPASSWORD or ~/.pgpass",
);
pub(super) const SINK: SettingKey = key(
    "sink",
    Shape::Text,
    Fallback::Required("say where the events go: sink = \"stdout\" or sink = \"file:events.jsonl\""),
    "where the events go: stdout, file:PATH, or a server: nats://HOST, redis://HOST, amqp://HOST/VHOST, https://HOST/PATH",
);
pub(super) const SINK_PASSWORD_FILE: SettingKey = key(
    "sink_password_file",
    Shape::Text,
    Fallback::Unset,
    "a file with the password of the address's user, or with a token: NATS's where the address has no user, and a webhook's bearer token",
);
pub(super) const SINK_CA_FILE: SettingKey = key(
    "sink_ca_file",
    Shape::Text,
    Fallback::Unset,
    "the CA, in PEM, that must have signed the sink's certificate; without it the system's",
);
pub(super) const SINK_CERT_FILE: SettingKey =
    key("sink_cert_file", Shape::Text, Fallback::Unset, "this client's certificate chain for the sink, in PEM");
pub(super) const SINK_KEY_FILE: SettingKey = key("sink_key_file", Shape::Text, Fallback::Unset, "the key of sink_cert_file, in PEM");
pub(super) const SINK_TO: SettingKey = key(
    "sink_to",
    Shape::Text,
    Fallback::Unset,
    "the subject (NATS), stream (Redis) or routing key (RabbitMQ) of an event, made of {aggregatetype}, {aggregateid}, {type}, {id} and {shardslot}; in HTTP the address itself has them",
);
pub(super) const SINK_FORMAT: SettingKey = key(
    "sink_format",
    Shape::OneOf { built: &["binary", "structured"], later: &[] },
    Fallback::Unset,
    "binary: CloudEvents attributes are headers or fields; structured: an event is one JSON text; unless set, binary, and structured over HTTP",
);
pub(super) const SINK_STREAM: SettingKey =
    key("sink_stream", Shape::Text, Fallback::Unset, "the stream of NATS, outbox unless set; its limits and replicas are yours to choose");
pub(super) const SINK_CREATE: SettingKey = key(
    "sink_create",
    Shape::Flag,
    Fallback::Unset,
    "true: a stream of NATS that is missing is made, with one replica; for trying things out",
);
pub(super) const SINK_FENCE: SettingKey = key(
    "sink_fence",
    Shape::Flag,
    Fallback::Unset,
    "true: NATS takes an event only right behind its aggregate's last one, so that what is late or repeated is refused; costs a question for each aggregate that is new to a publisher",
);
pub(super) const SINK_EXCHANGE: SettingKey = key(
    "sink_exchange",
    Shape::Text,
    Fallback::Unset,
    "the exchange of RabbitMQ, outbox unless set; it must exist, and every event must reach a queue",
);
pub(super) const SINK_LENGTH: SettingKey = key(
    "sink_length",
    Shape::Whole { min: 1, max: u32::MAX },
    Fallback::Unset,
    "about how many entries each stream of Redis keeps; all unless set",
);
pub(super) const SINK_SECRET_FILE: SettingKey = key(
    "sink_secret_file",
    Shape::Text,
    Fallback::Unset,
    "a file with the secret that webhooks are signed with, as text or as whsec_ and Base64",
);
pub(super) const SINK_PRIVATE: SettingKey =
    key("sink_private", Shape::Flag, Fallback::Unset, "true: a webhook may be at an address that is not of the public internet");
pub(super) const SINK_TIMEOUT: SettingKey = key(
    "sink_timeout",
    Shape::Time { min: Duration::from_millis(100), max: Duration::from_secs(20) },
    Fallback::Unset,
    "how long a webhook may take to answer; 15s unless set",
);
pub(super) const BATCH: SettingKey =
    key("batch", Shape::Whole { min: 1, max: 10_000 }, Fallback::Text("1000"), "the most events fetched, sent and marked at once");
pub(super) const MAX_ATTEMPTS: SettingKey = key(
    "max_attempts",
    Shape::Whole { min: 1, max: 1_000 },
    Fallback::Text("10"),
    "failed attempts that make an event poison; attempts during an outage do not count",
);
pub(super) const BACKOFF: SettingKey = key(
    "backoff",
    Shape::Time { min: Duration::from_millis(1), max: Duration::from_hours(1) },
    Fallback::Text("1s"),
    "the wait after an event's first failed attempt; doubles with each further one, up to five minutes",
);
pub(super) const POISON: SettingKey = key(
    "poison",
    Shape::OneOf { built: &["block", "park", "discard"], later: &[] },
    Fallback::Text("block"),
    "what a poison event does: block its aggregate until somebody helps, park and let later events pass, or discard: it is lost, and noted",
);
pub(super) const OUTAGE_LIMIT: SettingKey = key(
    "outage_limit",
    Shape::Time { min: SECOND, max: Duration::from_hours(30 * 24) },
    Fallback::Text("1h"),
    "when a sink has accepted nothing for this long, failed attempts count after all",
);
pub(super) const POLL: SettingKey = key(
    "poll",
    Shape::Time { min: Duration::from_millis(25), max: Duration::from_mins(1) },
    Fallback::Text("1s"),
    "the longest time between two looks into an idle outbox",
);
pub(super) const LISTEN: SettingKey = key(
    "listen",
    Shape::Flag,
    Fallback::Text("false"),
    "PostgreSQL: be told of commits instead of finding them at the next look; makes all writers commit one after the other, and crates/outbox/postgres.md says what that costs",
);
pub(super) const PARKED_RETENTION: SettingKey = key(
    "parked_retention",
    Shape::Time { min: SECOND, max: Duration::from_hours(3_650 * 24) },
    Fallback::Text("7d"),
    "how long parked events stay in the store, counted from when they were parked; then they are deleted, and noted",
);
pub(super) const RETENTION: SettingKey = key(
    "retention",
    Shape::Time { min: Duration::ZERO, max: Duration::from_hours(3_650 * 24) },
    Fallback::Text("6h"),
    "how long delivered events stay in the store, counted from their writing; 0 deletes them at once",
);
