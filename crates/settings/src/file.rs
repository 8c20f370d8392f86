//! A settings file: its sections as layers for the crate `config`, with file, section and line for each value.
//!
//! The TOML is parsed here instead of by `config`, which keeps only the file's name and turns dates into text.

use std::fmt;
use std::sync::Arc;

use config::{ConfigError, Map, Source, Value, ValueKind};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use crate::origin::{Origin, join};
use crate::reader::TABLE_NOTE;
use crate::schema::{SchemaNode, advice, listed, named, node_in, not_built_yet};
use crate::table::check;
use crate::value::{Written, shown};
use crate::{Error, Result};

/// The section that all others override.
pub(crate) const DEFAULT_SECTION: &str = "default";

/// Values that override those of earlier layers, key by key: a section of the file, or one environment variable.
#[derive(Debug, Clone)]
pub(crate) struct Layer(pub(crate) Map<String, Value>);

impl Source for Layer {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, ConfigError> {
        Ok(self.0.clone())
    }
}

/// A settings file's text, with the positions of its lines.
pub(crate) struct File<'t> {
    name: Arc<str>,
    line_starts: Vec<usize>,
    sections: DeTable<'t>,
    root: &'t [SchemaNode],
}

struct Section<'f> {
    file: &'f File<'f>,
    name: Arc<str>,
}

impl<'t> File<'t> {
    /// Parses the file; `root` is the tree of names known in each section.
    pub(crate) fn parse(name: &str, text: &'t str, root: &'t [SchemaNode]) -> Result<Self> {
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let mut file = Self { name: name.into(), line_starts, sections: DeTable::new(), root };
        let document = DeTable::parse(text).map_err(|error| {
            let line = error.span().map(|span| format!(" line {}", file.line(span.start))).unwrap_or_default();
            Error::new(format_args!("{name}{line}: this is not TOML: {}", error.message().replace('\n', "; ")))
        })?;
        file.sections = document.into_inner();
        file.refuse_outside_sections()?;
        Ok(file)
    }

    /// `[default]` and the environment's section. Other sections are checked for unknown keys if they have settings for sharding, so that
    /// a typo in `[production]` is found where another section is in force.
    pub(crate) fn layers(&self, environment: Option<&str>) -> Result<Vec<Layer>> {
        let mut layers = Vec::new();
        for (key, value) in &self.sections {
            let name: &str = key.get_ref();
            let is_chosen = name == DEFAULT_SECTION || Some(name) == environment && value.get_ref().is_table();
            if !is_chosen && !has_sharding(value.get_ref()) {
                continue;
            }
            let section = Section { file: self, name: name.into() };
            let values = table(value.get_ref(), name, &section.origin(key))?;
            let layer = Layer(section.fields(values, self.root, true, "")?);
            match name {
                DEFAULT_SECTION => layers.insert(0, layer),
                _ if is_chosen => layers.push(layer),
                _ => {}
            }
        }
        self.refuse_unknown(environment)?;
        Ok(layers)
    }

    fn refuse_unknown(&self, environment: Option<&str>) -> Result<()> {
        let names: Vec<&str> =
            self.sections.iter().filter(|(_, value)| value.get_ref().is_table()).map(|(name, _)| &**name.get_ref()).collect();
        match environment {
            Some(name) if name != DEFAULT_SECTION && !names.contains(&name) => {
                let have = listed(name, &names);
                Err(Error::new(format_args!("SHARDWISE_ENV is {}: {} has no such section; it has: {have}", shown(name), self.name)))
            }
            _ => Ok(()),
        }
    }

    /// Our tables at the top level are a mistake: outside a section they would never be read.
    fn refuse_outside_sections(&self) -> Result<()> {
        for (key, value) in &self.sections {
            let found = match &**key.get_ref() {
                "resilience" if value.get_ref().get("sharding").is_some() => "resilience.sharding",
                "outbox" if value.get_ref().is_table() => "outbox",
                _ => continue,
            };
            let section = Section { file: self, name: found.into() };
            return Err(section.origin(key).fail(format_args!("{found} stands outside a section: write [default.{found}…]")));
        }
        Ok(())
    }

