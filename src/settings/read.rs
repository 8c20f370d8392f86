//! From what was written to what is in force: one value at a time, each with its origin kept for those who ask.

use std::cell::RefCell;
use std::time::Duration;

use shardwise_core::{LoadMargin, MaxLoss, PolicyError};
use shardwise_discovery::settings::MASK;

use super::keys::{Fallback, SettingKey};
use super::layers::{LayerEntry, Layers};
use super::origin::{Origin, Path, Setting, fail};
use super::value::{Raw, Shape, Value, shown};
use crate::Error;

/// Reads the layers and keeps account of what it has read.
#[derive(Debug)]
pub(super) struct Reader {
    layers: Layers,
    in_force: RefCell<Vec<Setting>>,
}

/// A table to read from, and the table whose values hold where it has none.
#[derive(Debug, Clone)]
pub(super) struct SettingsTable {
    pub(super) path: Path,
    pub(super) inherits: Option<Path>,
    /// Where to send somebody who has left out a required key.
    pub(super) origin: Origin,
}

impl SettingsTable {
    pub(super) const fn at(path: Path) -> Self {
        Self { path, inherits: None, origin: Origin::Default }
    }
}

/// A value with its full key as it is in force, the key under which it was written, and by whom.
#[derive(Debug, Clone)]
pub(super) struct ResolvedValue {
    key: Path,
    written_as: Path,
    why: &'static str,
    raw: Raw,
    nearness: (bool, u8),
    pub(super) value: Value,
    pub(super) origin: Origin,
}

impl ResolvedValue {
    /// The error that names key, value and what is allowed.
    pub(super) fn refuse(&self, allowed: impl std::fmt::Display) -> Error {
        match self.value {
            Value::Secret(_) => self.refuse_masked(allowed),
            _ => self.origin.fail(format_args!("{} is {}: {allowed}", self.written_as, self.raw)),
        }
    }

    /// The same where the value must not be repeated.
    pub(super) fn refuse_masked(&self, allowed: impl std::fmt::Display) -> Error {
        self.origin.fail(format_args!("{} is {MASK}: {allowed}", self.written_as))
    }

    /// Of two keys that exclude each other the nearer one counts: written in the table itself rather than in the one it inherits from,
    /// then in a later layer rather than in an earlier one.
    pub(super) const fn nearness(&self) -> (bool, u8) {
        self.nearness
    }

    pub(super) fn text(&self) -> Result<&str, Error> {
        match &self.value {
            Value::Text(text) => Ok(text),
            _ => Err(self.misread()),
        }
    }

    pub(super) fn texts(&self) -> Result<&[String], Error> {
        match &self.value {
            Value::Texts(texts) => Ok(texts),
            _ => Err(self.misread()),
        }
    }

    pub(super) fn flag(&self) -> Result<bool, Error> {
        match self.value {
            Value::Flag(flag) => Ok(flag),
            _ => Err(self.misread()),
        }
    }

    pub(super) fn whole(&self) -> Result<u32, Error> {
        match self.value {
            Value::Whole(number) => Ok(number),
            _ => Err(self.misread()),
        }
    }

    pub(super) fn epoch_floor(&self) -> Result<u64, Error> {
        match self.value {
            Value::EpochFloor(number) => Ok(number),
            _ => Err(self.misread()),
        }
    }

    pub(super) fn time(&self) -> Result<Duration, Error> {
        match self.value {
            Value::Time(duration) => Ok(duration),
            _ => Err(self.misread()),
        }
    }

    pub(super) fn margin(&self) -> Result<LoadMargin, Error> {
        match self.value {
            Value::Margin(margin) => Ok(margin),
            _ => Err(self.misread()),
        }
    }

    pub(super) fn percent(&self) -> Result<MaxLoss, Error> {
        match self.value {
            Value::Percent(percent) => Ok(percent),
            _ => Err(self.misread()),
        }
    }

    /// The table of keys and the code that reads it disagree: a bug of ours, and no reason to take the user's process down.
    fn misread(&self) -> Error {
        self.refuse("this is a bug in shardwise: the key is read as another type than it is declared with; please report it")
    }
}

impl Reader {
    pub(super) const fn new(layers: Layers) -> Self {
        Self { layers, in_force: RefCell::new(Vec::new()) }
    }

    pub(super) const fn layers(&self) -> &Layers {
        &self.layers
    }

    /// Everything read so far.
    pub(super) fn into_in_force(self) -> Vec<Setting> {
        self.in_force.into_inner()
    }

    /// A value that is written or has a default; keeps account of it.
    pub(super) fn take(&self, place: &SettingsTable, key: &SettingKey) -> Result<ResolvedValue, Error> {
        let found = self.require(place, key)?;
        self.note(&found, &found.value);
        Ok(found)
    }

    /// A value that is written or has a default; keeps no account.
    pub(super) fn require(&self, place: &SettingsTable, key: &SettingKey) -> Result<ResolvedValue, Error> {
        self.optional(place, key)?.ok_or_else(|| missing(place, key))
    }

