//! Suggestions for names that are not known.

use crate::origin::{Origin, join};
use crate::schema::SchemaNode;

/// Below this similarity (0 to 1) a suggestion confuses more than it helps.
const SIMILAR_MIN: f64 = 0.75;
/// The most wrong, missing, additional or swapped letters of a slip.
const SLIPS_MAX: usize = 2;

/// The most similar known name, if any is similar enough.
pub fn nearest<'n>(given: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let given = given.to_lowercase();
    let similarity = |name: &str| strsim::jaro_winkler(&given, &name.to_lowercase());
    let similar = known.into_iter().map(|name| (similarity(name), name)).filter(|(similarity, _)| *similarity >= SIMILAR_MIN);
    similar.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
}

/// Whether `given` is `known` or a slip of it. A suggestion may be wrong, because the name it is for is refused anyway; this decides whether
/// an application's own name is refused, so it is stricter, and callers also look at the contents.
pub(crate) fn is_slip_of(given: &str, known: &str) -> bool {
    strsim::osa_distance(&given.to_lowercase(), known) <= SLIPS_MAX
}

/// The known names, for a message that has just named an unknown one, with a suggestion.
pub fn listed(given: &str, known: &[&str]) -> String {
    let names = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    let meant = nearest(given, known.iter().copied()).map(|name| format!(" (did you mean {name}?)")).unwrap_or_default();
    names + &meant
}

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
