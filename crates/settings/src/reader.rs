//! All layers, merged by the crate `config`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use config::{Config, Map, Value, ValueKind};

use crate::file::File;
use crate::origin::{Origin, Setting};
use crate::schema::SchemaNode;
use crate::table::SettingsTable;
use crate::{Error, Result, variables};

/// A name in each table that the file has, whose origin is the table's: `config` keeps none for a table when it merges layers.
pub(crate) const TABLE_NOTE: &str = "";

/// What settings are made of.
#[derive(Debug, Clone, Copy)]
pub struct Sources<'s> {
    /// How messages call the file.
    pub name: &'s str,
    /// Its text.
    pub text: &'s str,
    /// The section that lies over `[default]`.
    pub environment: Option<&'s str>,
    /// Environment variables by name; those that nothing names are left alone.
    pub variables: &'s BTreeMap<String, OsString>,
    /// Where relative paths in the file, and defaults, begin: all workers that read one file must arrive at the same paths, wherever they
    /// were started, for two that miss each other would both own everything.
    pub base: &'s Path,
}

/// All layers, merged, and an account of what has been read of them.
#[derive(Debug)]
pub struct Reader {
    merged: Value,
    pub(crate) base: PathBuf,
    pub(crate) in_force: RefCell<Vec<Setting>>,
}

impl Reader {
    /// Merges the layers: other tools' variables, the file's sections, our variables, each over those before it. `root` says what may be
    /// written in a section.
    ///
    /// # Errors
    ///
    /// What is no TOML, no known name, or not in its place.
    pub fn new(sources: &Sources<'_>, root: &[SchemaNode]) -> Result<Self> {
        let mut layers = variables::customary(sources.variables, root)?;
        layers.extend(File::parse(sources.name, sources.text, root)?.layers(sources.environment)?);
        layers.extend(variables::overrides(sources.variables, root)?);
        let mut builder = Config::builder();
        for layer in layers {
            builder = builder.add_source(layer);
        }
        let merged = builder.build().map_err(Error::new)?.cache;
        Ok(Self { merged, base: sources.base.to_owned(), in_force: RefCell::default() })
    }

    /// The table of that full key.
    pub fn table(&self, path: &str) -> SettingsTable<'_> {
        SettingsTable::new(self, path)
    }

    /// Everything read so far.
    pub fn into_in_force(self) -> Vec<Setting> {
        self.in_force.into_inner()
    }

    pub(crate) fn value(&self, path: &str) -> Option<&Value> {
        path.split('.').try_fold(&self.merged, |value, name| children(value)?.get(name))
    }

    /// What is in a table, in the order of the names.
    pub(crate) fn values_in(&self, path: &str) -> Vec<(&str, &Value)> {
        let values = self.value(path).and_then(children).into_iter().flatten();
        let mut values: Vec<_> = values.map(|(name, value)| (name.as_str(), value)).collect();
        values.sort_unstable_by_key(|(name, _)| *name);
        values
    }
}

pub(crate) fn children(value: &Value) -> Option<&Map<String, Value>> {
    if let ValueKind::Table(table) = &value.kind { Some(table) } else { None }
}

/// Where a table is written: what the file says of it, else the variable that has some value in it.
pub(crate) fn table_origin(table: &Value) -> Origin {
    // The note's name goes before all others.
    let first = children(table).and_then(|values| values.iter().min_by_key(|(name, _)| *name));
    first.map_or_else(|| Origin::of(table), |(_, value)| table_origin(value))
}
