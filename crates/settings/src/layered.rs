//! Tables of values as the layers have them.

use config::{Map, Value, ValueKind};

use crate::origin::Origin;

/// An extra name in each table of the file, whose origin is the table's: `config` loses the origin of tables when it merges layers.
pub(crate) const TABLE_NOTE: &str = "";

/// The origin of a value, or else of the first in it, that is the file or one of our variables.
pub(crate) fn written_at(value: &Value) -> Option<Origin> {
    let below = || children(value).and_then(|table| sorted(table).into_iter().find_map(|(_, value)| written_at(value)));
    Some(Origin::of(value)).filter(|origin| origin.layer() > 0).or_else(below)
}

pub(crate) fn sorted(table: &Map<String, Value>) -> Vec<(&str, &Value)> {
    let mut values: Vec<_> = table.iter().map(|(name, value)| (name.as_str(), value)).collect();
    values.sort_unstable_by_key(|(name, _)| *name);
    values
}

pub(crate) fn children(value: &Value) -> Option<&Map<String, Value>> {
    if let ValueKind::Table(table) = &value.kind { Some(table) } else { None }
}

/// The origin of a table: its place in the file, else a variable with a value in it.
pub(crate) fn table_origin(table: &Value) -> Origin {
    // The note's name sorts first.
    let first = children(table).and_then(|values| values.iter().min_by_key(|(name, _)| *name));
    first.map_or_else(|| Origin::of(table), |(_, value)| table_origin(value))
}
