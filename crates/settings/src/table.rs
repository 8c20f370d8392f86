//! Reads values one at a time and records each with its origin.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use config::{Value, ValueKind};
use secrecy::SecretString;
use shardwise_core::{MaxLoss, PolicyError, parse_duration};
use shardwise_discovery::settings::MASK;

use crate::layered::{TABLE_NOTE, children, table_origin, written_at};
use crate::origin::{Origin, Setting, join};
use crate::quote::shown;
use crate::reader::Reader;
use crate::schema::{Fallback, SettingKey, check};
use crate::value::{Shape, Written, percent, secret_in};
use crate::{Error, Result};

/// A table of settings being read.
#[derive(Debug, Clone)]
pub struct SettingsTable<'r> {
    pub(crate) reader: &'r Reader,
    pub(crate) path: String,
    /// The table that provides values missing here.
    pub(crate) inherits: Option<String>,
    pub(crate) origin: Origin,
}

impl Reader {
    /// The table with that full key.
    pub fn table(&self, path: &str) -> SettingsTable<'_> {
        SettingsTable { reader: self, path: path.to_owned(), inherits: None, origin: Origin::Default }
    }
}

impl<'r> SettingsTable<'r> {
    /// The subtable with that name.
    #[must_use]
    pub fn table(&self, name: &str) -> Self {
        let inherits = self.inherits.as_ref().map(|other| join(other, name));
        Self { path: join(&self.path, name), inherits, ..self.clone() }
    }

    /// This table, with missing values taken from `other`.
    #[must_use]
    pub fn inheriting(self, other: &str) -> Self {
        Self { inherits: Some(other.to_owned()), ..self }
    }

    /// The subtables, by name, each with its origin.
    pub fn tables(&self) -> Vec<(&'r str, Self)> {
        let values = self.reader.values_in(&self.path).into_iter();
        values.map(|(name, value)| (name, Self { origin: table_origin(value), ..self.table(name) })).collect()
    }

    /// The origin of this table in the file; `None` if it is not there.
    pub fn named_at(&self) -> Option<Origin> {
        self.reader.value(&self.path).and_then(children)?.get(TABLE_NOTE).map(Origin::of)
    }

    /// The full key of the subtable `name` and the origin of something in it, here or in the table that this one inherits from; `None` if
    /// nothing is set there, or only by the variables of other tools.
    pub fn set_in(&self, name: &str) -> Option<(String, Origin)> {
        let mut tables = std::iter::once(&self.path).chain(&self.inherits).map(|table| join(table, name));
        tables.find_map(|table| self.reader.value(&table).and_then(written_at).map(|origin| (table, origin)))
    }

    /// Its full key.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its origin.
    pub const fn origin(&self) -> &Origin {
        &self.origin
    }

    /// A value that is set or has a default; records it as in force. As with all functions that read values, it is an error if the value
    /// does not fit the key.
    pub fn take(&self, key: &SettingKey) -> Result<ResolvedValue> {
        let found = self.require(key)?;
        self.note(&found, found.shown());
        Ok(found)
    }

    /// A value, if it is set; then records it as in force.
    pub fn take_if_set(&self, key: &SettingKey) -> Result<Option<ResolvedValue>> {
        let found = self.written(key)?;
        if let Some(found) = &found {
            self.note(found, found.shown());
        }
        Ok(found)
    }

    /// A file's path, if it is set; then records it as in force.
    pub fn take_path(&self, key: &SettingKey) -> Result<Option<PathBuf>> {
        let Some(found) = self.find(key)? else { return Ok(None) };
        let path = self.resolve(&found, found.text())?;
        self.note(&found, path.display());
        Ok(Some(path))
    }

    /// The secret in the file that `found` names; records the path as in force. Messages never quote the file.
    pub fn take_secret(&self, found: &ResolvedValue) -> Result<SecretString> {
        let secret = self.read_secret(found)?;
        self.note(found, self.resolve(found, found.text())?.display());
        Ok(secret)
    }

    /// Like [`SettingsTable::take_secret`]; not recorded as in force.
    pub fn read_secret(&self, found: &ResolvedValue) -> Result<SecretString> {
        let path = self.resolve(found, found.text())?;
        secret_in(&path).map_err(|why| found.refuse(why))
    }

