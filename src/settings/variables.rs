//! The uppermost layer: `SHARDWISE__RESILIENCE__SHARDING__POLICIES__WORKERS__SLOTS=64` and its like.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::layers::{Layers, node_in, not_built_yet};
use super::origin::{Origin, Path};
use super::suggest::{known, nearest};
use super::tree::{SchemaNode, root};
use super::value::{Raw, shown};
use crate::Error;

/// What the name of a variable that overrides a setting begins with.
pub(super) const PREFIX: &str = "SHARDWISE__";
const SEPARATOR: &str = "__";

/// Lays every variable that begins with [`PREFIX`] into `layers`.
pub(super) fn collect(variables: &BTreeMap<String, OsString>, layers: &mut Layers) -> Result<(), Error> {
    for (variable, value) in variables {
        if let Some(key) = variable.strip_prefix(PREFIX) {
            let origin = Origin::Variable { variable: variable.as_str().into() };
            let value = value.to_str().ok_or_else(|| origin.fail("its value is not UTF-8 text"))?;
            override_by(key, value, origin, layers)?;
        }
    }
    Ok(())
}

/// Keeps at hand what other tools' variables say, such as `CONSUL_HTTP_ADDR`. An empty one counts as not set.
pub(super) fn collect_customary(variables: &BTreeMap<String, OsString>, layers: &mut Layers) -> Result<(), Error> {
    for name in customary() {
        if let Some(value) = variables.get(name).filter(|value| !value.is_empty()) {
            let origin = Origin::Variable { variable: name.into() };
            let value = value.to_str().ok_or_else(|| origin.fail("its value is not UTF-8 text"))?;
            layers.put_customary(name, Raw::Bare(value.to_owned()), origin);
        }
    }
    Ok(())
}

/// The names of other tools' variables that some key falls back on.
pub(super) fn customary() -> impl Iterator<Item = &'static str> {
    let keys = crate::backend::BACKENDS.iter().filter_map(|known| known.kind).flat_map(|kind| kind.keys);
    keys.flat_map(|key| [key.variable, key.file_twin.and_then(|twin| twin.variable)]).flatten()
}

/// How far a variable's name has been followed.
struct VariableWalk<'n> {
    fields: &'static [SchemaNode],
    path: Path,
    done: Vec<&'n str>,
    rest: std::collections::VecDeque<&'n str>,
}

fn override_by(key: &str, value: &str, origin: Origin, layers: &mut Layers) -> Result<(), Error> {
    if key.bytes().any(|b| b.is_ascii_lowercase()) {
        return Err(origin.fail(format_args!("write its name in capitals: {PREFIX}{}", key.to_ascii_uppercase())));
    }
    let mut walk = VariableWalk { fields: root(), path: Path::default(), done: Vec::new(), rest: key.split(SEPARATOR).collect() };
    loop {
        let Some(node) = walk.step() else {
            return Err(origin.fail(walk.advice()));
        };
        match node {
            SchemaNode::Later(_) => return Err(not_built_yet(&walk.path, &origin)),
            SchemaNode::Absent(_) => return Ok(()),
            SchemaNode::Table { fields, .. } => walk.fields = fields,
            SchemaNode::Named { each, .. } => {
                let Some(name) = walk.chosen() else {
                    return Err(origin.fail("it ends before the name and the key of a setting"));
                };
                layers.name(walk.path.clone(), &name, &origin)?;
                walk.fields = each;
            }
            SchemaNode::Leaf(_) if walk.rest.is_empty() => break,
            SchemaNode::Free(_) if walk.rest.len() == 1 && walk.chosen().is_some() => break,
            SchemaNode::Leaf(_) => return Err(origin.fail(format_args!("it names no setting: did you mean {}?", walk.spelled(&[])))),
            SchemaNode::Free(_) => return Err(origin.fail(format_args!("after {} one name of your choice is expected", walk.spelled(&[])))),
        }
    }
    layers.put(walk.path, Raw::Bare(value.to_owned()), origin);
    Ok(())
}

impl VariableWalk<'_> {
    /// Goes on by one name that must be known.
    fn step(&mut self) -> Option<&'static SchemaNode> {
        let name = self.rest.front()?.to_ascii_lowercase();
        let node = node_in(self.fields, &name)?;
        self.path = self.path.join(&name);
        self.done.extend(self.rest.pop_front());
        Some(node)
    }

    /// Goes on by one name that the user chose.
    fn chosen(&mut self) -> Option<String> {
        let given = self.rest.pop_front().filter(|name| !name.is_empty())?;
        let name = given.to_ascii_lowercase();
        self.path = self.path.join(&name);
        self.done.push(given);
        Some(name)
    }

    /// What the next name should have been.
    fn advice(&self) -> String {
        let Some(given) = self.rest.front() else {
            let keys: Vec<String> = known(self.fields).map(str::to_ascii_uppercase).collect();
            return format!("it names a table, not a setting: add {SEPARATOR} and one of {}", keys.join(", "));
        };
        if let Some(name) = nearest(&given.to_ascii_lowercase(), known(self.fields)) {
            return format!("it names no setting: did you mean {}?", self.spelled(&[&name.to_ascii_uppercase()]));
        }
        let names: Vec<String> = known(self.fields).map(str::to_ascii_uppercase).collect();
        format!("it names no setting: instead of {} write one of {}", shown(given), names.join(", "))
    }

    /// The variable's name with `instead` in the place of the name that is not known.
    fn spelled(&self, instead: &[&str]) -> String {
        let rest = self.rest.iter().skip(1).filter(|_| !instead.is_empty());
        let names: Vec<&str> = self.done.iter().chain(instead).chain(rest).copied().collect();
        format!("{PREFIX}{}", names.join(SEPARATOR))
    }
}
