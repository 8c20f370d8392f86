//! A settings file: its sections as layers for the crate `config`, with file, section and line for each value.
//!
//! The TOML is parsed here instead of by `config`, which keeps only the file's name and turns dates into text.

use std::sync::Arc;

use config::{Config, Map, Value, ValueKind};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use crate::advice::{is_slip_of, listed};
use crate::origin::Origin;
use crate::schema::{KnownNames, SchemaNode};
use crate::value::shown;
use crate::{Error, Result};

/// The section that all others override.
pub(crate) const DEFAULT_SECTION: &str = "default";

/// `[default]` and the environment's section. Other sections are checked for unknown keys if they have settings for sharding, so that a
/// typo in `[production]` is found where another section is in force.
pub(crate) fn layers(name: &str, text: &str, environment: Option<&str>, root: &[SchemaNode]) -> Result<Vec<Config>> {
    let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
    let file = File { name: name.into(), line_starts };
    let document = DeTable::parse(text).map_err(|error| {
        let line = error.span().map(|span| format!(" line {}", file.line(span.start))).unwrap_or_default();
        Error::new(format_args!("{name}{line}: this is not TOML: {}", error.message().replace('\n', "; ")))
    })?;
    let (mut layers, mut sections) = (Vec::new(), Vec::new());
    for (key, value) in document.get_ref() {
        let (section, table) = (&**key.get_ref(), value.get_ref());
        if let Some(found) = outside_sections(section, table) {
            let message = format_args!("{found} stands outside a section: write [default.{found}…]");
            return Err(file.origin(section, key).fail(message));
        }
        sections.extend(table.is_table().then_some(section));
        let is_chosen = section == DEFAULT_SECTION || Some(section) == environment && table.is_table();
        if !is_chosen && let Some(meant) = section_meant(section, table, environment) {
            let message = format_args!("section {} is not in force: did you mean {meant}?", shown(section));
            return Err(file.origin(section, key).fail(message));
        }
        if !is_chosen && !has_sharding(table) {
            continue;
        }
        let layer = KnownNames { root, is_file: true }.layer(&file.value(section, key, table), section)?;
        match section {
            DEFAULT_SECTION => layers.insert(0, layer),
            _ if is_chosen => layers.push(layer),
            _ => {}
        }
    }
    match environment {
        Some(chosen) if chosen != DEFAULT_SECTION && !sections.contains(&chosen) => {
            let have = listed(chosen, &sections);
            Err(Error::new(format_args!("SHARDWISE_ENV is {}: {name} has no such section; it has: {have}", shown(chosen))))
        }
        _ => Ok(layers),
    }
}

/// The name of our table, if it or a slip of it is at the top level: outside a section it would never be read.
fn outside_sections(name: &str, value: &DeValue<'_>) -> Option<&'static str> {
    if is_slip_of(name, "resilience") && under(value, "sharding").next().is_some() {
        return Some("resilience.sharding");
    }
    (is_slip_of(name, "outbox") && value.is_table()).then_some("outbox")
}

/// The section in force of which this one, which has settings of ours, is a slip. Environments may have similar names on purpose, such as
/// `eu1` and `eu2` or `prod-a` and `prod-b`, so only one letter inside a plain word is a slip of an environment's.
fn section_meant<'e>(section: &str, table: &DeValue<'_>, environment: Option<&'e str>) -> Option<&'e str> {
    let is_ours = has_sharding(table) || under(table, "outbox").any(DeValue::is_table);
    let is_word = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphabetic());
    let is_slip = |chosen: &&str| {
        let end = |name: &str| name.as_bytes().last().copied();
        is_word(section) && is_word(chosen) && end(section) == end(chosen) && strsim::osa_distance(section, chosen) == 1
    };
    let default = is_slip_of(section, DEFAULT_SECTION).then_some(DEFAULT_SECTION);
    default.or_else(|| environment.filter(is_slip)).filter(|_| is_ours)
}

fn has_sharding(section: &DeValue<'_>) -> bool {
    under(section, "resilience").any(|table| under(table, "sharding").next().is_some())
}

/// The values in a table under that name or a slip of it.
fn under<'v>(table: &'v DeValue<'v>, name: &'static str) -> impl Iterator<Item = &'v DeValue<'v>> {
    let entries = table.as_table().into_iter().flatten();
    entries.filter(move |(key, _)| is_slip_of(key.get_ref(), name)).map(|(_, value)| value.get_ref())
}

struct File {
    name: Arc<str>,
    line_starts: Vec<usize>,
}

impl File {
    fn line(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= offset)
    }

    fn origin(&self, section: &str, key: &Spanned<DeString<'_>>) -> Origin {
        Origin::File { file: self.name.clone(), section: section.into(), line: self.line(key.span().start) }
    }

    fn value(&self, section: &str, key: &Spanned<DeString<'_>>, value: &DeValue<'_>) -> Value {
        let kind = match value {
            DeValue::Table(table) => {
                let values = table.iter().map(|(key, value)| (key.get_ref().to_string(), self.value(section, key, value.get_ref())));
                ValueKind::Table(values.collect())
            }
            value => kind_of(value),
        };
        self.origin(section, key).on(kind)
    }
}

/// The value as `config` represents it, without the contents of a table; a date, which no key accepts, is `Nil`.
fn kind_of(value: &DeValue<'_>) -> ValueKind {
    match value {
        DeValue::String(text) => ValueKind::String(text.to_string()),
        // Beyond 128 bits it is outside every range.
        DeValue::Integer(n) => i128::from_str_radix(n.as_str(), n.radix())
            .map_or_else(|_| ValueKind::Float(n.as_str().parse().unwrap_or(f64::INFINITY)), ValueKind::I128),
        DeValue::Float(number) => ValueKind::Float(number.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(flag) => ValueKind::Boolean(*flag),
        DeValue::Datetime(_) => ValueKind::Nil,
        DeValue::Array(items) => ValueKind::Array(items.iter().map(|item| Value::new(None, kind_of(item.get_ref()))).collect()),
        DeValue::Table(_) => ValueKind::Table(Map::new()),
    }
}