    /// A value, parsed by `read`, or `unset` if it is not set; records it as in force, the latter with that origin.
    pub fn take_or<T: fmt::Display, E: fmt::Display>(
        &self,
        key: &SettingKey,
        (unset, origin): (T, Origin),
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T> {
        if let Some(found) = self.take_if_set(key)? {
            return found.parse(read);
        }
        self.note_from(key, &unset, origin);
        Ok(unset)
    }

    /// Like [`SettingsTable::take`]; not recorded as in force before [`SettingsTable::note`].
    pub fn require(&self, key: &SettingKey) -> Result<ResolvedValue> {
        let what = if let Fallback::Required(what) = key.fallback { what } else { "write it" };
        let missing = || self.origin.fail(format_args!("{} is missing: {what}", join(&self.path, key.name)));
        self.find(key)?.ok_or_else(missing)
    }

    /// Like [`SettingsTable::require`], if it is set or has a default.
    pub fn find(&self, key: &SettingKey) -> Result<Option<ResolvedValue>> {
        match (self.written(key)?, key.fallback) {
            (None, Fallback::Text(text)) => {
                let own = join(&self.path, key.name);
                let written = Written { kind: ValueKind::String(text.to_owned()), is_bare: true };
                ResolvedValue::read(key, own.clone(), own, written, Origin::Default).map(Some)
            }
            (found, _) => Ok(found),
        }
    }

    /// Like [`SettingsTable::require`], if it is set, here or in the table that this one inherits from.
    pub fn written(&self, key: &SettingKey) -> Result<Option<ResolvedValue>> {
        let own = join(&self.path, key.name);
        let inherited = self.inherits.as_ref().map(|table| join(table, key.name));
        let found =
            [Some(own.clone()), inherited].into_iter().flatten().find_map(|path| self.reader.value(&path).map(|value| (path, value)));
        found.map(|(written_as, value)| ResolvedValue::of(key, own, written_as, value)).transpose()
    }

    /// Every value in the table under that key, whose names the user chooses; records them as in force.
    pub fn take_all(&self, key: &SettingKey) -> Result<Vec<(&'r str, ResolvedValue)>> {
        let table = join(&self.path, key.name);
        let read = |(name, value): (&'r str, &Value)| {
            let found = ResolvedValue::of(key, join(&table, name), join(&table, name), value)?;
            self.note(&found, found.shown());
            Ok((name, found))
        };
        self.reader.values_in(&table).into_iter().map(read).collect()
    }

    /// Resolves `text`, found in `found`, to a path. A relative path in the file or in a default starts at the file's directory; one in
    /// an environment variable starts at the working directory.
    pub fn resolve(&self, found: &ResolvedValue, text: &str) -> Result<PathBuf> {
        if text.is_empty() || text.contains('\0') {
            return Err(found.refuse("write the path of a file"));
        }
        Ok(match found.origin {
            Origin::Variable { .. } => text.into(),
            _ => self.reader.base.join(text),
        })
    }

    /// Records a value as in force, displayed as `shown`.
    pub fn note(&self, found: &ResolvedValue, shown: impl fmt::Display) {
        self.add(Setting { key: found.key.clone(), value: shown.to_string(), origin: found.origin.clone(), why: found.why });
    }

    /// Records a value as in force that is not set under this key; [`Origin::Default`] is that of a computed default.
    pub fn note_from(&self, key: &SettingKey, value: impl fmt::Display, origin: Origin) {
        self.add(Setting { key: join(&self.path, key.name), value: value.to_string(), origin, why: key.why });
    }

    fn add(&self, setting: Setting) {
        self.reader.in_force.borrow_mut().push(setting);
    }
}

/// A valid value and its origin.
#[derive(Debug, Clone)]
pub struct ResolvedValue {
    /// The full key that is in force.
    key: String,
    /// The full key under which it was written.
    written_as: String,
    why: &'static str,
    is_secret: bool,
    written: Written,
    text: String,
    origin: Origin,
}

impl ResolvedValue {
    fn of(key: &SettingKey, own: String, written_as: String, value: &Value) -> Result<Self> {
        Self::read(key, own, written_as, Written::of(value), Origin::of(value))
    }

    fn read(key: &SettingKey, own: String, written_as: String, written: Written, origin: Origin) -> Result<Self> {
        let text = check(key, &written_as, &written, &origin)?;
        Ok(Self { key: own, written_as, why: key.why, is_secret: key.shape == Shape::Secret, written, text, origin })
    }

    /// The value as canonical text: `64`, `true`, `5s`, texts separated by commas.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The value, parsed from its text by `read`; the error is that of [`ResolvedValue::refuse`], with the error of `read`.
    pub fn parse<T, E: fmt::Display>(&self, read: impl FnOnce(&str) -> Result<T, E>) -> Result<T> {
        read(&self.text).map_err(|why| self.refuse(why))
    }

    /// The value of a [`Shape::Flag`].
    pub fn flag(&self) -> Result<bool> {
        self.parse(str::parse)
    }

    /// The value of a [`Shape::Time`].
    pub fn time(&self) -> Result<Duration> {
        self.parse(parse_duration)
    }

    /// The value of a [`Shape::Percent`].
    pub fn percent(&self) -> Result<MaxLoss> {
        self.parse(|text| percent(text).ok_or("write a whole percentage"))
    }

    /// An error with the origin, the key, its value and what is allowed.
    pub fn refuse(&self, allowed: impl fmt::Display) -> Error {
        if self.is_secret {
            return self.refuse_masked(allowed);
        }
        self.origin.fail(format_args!("{} is {}: {allowed}", self.written_as, self.written))
    }

    /// Like [`ResolvedValue::refuse`], without the value.
    pub fn refuse_masked(&self, allowed: impl fmt::Display) -> Error {
        self.origin.fail(format_args!("{} is {MASK}: {allowed}", self.written_as))
    }

    /// Of two keys that exclude each other the one with the greater nearness wins: one set in the table itself over one inherited, then
    /// one in a later layer.
    pub fn nearness(&self) -> (bool, u8) {
        (self.key == self.written_as, self.origin.layer())
    }

    fn shown(&self) -> &str {
        if self.is_secret { MASK } else { &self.text }
    }
}

/// The core's refusal of a combination, with full keys. Its origin is that of the named value or, if that is a default, that of the first
/// related value that is set.
pub fn refused(error: &PolicyError, table: &str, related: &[&ResolvedValue]) -> Error {
    let key = join(table, error.key);
    let named = related.iter().find(|found| found.key == key);
    let message = format!("{} is {}: {}", named.map_or(&key, |found| &found.written_as), shown(&error.value), error.allowed);
    let is_written = |found: &&&ResolvedValue| found.origin != Origin::Default;
    named
        .filter(is_written)
        .or_else(|| related.iter().find(is_written))
        .map_or_else(|| Error::new(&message), |found| found.origin.fail(&message))
}
