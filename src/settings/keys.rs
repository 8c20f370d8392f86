//! The table of keys: name, shape, purpose and default. `schema` says which table has which of them. A backend's keys are defined with
//! the backend, those of an outbox in its crate. Not formatted: a key is two lines.

use std::time::Duration;

use shardwise_core::routing::Width;
use shardwise_core::{
    ClaimStore, DRAIN_TIMEOUT_MAX, KEEP_FOR_MAX, MEMBERS_MAX, REJOIN_GRACE_MAX, SLOTS_MAX, VIRTUAL_NODES_MAX, WEIGHT_MAX,
};
use shardwise_settings::SettingKey;
use shardwise_settings::Shape::{self, Flag, Margin, OneOf, Percent, Text, Texts};

use super::requests::REQUESTS_MAX;

const DAY: Duration = Duration::from_hours(24);
const PLACEMENTS: Shape = OneOf(&["ring", "quota", "uhashring", "modulo", "hashring"]);

pub(super) const ENABLED: SettingKey = SettingKey::new("enabled", Flag,
    "false: no coordination, this worker owns everything and warns at every start").or("true");

// resilience.sharding.instance
pub(super) const ID: SettingKey = SettingKey::new("id", Text,
    "this worker's name in every group; the host's name and 8 random hexadecimal digits unless set").computed();
pub(super) const ADDRESS: SettingKey = SettingKey::new("address", Text,
    "host name or IP address where others reach this worker; auto: its address towards the backend");
pub(super) const PORT: SettingKey = SettingKey::new("port", Shape::whole(1, 65_535),
    "its TCP port; needs address");
pub(super) const ZONE: SettingKey = SettingKey::new("zone", Text,
    "its failure domain: the copies of a key go to different ones");
pub(super) const WEIGHT: SettingKey = SettingKey::new("weight", Shape::whole(1, WEIGHT_MAX as u64),
    "its share relative to the others': weight 2 gets twice the slots of weight 1").or("1");
pub(super) const VERSION: SettingKey = SettingKey::new("version", Text,
    "the worker's version, shown to others; version_rule uses it");
pub(super) const METADATA: SettingKey = SettingKey::new("metadata", Text,
    "texts that others see with this worker; at most 4096 bytes together");

// …discovery
pub(super) const BACKEND: SettingKey = SettingKey::new("backend", Text,
    "where workers meet: local is one SQLite file for all workers of one machine; consul, etcd, nats, postgres and valkey are for several machines; outbox is the PostgreSQL database of the outbox that names the policy").or("local");
pub(super) const TTL: SettingKey = SettingKey::new("ttl", Shape::time(Duration::ZERO, DAY),
    "a worker whose lease was not renewed for this long has lost its share").or("10s");
pub(super) const RENEW_EVERY: SettingKey = SettingKey::new("renew_every", Shape::time(Duration::ZERO, DAY),
    "time between renewals of the lease; a third of ttl unless set, and never more").computed();
pub(super) const STOP_MARGIN: SettingKey = SettingKey::new("stop_margin", Shape::time(Duration::ZERO, DAY),
    "how long before its lease expires a worker stops owning").or("100ms");

// …policies.NAME
pub(super) const GROUP_NAME: SettingKey = SettingKey::new("group_name", Text,
    "the workers that share one workload; all of them write the same name")
    .required("name the group of workers that share this work, such as group_name = \"orders\"");
pub(super) const PLACEMENT: SettingKey = SettingKey::new("placement", PLACEMENTS,
    "how keys find their owner: ring is slots on a consistent-hash ring, quota the same for workers of different weights; uhashring, modulo and hashring are other fleets' rules").or("ring");
pub(super) const OWNERSHIP: SettingKey = SettingKey::new("ownership", OneOf(&["eventual", "exclusive"]),
    "eventual: for a moment around a change two workers may own one key; exclusive: a slot has one owner at a time, under an epoch").or("eventual");
pub(super) const SLOTS: SettingKey = SettingKey::new("slots", Shape::whole(1, SLOTS_MAX as u64),
    "number of parts of the key space; 1024 unless set when ownership is exclusive or an outbox uses the policy").or("16384");
