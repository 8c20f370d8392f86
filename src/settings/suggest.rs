//! What somebody who wrote an unknown name probably meant.

use super::tree::{SchemaNode, root};

/// Below this similarity (0 to 1) a suggestion confuses more than it helps.
const SIMILAR_MIN: f64 = 0.75;

/// The most similar of the known names, if any is similar at all.
pub(super) fn nearest<'n>(given: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    known
        .into_iter()
        .map(|name| (strsim::jaro_winkler(given, name), name))
        .filter(|(similarity, _)| *similarity >= SIMILAR_MIN)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

/// ` (did you mean …?)` if one of the known names is similar, else nothing.
pub(super) fn meant<'n>(given: &str, known: impl IntoIterator<Item = &'n str>) -> String {
    nearest(given, known).map(|name| format!(" (did you mean {name}?)")).unwrap_or_default()
}

/// The known names for a message that has just named an unknown one, and which of them was probably meant.
pub(super) fn listed(given: &str, known: &[&str]) -> String {
    let names = if known.is_empty() { "none".into() } else { known.join(", ") };
    format!("{names}{}", meant(given, known.iter().copied()))
}

/// The names that may be written in a table.
pub(super) fn known(fields: &'static [SchemaNode]) -> impl Iterator<Item = &'static str> {
    fields.iter().filter(|node| !matches!(node, SchemaNode::Later(_) | SchemaNode::Absent(_))).map(SchemaNode::name)
}

/// What to do about a name that the table `fields` does not have: the same name elsewhere, a similar one here, or all that are known.
pub(super) fn advice(given: &str, fields: &'static [SchemaNode]) -> String {
    if let Some(place) = find(given, fields) {
        return format!("did you mean {place}?");
    }
    if let Some(name) = nearest(given, known(fields)) {
        return format!("did you mean {name}?");
    }
    if let Some(place) = find(given, root()) {
        return format!("it belongs in {place}");
    }
    format!("known here: {}", known(fields).collect::<Vec<_>>().join(", "))
}

/// Where in the tables below `fields` a key of exactly that name stands.
fn find(given: &str, fields: &'static [SchemaNode]) -> Option<String> {
    let inside = |name: &str, fields| find(given, fields).map(|place| format!("{name}.{place}"));
    fields.iter().find_map(|node| match node {
        SchemaNode::Leaf(key) | SchemaNode::Free(key) => (key.name == given).then(|| given.to_owned()),
        SchemaNode::Table { name, .. } | SchemaNode::Named { name, .. } if *name == given => Some(given.to_owned()),
        SchemaNode::Table { name, fields, .. } => inside(name, fields),
        SchemaNode::Named { name, each } => inside(&format!("{name}.NAME"), each),
        SchemaNode::Later(_) | SchemaNode::Absent(_) => None,
    })
}
