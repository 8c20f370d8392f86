//! The tree of known names: what may be written where. Everything that reads, suggests, lists or tests settings works from this tree,
//! so a key that is not in here does not exist.

use std::sync::LazyLock;

use super::keys::{self, SettingKey};
use super::options;
use crate::backend::BACKENDS;

/// Backends that the design names and nobody has built.
pub(super) const BACKENDS_LATER: [&str; 2] = ["nats", "valkey"];

/// One name in a table.
#[derive(Debug)]
pub(super) enum SchemaNode {
    /// A value.
    Leaf(SettingKey),
    /// A table; an open one is shared with the application, whose own names in it are left alone.
    Table { name: &'static str, fields: Vec<SchemaNode>, open: bool },
    /// A table of tables whose names the user chooses.
    Named { name: &'static str, each: Vec<SchemaNode> },
    /// A table of values whose names the user chooses.
    Free(SettingKey),
    /// For a part that this program was built without: left alone, so that programs with different features can share a file.
    Absent(&'static str),
    /// Fixed by the design, without behaviour so far.
    Later(&'static str),
}

impl SchemaNode {
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Leaf(key) | Self::Free(key) => key.name,
            Self::Table { name, .. } | Self::Named { name, .. } | Self::Absent(name) | Self::Later(name) => name,
        }
    }
}

/// What may stand in a section such as `[default]`.
pub(super) fn root() -> &'static [SchemaNode] {
    static ROOT: LazyLock<Vec<SchemaNode>> = LazyLock::new(|| {
        vec![
            SchemaNode::Table { name: "resilience", open: true, fields: vec![table("sharding", sharding())] },
            SchemaNode::Named { name: "outbox", each: leaves(OUTBOX) },
        ]
    });
    &ROOT
}

const INSTANCE: &[SettingKey] = &[keys::ID, keys::ADDRESS, keys::PORT, keys::ZONE, keys::WEIGHT, keys::VERSION];

const DISCOVERY: &[SettingKey] = &[keys::BACKEND, keys::TTL, keys::RENEW_EVERY, keys::STOP_MARGIN];

const POLICY: &[SettingKey] = &[
    keys::GROUP_NAME,
    keys::PLACEMENT,
    keys::OWNERSHIP,
    keys::SLOTS,
    keys::VIRTUAL_NODES,
    keys::LOAD_MARGIN,
    keys::MIN_MEMBERS,
    keys::DRAIN_TIMEOUT,
    keys::REJOIN_GRACE,
    keys::ON_DRAIN_TIMEOUT,
    keys::EPOCH_FLOOR,
    keys::VERSION_RULE,
    keys::MESSAGES_LISTEN,
    keys::MESSAGES_TOKEN_FILE,
    keys::ON_BACKEND_LOSS,
    keys::KEEP_FOR,
    keys::MAX_LOSS,
    keys::PEER_NETWORKS,
    keys::PEER_LISTEN,
    keys::PEER_TOKEN_FILE,
];

const NEXT: &[SettingKey] = &[keys::NEXT_PLACEMENT, keys::NEXT_SLOTS, keys::NEXT_VIRTUAL_NODES, keys::NEXT_LOAD_MARGIN];

const OUTBOX: &[SettingKey] = &[
    keys::POLICY,
    keys::STORE,
    keys::STORE_PASSWORD_FILE,
    keys::SINK,
    keys::SINK_PASSWORD_FILE,
    keys::SINK_CA_FILE,
    keys::SINK_CERT_FILE,
    keys::SINK_KEY_FILE,
    keys::SINK_TO,
    keys::SINK_FORMAT,
    keys::SINK_STREAM,
    keys::SINK_CREATE,
    keys::SINK_FENCE,
    keys::SINK_EXCHANGE,
    keys::SINK_LENGTH,
    keys::SINK_SECRET_FILE,
    keys::SINK_PRIVATE,
    keys::SINK_TIMEOUT,
    keys::BATCH,
    keys::MAX_ATTEMPTS,
    keys::BACKOFF,
    keys::POISON,
    keys::OUTAGE_LIMIT,
    keys::POLL,
    keys::LISTEN,
    keys::RETENTION,
    keys::PARKED_RETENTION,
];

fn sharding() -> Vec<SchemaNode> {
    let mut instance = leaves(INSTANCE);
    instance.push(SchemaNode::Free(keys::METADATA));
    vec![SchemaNode::Leaf(keys::ENABLED), table("instance", instance), discovery(), SchemaNode::Named { name: "policies", each: policy() }]
}

fn policy() -> Vec<SchemaNode> {
    let mut fields = leaves(POLICY);
    fields.push(table("next", leaves(NEXT)));
    fields.push(discovery());
    fields
}

/// The common keys, and a table for each backend with the keys that it brings.
fn discovery() -> SchemaNode {
    let mut fields = leaves(DISCOVERY);
    fields.extend(BACKENDS.iter().map(|known| match known.kind {
        Some(kind) => table(kind.name, kind.keys.iter().flat_map(options::keys_of).map(SchemaNode::Leaf).collect()),
        None => SchemaNode::Absent(known.name),
    }));
    fields.extend(BACKENDS_LATER.map(SchemaNode::Later));
    table("discovery", fields)
}

const fn table(name: &'static str, fields: Vec<SchemaNode>) -> SchemaNode {
    SchemaNode::Table { name, fields, open: false }
}

fn leaves(keys: &[SettingKey]) -> Vec<SchemaNode> {
    keys.iter().copied().map(SchemaNode::Leaf).collect()
}