    fn line(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= offset)
    }
}

fn has_sharding(section: &DeValue<'_>) -> bool {
    section.get("resilience").is_some_and(|table| table.get_ref().get("sharding").is_some())
}

impl Section<'_> {
    /// The known values of a table; an unknown name is refused unless the table is open.
    fn fields(&self, table: &DeTable<'_>, fields: &[SchemaNode], is_open: bool, path: &str) -> Result<Map<String, Value>> {
        let mut values = Map::new();
        for (key, value) in table {
            let (name, path, origin) = (key.get_ref(), join(path, key.get_ref()), self.origin(key));
            match node_in(fields, name) {
                Some(node) => values.extend(self.node(node, value.get_ref(), &path, &origin)?.map(|value| (name.to_string(), value))),
                None if is_open => {}
                None => return Err(origin.fail(format_args!("{path} is not a setting: {}", advice(name, fields, self.file.root)))),
            }
        }
        Ok(values)
    }

    /// The value for `config` under one name; `None` if it is ignored.
    fn node(&self, node: &SchemaNode, value: &DeValue<'_>, path: &str, origin: &Origin) -> Result<Option<Value>> {
        let values = match node {
            SchemaNode::Later(_) => return Err(not_built_yet(path, origin)),
            SchemaNode::Absent(_) => return Ok(None),
            // In a table shared with the application, this may be any value of the application.
            SchemaNode::Table { is_open: true, .. } if !value.is_table() => return Ok(None),
            SchemaNode::Leaf(key) => {
                let written = Written { kind: kind_of(value), is_bare: false };
                if value.is_table() {
                    check(key, path, &written, origin)?;
                }
                return Ok(Some(origin.on(written.kind)));
            }
            SchemaNode::Table { fields, is_open, .. } => {
                let mut values = self.fields(table(value, path, origin)?, fields, *is_open, path)?;
                values.insert(TABLE_NOTE.to_owned(), origin.on(ValueKind::Nil));
                values
            }
            SchemaNode::Free(key) => {
                let mut values = Map::new();
                for (name, value) in table(value, path, origin)? {
                    let leaf = self.node(&SchemaNode::Leaf(*key), value.get_ref(), &join(path, name.get_ref()), &self.origin(name))?;
                    values.extend(leaf.map(|leaf| (name.get_ref().to_string(), leaf)));
                }
                values
            }
            SchemaNode::Named { each, is_open, .. } => self.named(table(value, path, origin)?, each, *is_open, path)?,
        };
        Ok(Some(Value::new(None, values)))
    }

    /// The tables in a table whose names the user chose.
    fn named(&self, tables: &DeTable<'_>, each: &[SchemaNode], is_open: bool, path: &str) -> Result<Map<String, Value>> {
        let mut values = Map::new();
        for (key, value) in tables {
            let (name, origin) = (key.get_ref(), self.origin(key));
            if !value.get_ref().is_table() && node_in(each, name).is_some() {
                let path = join(path, name);
                return Err(
                    origin.fail(format_args!("{path} is a key without a name before it: put it into a table whose name you choose"))
                );
            }
            let path = named(path, name, &origin)?;
            let mut fields = self.fields(table(value.get_ref(), &path, &origin)?, each, is_open, &path)?;
            fields.insert(TABLE_NOTE.to_owned(), origin.on(ValueKind::Nil));
            values.insert(name.to_string(), Value::new(None, fields));
        }
        Ok(values)
    }

    fn origin(&self, key: &Spanned<DeString<'_>>) -> Origin {
        Origin::File { file: self.file.name.clone(), section: self.name.clone(), line: self.file.line(key.span().start) }
    }
}

fn table<'v, 't>(value: &'v DeValue<'t>, path: impl fmt::Display, origin: &Origin) -> Result<&'v DeTable<'t>> {
    let written = || Written { kind: kind_of(value), is_bare: false };
    value.as_table().ok_or_else(|| origin.fail(format_args!("{path} is {}: a table of settings is expected here", written())))
}

/// The value as `config` represents it; a date, which no key accepts, is `Nil`.
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
