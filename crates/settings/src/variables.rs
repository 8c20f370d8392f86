//! Environment variables as layers: `SHARDWISE__RESILIENCE__SHARDING__POLICIES__WORKERS__SLOTS=64` and the like override the file; other
//! tools' variables, such as `CONSUL_HTTP_ADDR`, are overridden by it.
//!
//! `config` has a source for the environment, but its values do not say which variable they come from, and it ignores unknown ones.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use config::{Config, Map, ValueKind};

use crate::Result;
use crate::known_names::KnownNames;
use crate::origin::{Origin, PREFIX, SEPARATOR};
use crate::schema::{SchemaNode, known_keys};

/// A layer for each variable with [`PREFIX`]; `root` is the tree of known names.
pub(crate) fn overrides(variables: &BTreeMap<String, OsString>, root: &[SchemaNode]) -> Result<Vec<Config>> {
    if let Some((variable, key)) = variables.keys().find_map(|variable| Some((variable, one_underscore(variable, root)?))) {
        return Err(origin_of(variable).fail(format_args!("write two underscores after SHARDWISE: {PREFIX}{key}")));
    }
    let ours = variables.iter().filter_map(|(variable, value)| Some((variable, variable.strip_prefix(PREFIX)?, value)));
    let checked = |(variable, key, value): (&String, &str, &OsString)| {
        if key.bytes().any(|byte| byte.is_ascii_lowercase()) {
            let message = format_args!("write its name in capitals: {PREFIX}{}", key.to_ascii_uppercase());
            return Err(origin_of(variable).fail(message));
        }
        layer(variable, &key.to_ascii_lowercase(), SEPARATOR, value, root)
    };
    ours.map(checked).collect()
}

/// The rest of a variable that has one underscore instead of two after `SHARDWISE`. Others with one are not ours: Kubernetes sets some if a
/// service is called shardwise.
fn one_underscore<'v>(variable: &'v str, root: &[SchemaNode]) -> Option<&'v str> {
    let key = variable.strip_prefix("SHARDWISE_")?;
    let (first, _) = key.split_once(SEPARATOR)?;
    root.iter().any(|node| first.eq_ignore_ascii_case(node.name())).then_some(key)
}

/// A layer for each of other tools' variables that a key falls back on. An empty one counts as not set.
pub(crate) fn customary(variables: &BTreeMap<String, OsString>, root: &[SchemaNode]) -> Result<Vec<Config>> {
    let written = |(path, variable)| Some((path, variable, variables.get(variable).filter(|value| !value.is_empty())?));
    let checked = |(path, variable, value): (String, &str, &OsString)| layer(variable, &path, ".", value, root);
    fallbacks(root).filter_map(written).map(checked).collect()
}

/// The names of other tools' variables that some key falls back on.
pub fn customary_variables(root: &[SchemaNode]) -> Vec<&'static str> {
    fallbacks(root).map(|(_, variable)| variable).collect()
}

/// The full keys in plain tables that fall back on other tools' variables, each with its variable.
fn fallbacks(root: &[SchemaNode]) -> impl Iterator<Item = (String, &'static str)> {
    known_keys(root).into_iter().filter(|(path, _)| !path.contains('*')).filter_map(|(path, key)| Some((path, key.variable?)))
}

fn layer(variable: &str, path: &str, separator: &str, value: &OsStr, root: &[SchemaNode]) -> Result<Config> {
    let origin = origin_of(variable);
    let text = value.to_str().ok_or_else(|| origin.fail("its value is not UTF-8 text"))?;
    let mut values = origin.on(text);
    for name in path.split(separator).collect::<Vec<_>>().into_iter().rev() {
        values = origin.on(ValueKind::Table(Map::from([(name.to_owned(), values)])));
    }
    KnownNames { root, is_file: false }.layer(&values, "")
}

fn origin_of(variable: &str) -> Origin {
    Origin::Variable { variable: variable.into() }
}
