//! The known names of a section, as a tree of the keys in `keys`, of the backends' and of an outbox's.

use shardwise_discovery::settings::BackendKind;
use shardwise_settings::{SchemaNode, SettingKey};

use super::{keys, options};
use crate::backend::{self, BACKENDS};

/// The contents of a section such as `[default]`. An outbox has the keys `outbox` besides its policy; `None`: but for its store, its other
/// keys are ignored.
pub(super) fn root(outbox: Option<&[SettingKey]>) -> Vec<SchemaNode> {
    let mut instance = SchemaNode::leaves(keys::INSTANCE);
    instance.push(SchemaNode::Free(keys::METADATA));
    let mut policy = SchemaNode::leaves(keys::POLICIES);
    policy.extend([SchemaNode::table("next", SchemaNode::leaves(keys::NEXT)), discovery()]);
    let policies = SchemaNode::Named { name: "policies", each: policy, is_open: false };
    let sharding = vec![SchemaNode::Leaf(keys::ENABLED), SchemaNode::table("instance", instance), discovery(), policies];
    let each = SchemaNode::leaves(&[&[keys::POLICY], outbox.unwrap_or(&[keys::STORE, keys::STORE_PASSWORD_FILE])].concat());
    vec![
        SchemaNode::Table { name: "resilience", fields: vec![SchemaNode::table("sharding", sharding)], is_open: true },
        SchemaNode::Named { name: "outbox", each, is_open: outbox.is_none() },
    ]
}

/// The common keys, and a table for each backend with its own keys.
fn discovery() -> SchemaNode {
    let keys_of =
        |kind: &BackendKind| SchemaNode::table(kind.name, kind.keys.iter().flat_map(options::keys_of).map(SchemaNode::Leaf).collect());
    let mut fields = SchemaNode::leaves(keys::DISCOVERY);
    fields.extend(BACKENDS.iter().map(|known| match known.kind {
        Some(kind) => keys_of(kind),
        None => SchemaNode::Absent(known.name),
    }));
    fields.extend(backend::added().into_iter().map(keys_of));
    SchemaNode::table("discovery", fields)
}
