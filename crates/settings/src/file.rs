//! A settings file: its sections as layers for the crate `config`, with file, section and line for each value.
//!
//! The TOML is parsed here instead of by `config`, which keeps only the file's name and turns dates into text.

use std::sync::Arc;

use config::{Config, Map, Value, ValueKind};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use crate::known_names::KnownNames;
use crate::layered::children;
use crate::origin::{DEFAULT_SECTION, Origin};
use crate::quote::shown;
use crate::schema::SchemaNode;
use crate::similar::{is_slip_of, listed};
use crate::{Error, Result};

/// In shorter names of environments, one letter is often the whole difference.
const LONG_WORD_MIN: usize = 8;

/// `[default]` and the environment's section. Other sections are checked for unknown keys if they have settings for sharding, so that a
/// typo in `[production]` is found where another section is in force.
pub(crate) fn layers(name: &str, text: &str, environment: Option<&str>, root: &[SchemaNode]) -> Result<Vec<Config>> {
    let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
    let file = File { name: name.into(), line_starts };
    let document = DeTable::parse(text).map_err(|error| {
        let line = error.span().map(|span| format!(" line {}", file.line(span.start))).unwrap_or_default();
        Error::new(format_args!("{name}{line}: this is not TOML: {}", error.message().replace('\n', "; ")))
    })?;
    let tables = document.get_ref().iter().filter(|(_, value)| value.get_ref().is_table());
    let sections: Vec<&str> = tables.map(|(key, _)| &**key.get_ref()).collect();
    let in_force = environment.filter(|chosen| sections.contains(chosen));
    let mut layers = Vec::new();
    for (key, value) in document.get_ref() {
        let section = &**key.get_ref();
        let table = file.value(section, key, value.get_ref());
        if let Some(found) = outside_sections(section, &table, root) {
            let message = format_args!("{found} stands outside a section: write [default.{found}…]");
            return Err(file.origin(section, key).fail(message));
        }
        let is_chosen = section == DEFAULT_SECTION || Some(section) == in_force;
        let has = |node: &SchemaNode| has_table(&table, node);
        let meant = section_meant(section, in_force).filter(|_| !is_chosen && root.iter().any(has));
        if let Some(meant) = meant {
            let message = format_args!("section {} is not in force: did you mean {meant}?", shown(section));
            return Err(file.origin(section, key).fail(message));
        }
        if !is_chosen && !root.iter().any(|node| matches!(node, SchemaNode::Table { .. }) && has(node)) {
            continue;
        }
        let layer = KnownNames { root, is_file: true }.layer(&table, section)?;
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
fn outside_sections(name: &str, value: &Value, root: &[SchemaNode]) -> Option<&'static str> {
    root.iter().filter(|node| node.is_meant_by(name, value)).find_map(|node| match node {
        SchemaNode::Table { .. } => node.is_like(value).then_some("resilience.sharding"),
        _ => children(value).is_some().then_some(node.name()),
    })
}

/// `[default]` or the environment's section, if this name is a slip of it. Environments may have similar names on purpose, such as `uat`
/// and `sat` or `productioneu` and `productionau`, so of an environment's name only a missing, additional or swapped letter inside a long
/// word is a slip.
fn section_meant<'e>(section: &str, environment: Option<&'e str>) -> Option<&'e str> {
    let is_word = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphabetic());
    let ends = |name: &str| (name.bytes().next(), name.bytes().next_back());
    let given = section.to_lowercase();
    let is_slip = |chosen: &&str| {
        let right = chosen.to_lowercase();
        let is_long_word = |name: &str| is_word(name) && name.len() >= LONG_WORD_MIN;
        let is_replaced = given.len() == right.len() && strsim::levenshtein(&given, &right) == 1;
        let is_near = strsim::osa_distance(&given, &right) <= 1 && !is_replaced;
        is_long_word(&given) && is_long_word(&right) && ends(&given) == ends(&right) && is_near
    };
    if is_word(&given) && strsim::osa_distance(&given, DEFAULT_SECTION) <= 1 {
        return Some(DEFAULT_SECTION);
    }
    environment.filter(is_slip)
}

/// Whether a section has this table, or a slip of it, with contents of ours.
fn has_table(section: &Value, node: &SchemaNode) -> bool {
    let mut entries = children(section).into_iter().flatten();
    entries.any(|(name, value)| is_slip_of(name, node.name()) && node.is_like(value))
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