    /// A value, if it is written or has a default; keeps no account.
    pub(super) fn optional(&self, place: &SettingsTable, key: &SettingKey) -> Result<Option<ResolvedValue>, Error> {
        let default = match key.fallback {
            Fallback::Text(text) => Some(text),
            _ => None,
        };
        self.find(place, key, default)
    }

    /// A value that need not be there; keeps account of it.
    pub(super) fn take_if_set(&self, place: &SettingsTable, key: &SettingKey) -> Result<Option<ResolvedValue>, Error> {
        let found = self.find(place, key, None)?;
        if let Some(found) = &found {
            self.note(found, &found.value);
        }
        Ok(found)
    }

    /// The value from the table, from the one it inherits from, from its customary variable, or the default; keeps no account.
    pub(super) fn find(&self, place: &SettingsTable, key: &SettingKey, default: Option<&str>) -> Result<Option<ResolvedValue>, Error> {
        let own = place.path.join(key.name);
        let inherited = place.inherits.as_ref().map(|table| table.join(key.name));
        let written = std::iter::once(&own).chain(&inherited).find_map(|path| self.layers.get(path).map(|entry| (path.clone(), entry)));
        if let Some((written_as, entry)) = written {
            let nearness = (written_as == own, entry.origin.layer());
            return read(key, own, written_as, entry, nearness).map(Some);
        }
        if let Some(entry) = key.variable.and_then(|name| self.layers.customary(name)) {
            return read(key, own.clone(), own, entry, (false, 0)).map(Some);
        }
        let Some(text) = default else { return Ok(None) };
        let entry = LayerEntry { raw: Raw::Bare(text.to_owned()), origin: Origin::Default };
        read(key, own.clone(), own, &entry, (false, 0)).map(Some)
    }

    /// Every value of a table whose names the user chooses; keeps account of them.
    pub(super) fn take_all(&self, place: &SettingsTable, key: &SettingKey) -> Result<Vec<(String, ResolvedValue)>, Error> {
        let table = place.path.join(key.name);
        let read_one = |(name, entry): (&str, &LayerEntry)| {
            let found = read(key, table.join(name), table.join(name), entry, (true, entry.origin.layer()))?;
            self.note(&found, &found.value);
            Ok((name.to_owned(), found))
        };
        self.layers.values_in(&table).map(read_one).collect()
    }

    /// Keeps account of a value that was found.
    pub(super) fn note(&self, found: &ResolvedValue, value: impl std::fmt::Display) {
        let setting = Setting { key: found.key.to_string(), value: value.to_string(), origin: found.origin.clone(), why: found.why };
        self.in_force.borrow_mut().push(setting);
    }

    /// Keeps account of a default that is computed and not written anywhere.
    pub(super) fn note_computed(&self, place: &SettingsTable, key: &SettingKey, value: impl std::fmt::Display) {
        self.note_from(place, key, value, Origin::Default);
    }

    /// Keeps account of a value that is not written under this key.
    pub(super) fn note_from(&self, place: &SettingsTable, key: &SettingKey, value: impl std::fmt::Display, origin: Origin) {
        let setting = Setting { key: place.path.join(key.name).to_string(), value: value.to_string(), origin, why: key.why };
        self.in_force.borrow_mut().push(setting);
    }
}

fn read(key: &SettingKey, own: Path, written_as: Path, entry: &LayerEntry, nearness: (bool, u8)) -> Result<ResolvedValue, Error> {
    let (raw, origin) = (entry.raw.clone(), entry.origin.clone());
    match key.shape.read(&raw) {
        Ok(value) => Ok(ResolvedValue { key: own, written_as, why: key.why, raw, nearness, value, origin }),
        Err(allowed) if matches!(key.shape, Shape::Secret) => Err(origin.fail(format_args!("{written_as} is {MASK}: {allowed}"))),
        Err(allowed) => Err(origin.fail(format_args!("{written_as} is {raw}: {allowed}"))),
    }
}

fn missing(place: &SettingsTable, key: &SettingKey) -> Error {
    let what = match key.fallback {
        Fallback::Required(what) => what,
        _ => "write it",
    };
    place.origin.fail(format_args!("{}.{} is missing: {what}", place.path, key.name))
}

/// The core's refusal of a combination, told with full keys and with the place of the value it names; if nobody wrote that one, with
/// the place of the first value that somebody wrote.
pub(super) fn refused(error: &PolicyError, table: &Path, related: &[&ResolvedValue]) -> Error {
    let named = related.iter().find(|found| found.key == table.join(error.key));
    let key = named.map_or_else(|| table.join(error.key), |found| found.written_as.clone());
    let message = format!("{key} is {}: {}", shown(&error.value), error.allowed);
    let written = |found: &&&ResolvedValue| found.origin != Origin::Default;
    named.filter(written).or_else(|| related.iter().find(written)).map_or_else(|| fail(&message), |found| found.origin.fail(&message))
}
