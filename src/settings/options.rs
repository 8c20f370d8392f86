//! The options of a backend: keys that it defines, read like all others and passed to it validated.

use shardwise_discovery::settings::{BackendKey, BackendKind, BackendSettings, BackendShape, BackendValue};
use shardwise_settings::{Error, ResolvedValue, SettingKey, SettingsTable, Shape};

/// The keys that may be set for `key`: the key, and for a secret also the one that names a file.
pub(super) fn keys_of(key: &BackendKey) -> impl Iterator<Item = SettingKey> {
    [Some(key_of(key)), twin_of(key)].into_iter().flatten()
}

fn key_of(key: &BackendKey) -> SettingKey {
    let shape = match key.shape {
        BackendShape::Flag => Shape::Flag,
        BackendShape::Texts => Shape::Texts,
        BackendShape::Secret => Shape::Secret,
        _ => Shape::Text,
    };
    let optional = SettingKey::new(key.name, shape, key.why).or_variable(key.variable);
    key.default.map_or(optional, |default| optional.or(default))
}

fn twin_of(key: &BackendKey) -> Option<SettingKey> {
    key.file_twin.map(|twin| SettingKey::new(twin.name, Shape::Text, twin.why).or_variable(twin.variable))
}

/// A backend's options if no key is set.
pub(super) fn defaults(kind: &BackendKind) -> BackendSettings {
    let with = |settings: BackendSettings, key: &BackendKey| match key.default {
        Some(text) => settings.with(key.name, value(key.shape, text)),
        None => settings,
    };
    kind.keys.iter().fold(BackendSettings::new(), with)
}

fn value(shape: BackendShape, text: &str) -> BackendValue {
    match shape {
        BackendShape::Flag => BackendValue::Flag(text == "true"),
        BackendShape::Texts => BackendValue::Texts(text.split(',').map(ToOwned::to_owned).collect()),
        BackendShape::Path => BackendValue::Path(text.into()),
        BackendShape::Secret => BackendValue::Secret(text.into()),
        _ => BackendValue::Text(text.to_owned()),
    }
}

/// Reads the keys of `kind` in the table `discovery`.
pub(super) fn read(discovery: &SettingsTable<'_>, kind: &BackendKind) -> Result<BackendSettings, Error> {
    let table = discovery.table(kind.name);
    let mut settings = BackendSettings::new();
    for key in kind.keys {
        let value = match key.shape {
            BackendShape::Secret => secret(&table, key)?,
            BackendShape::Path => table.take_path(&key_of(key))?.map(BackendValue::Path),
            _ => table.find(&key_of(key))?.map(|found| taken(&table, key, &found)),
        };
        if let Some(value) = value {
            settings = settings.with(key.name, value);
        }
    }
    Ok(settings)
}

/// The secret itself or the file that contains it, whichever has the greater nearness: for this policy over for all, then in a later layer.
fn secret(table: &SettingsTable<'_>, key: &BackendKey) -> Result<Option<BackendValue>, Error> {
    let written = table.find(&key_of(key))?;
    let file = twin_of(key).map(|twin| table.find(&twin)).transpose()?.flatten();
    let from_file = |file: &ResolvedValue| table.take_secret(file).map(|secret| Some(BackendValue::Secret(secret)));
    match (written, file) {
        (None, None) => Ok(None),
        (None, Some(file)) => from_file(&file),
        (Some(written), None) => Ok(Some(taken(table, key, &written))),
        (Some(written), Some(file)) => match written.nearness().cmp(&file.nearness()) {
            std::cmp::Ordering::Greater => Ok(Some(taken(table, key, &written))),
            std::cmp::Ordering::Less => from_file(&file),
            std::cmp::Ordering::Equal => Err(file.refuse(format_args!("{} is written too; remove one of them", key.name))),
        },
    }
}

/// The value, recorded as in force in displayable form.
fn taken(table: &SettingsTable<'_>, key: &BackendKey, found: &ResolvedValue) -> BackendValue {
    let value = value(key.shape, found.text());
    table.note(found, &value);
    value
}

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
