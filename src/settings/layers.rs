//! Everything that was written, one layer over the other: the file's `[default]`, its section for the environment, the variables.

use std::collections::BTreeMap;

use shardwise_core::PolicyName;

use super::origin::{Origin, Path};
use super::tree::SchemaNode;
use super::value::Raw;
use crate::Error;

/// A value and where it stands.
#[derive(Debug, Clone)]
pub(super) struct LayerEntry {
    pub(super) raw: Raw,
    pub(super) origin: Origin,
}

/// What was written, the uppermost layer only.
#[derive(Debug, Default)]
pub(super) struct Layers {
    entries: BTreeMap<Path, LayerEntry>,
    /// Tables that are written, also those that are empty, with the place that first names them.
    tables: BTreeMap<Path, Origin>,
    /// What other tools' environment variables say, for keys that nobody has written.
    customary: BTreeMap<String, LayerEntry>,
}

impl Layers {
    /// Lays a value over what is there.
    pub(super) fn put(&mut self, path: Path, raw: Raw, origin: Origin) {
        self.entries.insert(path, LayerEntry { raw, origin });
    }

    /// Notes a table whose name the user chose.
    pub(super) fn name(&mut self, path: Path, name: &str, origin: &Origin) -> Result<(), Error> {
        PolicyName::new(name).map_err(|_| {
            origin
                .fail(format_args!("{path} is not a name: use lower-case letters, digits and single underscores, beginning with a letter"))
        })?;
        self.table(path, origin);
        Ok(())
    }

    /// Notes a table.
    pub(super) fn table(&mut self, path: Path, origin: &Origin) {
        self.tables.entry(path).or_insert_with(|| origin.clone());
    }

    /// The place that first names the table; `None` if no file does.
    pub(super) fn names_table(&self, path: &Path) -> Option<&Origin> {
        self.tables.get(path)
    }

    /// Keeps the value of another tool's variable at hand.
    pub(super) fn put_customary(&mut self, variable: &str, raw: Raw, origin: Origin) {
        self.customary.insert(variable.to_owned(), LayerEntry { raw, origin });
    }

    /// What another tool's variable says.
    pub(super) fn customary(&self, variable: &str) -> Option<&LayerEntry> {
        self.customary.get(variable)
    }

    pub(super) fn get(&self, path: &Path) -> Option<&LayerEntry> {
        self.entries.get(path)
    }

    /// The values directly in a table whose names the user chose.
    pub(super) fn values_in<'s>(&'s self, table: &'s Path) -> impl Iterator<Item = (&'s str, &'s LayerEntry)> {
        self.entries.iter().filter_map(|(path, entry)| path.child_of(table).map(|name| (name, entry)))
    }

    /// The names the user chose in a table of tables, with the place that first names each.
    pub(super) fn named_in<'s>(&'s self, table: &'s Path) -> impl Iterator<Item = (&'s str, &'s Origin)> {
        self.tables.iter().filter_map(|(path, origin)| path.child_of(table).map(|name| (name, origin)))
    }
}

/// The node of that name.
pub(super) fn node_in(fields: &'static [SchemaNode], name: &str) -> Option<&'static SchemaNode> {
    fields.iter().find(|node| node.name() == name)
}

/// The error for a key that the design names and nothing acts on.
pub(super) fn not_built_yet(path: &Path, origin: &Origin) -> Error {
    origin.fail(format_args!("{path} is not built yet: remove it"))
}
