//! All layers, merged by the crate `config`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use config::builder::DefaultState;
use config::{Config, ConfigBuilder, Value};

use crate::layered::{children, sorted};
use crate::origin::Setting;
use crate::schema::SchemaNode;
use crate::{Error, Result, file, variables};

/// The sources of settings.
#[derive(Debug, Clone, Copy)]
pub struct Sources<'s> {
    /// The file's name in messages.
    pub name: &'s str,
    /// Its text.
    pub text: &'s str,
    /// The section that overrides `[default]`.
    pub environment: Option<&'s str>,
    /// Environment variables by name; unrelated ones are ignored.
    pub variables: &'s BTreeMap<String, OsString>,
    /// The base of relative paths in the file and in defaults. All workers that read one file must get the same paths, wherever they were
    /// started: two workers that do not find each other would both own everything.
    pub base: &'s Path,
}

/// All layers, merged, and a record of the values that were read.
#[derive(Debug)]
pub struct Reader {
    merged: Value,
    pub(crate) base: PathBuf,
    pub(crate) in_force: RefCell<Vec<Setting>>,
}

impl Reader {
    /// Merges the layers: other tools' variables, the file's sections, our variables, each overriding those before it. `root` is the tree
    /// of names known in a section. Invalid TOML, an unknown name, or one in the wrong place is an error.
    pub fn new(sources: &Sources<'_>, root: &[SchemaNode]) -> Result<Self> {
        let &Sources { name, text, environment, variables, base } = sources;
        let layers =
            [variables::customary(variables, root)?, file::layers(name, text, environment, root)?, variables::overrides(variables, root)?];
        let merge = |builder: ConfigBuilder<DefaultState>, layer| builder.add_source::<Config>(layer);
        let merged = layers.into_iter().flatten().fold(Config::builder(), merge).build().map_err(Error::new)?.cache;
        Ok(Self { merged, base: base.to_owned(), in_force: RefCell::default() })
    }

    /// All settings read so far.
    pub fn into_in_force(self) -> Vec<Setting> {
        self.in_force.into_inner()
    }

    pub(crate) fn value(&self, path: &str) -> Option<&Value> {
        path.split('.').try_fold(&self.merged, |value, name| children(value)?.get(name))
    }

    /// The contents of a table, in the order of the names.
    pub(crate) fn values_in(&self, path: &str) -> Vec<(&str, &Value)> {
        self.value(path).and_then(children).map(sorted).unwrap_or_default()
    }
}