pub(super) const VIRTUAL_NODES: SettingKey = SettingKey::new("virtual_nodes", Shape::whole(1, VIRTUAL_NODES_MAX as u64),
    "points on the ring per unit of weight; more give more even shares and slower placement").or("1024");
pub(super) const LOAD_MARGIN: SettingKey = SettingKey::new("load_margin", Margin,
    "how far above its fair share a worker may be loaded: 0.05 is 5 %; \"none\" means no limit").or("0.05");

// …policies.NAME.next: what may change of the placement
pub(super) const NEXT_PLACEMENT: SettingKey = SettingKey::new("placement", PLACEMENTS,
    "the placement that the group changes to; keys that next leaves out stay as they are, or get the default with another placement");
pub(super) const NEXT_SLOTS: SettingKey = SettingKey::new("slots", Shape::whole(1, SLOTS_MAX as u64),
    "slots after the change; cannot change where an outbox uses the policy");
pub(super) const NEXT_VIRTUAL_NODES: SettingKey = SettingKey::new("virtual_nodes", Shape::whole(1, VIRTUAL_NODES_MAX as u64),
    "points after the change");
pub(super) const NEXT_LOAD_MARGIN: SettingKey = SettingKey::new("load_margin", Margin,
    "load margin after the change");

// …policies.NAME
pub(super) const MIN_MEMBERS: SettingKey = SettingKey::new("min_members", Shape::whole(1, MEMBERS_MAX as u64),
    "with fewer active workers than this no worker owns anything").or("1");
pub(super) const DRAIN_TIMEOUT: SettingKey = SettingKey::new("drain_timeout", Shape::time(Duration::ZERO, DRAIN_TIMEOUT_MAX),
    "how long a leaving worker waits for its work in flight, and with exclusive ownership work in a slot that goes to another worker").or("30s");
pub(super) const REJOIN_GRACE: SettingKey = SettingKey::new("rejoin_grace", Shape::time(Duration::ZERO, REJOIN_GRACE_MAX),
    "how long the slots of a worker that was stopped gracefully wait for it to return under its own instance.id; 0s does not wait").or("0s");
pub(super) const ON_DRAIN_TIMEOUT: SettingKey = SettingKey::new("on_drain_timeout", OneOf(&["hold", "release"]),
    "only with exclusive ownership, when work outlasts drain_timeout: hold keeps the slot until the work ends, release gives it up while the work may still run").or("hold");
pub(super) const EPOCH_FLOOR: SettingKey = SettingKey::new("epoch_floor", Shape::whole(0, ClaimStore::FLOOR_MAX),
    "only with exclusive ownership: after the store of claims was wiped or replaced, a number above the highest epoch used before");
pub(super) const VERSION_RULE: SettingKey = SettingKey::new("version_rule", OneOf(&["none", "newest"]),
    "only with exclusive ownership: while versions differ, newest lets workers keep what they hold and gives free slots to the newest").or("none");
pub(super) const MESSAGES_LISTEN: SettingKey = SettingKey::new("messages_listen", Text,
    "the earlier name of peer_listen, when messages to singletons had a separate address");
pub(super) const MESSAGES_TOKEN_FILE: SettingKey = SettingKey::new("messages_token_file", Text,
    "the earlier name of peer_token_file, when messages to singletons had a separate token");
pub(super) const PEER_NETWORKS: SettingKey = SettingKey::new("peer_networks", Texts,
    "networks to which requests and messages between members may go; addresses elsewhere are never connected to").or("127.0.0.0/8,::1/128");
pub(super) const PEER_LISTEN: SettingKey = SettingKey::new("peer_listen", Text,
    "IP address and port where a worker without a sidecar takes requests and messages; a free port of this machine alone unless set");
pub(super) const PEER_TOKEN_FILE: SettingKey = SettingKey::new("peer_token_file", Text,
    "a file with the token that members prove to each other, the same for all, at least 16 bytes; without it only GET and messages of this machine are answered");
pub(super) const PEER_CA_FILE: SettingKey = SettingKey::new("peer_ca_file", Text,
    "the CA, in PEM, that signs the members' certificates and nothing else; with peer_cert_file each member must present one");
