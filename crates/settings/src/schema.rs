//! The tree of known names. A key that is not in the tree does not exist.

use config::{Map, Value};
use shardwise_discovery::settings::MASK;

use crate::Result;
use crate::layered::children;
use crate::origin::Origin;
use crate::similar::is_slip_of;
use crate::value::{Shape, Written};

/// The value of a key that is not set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fallback {
    /// This text, parsed like an environment variable's.
    Text(&'static str),
    /// A value that depends on other keys or on the machine.
    Computed,
    /// None; the key is optional.
    Unset,
    /// The key is required; the text says what to write.
    Required(&'static str),
}

/// One key of a table: its name, shape, default and purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SettingKey {
    /// Its name in its table.
    pub name: &'static str,
    /// The shape of its value.
    pub shape: Shape,
    /// Its value if it is not set.
    pub fallback: Fallback,
    /// Its purpose, in one line.
    pub why: &'static str,
    /// A customary environment variable of other tools, such as `CONSUL_HTTP_ADDR`, which the file overrides.
    pub variable: Option<&'static str>,
}

impl SettingKey {
    /// An optional key.
    pub const fn new(name: &'static str, shape: Shape, why: &'static str) -> Self {
        Self { name, shape, fallback: Fallback::Unset, why, variable: None }
    }

    /// Adds a default, as an environment variable would contain it.
    #[must_use]
    pub const fn or(self, default: &'static str) -> Self {
        Self { fallback: Fallback::Text(default), ..self }
    }

    /// Makes the key required; `what` says what to write.
    #[must_use]
    pub const fn required(self, what: &'static str) -> Self {
        Self { fallback: Fallback::Required(what), ..self }
    }

    /// Adds a default that depends on other keys or on the machine.
    #[must_use]
    pub const fn computed(self) -> Self {
        Self { fallback: Fallback::Computed, ..self }
    }

    /// Adds a customary variable, if there is one.
    #[must_use]
    pub const fn or_variable(self, variable: Option<&'static str>) -> Self {
        Self { variable, ..self }
    }
}

/// One name in a table.
#[derive(Debug)]
pub enum SchemaNode {
    /// A value.
    Leaf(SettingKey),
    /// A table. In an open one, unknown names belong to the application and are ignored, unless a table's is a slip of a known one, or
    /// the name of one that is a level further down, and it has contents of that one.
    Table {
        /// Its name.
        name: &'static str,
        /// Its contents.
        fields: Vec<SchemaNode>,
        /// Whether unknown names are ignored.
        is_open: bool,
    },
    /// A table of tables whose names the user chooses. In open ones, unknown keys belong to another crate and are ignored.
    Named {
        /// Its name.
        name: &'static str,
        /// The contents of each.
        each: Vec<SchemaNode>,
        /// Whether unknown keys are ignored.
        is_open: bool,
    },
    /// A table of values whose names the user chooses.
    Free(SettingKey),
    /// For a part that this program was built without: only where it is written is kept, so that programs with different features can share
    /// a file.
    Absent(&'static str),
}

impl SchemaNode {
    /// A table with only these fields.
    pub const fn table(name: &'static str, fields: Vec<Self>) -> Self {
        Self::Table { name, fields, is_open: false }
    }

    /// These keys as nodes of a table.
    pub fn leaves(keys: &[SettingKey]) -> Vec<Self> {
        keys.iter().copied().map(Self::Leaf).collect()
    }

    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Leaf(key) | Self::Free(key) => key.name,
            Self::Table { name, .. } | Self::Named { name, .. } | Self::Absent(name) => name,
        }
    }

    /// Whether a name and its value in a file are this table: by the name, or by a slip of it with contents of this table. An application
    /// may have tables with similar names, such as `resilience.shedding`.
    pub(crate) fn is_meant_by(&self, name: &str, value: &Value) -> bool {
        name == self.name() || is_slip_of(name, self.name()) && self.is_like(value)
    }

    /// Whether a name and its value in a file are a table of this open one, written without the level of this one: `sharding` for
    /// `resilience.sharding`. Only the exact name counts, because the application may have any table there.
    pub(crate) fn is_skipped_by(&self, name: &str, value: &Value) -> bool {
        let Self::Table { fields, is_open: true, .. } = self else { return false };
        fields.iter().any(|field| field.name() == name && field.is_like(value))
    }

    /// Whether the value is a table with contents of this one.
    pub(crate) fn is_like(&self, value: &Value) -> bool {
        let Some(table) = children(value) else { return false };
        let has_one_of = |fields: &[Self], table: &Map<String, Value>| table.keys().any(|name| node_in(fields, name).is_some());
        match self {
            Self::Table { fields, is_open: true, .. } => {
                table.iter().any(|(name, value)| fields.iter().any(|field| field.is_meant_by(name, value)))
            }
            Self::Table { fields, .. } => has_one_of(fields, table),
            Self::Named { each, .. } => table.values().filter_map(children).any(|table| has_one_of(each, table)),
            Self::Leaf(_) | Self::Free(_) | Self::Absent(_) => false,
        }
    }
}

/// The full name of every known key; `*` stands for a name chosen by the user.
pub fn known_keys(root: &[SchemaNode]) -> Vec<(String, SettingKey)> {
    let mut found = Vec::new();
    keys_below(root, "", &mut found);
    found
}

fn keys_below(fields: &[SchemaNode], above: &str, found: &mut Vec<(String, SettingKey)>) {
    for node in fields {
        match node {
            SchemaNode::Leaf(key) => found.push((format!("{above}{}", key.name), *key)),
            SchemaNode::Free(key) => found.push((format!("{above}{}.*", key.name), *key)),
            SchemaNode::Table { name, fields, .. } => keys_below(fields, &format!("{above}{name}."), found),
            SchemaNode::Named { name, each, .. } => keys_below(each, &format!("{above}{name}.*."), found),
            SchemaNode::Absent(_) => {}
        }
    }
}

pub(crate) fn node_in<'s>(fields: &'s [SchemaNode], name: &str) -> Option<&'s SchemaNode> {
    fields.iter().find(|node| node.name() == name)
}

/// The validated text; the error has the origin, the key, its value and what is allowed.
pub(crate) fn check(key: &SettingKey, path: &str, written: &Written, origin: &Origin) -> Result<String> {
    key.shape.read(written).map_err(|allowed| match key.shape {
        Shape::Secret => origin.fail(format_args!("{path} is {MASK}: {allowed}")),
        _ => origin.fail(format_args!("{path} is {written}: {allowed}")),
    })
}
