//! Suggestions for names that the tree of known names does not have.

use crate::origin::{Origin, join};
use crate::schema::SchemaNode;
use crate::similar::nearest;

fn known(fields: &[SchemaNode]) -> impl Iterator<Item = &'static str> {
    fields.iter().filter(|node| !matches!(node, SchemaNode::Absent(_))).map(SchemaNode::name)
}

/// A hint for a name that the table does not have: the same name elsewhere, a similar one here, or all known names. If a variable has the
/// name, the hint is the variable to write instead.
pub(crate) fn advice(given: &str, (table, fields): (&str, &[SchemaNode]), root: &[SchemaNode], origin: &Origin) -> String {
    let given_key = join(table, given);
    let variable = |key: &str| origin.variable_with(key, &given_key);
    let is_table = origin.is_below(&given_key);
    let here = |key: &str| variable(&format!("{table}.{key}")).unwrap_or_else(|| key.to_owned());
    if let Some(key) = find(given, is_table, fields) {
        return format!("did you mean {}?", here(&key));
    }
    if let Some(key) = nearest(given, known(fields)) {
        return format!("did you mean {}?", here(key));
    }
    if let Some(key) = find(given, is_table, root) {
        return format!("it belongs in {}", variable(&key).unwrap_or(key));
    }
    let names = known(fields).collect::<Vec<_>>().join(", ");
    format!("known here: {}", if matches!(origin, Origin::Variable { .. }) { names.to_uppercase() } else { names })
}

/// The path of a key with exactly that name below `fields`; of a key that has others below it if `is_table`.
fn find(given: &str, is_table: bool, fields: &[SchemaNode]) -> Option<String> {
    let inside = |name: &str, fields| find(given, is_table, fields).map(|place| format!("{name}.{place}"));
    fields.iter().find_map(|node| match node {
        SchemaNode::Leaf(key) => (key.name == given && !is_table).then(|| given.to_owned()),
        SchemaNode::Free(key) => (key.name == given).then(|| given.to_owned()),
        SchemaNode::Table { name, .. } | SchemaNode::Named { name, .. } if *name == given => Some(given.to_owned()),
        SchemaNode::Table { name, fields, .. } => inside(name, fields),
        SchemaNode::Named { name, each, .. } => inside(&format!("{name}.NAME"), each),
        SchemaNode::Absent(_) => None,
    })
}