pub(super) const PEER_CERT_FILE: SettingKey = SettingKey::new("peer_cert_file", Text,
    "this worker's certificate chain, in PEM: with it, requests and messages arrive by TLS");
pub(super) const PEER_KEY_FILE: SettingKey = SettingKey::new("peer_key_file", Text,
    "the private key of that certificate, in PEM");
pub(super) const PEER_NAME: SettingKey = SettingKey::new("peer_name", Text,
    "the name in every member's certificate, instead of the host of that member's address; needs peer_token_file");
pub(super) const MAX_WIDTH: SettingKey = SettingKey::new("max_width", Shape::whole(1, Width::MAX.get() as u64),
    "over how many workers the requests of a hot key may be spread, its owner first; above 1 on_owned also runs on workers that do not own the key").or("1");
pub(super) const SATURATED_AT: SettingKey = SettingKey::new("saturated_at", Shape::whole(1, REQUESTS_MAX),
    "a key is spread further while more of its requests than this are in progress at its owner").or("8");
pub(super) const REQUESTS_AT_ONCE: SettingKey = SettingKey::new("requests_at_once", Shape::whole(1, REQUESTS_MAX),
    "how many requests a worker handles at once; as many again wait up to 50 ms for a place, others are refused as busy").or("64");
pub(super) const REQUESTS_WAITING: SettingKey = SettingKey::new("requests_waiting", Shape::whole(1, REQUESTS_MAX),
    "how many requests of a worker wait for an answer at once; further ones are refused as busy").or("1024");
pub(super) const ON_BACKEND_LOSS: SettingKey = SettingKey::new("on_backend_loss", OneOf(&["stop", "keep"]),
    "stop: without the backend nothing is owned; keep: the last view counts for keep_for, and work may be done twice").or("stop");
pub(super) const KEEP_FOR: SettingKey = SettingKey::new("keep_for", Shape::time(Duration::from_millis(1), KEEP_FOR_MAX),
    "how long the last view counts without the backend; only with on_backend_loss = \"keep\"").or("5m");
pub(super) const MAX_LOSS: SettingKey = SettingKey::new("max_loss", Percent,
    "if more members than this vanish within one ttl, no worker takes over what they had until enough are back or an operator runs confirm-loss");

// outbox.NAME
pub(super) const POLICY: SettingKey = SettingKey::new("policy", Text,
    "the policy by which publishers share this outbox; no other outbox may have it, and no other worker may join its group")
    .required("name the policy by which publishers share this outbox, such as policy = \"outbox_publishers\"");
// The outbox's crate reads these; the library does where publishers meet in the store.
pub(super) const STORE: SettingKey = SettingKey::new("store", Text, "where the events are")
    .required("say where the events are, such as store = \"postgres://app@db.example/app\"");
pub(super) const STORE_PASSWORD_FILE: SettingKey = SettingKey::new("store_password_file", Text,
    "a file with the password of a PostgreSQL store");

pub(super) const INSTANCE: &[SettingKey] = &[ID, ADDRESS, PORT, ZONE, WEIGHT, VERSION];
pub(super) const DISCOVERY: &[SettingKey] = &[BACKEND, TTL, RENEW_EVERY, STOP_MARGIN];
pub(super) const POLICIES: &[SettingKey] = &[
    GROUP_NAME, PLACEMENT, OWNERSHIP, SLOTS, VIRTUAL_NODES, LOAD_MARGIN,
    MIN_MEMBERS, DRAIN_TIMEOUT, REJOIN_GRACE, ON_DRAIN_TIMEOUT, EPOCH_FLOOR, VERSION_RULE,
    MESSAGES_LISTEN, MESSAGES_TOKEN_FILE, ON_BACKEND_LOSS, KEEP_FOR, MAX_LOSS,
    PEER_NETWORKS, PEER_LISTEN, PEER_TOKEN_FILE, PEER_CA_FILE, PEER_CERT_FILE, PEER_KEY_FILE, PEER_NAME,
    MAX_WIDTH, SATURATED_AT, REQUESTS_AT_ONCE, REQUESTS_WAITING,
];
pub(super) const NEXT: &[SettingKey] = &[NEXT_PLACEMENT, NEXT_SLOTS, NEXT_VIRTUAL_NODES, NEXT_LOAD_MARGIN];
