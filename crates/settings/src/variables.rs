//! Environment variables as layers: `SHARDWISE__RESILIENCE__SHARDING__POLICIES__WORKERS__SLOTS=64` and the like override the file; other
//! tools' variables, such as `CONSUL_HTTP_ADDR`, are overridden by it.
//!
//! `config` has a source for the environment, but its values do not say which variable they come from, and it ignores unknown ones.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{OsStr, OsString};

use config::{Map, Value, ValueKind};

use crate::Result;
use crate::file::Layer;
use crate::origin::{Origin, join};
use crate::schema::{self, SchemaNode, known, named, nearest, node_in, not_built_yet};
use crate::value::shown;

pub(crate) const PREFIX: &str = "SHARDWISE__";
const SEPARATOR: &str = "__";

/// A layer for each variable with [`PREFIX`]; `root` is the tree of known names.
pub(crate) fn overrides(variables: &BTreeMap<String, OsString>, root: &[SchemaNode]) -> Result<Vec<Layer>> {
    let mut layers = Vec::new();
    for (variable, value) in variables {
        if let Some(key) = variable.strip_prefix(PREFIX) {
            let origin = Origin::Variable { variable: variable.as_str().into() };
            let value = text(value, &origin)?;
            layers.extend(place(key, &origin, root)?.map(|names| layer(&names, value, &origin)));
        }
    }
    Ok(layers)
}

/// A layer for each of other tools' variables that a key falls back on. An empty one counts as not set.
pub(crate) fn customary(variables: &BTreeMap<String, OsString>, root: &[SchemaNode]) -> Result<Vec<Layer>> {
    let mut layers = Vec::new();
    for (names, variable) in schema::customary(root) {
        if let Some(value) = variables.get(variable).filter(|value| !value.is_empty()) {
            let origin = Origin::Variable { variable: variable.into() };
            layers.push(layer(&names, text(value, &origin)?, &origin));
        }
    }
    Ok(layers)
}

/// The names of other tools' variables that some key falls back on.
pub fn customary_variables(root: &[SchemaNode]) -> Vec<&'static str> {
    schema::customary(root).into_iter().map(|(_, variable)| variable).collect()
}

fn text<'v>(value: &'v OsStr, origin: &Origin) -> Result<&'v str> {
    value.to_str().ok_or_else(|| origin.fail("its value is not UTF-8 text"))
}

/// One value below these names.
fn layer(names: &[impl AsRef<str>], value: &str, origin: &Origin) -> Layer {
    let mut value = origin.on(ValueKind::String(value.to_owned()));
    for name in names.iter().rev() {
        value = Value::new(None, Map::from([(name.as_ref().to_owned(), value)]));
    }
    Layer(if let ValueKind::Table(values) = value.kind { values } else { Map::new() })
}

/// The progress of matching a variable's name with the tree.
struct VariableWalk<'n> {
    fields: &'n [SchemaNode],
    /// The names matched so far, as written.
    done: Vec<&'n str>,
    rest: VecDeque<&'n str>,
}

/// The path of the setting that a variable names; `None` if it is for a part that this program was built without.
fn place(key: &str, origin: &Origin, root: &[SchemaNode]) -> Result<Option<Vec<String>>> {
    if key.bytes().any(|b| b.is_ascii_lowercase()) {
        return Err(origin.fail(format_args!("write its name in capitals: {PREFIX}{}", key.to_ascii_uppercase())));
    }
    let mut walk = VariableWalk { fields: root, done: Vec::new(), rest: key.split(SEPARATOR).collect() };
    let mut is_open = false;
    loop {
        let node = match walk.step() {
            Some(node) => node,
            None if is_open && !walk.rest.is_empty() => return Ok(None),
            None => return Err(origin.fail(walk.advice())),
        };
        match node {
            SchemaNode::Later(_) => return Err(not_built_yet(&walk.path(), origin)),
            SchemaNode::Absent(_) => return Ok(None),
            SchemaNode::Table { fields, .. } => walk.fields = fields,
            SchemaNode::Named { each, is_open: open, .. } => {
                let table = walk.path();
                let Some(name) = walk.chosen() else {
                    return Err(origin.fail("it ends before the name and the key of a setting"));
                };
                named(&table, &name, origin)?;
                (walk.fields, is_open) = (each, *open);
            }
            SchemaNode::Leaf(_) if walk.rest.is_empty() => break,
            SchemaNode::Free(_) if walk.rest.len() == 1 && walk.chosen().is_some() => break,
            SchemaNode::Leaf(_) => return Err(origin.fail(format_args!("it names no setting: did you mean {}?", walk.spelled(&[])))),
            SchemaNode::Free(_) => return Err(origin.fail(format_args!("after {} one name of your choice is expected", walk.spelled(&[])))),
        }
    }
    Ok(Some(walk.done.iter().map(|name| name.to_ascii_lowercase()).collect()))
}

impl<'n> VariableWalk<'n> {
    /// Matches one known name.
    fn step(&mut self) -> Option<&'n SchemaNode> {
        let node = node_in(self.fields, &self.rest.front()?.to_ascii_lowercase())?;
        self.done.extend(self.rest.pop_front());
        Some(node)
    }

    /// Matches one name chosen by the user.
    fn chosen(&mut self) -> Option<String> {
        let given = self.rest.pop_front().filter(|name| !name.is_empty())?;
        self.done.push(given);
        Some(given.to_ascii_lowercase())
    }

    /// The full key so far.
    fn path(&self) -> String {
        self.done.iter().fold(String::new(), |path, name| join(&path, &name.to_ascii_lowercase()))
    }

    /// A hint on what the next name should have been.
    fn advice(&self) -> String {
        let names = || known(self.fields).map(str::to_ascii_uppercase).collect::<Vec<_>>().join(", ");
        let Some(given) = self.rest.front() else {
            return format!("it names a table, not a setting: add {SEPARATOR} and one of {}", names());
        };
        match nearest(&given.to_ascii_lowercase(), known(self.fields)) {
            Some(name) => format!("it names no setting: did you mean {}?", self.spelled(&[&name.to_ascii_uppercase()])),
            None => format!("it names no setting: instead of {} write one of {}", shown(given), names()),
        }
    }

    /// The variable's name with `instead` in place of the unknown name.
    fn spelled(&self, instead: &[&str]) -> String {
        let rest = self.rest.iter().skip(1).filter(|_| !instead.is_empty());
        let names: Vec<&str> = self.done.iter().chain(instead).chain(rest).copied().collect();
        format!("{PREFIX}{}", names.join(SEPARATOR))
    }
}
