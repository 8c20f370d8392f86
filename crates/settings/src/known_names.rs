//! What a layer has of the tree of known names; any other name in it is refused.

use config::{Config, Map, Value, ValueKind};
use shardwise_core::PolicyName;

use crate::Result;
use crate::advice::advice;
use crate::layered::{TABLE_NOTE, sorted, written_at};
use crate::origin::{Origin, join};
use crate::schema::{SchemaNode, check, node_in};
use crate::value::Written;

pub(crate) struct KnownNames<'s> {
    pub(crate) root: &'s [SchemaNode],
    /// In open tables of a file, unknown names belong to the application; and a file's tables keep their origins.
    pub(crate) is_file: bool,
}

impl KnownNames<'_> {
    /// The layer with the known values in `table`, which messages call `path`.
    pub(crate) fn layer(&self, table: &Value, path: &str) -> Result<Config> {
        let mut layer = Config::default();
        layer.cache = Value::new(None, self.fields(table_in(table, path)?, self.root, self.is_file, "")?);
        Ok(layer)
    }

    /// The known values of a table; an unknown name is refused unless the table is open and no known table is meant.
    fn fields(&self, table: &Map<String, Value>, fields: &[SchemaNode], is_open: bool, path: &str) -> Result<Map<String, Value>> {
        let mut values = Map::new();
        for (name, value) in sorted(table) {
            let key = join(path, name);
            match node_in(fields, name) {
                Some(node) => values.extend(self.node(node, value, &key)?.map(|value| (name.to_owned(), value))),
                None if is_open && !fields.iter().any(|node| node.is_meant_by(name, value) || node.is_skipped_by(name, value)) => {}
                None => {
                    let origin = Origin::of(value);
                    let advice = advice(name, (path, fields), self.root, &origin);
                    return Err(origin.fail(format_args!("{key} is not a setting: {advice}")));
                }
            }
        }
        Ok(values)
    }

    /// The known part of a value; `None` if it is ignored.
    fn node(&self, node: &SchemaNode, value: &Value, path: &str) -> Result<Option<Value>> {
        match node {
            SchemaNode::Absent(_) => Ok(written_at(value).map(|origin| origin.on(ValueKind::Nil))),
            // In a table shared with the application, this may be any value of the application.
            SchemaNode::Table { is_open: true, .. } if self.is_file && !is_table(value) => Ok(None),
            SchemaNode::Table { fields, is_open, .. } => self.subtable(value, fields, *is_open && self.is_file, path),
            SchemaNode::Named { each, is_open, .. } => self.named(value, each, *is_open, path),
            SchemaNode::Leaf(key) => {
                if is_table(value) {
                    check(key, path, &Written::of(value), &Origin::of(value))?;
                }
                Ok(Some(value.clone()))
            }
            SchemaNode::Free(key) => {
                for (name, value) in sorted(table_in(value, path)?) {
                    self.node(&SchemaNode::Leaf(*key), value, &join(path, name))?;
                }
                Ok(Some(value.clone()))
            }
        }
    }

    fn named(&self, value: &Value, each: &[SchemaNode], is_open: bool, path: &str) -> Result<Option<Value>> {
        let mut tables = Map::new();
        for (name, value) in sorted(table_in(value, path)?) {
            let path = join(path, name);
            let refused = if !is_table(value) && node_in(each, name).is_some() {
                "a key without a name before it: put it into a table whose name you choose"
            } else if PolicyName::new(name).is_err() {
                "not a name: use lower-case letters, digits and single underscores, beginning with a letter"
            } else {
                tables.extend(self.subtable(value, each, is_open, &path)?.map(|table| (name.to_owned(), table)));
                continue;
            };
            return Err(Origin::of(value).fail(format_args!("{path} is {refused}")));
        }
        Ok((!tables.is_empty()).then(|| Value::new(None, tables)))
    }

    fn subtable(&self, value: &Value, fields: &[SchemaNode], is_open: bool, path: &str) -> Result<Option<Value>> {
        let mut values = self.fields(table_in(value, path)?, fields, is_open, path)?;
        if self.is_file {
            values.insert(TABLE_NOTE.to_owned(), Origin::of(value).on(ValueKind::Nil));
        }
        Ok((!values.is_empty()).then(|| Value::new(None, values)))
    }
}

const fn is_table(value: &Value) -> bool {
    matches!(value.kind, ValueKind::Table(_))
}

fn table_in<'v>(value: &'v Value, path: &str) -> Result<&'v Map<String, Value>> {
    match &value.kind {
        ValueKind::Table(table) => Ok(table),
        // It may be a secret under a name that is too short.
        _ if matches!(Origin::of(value), Origin::Variable { .. }) => {
            Err(Origin::of(value).fail(format_args!("{path} is a table of settings: add __ and the name of one of them")))
        }
        _ => Err(Origin::of(value).fail(format_args!("{path} is {}: a table of settings is expected here", Written::of(value)))),
    }
}
