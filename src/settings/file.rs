//! The layers of a settings file: its sections.

use std::sync::Arc;

use toml::de::{DeTable, DeValue};

use super::layers::{Layers, node_in, not_built_yet};
use super::origin::{Origin, Path, fail};
use super::suggest::{advice, listed};
use super::tree::{SchemaNode, root};
use super::value::{Raw, shown};
use crate::Error;

/// The section that all others lie over.
pub(super) const DEFAULT_SECTION: &str = "default";

/// A settings file's text, and how to say where something in it stands.
pub(super) struct File<'t> {
    name: Arc<str>,
    line_starts: Vec<usize>,
    sections: DeTable<'t>,
}

impl<'t> File<'t> {
    pub(super) fn parse(name: &str, text: &'t str) -> Result<Self, Error> {
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let mut file = Self { name: name.into(), line_starts, sections: DeTable::new() };
        let document = DeTable::parse(text).map_err(|error| {
            let line = error.span().map(|span| format!(" line {}", file.line(span.start))).unwrap_or_default();
            fail(format_args!("{name}{line}: this is not TOML: {}", error.message().replace('\n', "; ")))
        })?;
        file.sections = document.into_inner();
        file.refuse_outside_sections()?;
        Ok(file)
    }

    /// Lays `[default]` and then the environment's section into `layers`. A section that is not chosen is checked for unknown keys if
    /// it has settings for sharding, so that a slip of the pen in `[production]` is found where `[production]` is not in force.
    pub(super) fn collect(&self, environment: Option<&str>, layers: &mut Layers) -> Result<(), Error> {
        self.section(DEFAULT_SECTION, layers)?;
        for name in self.section_names() {
            if Some(name) != environment && name != DEFAULT_SECTION && self.is_ours(name) {
                self.section(name, &mut Layers::default())?;
            }
        }
        match environment {
            Some(name) if name != DEFAULT_SECTION => self.chosen(name, layers),
            _ => Ok(()),
        }
    }

    fn chosen(&self, name: &str, layers: &mut Layers) -> Result<(), Error> {
        if self.section_names().any(|section| section == name) {
            return self.section(name, layers);
        }
        let names: Vec<&str> = self.section_names().collect();
        let have = listed(name, &names);
        Err(fail(format_args!("SHARDWISE_ENV is {}: {} has no such section; it has: {have}", shown(name), self.name)))
    }

    fn section_names(&self) -> impl Iterator<Item = &str> {
        self.sections.iter().filter(|(_, value)| value.get_ref().is_table()).map(|(name, _)| &**name.get_ref())
    }

    fn is_ours(&self, section: &str) -> bool {
        let sharding = |section: &DeValue<'_>| section.get("resilience").is_some_and(|table| table.get_ref().get("sharding").is_some());
        self.sections.iter().any(|(name, value)| name.get_ref() == section && sharding(value.get_ref()))
    }

    fn section(&self, name: &str, layers: &mut Layers) -> Result<(), Error> {
        let Some((key, value)) = self.sections.iter().find(|(key, _)| key.get_ref() == name) else {
            return Ok(());
        };
        let section: Arc<str> = name.into();
        let origin = self.origin(&section, key.span().start);
        let table = table(value.get_ref(), name, &origin)?;
        self.fields(table, root(), true, &Path::default(), &section, layers)
    }

    /// Our tables at the top level are a slip: without a section nobody would ever read them.
    fn refuse_outside_sections(&self) -> Result<(), Error> {
        for (key, value) in &self.sections {
            let name: &str = key.get_ref();
            let value = value.get_ref();
            let found = match name {
                "resilience" if value.get("sharding").is_some() => "resilience.sharding",
                "outbox" if value.is_table() => "outbox",
                _ => continue,
            };
            let origin = self.origin(&name.into(), key.span().start);
            return Err(origin.fail(format_args!("{found} stands outside a section: write [default.{found}…]")));
        }
        Ok(())
    }

    fn fields(
        &self,
        table: &DeTable<'_>,
        fields: &'static [SchemaNode],
        open: bool,
        path: &Path,
        section: &Arc<str>,
        layers: &mut Layers,
    ) -> Result<(), Error> {
        for (key, value) in table {
            let (name, path) = (key.get_ref(), path.join(key.get_ref()));
            let origin = self.origin(section, key.span().start);
            match node_in(fields, name) {
                Some(node) => self.node(node, value.get_ref(), path, origin, section, layers)?,
                None if open => {}
                None => return Err(origin.fail(format_args!("{path} is not a setting: {}", advice(name, fields)))),
            }
        }
        Ok(())
    }

    fn node(
        &self,
        node: &'static SchemaNode,
        value: &DeValue<'_>,
        path: Path,
        origin: Origin,
        section: &Arc<str>,
        layers: &mut Layers,
    ) -> Result<(), Error> {
        match node {
            SchemaNode::Later(_) => return Err(not_built_yet(&path, &origin)),
            SchemaNode::Absent(_) => {}
            SchemaNode::Leaf(_) => layers.put(path, Raw::from(value), origin),
            // A table that is shared with the application may be whatever the application likes.
            SchemaNode::Table { open: true, .. } if !value.is_table() => {}
            SchemaNode::Table { fields, open, .. } => {
                let table = table(value, &path, &origin)?;
                layers.table(path.clone(), &origin);
                self.fields(table, fields, *open, &path, section, layers)?;
            }
            SchemaNode::Free(_) => {
                for (key, value) in table(value, &path, &origin)? {
                    layers.put(path.join(key.get_ref()), Raw::from(value.get_ref()), self.origin(section, key.span().start));
                }
            }
            SchemaNode::Named { each, .. } => {
                for (key, value) in table(value, &path, &origin)? {
                    let (path, origin) = (path.join(key.get_ref()), self.origin(section, key.span().start));
                    if !value.get_ref().is_table() && node_in(each, key.get_ref()).is_some() {
                        return Err(origin
                            .fail(format_args!("{path} is a key without a name before it: put it into a table of its own, named by you")));
                    }
                    layers.name(path.clone(), key.get_ref(), &origin)?;
                    self.fields(table(value.get_ref(), &path, &origin)?, each, false, &path, section, layers)?;
                }
            }
        }
        Ok(())
    }

    fn origin(&self, section: &Arc<str>, offset: usize) -> Origin {
        Origin::File { file: self.name.clone(), section: section.clone(), line: self.line(offset) }
    }

    fn line(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= offset)
    }
}

fn table<'v, 't>(value: &'v DeValue<'t>, path: impl std::fmt::Display, origin: &Origin) -> Result<&'v DeTable<'t>, Error> {
    value.as_table().ok_or_else(|| origin.fail(format_args!("{path} is {}: a table of settings is expected here", Raw::from(value))))
}
